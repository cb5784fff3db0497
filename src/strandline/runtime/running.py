"""A running attempt: the streaming query, and the watch kept beside it.

Batches run on Spark's thread. The watch runs on the main thread: heartbeat, requests, limits, timeouts, signals,
and everything that must wait until a batch's checkpoint file exists.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Any

from strandline.ledger import Ledger
from strandline.ledger.records import AttemptStatus
from strandline.ledger.requests import CANCEL, STOP, STOP_WITH_SAVEPOINT
from strandline.model.crash import CrashPoint, reach
from strandline.model.errors import BatchTimedOut, ClusterUnreachable, DataLost, Fenced, StrandlineError
from strandline.model.times import human_duration
from strandline.runtime.attending import Attendant
from strandline.runtime.callback import for_each_batch
from strandline.runtime.failures import explain_batch_failure, explain_query_failure
from strandline.runtime.heartbeat import Heartbeat
from strandline.runtime.options import AvailableNow, ForBatches, ForDuration, RunLimit
from strandline.runtime.outage import Outage
from strandline.runtime.protocol import BatchResult
from strandline.runtime.reporting import Progress, Reporter
from strandline.runtime.sources.reader import Lag
from strandline.runtime.starting import Started
from strandline.tables.view import MAIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TICK = 0.1
"""Seconds between two looks: short enough that a stop feels immediate, long enough to cost nothing."""
_REQUESTS_EVERY = 1.0
_REPORT_EVERY = 0.5
"""Seconds between two progress reports at most; batches that follow each other faster are summed up by the next."""
_LET_GO = 15.0
"""Seconds to wait for a cancelled batch to end: its jobs are gone by then, a catalog call may need its time-out."""
_SETTLE = 30.0
"""Seconds to wait for Spark to write `commits/N` after the last batch returned."""


_UNTIL_EVERY = 1.0
"""Seconds between two looks whether a bounded run is at its end; a cluster may have to be asked."""


class EndReason(str, Enum):
    """Why a run ended without an error."""

    LIMIT = "its limit was reached"
    REQUESTED = "a stop was requested"
    INTERRUPTED = "it was interrupted"
    CANCELLED = "it was cancelled"
    DRAINED = "everything available was read"
    REACHED = "it reached the end it was given"
    CLAIMED = "its tables entered the strand"


class _Halt(Exception):
    """Raised at the entrance of a batch that must not begin."""


@dataclass(frozen=True)
class RunSummary:
    """What a run achieved, for the person who started it."""

    pipeline: str
    attempt: int
    strand: str
    batches: int
    rows: int
    reason: EndReason
    last_batch: int | None
    snapshots: dict[str, int]
    delivered: dict[str, int]
    """Rows by output topic."""
    branch: str = MAIN
    """Where in the tables it wrote."""


class RunningAttempt:
    def __init__(
        self,
        spark: SparkSession,
        started: Started,
        ledger: Ledger,
        heartbeat: Heartbeat,
        limit: RunLimit,
        reporter: Reporter,
        attendants: Sequence[Attendant] = (),
    ) -> None:
        self._spark = spark
        self._started = started
        self._ledger = ledger
        self._heartbeat = heartbeat
        heartbeat.facts = self._facts
        self._limit = limit
        self._reporter = reporter
        self._attendants = attendants
        self._handed_over: set[int] = set()
        """Requests that an attendant will answer."""
        self._outage = Outage(started.connections(), started.pipeline.name, self._hear_of_outage)
        self._query: StreamingQuery | None = None
        self._ending: EndReason | None = None
        self._failure: BaseException | None = None
        self._busy = threading.Lock()
        self._interrupts = 0
        self._batch_began: float | None = None
        self._batch: int | None = None
        self._returned: BatchResult | None = None
        self._completed = started.checkpoint.next_batch() - 1
        self._groups_told = True
        self._last_end = 0.0
        self._next_report = 0.0
        self._next_until = 0.0
        self._batches = 0
        self._rows = 0
        self._snapshots: dict[str, int] = {}
        self._delivered: Counter[str] = Counter()
        self._keys: int | None = None
        """Keys with state, in pipelines with keyed state."""
        self._began = time.monotonic()

    # -- Spark's thread --------------------------------------------------------------------------------------

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        self._busy.acquire()
        try:
            self._run_batch(frame, batch)
        finally:
            self._busy.release()

    def _run_batch(self, frame: DataFrame, batch: int) -> None:
        self._pause()
        if self._ending is not None or self._failure is not None:
            raise _Halt
        self._batch, self._batch_began = batch, time.monotonic()
        try:
            self._started.lateness.check(self._started.checkpoint.late_watermark_ms(batch))
            result = self._started.protocol.run_batch(frame, batch)
            identity = self._started.identity
            sizes = self._started.measures.take(identity.pipeline, identity.strand, batch)
            self._ledger.state_sizes.record(sizes)
            self._keys = sum(size.keys for size in sizes) if sizes else None
            plan = self._started.checkpoint.plan(batch)
            self._started.lateness.set(plan.watermark_ms if plan else 0)
        except BaseException as error:
            self._fail(explain_batch_failure(self._started.pipeline.name, error) if isinstance(error, Exception) else error)
            raise
        finally:
            self._batch_began, self._last_end = None, time.monotonic()
        self._batches += 1
        self._rows += result.rows
        self._snapshots.update(result.snapshots)
        self._delivered.update(result.delivered)
        self._returned = result
        if isinstance(self._limit, ForBatches) and self._batches >= self._limit.count:
            self._end(EndReason.LIMIT)

    def _fail(self, error: BaseException) -> None:
        """The first trouble counts; only the table's own refusal says more than a missed heartbeat or a cancelled job."""
        if self._failure is None or isinstance(error, Fenced):
            self._failure = error

    def _pause(self) -> None:
        """The declared rest between two batches; a stop request cuts it short."""
        until = self._last_end + self._started.pipeline.checkpoint.min_pause.total_seconds()
        while self._batches and time.monotonic() < until and self._ending is None and self._failure is None:
            time.sleep(_TICK)

    # -- the watch -------------------------------------------------------------------------------------------

    def run(self) -> RunSummary:
        """Run to the limit, a request, a signal or a failure; record the end in the ledger either way."""
        previous = self._catch_signals()
        attempt = self._started.attempt
        try:
            with self._outage:
                while True:
                    self._query = self._launch()
                    self._watch()
                    self._settle()
                    if isinstance(self._failure, ClusterUnreachable) and self._ending is None and not self._outage.given_up():
                        self._wait_out(self._failure)
                        continue
                    if self._failure is not None:
                        raise self._failure
                    if self._ending is not None or self._drained():
                        break
                for attendant in self._attendants:
                    attendant.finish()
        except BaseException as failure:
            self._failure = self._failure or failure
            if not self._let_go():
                self._reporter.say("the last batch does not let go; this attempt is left open, the next start finds its process gone")
                raise
            fenced = isinstance(failure, Fenced)
            status = AttemptStatus.FENCED if fenced else AttemptStatus.FAILED
            text = failure.message if isinstance(failure, StrandlineError) else f"{type(failure).__name__}: {failure}"
            self._record_end(status, text)
            raise
        finally:
            self._started.close()
            for number, handler in previous.items():
                signal.signal(number, handler)
        reason = self._ending or EndReason.DRAINED
        if reason is EndReason.CANCELLED and self._started.pipeline.checkpoint.on_cancel == "delete":
            # Before the end is recorded: from then on a successor may be using this folder.
            self._started.checkpoint.storage.delete_all()
            self._ledger.events.add(attempt.pipeline, "checkpoint-deleted", "cancelled, on_cancel=delete", attempt.number)
        self._record_end(AttemptStatus.STOPPED, reason.value)
        last = self._returned.batch if self._returned else None
        return RunSummary(
            attempt.pipeline,
            attempt.number,
            self._started.identity.strand,
            self._batches,
            self._rows,
            reason,
            last,
            self._snapshots,
            dict(self._delivered),
            self._started.protocol.branch,
        )

    def _hear_of_outage(self, text: str) -> None:
        self._reporter.say(text)
        self._ledger.events.add(self._started.pipeline.name, "cluster", text, self._started.attempt.number)

    def _wait_out(self, lost: ClusterUnreachable) -> None:
        """A cluster that went away is waited for; then the query starts again from its checkpoint, in this attempt."""
        if not self._let_go():
            raise lost
        self._outage.lost(lost)
        while self._ending is None and self._heartbeat.trouble is None and not self._outage.is_over():
            self._take_requests()
            self._check_limits(time.monotonic())
            self._obey_second_interrupt()
            time.sleep(_REQUESTS_EVERY)
        if self._ending is None:
            for topic in self._started.topics:
                topic.reopen()
        self._failure = self._heartbeat.trouble

    def _let_go(self) -> bool:
        """End the query and wait until no batch of ours can still commit. False when one hangs."""
        if self._query is not None:
            try:
                self._query.stop()
            except Exception as error:  # noqa: BLE001 - whatever Spark says, the lock below has the last word
                self._reporter.say(f"the query did not stop at once: {str(error).splitlines()[0]}")
        if not self._busy.acquire(timeout=_LET_GO):
            return False
        self._busy.release()
        return True

    def _launch(self) -> StreamingQuery:
        policy = self._started.pipeline.checkpoint
        checkpoint = self._started.checkpoint
        self._started.lateness.set(checkpoint.late_watermark_ms(checkpoint.next_batch()))
        self._spark.conf.set("spark.sql.streaming.stopTimeout", f"{int(_LET_GO * 1000)}")
        self._spark.conf.set("spark.sql.streaming.minBatchesToRetain", str(policy.retain))
        ends = isinstance(self._limit, AvailableNow) and self._started.dataflow.never_rests
        self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false" if ends else "true")
        writer = (
            self._started.dataflow.frame.writeStream.queryName(f"{self._started.pipeline.name}-{self._started.attempt.id}")
            .outputMode(self._started.pipeline.output_mode)
            .option("checkpointLocation", self._started.checkpoint.location)
        )
        writer = for_each_batch(writer, self._spark, self._on_batch)
        if isinstance(self._limit, AvailableNow):
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(policy.every.total_seconds() * 1000)} milliseconds").start()

    def _watch(self) -> None:
        assert self._query is not None
        next_requests = 0.0
        while self._query.isActive:
            self._obey_second_interrupt()
            now = time.monotonic()
            self._failure = self._failure or self._heartbeat.trouble or self._outage.given_up()
            if now >= next_requests:
                next_requests = now + _REQUESTS_EVERY
                self._take_requests()
            self._follow_up()
            for attendant in self._attendants:
                attendant.look(self._completed)
            self._check_limits(now)
            if (self._ending is not None or self._failure is not None) and self._at_boundary():
                self._let_go()
                break
            time.sleep(_TICK)
        error = self._query.exception()
        if error is not None and self._failure is None and self._ending is None:
            self._failure = self._name_loss(explain_query_failure(self._started.pipeline.name, error))

    def _name_loss(self, failure: StrandlineError) -> StrandlineError:
        """Spark noticed that records are gone while it planned a batch: ask the cluster which ones."""
        if not isinstance(failure, DataLost):
            return failure
        try:
            checkpoint = self._started.checkpoint
            self._started.inputs.look_for_losses(self._started.positions.after(checkpoint.next_batch() - 1))
        except StrandlineError as named:
            return named
        return failure

    def _at_boundary(self) -> bool:
        """No batch is running, and the last one's checkpoint file is there: stopping now interrupts nothing."""
        if self._failure is not None:
            return True
        if self._busy.locked():
            return False
        if self._returned is None or self._returned.batch <= self._completed:
            return True
        return time.monotonic() - self._last_end > _SETTLE

    def _follow_up(self) -> None:
        """Step 7 of the protocol: only after `commits/N` exists is a batch complete."""
        result = self._returned
        if result is None or result.batch <= self._completed or not self._started.checkpoint.is_completed(result.batch):
            return
        reach(CrashPoint.CHECKPOINT_COMPLETE, result.batch)
        identity = self._started.identity
        self._ledger.batches.complete(identity.pipeline, identity.strand, result.batch)
        self._completed = result.batch
        self._outage.recovered()
        self._tell_groups(result)
        if time.monotonic() >= self._next_report or self._ending is not None:
            self._next_report = time.monotonic() + _REPORT_EVERY
            self._reporter.progress(self._progress(result))

    def _tell_groups(self, result: BatchResult) -> None:
        self._groups_told = self._started.inputs.commit_groups(result.end)
        reach(CrashPoint.GROUPS_COMMITTED, result.batch)

    def _settle(self) -> None:
        """After the query ended, Spark may still be about to have written the last commit file."""
        if self._failure is None and self._returned is not None:
            self._follow_up()
            if not self._groups_told and self._returned.batch <= self._completed:
                self._tell_groups(self._returned)  # the cluster was away when the batch completed

    def _drained(self) -> bool:
        """Spark's available-now ends after one generator batch; go on until every source says it is done."""
        if not isinstance(self._limit, AvailableNow):
            self._ending = EndReason.REQUESTED  # the query ended by itself, which only a stop causes
            return True
        end = dict(self._returned.end.sources) if self._returned else {}
        return all(reader.exhausted(end.get(name)) for name, reader in self._started.readers.items())

    def _facts(self) -> str:
        """How far this attempt came, as the ledger keeps it for `strandline status`."""
        result = self._returned
        if result is None:
            return json.dumps({"batches": 0, "rows": 0})
        lags = self._lags(result)
        return json.dumps(
            {
                "batch": result.batch,
                "batches": self._batches,
                "rows": self._rows,
                "offsets": result.end.human(None),
                "snapshots": {table: str(snapshot) for table, snapshot in dict(self._snapshots).items()},
                "delivered": dict(self._delivered),
                "lag": ", ".join(map(str, lags.values())) or None,
                "lag_by_source": {name: vars(lag) for name, lag in lags.items()},
            }
        )

    def _lags(self, result: BatchResult) -> dict[str, Lag]:
        if self._outage.is_on:
            return {}  # asking would only hold up the heartbeat
        end = dict(result.end.sources)
        try:
            lags = {name: reader.lag(end.get(name)) for name, reader in self._started.readers.items()}
        except OSError:
            return {}  # a source that cannot be listed now; the batch that reads it will say so
        return {name: lag for name, lag in lags.items() if lag is not None}

    def _progress(self, result: BatchResult) -> Progress:
        assert self._query is not None
        told: Any = self._query.lastProgress
        native = [op for op in told["stateOperators"] if not op["operatorName"].startswith("transformWithState")] if told else []
        state = sum(int(op["numRowsTotal"]) for op in native) if native else None
        rate = result.rows / result.seconds if result.seconds > 0 else 0.0
        lag = ", ".join(map(str, self._lags(result).values())) or None
        return Progress(result, rate, result.end.human(result.start), lag, state, self._keys)

    def _take_requests(self) -> None:
        for request in self._ledger.requests.open(self._started.pipeline.name, self._started.attempt.number):
            if request.id in self._handed_over:
                continue
            if request.kind in (STOP, CANCEL, STOP_WITH_SAVEPOINT):
                self._reporter.say(f"{request.kind} requested by {request.requested_by}: ending after the current batch")
                self._end(EndReason.CANCELLED if request.kind == CANCEL else EndReason.REQUESTED)
            if any(attendant.asked(request) for attendant in self._attendants):
                self._handed_over.add(request.id)
                continue
            self._ledger.requests.answer(request.id, f"attempt {self._started.attempt.number} is ending")

    def _check_limits(self, now: float) -> None:
        if self._started.pipeline.until is not None and now >= self._next_until:
            self._next_until = now + _UNTIL_EVERY
            at = self._returned.end if self._returned else self._started.positions.after(self._completed)
            end = dict(at.sources) if at is not None else {}
            if all(reader.reached(end.get(name)) for name, reader in self._started.readers.items()):
                self._end(EndReason.REACHED)
        if isinstance(self._limit, ForDuration) and now - self._began >= self._limit.span.total_seconds():
            self._end(EndReason.LIMIT)
        began, limit = self._batch_began, self._started.pipeline.checkpoint.timeout
        if began is not None and now - began > limit.total_seconds():
            self._failure = self._failure or BatchTimedOut(
                f"batch {self._batch} of '{self._started.pipeline.name}' ran longer than its limit of {human_duration(limit)}; it was "
                "abandoned and will run again with the next start",
                next_command=f"strandline run {self._started.pipeline.name}",
            )
            identity = self._started.identity
            self._ledger.events.add(identity.pipeline, "batch-timed-out", f"batch {self._batch}", identity.holder.attempt)
            self._spark.sparkContext.cancelAllJobs()

    def _end(self, reason: EndReason) -> None:
        self._ending = self._ending or reason

    def _record_end(self, status: AttemptStatus, reason: str) -> None:
        """A ledger that fails now must not hide why the run ended; the next start finds the process gone."""
        try:
            self._started.lateness.remove()
            self._ledger.attempts.beat(self._started.attempt, self._facts())
            self._ledger.attempts.end(self._started.attempt, status, reason)
        except (StrandlineError, OSError) as error:
            self._reporter.say(f"the end of this attempt could not be recorded: {error}")

    def _obey_second_interrupt(self) -> None:
        if self._interrupts > 1:
            raise KeyboardInterrupt

    def _catch_signals(self) -> dict[int, Any]:
        """The first Ctrl-C (or SIGTERM) ends the run after the current batch, the second at once.

        The second only leaves word for the watch: raised here it could land between a command to the JVM and its answer.
        The third is for a watch that hangs.
        """
        if threading.current_thread() is not threading.main_thread():
            return {}

        def handle(number: int, _frame: FrameType | None) -> None:
            self._interrupts += 1
            if self._interrupts > 2:
                raise KeyboardInterrupt
            if self._interrupts > 1:
                return
            self._reporter.say("stopping after the current batch (press Ctrl-C again to stop at once; nothing is lost or doubled)")
            self._end(EndReason.INTERRUPTED)

        return {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
