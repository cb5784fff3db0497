"""`run --from-savepoint` and `--from-checkpoint`: the plan is shown, and applied when it is confirmed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from strandline.cli.confirming import confirm
from strandline.cli.output import reporter
from strandline.model.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.model.definition import Pipeline
    from strandline.model.savepoint import Savepoint
    from strandline.project.config import Project
    from strandline.runtime.rehearsal import Rehearsal
    from strandline.runtime.strands import Restoration


def confirmed_restoration(
    project: Project,
    pipeline: Pipeline,
    savepoint: str | None,
    batch: int | None,
    tables: str | None,
    again: Collection[str],
    map_paths: Sequence[str],
    *,
    new_strand: bool,
    claim: bool,
    yes: bool,
    dropped: Collection[str] = (),
    session: Callable[[], SparkSession] | None = None,
) -> Restoration | None:
    """None when no restore was asked for."""
    wanted = [name for name, given in (("--from-savepoint", savepoint), ("--from-checkpoint", batch)) if given is not None]
    if not wanted:
        _refuse_lonely(pipeline.name, tables, map_paths, claim, dropped)
        return None
    if len(wanted) > 1 or new_strand:
        raise UsageError(
            f"{wanted[0]} and {wanted[1] if len(wanted) > 1 else '--new-strand'} exclude each other",
            next_command=f"strandline savepoint list {pipeline.name}",
        )
    if claim and savepoint is None:
        raise UsageError(
            "--claim is about a savepoint; a batch of the checkpoint goes by itself",
            next_command=f"strandline run {pipeline.name} --from-checkpoint {batch} --tables rollback",
        )
    from strandline.ledger import ledger_of
    from strandline.savepoints.archive import find_archive
    from strandline.savepoints.input_paths import PathMap
    from strandline.savepoints.restoring import plan_from_checkpoint, plan_from_savepoint
    from strandline.savepoints.table_plans import Tables

    chosen = Tables.parse(tables)
    if chosen is None:
        said = f"--tables {tables} is unknown" if tables is not None else f"{wanted[0]} needs --tables"
        raise UsageError(
            f"{said}; choose what happens to the tables: rollback, continue or branch:NAME",
            next_command=f"strandline run {pipeline.name} {wanted[0]} {savepoint if savepoint is not None else batch} --tables rollback",
        )
    ledger = ledger_of(project)
    inputs = PathMap.parse(project, map_paths)
    if savepoint is not None:
        archive = find_archive(project, pipeline.name, savepoint)
        code = _rehearsed(project, pipeline, archive.read(), session)
        found = plan_from_savepoint(
            project, pipeline, ledger, archive, chosen, claim=claim, again=again, inputs=inputs, dropped=dropped, code=code
        )
    else:
        assert batch is not None
        found = plan_from_checkpoint(project, pipeline, ledger, batch, chosen, again=again, inputs=inputs)
    tell_plan([*found.plan.human(), *inputs.human()])
    confirm_plan(yes)
    return found.restoration


def tell_plan(lines: Sequence[str]) -> None:
    say = reporter().say
    say("the plan:")
    for line in lines:
        say(f"  {line}")


def confirm_plan(yes: bool) -> None:
    confirm("apply it?", "the plan is only applied when it is confirmed", yes=yes)


def _rehearsed(project: Project, pipeline: Pipeline, saved: Savepoint, session: Callable[[], SparkSession] | None) -> Rehearsal | None:
    """What the code declares; only asked, since Spark is needed for it, where state has to fit it."""
    from strandline.model.savepoint import SavepointType
    from strandline.runtime.rehearsal import rehearse

    keyed = any(not operator.get("native") for operator in saved.operators)
    if session is None or not (keyed or saved.type is SavepointType.CANONICAL):
        return None
    return rehearse(session(), project, pipeline)


def _refuse_lonely(pipeline: str, tables: str | None, map_paths: Sequence[str], claim: bool, dropped: Collection[str]) -> None:
    """Options that mean something only beside a restore must not be taken for one."""
    given = {"--tables": tables is not None, "--map-path": bool(map_paths), "--claim": claim, "--allow-dropped-state": bool(dropped)}
    lonely = next((option for option, there in given.items() if there), None)
    if lonely is not None:
        raise UsageError(
            f"{lonely} says how to restore, and no savepoint or batch is named",
            next_command=f"strandline run {pipeline} --from-savepoint …",
        )
