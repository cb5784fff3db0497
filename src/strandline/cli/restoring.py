"""`run --from-savepoint` and `--from-checkpoint`: the plan is shown, and applied when it is confirmed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import typer

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
        _refuse_lonely(pipeline.name, tables, claim, dropped)
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
    from strandline.savepoints.restoring import TableChoice, plan_from_checkpoint, plan_from_savepoint

    choices = [choice.value for choice in TableChoice]
    if tables not in choices:
        said = f"--tables {tables} is unknown" if tables is not None else f"{wanted[0]} needs --tables"
        raise UsageError(
            f"{said}; choose what happens to the tables: {' or '.join(choices)}",
            next_command=f"strandline run {pipeline.name} {wanted[0]} {savepoint if savepoint is not None else batch} --tables rollback",
        )
    ledger = ledger_of(project)
    if savepoint is not None:
        archive = find_archive(project, pipeline.name, savepoint)
        code = _rehearsed(project, pipeline, archive.read(), session)
        found = plan_from_savepoint(
            project, pipeline, ledger, archive, TableChoice(tables), claim=claim, again=again, dropped=dropped, code=code
        )
    else:
        assert batch is not None
        found = plan_from_checkpoint(project, pipeline, ledger, batch, TableChoice(tables), again=again)
    say = reporter().say
    say("the plan:")
    for line in found.plan.human():
        say(f"  {line}")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("the plan is only applied when it is confirmed", next_command="the same command with --yes")
        typer.confirm("apply it?", abort=True, err=True)
    return found.restoration


def _rehearsed(project: Project, pipeline: Pipeline, saved: Savepoint, session: Callable[[], SparkSession] | None) -> Rehearsal | None:
    """What the code declares; only asked, since Spark is needed for it, where state has to fit it."""
    from strandline.model.savepoint import SavepointType
    from strandline.runtime.rehearsal import rehearse

    keyed = any(not operator.get("native") for operator in saved.operators)
    if session is None or not (keyed or saved.type is SavepointType.CANONICAL):
        return None
    return rehearse(session(), project, pipeline)


def _refuse_lonely(pipeline: str, tables: str | None, claim: bool, dropped: Collection[str]) -> None:
    """Options that mean something only beside a restore must not be taken for one."""
    given = {"--tables": tables is not None, "--claim": claim, "--allow-dropped-state": bool(dropped)}
    lonely = next((option for option, is_given in given.items() if is_given), None)
    if lonely is not None:
        raise UsageError(
            f"{lonely} says how to restore, and no savepoint or batch is named",
            next_command=f"strandline run {pipeline} --from-savepoint …",
        )
