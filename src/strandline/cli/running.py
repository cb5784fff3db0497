"""Commands that run and stop pipelines: run, stop."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import LiveReporter, print_json, reporter
from strandline.cli.restoring import confirmed_restoration
from strandline.cli.savepoint import asker
from strandline.model.errors import NotFound, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.model.definition import Pipeline
    from strandline.project.config import Project
    from strandline.runtime.options import Allowances, RunLimit


def register(app: typer.Typer) -> None:
    app.command()(run)
    app.command()(stop)


def run(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    available_now: Annotated[bool, typer.Option("--available-now", help="Read everything that is there, then end.")] = False,
    duration: Annotated[str | None, typer.Option("--for", help="Run this long, such as '10 minutes'.", metavar="DURATION")] = None,
    batches: Annotated[int | None, typer.Option("--batches", help="Run so many batches.", min=1)] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="Fence an attempt that still seems alive, and go on.")] = False,
    new_strand: Annotated[
        bool, typer.Option("--new-strand", help="Begin a new checkpoint and read the sources from the start, on top of the tables.")
    ] = False,
    start_table: Annotated[
        list[str] | None,
        typer.Option("--start-table", help="Let this table (or kafka:TOPIC) begin at the checkpoint's position.", metavar="TABLE"),
    ] = None,
    accept_gap: Annotated[
        list[str] | None,
        typer.Option("--accept-gap", help="Go on although these records are gone from their topic.", metavar="TOPIC:PARTITION:FROM-TO"),
    ] = None,
    from_savepoint: Annotated[
        str | None,
        typer.Option("--from-savepoint", help="Go on from this savepoint, as a new strand; the plan is shown first.", metavar="SAVEPOINT"),
    ] = None,
    from_checkpoint: Annotated[
        int | None, typer.Option("--from-checkpoint", help="Go on from this older batch, as a new strand.", metavar="BATCH", min=0)
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(
            "--tables",
            help="What a restore does to the tables: rollback to the batch, continue where they are, or go on in a branch:NAME.",
            metavar="CHOICE",
        ),
    ] = None,
    map_path: Annotated[
        list[str] | None,
        typer.Option("--map-path", help="Of a restore: this folder of input files has another path now.", metavar="OLD=NEW"),
    ] = None,
    claim: Annotated[
        bool, typer.Option("--claim/--no-claim", help="Dispose of the savepoint once the new strand has completed a batch.")
    ] = False,
    allow_dropped_state: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-dropped-state",
            help="Leave the saved state of this operator behind (NAME.timers: only its timers).",
            metavar="NAME",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the plan of a restore without asking.")] = False,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a pipeline: continuously, or until a limit. Ctrl-C ends it after the current batch."""
    from strandline.model.continuity import Gap
    from strandline.project.config import load_project
    from strandline.project.loader import load_pipeline
    from strandline.runtime.options import Allowances
    from strandline.runtime.session import EarlySession

    limit = run_limit(f"strandline run {pipeline}", available_now, duration, batches)
    project = load_project(profile=profile)
    declared = load_pipeline(project, pipeline)
    gaps = frozenset(map(Gap.parse, accept_gap or ()))
    with EarlySession(project, pipeline, reporter().say) as early:
        restoration = confirmed_restoration(
            project,
            declared,
            from_savepoint,
            from_checkpoint,
            tables,
            start_table or (),
            map_path or (),
            new_strand=new_strand,
            claim=claim,
            yes=yes,
            dropped=allow_dropped_state or (),
            session=early.session,
        )
        allow = Allowances(take_over, new_strand, frozenset(start_table or ()), gaps, restoration)
        run_and_tell(project, declared, limit, allow, as_json=as_json, session=early.started)


