"""`strandline compare`: two states of a table, or two tables, row by row."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, print_table
from strandline.model.errors import TrustViolation

if TYPE_CHECKING:
    from strandline.evidence.comparing import Comparison

TableArgument = Annotated[str, typer.Argument(help="TABLE, or TABLE@ with a branch, a tag or a snapshot id.", metavar="TABLE[@REF]")]


def register(app: typer.Typer) -> None:
    app.command()(compare)


def compare(
    left: TableArgument,
    right: TableArgument,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="A column that rows are known by; may be repeated. Without it whole rows.", metavar="COLUMN"),
    ] = None,
    by: Annotated[str | None, typer.Option("--by", help="Break the counts down by this column; instants by day.", metavar="COLUMN")] = None,
    limit: Annotated[int, typer.Option("--limit", help="Show at most so many differences.", min=0)] = 10,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two tables, or a table with what it was at a branch, tag or snapshot. Exit code 3 when they differ. Needs no Spark."""
    from strandline.evidence.comparing import COMPARE_VERSION
    from strandline.evidence.comparing import compare as compared
    from strandline.project.config import load_project
    from strandline.tables.rows import rows_of

    project = load_project(profile=profile)
    found = compared(rows_of(project, left), rows_of(project, right), tuple(key or ()), by, limit)
    if as_json:
        print_json({"version": COMPARE_VERSION, "same": found.same, **asdict(found)})
    else:
        _print(found)
    if not found.same:
        raise TrustViolation(
            f"{left} and {right} differ: {found.only_left} only in the first, {found.only_right} only in the second, {found.differing} different",
            next_command=f"strandline history {left.partition('@')[0]}",
        )


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
