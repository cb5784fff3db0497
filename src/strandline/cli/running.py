"""Commands that run and stop pipelines: run, stop, cleanup."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import LiveReporter, print_json, print_table, reporter
from strandline.cli.restoring import confirmed_restoration
from strandline.cli.savepoint import asker
from strandline.model.errors import NotFound, UsageError


def register(app: typer.Typer) -> None:
    app.command()(run)
    app.command()(stop)
    app.command()(cleanup)


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
            "--tables", help="What a restore does to the tables: rollback to the batch, or continue where they are.", metavar="CHOICE"
        ),
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
    from strandline.ledger import ledger_of
    from strandline.model.continuity import Gap
    from strandline.model.times import parse_duration
    from strandline.project.config import load_project
    from strandline.project.loader import load_pipeline
    from strandline.runtime.options import Allowances, AvailableNow, Continuous, ForBatches, ForDuration, RunLimit
    from strandline.runtime.run import run_pipeline
    from strandline.runtime.session import EarlySession
    from strandline.savepoints.attending import savepoint_keeper

    limits: list[RunLimit] = []
    limits += [AvailableNow()] if available_now else []
    limits += [ForDuration(parse_duration(duration))] if duration else []
    limits += [ForBatches(batches)] if batches else []
    if len(limits) > 1:
        raise UsageError(
            "--available-now, --for and --batches exclude each other", next_command=f"strandline run {pipeline} --available-now"
        )
    project = load_project(profile=profile)
    declared = load_pipeline(project, pipeline)
    watcher = reporter()
    gaps = frozenset(map(Gap.parse, accept_gap or ()))
    with EarlySession(project, pipeline, watcher.say) as early:
        restoration = confirmed_restoration(
            project,
            declared,
            from_savepoint,
            from_checkpoint,
            tables,
            start_table or (),
            new_strand=new_strand,
            claim=claim,
            yes=yes,
            dropped=allow_dropped_state or (),
            session=early.session,
        )
        summary = run_pipeline(
            project,
            declared,
            limits[0] if limits else Continuous(),
            watcher,
            allow=Allowances(take_over, new_strand, frozenset(start_table or ()), gaps, restoration),
            session=early.started,
            hire=[savepoint_keeper(project, ledger_of(project), watcher)],
        )
    if isinstance(watcher, LiveReporter):
        watcher.finish()
    if as_json:
        print_json({"version": 1, **asdict(summary), "reason": summary.reason.value})
        return
    print(
        f"{summary.pipeline}: attempt {summary.attempt} ended because {summary.reason.value}: {summary.batches} batches, {summary.rows} rows"
    )
    for table, snapshot in summary.snapshots.items():
        print(f"  {table} is at snapshot {snapshot}")
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


def cleanup(
    pipeline: Annotated[str | None, typer.Argument(help="Only this pipeline's files.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what the plan lists; without it the plan is only shown.")] = False,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find files that a killed or refused attempt staged and no snapshot holds; --remove deletes them."""
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.runtime.cleanup import apply_cleanup, plan_cleanup

    project = load_project(profile=profile)
    ledger = ledger_of(project)
    items = plan_cleanup(project, ledger, pipeline)
    removed = apply_cleanup(project, ledger, items) if remove else 0
    if as_json:
        rows = [
            {"pipeline": i.intent.pipeline, "table": i.intent.table, "batch": i.intent.batch, "attempt": i.intent.attempt}
            | {"files": [f.path for f in i.intent.files], "decision": i.decision}
            for i in items
        ]
        print_json({"version": 1, "removed": removed, "items": rows})
        return
    if not items:
        print("nothing to clean up")
        return
    print_table(
        ["pipeline", "table", "batch", "attempt", "files", "decision"],
        [
            [i.intent.pipeline, i.intent.table, str(i.intent.batch), str(i.intent.attempt), str(len(i.intent.files)), i.decision]
            for i in items
        ],
    )
    print(f"removed {removed} files" if remove else "next: strandline cleanup --remove")