def run_limit(command: str, available_now: bool, duration: str | None, batches: int | None) -> RunLimit:
    from strandline.model.times import parse_duration
    from strandline.runtime.options import AvailableNow, Continuous, ForBatches, ForDuration

    limits: list[RunLimit] = []
    limits += [AvailableNow()] if available_now else []
    limits += [ForDuration(parse_duration(duration))] if duration else []
    limits += [ForBatches(batches)] if batches else []
    if len(limits) > 1:
        raise UsageError("--available-now, --for and --batches exclude each other", next_command=f"{command} --available-now")
    return limits[0] if limits else Continuous()


def run_and_tell(
    project: Project, pipeline: Pipeline, limit: RunLimit, allow: Allowances, *, as_json: bool, session: SparkSession | None = None
) -> None:
    from strandline.ledger import ledger_of
    from strandline.runtime.run import run_pipeline
    from strandline.savepoints.attending import savepoint_keeper

    watcher = reporter()
    keeper = savepoint_keeper(project, ledger_of(project), watcher)
    summary = run_pipeline(project, pipeline, limit, watcher, allow=allow, session=session, hire=[keeper])
    if isinstance(watcher, LiveReporter):
        watcher.finish()
    if as_json:
        print_json({"version": 1, **asdict(summary), "reason": summary.reason.value})
        return
    print(
        f"{summary.pipeline}: attempt {summary.attempt} ended because {summary.reason.value}: {summary.batches} batches, {summary.rows} rows"
    )
    for table, snapshot in summary.snapshots.items():
        print(f"  {table}{'' if summary.branch == 'main' else '@' + summary.branch} is at snapshot {snapshot}")
    for topic, rows in summary.delivered.items():
        print(f"  {topic} got {rows} rows")
    print(f"next: strandline history {summary.pipeline}")


def stop(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the pipeline for good: its checkpoint is kept or deleted as its policy says.")
    ] = False,
    savepoint: Annotated[bool, typer.Option("--savepoint", help="Take a savepoint of its last batch before it ends.")] = False,
    wait: Annotated[str, typer.Option("--wait", help="How long to wait for it to end.", metavar="DURATION")] = "2 minutes",
    profile: ProfileOption = None,
) -> None:
    """Ask a running pipeline, here or on another machine, to end after its current batch."""
    from strandline.cli.savepoint import stop_wish
    from strandline.ledger import ledger_of
    from strandline.ledger.records import AttemptStatus
    from strandline.ledger.requests import CANCEL, STOP, STOP_WITH_SAVEPOINT
    from strandline.model.errors import Failure
    from strandline.model.times import parse_duration
    from strandline.project.config import load_project
    from strandline.runtime.liveness import Liveness, liveness_of

    patience = parse_duration(wait)
    if cancel and savepoint:
        raise UsageError(
            "--cancel ends the pipeline for good and --savepoint keeps a place to go on from",
            next_command=f"strandline stop {pipeline} --savepoint",
        )
    ledger = ledger_of(load_project(profile=profile))
    attempt = ledger.attempts.latest(pipeline)
    if attempt is None or liveness_of(attempt) not in (Liveness.ALIVE, Liveness.SILENT):
        raise NotFound(f"pipeline '{pipeline}' is not running", next_command="strandline status")
    if savepoint:
        from strandline.savepoints.asking import ask

        taken = ask(ledger, attempt, STOP_WITH_SAVEPOINT, stop_wish(), patience, reporter().say)
        print(f"{pipeline}: savepoint {taken}")
    else:
        ledger.requests.ask(pipeline, attempt.number, CANCEL if cancel else STOP, asker())
    deadline = time.monotonic() + patience.total_seconds()
    while time.monotonic() < deadline:
        now = ledger.attempts.get(pipeline, attempt.number)
        if now is not None and now.status is not AttemptStatus.RUNNING:
            print(f"{pipeline}: attempt {now.number} {now.status.value}: {now.reason}")
            return
        time.sleep(0.2)
    raise Failure(
        f"'{pipeline}' was asked to stop but has not ended within {wait}; the request stays open", next_command="strandline status"
    )
