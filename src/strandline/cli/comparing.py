"""`strandline compare`: two tables, two pipelines, or two moments of one, row by row."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, print_table
from strandline.model.errors import NotFound, TrustViolation, UsageError

if TYPE_CHECKING:
    from strandline.evidence.comparing import Comparison
    from strandline.evidence.pipeline_comparing import Manner, SideBySide
    from strandline.project.config import Project

_HELP = (
    "A table (TABLE, or TABLE@ with a branch, tag or snapshot id), a pipeline (PIPELINE, or PIPELINE@BATCH), or a savepoint's id or folder."
)
SideArgument = Annotated[str, typer.Argument(help=_HELP, metavar="TABLE[@REF]|PIPELINE[@BATCH]|SAVEPOINT")]


def register(app: typer.Typer) -> None:
    app.command()(compare)


def compare(
    left: SideArgument,
    right: SideArgument,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="A column that rows are known by; may be repeated. Without it whole rows.", metavar="COLUMN"),
    ] = None,
    by: Annotated[str | None, typer.Option("--by", help="Break the counts down by this column; instants by day.", metavar="COLUMN")] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="Leave out this column, or this state; may be repeated.", metavar="NAME")
    ] = None,
    tables: Annotated[bool, typer.Option("--tables", help="Of pipelines only the tables; needs no Spark.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Of pipelines only the state.")] = False,
    limit: Annotated[int, typer.Option("--limit", help="Show at most so many differences.", min=0)] = 10,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two tables, or the tables and the state of two pipelines. Exit code 3 when they differ. Tables need no Spark."""
    from strandline.evidence.pipeline_comparing import Manner
    from strandline.evidence.sides import names_table
    from strandline.project.config import load_project

    project = load_project(profile=profile)
    if not (names_table(left) and names_table(right)):
        manner = Manner(tuple(key or ()), by, limit, tuple(ignore or ()))
        both = _compare_pipelines(project, left, right, manner, tables=tables, state=state)
        if as_json:
            print_json(both.as_json())
        else:
            _print_sides(both)
        _check_same(both)
        return
    if tables or state:
        raise UsageError("--tables and --state are about pipelines", next_command=f"strandline compare {left} {right}")
    from strandline.evidence.comparing import COMPARE_VERSION
    from strandline.evidence.comparing import compare as compared
    from strandline.tables.rows import rows_of

    found = compared(rows_of(project, left), rows_of(project, right), tuple(key or ()), by, limit, ignore or ())
    if as_json:
        print_json({"version": COMPARE_VERSION, "same": found.same, **asdict(found)})
    else:
        _print(found)
    if not found.same:
        raise TrustViolation(
            f"{left} and {right} differ: {found.only_left} only in the first, {found.only_right} only in the second, {found.differing} different",
            next_command=f"strandline history {left.partition('@')[0]}",
        )


def _compare_pipelines(project: Project, left: str, right: str, manner: Manner, *, tables: bool, state: bool) -> SideBySide:
    """Both, unless one of them was asked for; a savepoint has state alone."""
    from strandline.cli.state import reading_session
    from strandline.evidence.pipeline_comparing import SideBySide, compare_state, compare_tables
    from strandline.evidence.sides import outputs_of, side_of
    from strandline.ledger import ledger_of

    wants_tables, wants_state = tables or not state, state or not tables
    ledger = ledger_of(project)
    with ExitStack() as opened:
        sides = [opened.enter_context(side_of(project, ledger, asked)) for asked in (left, right)]
        found = SideBySide(sides[0], sides[1])
        if wants_tables and not any(side.is_savepoint for side in sides):
            outputs = [outputs_of(project, ledger, side) for side in sides]
            compare_tables(found, outputs[0], outputs[1], manner)
        elif tables or manner.key or manner.by:
            raise UsageError(
                "--tables, --key and --by are about tables, and no two pipelines' tables are compared",
                next_command=f"strandline compare {left} {right} --state",
            )
        if state and not any(side.keeps_state for side in sides):
            raise NotFound(f"neither {left} nor {right} keeps state", next_command=f"strandline compare {left} {right} --tables")
        if wants_state:
            compare_state(found, lambda: reading_session(project, sides[0].pipeline), manner)
    return found


def _check_same(found: SideBySide) -> None:
    if not found.same:
        lonely = [f"{name} only in one" for name in found.lonely]
        raise TrustViolation(
            f"{found.left.name} and {found.right.name} differ: {', '.join([*found.different, *lonely])}",
            next_command=f"strandline history {found.left.pipeline}",
        )


def _print_sides(found: SideBySide) -> None:
    for label, side in (("first", found.left), ("second", found.right)):
        print(f"{label}: {side.name}" + (f" after batch {side.batch}" if side.batch is not None else ""))
    for name, comparison in found.tables.items():
        print(f"table '{name}'")
        _print(comparison)
    for name, comparison in found.operators.items():
        print(f"state '{name}'")
        _print(comparison)
    only = [
        ("tables only in the first", found.tables_only_left),
        ("tables only in the second", found.tables_only_right),
        ("operators only in the first", found.operators_only_left),
        ("operators only in the second", found.operators_only_right),
    ]
    for label, names in only:
        if names:
            print(f"{label}: {', '.join(names)}")


def _print(found: Comparison) -> None:
    what = f"keys ({', '.join(found.key)})" if found.key else "rows"
    print(f"{found.left}: {found.left_rows} rows, {found.right}: {found.right_rows} rows")
    counts = [
        (f"{what} equal", found.equal),
        ("only in the first", found.only_left),
        ("only in the second", found.only_right),
        ("different", found.differing),
        ("doubled in the first", found.doubled_left),
        ("doubled in the second", found.doubled_right),
    ]
    for label, count in counts:
        if count or label.endswith("equal"):
            print(f"  {label}: {count}")
    for label, names in (("first", found.columns_only_left), ("second", found.columns_only_right)):
        if names:
            print(f"  columns only in the {label}: {', '.join(names)}")
    if found.groups:
        print_table(
            ["value", "first", "second", "different"], [[str(g.value), str(g.left), str(g.right), str(g.different)] for g in found.groups]
        )
    for example in found.examples:
        print(f"  {json.dumps(dict(example.key), ensure_ascii=False)}")
        for label, row in (("first", example.left), ("second", example.right)):
            print(f"    {label}: {json.dumps(dict(row), ensure_ascii=False) if row is not None else 'not there'}")
