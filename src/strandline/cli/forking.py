"""`strandline fork`: a second strand of a pipeline, beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import reporter
from strandline.cli.restoring import confirm_plan, tell_plan
from strandline.cli.running import run_and_tell, run_limit
from strandline.cli.savepoint import asker
from strandline.model.errors import NotFound, UsageError

if TYPE_CHECKING:
    from strandline.model.fork import Fork
    from strandline.project.config import Project


def register(app: typer.Typer) -> None:
    app.command()(fork)
    app.command()(discard)


def fork(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline to fork.")],
    begins: Annotated[
        str,
        typer.Option(
            "--from", help="A savepoint, the number of a kept batch, or 'start': no state, the sources' beginning.", metavar="PLACE"
        ),
    ],
    name: Annotated[str, typer.Option("--as", help="Name of the fork; it is run and shown like a pipeline.", metavar="NAME")],
    into: Annotated[str, typer.Option("--into", help="branch:NAME of the pipeline's tables, or table:NAME of its own.", metavar="WHERE")],
    until: Annotated[
        str | None,
        typer.Option(
            "--until", help='End there: a moment such as 2026-01-31T00:00:00Z, or offsets such as {"orders": {"0": 1200}}.', metavar="END"
        ),
    ] = None,
    code: Annotated[
        Path | None, typer.Option("--code", help="File that declares the pipeline otherwise, in this project.", metavar="FILE")
    ] = None,
    available_now: Annotated[bool, typer.Option("--available-now", help="Read everything that is there, then end.")] = False,
    duration: Annotated[str | None, typer.Option("--for", help="Run this long, such as '10 minutes'.", metavar="DURATION")] = None,
    batches: Annotated[int | None, typer.Option("--batches", help="Run so many batches.", min=1)] = None,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a second strand of a pipeline from a savepoint, a batch or the start, into a branch or a table of its own.

    The pipeline itself goes on undisturbed. Later starts of the fork: the same command, or strandline run NAME.
    """
    from strandline.checkpoints.place import forget_place
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.project.forks import declare_fork
    from strandline.project.loader import load_pipelines, parent_of
    from strandline.runtime.options import Allowances
    from strandline.savepoints.forking import is_made, plan_fork

    limit = run_limit(f"strandline fork {pipeline} …", available_now, duration, batches)
    project = load_project(profile=profile)
    pipelines = load_pipelines(project)
    if pipeline not in pipelines:
        raise NotFound(
            f"there is no pipeline '{pipeline}' (pipelines: {', '.join(sorted(pipelines)) or 'none'})", next_command="strandline status"
        )
    if name in pipelines and pipelines[name].parent is None:
        raise UsageError(f"'{name}' is a pipeline of this project; give the fork another name", next_command="the same command, other --as")
    wanted = _wanted(project, pipeline, begins, name, into, until, code)
    forked = wanted.of(parent_of(project, wanted, pipelines))
    if is_made(project, wanted):
        reporter().say(f"fork '{name}' was made so before; it goes on")
        run_and_tell(project, forked, limit, Allowances(), as_json=as_json)
        return
    plan = plan_fork(project, pipelines[pipeline], wanted, ledger_of(project), begins)
    tell_plan(plan.human())
    forget_place(project, name)  # of a fork that had the name before
    declare_fork(project, wanted)
    run_and_tell(project, forked, limit, Allowances(restoration=plan.restoration), as_json=as_json)


def discard(
    name: Annotated[str, typer.Argument(help="Name of the fork.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    profile: ProfileOption = None,
) -> None:
    """Give up a fork: its branch, its checkpoint and its declaration go; main, and a table of its own, stay."""
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.savepoints.discarding import branched_tables, find_fork
    from strandline.savepoints.discarding import discard as give_up
    from strandline.savepoints.session import SessionTags

    project = load_project(profile=profile)
    ledger = ledger_of(project)
    found = find_fork(project, ledger, name)
    tables = branched_tables(project, found)
    lines = [f"table {table}: branch '{found.into.branch}' and the rows that only it holds go" for table in tables]
    tell_plan([*lines, f"the checkpoint and the declaration of '{name}' go"])
    confirm_plan(yes)
    with SessionTags(project, "discard", reporter().say) as session:
        give_up(project, ledger, found, session.drop_branch, asker())
    print(f"fork '{name}' is discarded")


def _wanted(project: Project, parent: str, begins: str, name: str, into: str, until: str | None, code: Path | None) -> Fork:
    from strandline.model.fork import Fork, Into
    from strandline.model.times import rfc3339, utc_now
    from strandline.model.until import Until

    file = None
    if code is not None:
        try:
            file = str(code.resolve().relative_to(project.root.resolve()))
        except ValueError:
            raise UsageError(
                f"{code} lies outside of the project {project.root}, where a later start would not find it",
                next_command=f"copy it into {project.root}",
            ) from None
    end = Until.parse(until) if until is not None else None
    return Fork(name, parent, Into.parse(into), begins, file, end, rfc3339(utc_now()), asker(), project.profile_name)
