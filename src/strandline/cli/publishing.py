"""`strandline publish`: a branch becomes the main of its tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, reporter
from strandline.cli.restoring import confirm_plan, tell_plan
from strandline.model.errors import Refused, TrustViolation, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strandline.evidence.comparing import Comparison
    from strandline.model.definition import Pipeline
    from strandline.project.config import Project
    from strandline.runtime.options import Allowances
    from strandline.savepoints.publishing import Publication


def register(app: typer.Typer) -> None:
    app.command()(publish)


def publish(
    branch: Annotated[str, typer.Argument(help="Name of the branch, or of the fork that writes to it.")],
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            help="Publish although the branch is 'behind', 'different', by other 'code', or others wrote ('foreign').",
            metavar="WHAT",
        ),
    ] = None,
    start_table: Annotated[
        list[str] | None,
        typer.Option("--start-table", help="Let this kafka:TOPIC begin at the branch's position.", metavar="kafka:TOPIC"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the plan without asking.")] = False,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a branch the main of its tables, after comparing the two; the pipeline goes on from where the branch is.

    What main held is kept by a tag. Exit code 3 when the two differ, 4 when main has moved on.
    """
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.runtime.options import Allowances
    from strandline.savepoints.publishing import Objection, finished_publication, plan_publication

    accepted = _accepted(accept or ())
    project = load_project(profile=profile)
    done = finished_publication(project, branch)
    if done is not None:
        _forget(project, done.writer)
        _tell(branch, done.pipeline, {}, as_json=as_json)
        return
    plan = plan_publication(project, ledger_of(project), branch, start_table or ())
    tell_plan(plan.human())
    comparisons = {table.name: _compared(project, plan, table.name) for table in plan.tables if table.head is not None}
    for found in comparisons.values():
        reporter().say(f"  {_told(found)}")
    objections = dict(plan.objections)
    if any(not found.same for found in comparisons.values()):
        objections[Objection.DIFFERENT] = "branch and main hold other rows: " + "; ".join(map(_told, comparisons.values()))
    left = {kind: text for kind, text in objections.items() if kind.value not in accepted}
    if left:
        kind, text = next(iter(left.items()))
        flags = " ".join(f"--accept {each}" for each in sorted({*accepted, *(kind.value for kind in left)}))
        refuse = Refused if kind in (Objection.BEHIND, Objection.FOREIGN) else TrustViolation
        raise refuse(f"branch '{branch}' is not published: {text}", next_command=f"or accept it: strandline publish {branch} {flags}")
    confirm_plan(yes)
    _apply(project, plan.pipeline, plan.writer.name, Allowances(start_tables=frozenset(start_table or ()), restoration=plan.restoration))
    _tell(branch, plan.pipeline.name, comparisons, as_json=as_json)


def _accepted(given: Sequence[str]) -> set[str]:
    from strandline.savepoints.publishing import Objection

    known = [objection.value for objection in Objection]
    if unknown := sorted(set(given) - set(known)):
        raise UsageError(f"--accept {unknown[0]} is unknown; it is one of {', '.join(known)}", next_command="strandline publish --help")
    return set(given)


def _compared(project: Project, plan: Publication, table: str) -> Comparison:
    from strandline.evidence.comparing import compare
    from strandline.model.definition import TableSink
    from strandline.tables.rows import rows_of

    key = next((sink.key for sink in plan.pipeline.sinks.values() if isinstance(sink, TableSink) and sink.name == table), ())
    return compare(rows_of(project, f"{table}@main"), rows_of(project, f"{table}@{plan.branch}"), key, None, 0)


def _told(found: Comparison) -> str:
    return (
        f"{found.left} has {found.left_rows} rows, {found.right} {found.right_rows}: {found.equal} equal, {found.only_left} only in main, "
        f"{found.only_right} only in the branch, {found.differing} different"
    )


def _apply(project: Project, pipeline: Pipeline, writer: str, allow: Allowances) -> None:
    from strandline.runtime.options import ClaimOnly
    from strandline.runtime.run import run_pipeline

    run_pipeline(project, pipeline, ClaimOnly(), reporter(), allow=allow)
    _forget(project, writer)


def _forget(project: Project, writer: str) -> None:
    """A fork that is published has ended; one of its name may begin anew."""
    from strandline.checkpoints.place import forget_place
    from strandline.project.forks import forget_fork, forks_of

    if writer in forks_of(project):
        forget_place(project, writer)
        forget_fork(project, writer)


def _tell(branch: str, pipeline: str, comparisons: dict[str, Comparison], *, as_json: bool) -> None:
    if as_json:
        tables = {name: asdict(found) for name, found in comparisons.items()}
        print_json({"version": 1, "branch": branch, "pipeline": pipeline, "tables": tables})
        return
    print(f"branch '{branch}' is main now; '{pipeline}' goes on from it")
    print(f"next: strandline run {pipeline}")
