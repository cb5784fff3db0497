"""`strandline replay`: one batch run again, beside what it left in the tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, reporter
from strandline.model.errors import TrustViolation, UsageError

if TYPE_CHECKING:
    from strandline.evidence.replaying import Replay, ReplayedTable

_BRANCH = "branch:"


def register(app: typer.Typer) -> None:
    app.command()(replay)


def replay(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    batch: Annotated[int, typer.Option("--batch", help="The batch to run again.", min=0, metavar="BATCH")],
    into: Annotated[
        str | None,
        typer.Option("--into", help="Also put the rows on a new branch of each table, made where the batch began.", metavar="branch:NAME"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Show at most so many differences of each table.", min=0)] = 10,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a batch again from its recorded offsets and the state before it, and compare. Exit code 3 when rows differ. Nothing is changed."""
    from strandline.evidence.replaying import REPLAY_VERSION
    from strandline.evidence.replaying import replay as run_again
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.project.loader import load_pipeline

    if into is not None and not into.startswith(_BRANCH):
        raise UsageError(
            f"--into {into}: a replay can only go into a branch",
            next_command=f"strandline replay {pipeline} --batch {batch} --into {_BRANCH}debug",
        )
    project = load_project(profile=profile)
    declared = load_pipeline(project, pipeline)
    branch = into.removeprefix(_BRANCH) if into is not None else None
    found = run_again(project, declared, ledger_of(project), batch, reporter(), into=branch, limit=limit)
    if as_json:
        told = asdict(found)
        for table, replayed in zip(told["tables"], found.tables, strict=True):
            table["same"] = replayed.comparison.same
        print_json({"version": REPLAY_VERSION, "same": found.same, **told})
    else:
        _print(found)
    if not found.same:
        raise TrustViolation(
            f"batch {batch} of '{pipeline}' comes out differently: {', '.join(_differing(found))}", next_command=_next(found, branch)
        )


def _differing(found: Replay) -> list[str]:
    return [table.table for table in found.tables if not table.comparison.same] + [topic.topic for topic in found.topics if not topic.same]


def _next(found: Replay, branch: str | None) -> str:
    if branch is None:
        return f"strandline replay {found.pipeline} --batch {found.batch} --into {_BRANCH}debug, to look at the rows"
    table = next((table for table in found.tables if not table.comparison.same), None)
    if table is None or table.snapshot is None:
        return f"strandline checkpoint show {found.pipeline} {found.batch}"
    return f"strandline compare {table.table}@{table.snapshot} {table.table}@{branch}"


def _print(found: Replay) -> None:
    state = {"checkpoint": "state from the checkpoint", "empty": "no state before it"}.get(
        found.state, f"state from savepoint {found.state}"
    )
    print(f"batch {found.batch} of '{found.pipeline}', strand {found.strand}: {found.offsets}, {state}")
    if found.code_then and found.code_then != found.code_now:
        print(f"the code has changed since: {found.code_then} then, {found.code_now} now")
    for table in found.tables:
        _print_table(table)
    for topic in found.topics:
        verdict = "equal" if topic.same else "different"
        print(
            f"topic {topic.topic}: {verdict} in number, {topic.delivered} rows delivered then, {topic.replayed} now; they are not compared"
        )
    for table in found.tables:
        if table.branch is not None:
            print(f"the rows are in {table.table}@{table.branch}")


def _print_table(table: ReplayedTable) -> None:
    found = table.comparison
    unit = "keys" if found.key else "rows"
    made = f"snapshot {table.snapshot}" if table.snapshot is not None else "no snapshot"
    if found.same:
        print(f"{table.table}: equal, {found.equal} {unit} ({made})")
        return
    print(f"{table.table}: different ({made})")
    counts = [
        (f"{unit} equal", found.equal),
        ("only in the table", found.only_left),
        ("only in the replay", found.only_right),
        ("different", found.differing),
        ("doubled in the table", found.doubled_left),
        ("doubled in the replay", found.doubled_right),
    ]
    for label, count in counts:
        if count or label.endswith("equal"):
            print(f"  {label}: {count}")
    for label, names in (("table", found.columns_only_left), ("replay", found.columns_only_right)):
        if names:
            print(f"  columns only in the {label}: {', '.join(names)}")
    for example in found.examples:
        if found.key:
            print(f"  {json.dumps(dict(example.key), ensure_ascii=False)}")
        for label, row in (("table", example.left), ("replay", example.right)):
            if row is not None or found.key:
                print(f"    {label + ':':<8}{json.dumps(dict(row), ensure_ascii=False) if row is not None else 'not there'}")
