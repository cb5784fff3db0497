"""Commands about what rollbacks left behind: list, release."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.confirming import confirm
from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, print_table, reporter
from strandline.cli.savepoint import asker
from strandline.model.errors import UsageError

if TYPE_CHECKING:
    from strandline.ledger import Ledger
    from strandline.project.config import Project
    from strandline.savepoints.abandoned import Abandoned

ABANDONED_VERSION = 1


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="abandoned",
        help="Table snapshots that a rollback left behind: a tag keeps them until they are released.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("list")(list_abandoned)
    group.command()(release)
    app.add_typer(group)


def list_abandoned(
    pipeline: Annotated[str | None, typer.Argument(help="Only what restores of this pipeline left.")] = None,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what restores left behind, and how much only it holds. Needs no Spark."""
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project

    project = load_project(profile=profile)
    found = _found(project, ledger_of(project), pipeline)
    if as_json:
        print_json({"version": ABANDONED_VERSION, "abandoned": [asdict(left) for left in found]})
        return
    _print(found)
    if found:
        print(f"next: strandline abandoned release {found[0].pipeline} {found[0].tag}")


def release(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    tags: Annotated[list[str] | None, typer.Argument(help="Tags to release, as `list` shows them.", metavar="TAG...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that restores of the pipeline left.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Without asking.")] = False,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the tags that keep what restores left behind. It cannot be undone: the snapshots may expire from then on."""
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.savepoints.abandoned import chosen
    from strandline.savepoints.abandoned import release as let_go
    from strandline.savepoints.session import SessionTags

    if everything == bool(tags):
        raise UsageError(
            "name the tags to release, or --all" if not tags else "--all and the names of tags exclude each other",
            next_command=f"strandline abandoned list {pipeline}",
        )
    project = load_project(profile=profile)
    ledger = ledger_of(project)
    found = _found(project, ledger, pipeline)
    lefts = found if everything else chosen(found, pipeline, tags or ())
    if lefts:
        say = reporter().say
        for left in lefts:
            say(f"{left.tag} of {left.table}: {left.rows} rows in {left.snapshots} snapshots that nothing else keeps")
        confirm("release it?", "tags are only released when it is confirmed: what they alone keep may expire", yes=yes)
        with SessionTags(project, f"{pipeline}-abandoned", say) as session:
            let_go(lefts, ledger, session, by=asker())
    if as_json:
        print_json({"version": ABANDONED_VERSION, "released": [asdict(left) for left in lefts]})
        return
    if not lefts:
        _print(lefts)
        return
    for left in lefts:
        print(f"{left.tag} of {left.table} is released: {left.snapshots} snapshots with {left.rows} rows may expire now")


def _found(project: Project, ledger: Ledger, pipeline: str | None) -> list[Abandoned]:
    from strandline.project.loader import load_pipeline
    from strandline.savepoints.abandoned import abandoned

    found = abandoned(project, ledger, pipeline)
    if pipeline is not None and not found and ledger.attempts.latest(pipeline) is None:
        load_pipeline(project, pipeline)  # raises, with the pipelines there are
    return found


def _print(found: list[Abandoned]) -> None:
    if not found:
        print("no restore has left anything behind")
        return
    rows = []
    for left in found:
        what = f"{left.left_strand[:8]}/{left.left_batch}" if left.left_strand else ""
        who = f"{left.attempt} ({left.strand[:8]})" if left.strand else str(left.attempt)
        rows.append([left.table, left.tag, str(left.snapshot), left.left_at or "", str(left.rows), str(left.snapshots), what, who])
    print_table(["table", "tag", "snapshot", "left", "rows", "snapshots", "strand/batch", "left by attempt (strand)"], rows)
