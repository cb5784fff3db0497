"""Running a pipeline, from configuration to summary: the one call behind ``strandline run``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.ledger import Ledger, ledger_of
from strandline.ledger.records import Attempt, AttemptStatus
from strandline.model.definition import Pipeline
from strandline.model.errors import Failure, Fenced, StrandlineError
from strandline.project.config import Project
from strandline.runtime.attending import Hire
from strandline.runtime.failures import explain_batch_failure
from strandline.runtime.heartbeat import Heartbeat
from strandline.runtime.lateness import LateWatermark
from strandline.runtime.options import Allowances, ClaimOnly, RunLimit
from strandline.runtime.reporting import Reporter
from strandline.runtime.running import EndReason, RunningAttempt, RunSummary
from strandline.runtime.session import start_session
from strandline.runtime.starting import Started, register, start
from strandline.runtime.state_backend import state_backend_warnings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_pipeline(
    project: Project,
    pipeline: Pipeline,
    limit: RunLimit,
    reporter: Reporter,
    *,
    allow: Allowances | None = None,
    session: SparkSession | None = None,
    hire: Sequence[Hire] = (),
) -> RunSummary:
    """Run one attempt of a pipeline.

    Args:
        session: a session to run in, which stays open; without it one is started for this run and stopped after it.
        hire: makes those who work beside the attempt, such as the one who takes savepoints.
    """
    allowances = allow or Allowances()
    ledger = ledger_of(project)
    registered = register(project, pipeline, ledger, allowances, reporter)
    number = registered.attempt.number
    reporter.say(f"attempt {number} of '{pipeline.name}', strand {registered.strand}")
    for warning in state_backend_warnings(project.profile.spark):
        reporter.say(f"warning: {warning}")
    try:
        with (
            Heartbeat(ledger, registered.attempt) as heartbeat,
            engine_for(project, pipeline, _log_file(project, pipeline, number), session, reporter) as spark,
        ):
            started = start(spark, project, pipeline, ledger, registered, allowances, reporter)
            if isinstance(limit, ClaimOnly):
                summary = _claimed(started, ledger)
            else:
                attendants = [make(spark, started) for make in hire]
                summary = RunningAttempt(spark, started, ledger, heartbeat, limit, reporter, attendants).run()
    except BaseException as error:
        failure = explain_batch_failure(pipeline.name, error) if isinstance(error, Exception) else error
        _record_early_end(ledger, registered.attempt, failure)
        LateWatermark(registered.checkpoint.location, number).remove()
        ledger.close()
        if isinstance(failure, Failure) and not failure.detail and session is None:
            failure.detail = f"log: {_log_file(project, pipeline, number)}"
        if failure is error:
            raise
        raise failure from error
    ledger.close()
    return summary


def _claimed(started: Started, ledger: Ledger) -> RunSummary:
    started.close()
    started.lateness.remove()
    ledger.attempts.end(started.attempt, AttemptStatus.STOPPED, EndReason.CLAIMED.value)
    name, number, strand = started.pipeline.name, started.attempt.number, started.identity.strand
    return RunSummary(name, number, strand, 0, 0, EndReason.CLAIMED, None, {}, {})


def _log_file(project: Project, pipeline: Pipeline, number: int) -> Path:
    return project.logs / f"{pipeline.name}-{number}.log"


@contextmanager
def engine_for(
    project: Project, pipeline: Pipeline, log_file: Path, given: SparkSession | None, reporter: Reporter
) -> Iterator[SparkSession]:
    """A session that can run the pipeline: the given one, which stays open, or one of its own."""
    module = sys.modules.get(pipeline.transform.__module__)
    if given is not None:
        _ship_by_value(module)
        yield given
        return
    reporter.say(f"starting Spark, log in {log_file}")
    spark = start_session(project, pipeline.name, log_file, reporter.say)
    _ship_by_value(module)
    try:
        yield spark
    finally:
        spark.stop()


def _ship_by_value(module: object) -> None:
    """Functions of a pipeline file travel to the workers whole: the file is not a package they could import."""
    from pyspark import cloudpickle

    if module is not None:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _record_early_end(ledger: Ledger, attempt: Attempt, failure: BaseException) -> None:
    """An attempt that failed before its first batch has no watch yet that would record its end."""
    try:
        known = ledger.attempts.get(attempt.pipeline, attempt.number)
        if known is not None and known.status is AttemptStatus.RUNNING:
            status = AttemptStatus.FENCED if isinstance(failure, Fenced) else AttemptStatus.FAILED
            ledger.attempts.end(attempt, status, str(failure) or type(failure).__name__)
    except StrandlineError:
        pass  # the ledger itself is the failure; the next start finds this process gone
