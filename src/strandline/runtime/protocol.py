"""The commit protocol: what happens to one batch, step by step.

1. Read the plan: ``offsets/N`` is on disk; it says which range this batch covers.
2. Look first: what do the tables already hold? A replay is done; a conflict stops the attempt.
3. Stage: write data files, no table commit.
4. Record the intent in the ledger: files, rows, offsets.
5. Commit once, fenced: files + stamp + mark in one Iceberg transaction, judged at that instant. Tables first, then
   output topics: rows + marker in one Kafka transaction each.
6. Record the outcome in the ledger.
7. Return; Spark writes ``commits/N``. What must wait for that file is done by the running attempt.

Killed anywhere, the next attempt runs the batch again from step 1 and finds the truth in step 2.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strandline.ledger import Ledger
from strandline.ledger.records import BatchRecord, CommitRecord, Delivery, Intent, IntentState, StagedFile
from strandline.model.continuity import Gap
from strandline.model.crash import CrashPoint, reach
from strandline.model.definition import LATE_COLUMN, TableSink
from strandline.model.errors import ChainBroken, CommitUnknown, Fenced, StrandlineError, TableUnavailable
from strandline.model.fence import Decision, Proposal, Verdict, decide, latest
from strandline.model.offsets import Offsets
from strandline.model.stamp import GAPS_FACT, Holder, Stamp, StampKind, Witness
from strandline.model.times import from_millis, rfc3339, utc_now
from strandline.runtime.dataflow import Dataflow, Output, Role
from strandline.runtime.positions import Positions
from strandline.runtime.topics import TopicChain
from strandline.runtime.upsert import Upsert
from strandline.tables.jvm import CommitConflict, CommitOutcomeUnknown, CommitRefused, JvmTable, StagedFiles
from strandline.tables.view import MAIN, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMMIT_TRIES = 3
"""Unknown outcomes are looked up and tried again this often; each try already holds Iceberg's own retries."""

EXPIRE_EVERY = 50
"""Expiry is a commit of its own: doing it once per 50 snapshots keeps its cost out of the median batch."""


@dataclass(frozen=True)
class Identity:
    """Who is committing: goes into every stamp."""

    pipeline: str
    strand: str
    holder: Holder
    code: str
    savepoint: str = ""
    """Which savepoint the strand goes on from, if it does."""


@dataclass
class TableChain:
    """One table's side of the pipeline: its handle and how far its chain reaches."""

    sink: TableSink
    table: JvmTable
    witness: Witness | None


@dataclass(frozen=True)
class BatchResult:
    """What a batch did, for progress lines and the ledger."""

    batch: int
    start: Offsets
    end: Offsets
    rows: int
    late: int
    snapshots: dict[str, int]
    """Snapshot by table; a table without rows in this batch has none."""
    delivered: dict[str, int]
    """Rows by output topic that got any."""
    replayed: bool
    seconds: float


@dataclass
class _Work:
    """A table that this batch still has to enter."""

    chain: TableChain
    frame: DataFrame
    proposal: Proposal
    staged: StagedFiles | None = None
    upsert: Upsert | None = None
    intent: int = 0
    rows: int = field(default=0)

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return tuple(StagedFile(*facts) for facts in self.staged.paths) if self.staged else ()


Prover = Callable[[Offsets, Offsets], Mapping[str, str]]
"""Shows that the sources held the whole range (start, end) when it was read; returns the evidence, or raises `DataLost`."""


class CommitProtocol:
    def __init__(
        self,
        identity: Identity,
        dataflow: Dataflow,
        chains: Sequence[tuple[Output, TableChain]],
        topics: Sequence[tuple[Output, TopicChain]],
        positions: Positions,
        ledger: Ledger,
        prove: Prover,
        gaps: Sequence[tuple[int, Gap]],
    ) -> None:
        self._identity = identity
        self._dataflow = dataflow
        self._chains = list(chains)
        self._topics = list(topics)
        self._prove = prove
        self._gaps = list(gaps)
        self._positions = positions
        self._ledger = ledger
        self._topic_intents: dict[str, int] = {}
        self._earlier: BatchRecord | None = None
        """What an earlier attempt recorded of the batch that this one runs again."""
        self._began = False

    @property
    def branch(self) -> str:
        """Of every table."""
        return next((chain.table.branch for _, chain in self._chains), MAIN)

    def run_batch(self, frame: DataFrame, batch: int) -> BatchResult:
        began = time.monotonic()
        # Step 1: read the plan.
        start, end = self._positions.planned(batch)
        reach(CrashPoint.BATCH_PLANNED, batch)
        several_uses = self._dataflow.tagged or self._dataflow.labels_late or self._has_upsert
        if several_uses:
            frame = frame.persist()  # each use would otherwise run the stateful plan, and its state update, once more
        try:
            # Step 2: look first.
            todo = [work for work in (self._look(output, chain, frame, batch, end) for output, chain in self._chains) if work]
            offer = Proposal(self._identity.strand, self._identity.holder, batch, start, end)
            to_deliver = [(output, chain) for output, chain in self._topics if not chain.holds(offer)]
            reach(CrashPoint.LOOKED, batch)
            if not todo and not to_deliver:
                frame.write.format("noop").mode("overwrite").save()  # a replay must still bring the state forward
            # Step 3: stage.
            late = self._count_late(frame) if todo else 0
            for work in todo:
                self._stage(work)
            reach(CrashPoint.STAGED, batch)
            evidence = self._prove(start, end) if todo or to_deliver else {}
            # Step 4: record the intent.
            replayed = self._is_replay(batch)
            known = self._earlier.rows_by_table if self._earlier is not None and replayed else {}
            rows_by_table = {chain.sink.name: known.get(chain.sink.name, 0) for _, chain in self._chains}
            rows_by_table |= {topic.name: known[topic.name] for _, topic in self._topics if topic.name in known}
            rows_by_table |= {work.chain.sink.name: work.rows for work in todo}
            todo = [work for work in todo if work.rows > 0]
            self._record_intents(offer, todo, to_deliver, rows_by_table, evidence)
            reach(CrashPoint.INTENT_RECORDED, batch)
            # Steps 5 and 6: commit each table once, record each outcome.
            snapshots: dict[str, int] = {}
            for work in todo:
                stamp = self._stamp(work, late, replayed, evidence)
                committed = self._commit(work, stamp)
                if committed is not None:
                    snapshots[work.chain.sink.name] = committed.id
            delivered = {chain.name: self._deliver(output, chain, frame, offer) for output, chain in to_deliver}
            reach(CrashPoint.BATCH_RETURNING, batch)
        except StrandlineError:
            raise
        except Exception:
            self._prove(start, end)  # records that vanished while they were read say more than Spark's error about them
            raise
        finally:
            if several_uses:
                frame.unpersist()
        self._positions.forget_before(batch - 1)
        # Step 7 begins when this returns.
        rows = sum(work.rows for work in todo) + sum(delivered.values())
        delivered = {name: count for name, count in delivered.items() if count > 0}
        return BatchResult(batch, start, end, rows, late, snapshots, delivered, replayed, time.monotonic() - began)

    def _is_replay(self, batch: int) -> bool:
        """Did an earlier attempt plan this batch? Only the first batch of an attempt can be one."""
        if self._began:
            return False
        self._began = True
        self._earlier = self._ledger.batches.get(self._identity.pipeline, self._identity.strand, batch)
        return self._earlier is not None and self._earlier.attempt != self._identity.holder.attempt

    @property
    def _has_upsert(self) -> bool:
        return any(chain.sink.mode == "upsert" for _, chain in self._chains)

    def _look(self, output: Output, chain: TableChain, frame: DataFrame, batch: int, end: Offsets) -> _Work | None:
        chain.table.refresh()
        mark, newest = chain.table.witnesses(self._identity.pipeline)
        seen = latest(mark, newest)
        if chain.witness is not None and (seen is None or seen.rank < chain.witness.rank):
            raise ChainBroken(
                f"table '{chain.sink.name}' held batch {chain.witness.batch} of this attempt and no longer does: it was rolled back or restored",
                next_command=f"strandline history {chain.sink.name}",
            )
        proposal = Proposal(self._identity.strand, self._identity.holder, batch, self._start_after(seen), end)
        decision = decide(proposal, mark, newest)
        if decision.verdict is Verdict.DUPLICATE:
            chain.witness = seen
            return None
        if not decision.accepted:
            raise refusal(self._identity, chain.sink.name, decision)
        return _Work(chain, self._dataflow.rows_of(frame, output), proposal)

    def _start_after(self, seen: Witness | None) -> Offsets:
        """Where this table's next stamp starts: the end of its last batch as *we* know it, so that the fence compares
        two independent memories. Batches without rows since then are covered by the new stamp."""
        if seen is None:
            return self._positions.origin
        ours = self._positions.after(seen.batch) if seen.strand == self._identity.strand else None
        remembered = ours or seen.end
        if remembered is None:
            raise ChainBroken(
                f"the position after batch {seen.batch} is in neither checkpoint, ledger nor table: continuity cannot be shown",
                next_command=f"strandline history {self._identity.pipeline}",
            )
        return remembered

    def _count_late(self, frame: DataFrame) -> int:
        """Late rows of this batch, whatever happens to them."""
        if self._dataflow.labels_late:
            labelled = (self._dataflow.rows_of(frame, o) for o, _ in self._chains if o.role is Role.DATA)
            return max((rows.where(LATE_COLUMN).count() for rows in labelled), default=0)
        late = [output for output in self._dataflow.outputs if output.role is Role.LATE]
        return sum(self._dataflow.rows_of(frame, output).count() for output in late)

    def _stage(self, work: _Work) -> None:
        table, sink = work.chain.table, work.chain.sink
        if sink.mode == "upsert":
            work.upsert = Upsert(table, sink, work.frame, self._identity.holder.attempt, self._identity.pipeline)
            work.rows = work.upsert.rows
            if work.rows > 0 and table.head() is None:
                work.staged = table.stage(work.upsert.frame)  # nothing to merge with yet: plain files do
        else:
            work.staged = table.stage(work.frame)
            work.rows = work.staged.rows

    def _record_intents(
        self,
        offer: Proposal,
        todo: Sequence[_Work],
        to_deliver: Sequence[tuple[Output, TopicChain]],
        rows_by_table: dict[str, int],
        evidence: Mapping[str, str],
    ) -> None:
        me = self._identity
        plan = BatchRecord(
            me.pipeline,
            me.strand,
            offer.batch,
            me.holder.attempt,
            json.dumps(offer.start.to_json()),
            json.dumps(offer.end.to_json()),
            offer.end.digest,
            rows_by_table,
            evidence=dict(evidence),
        )
        intents = [
            Intent(me.pipeline, me.strand, offer.batch, work.chain.sink.name, me.holder.attempt, me.holder.id, work.files) for work in todo
        ]
        intents += [Intent(me.pipeline, me.strand, offer.batch, topic.name, me.holder.attempt, me.holder.id, ()) for _, topic in to_deliver]
        keys = self._ledger.commits.record_intents(plan, intents)
        for work, key in zip(todo, keys, strict=False):
            work.intent = key
        self._topic_intents = {topic.name: key for (_, topic), key in zip(to_deliver, keys[len(todo) :], strict=True)}

    def _deliver(self, output: Output, chain: TopicChain, frame: DataFrame, offer: Proposal) -> int:
        """Steps 5 and 6 for an output topic; rows that enter it are counted while they are sent."""
        me = self._identity
        rows = chain.deliver(self._dataflow.rows_of(frame, output), offer, me.pipeline, confirm=lambda: self._prove(offer.start, offer.end))
        intent = self._topic_intents[chain.name]
        self._ledger.batches.brought(me.pipeline, me.strand, offer.batch, chain.name, rows)
        if rows == 0:
            self._ledger.commits.settle(intent, IntentState.DUPLICATE)
            return 0
        self._ledger.deliveries.record(
            Delivery(
                chain.name,
                chain.topic_id,
                me.pipeline,
                me.strand,
                me.holder.attempt,
                me.holder.id,
                offer.batch,
                offer.start.canonical(),
                offer.end.canonical(),
                offer.end.digest,
                rows,
                chain.sink.delivery,
                me.code,
                rfc3339(utc_now()),
            )
        )
        self._ledger.commits.settle(intent, IntentState.COMMITTED)
        return rows

    def _stamp(self, work: _Work, late: int, replayed: bool, evidence: Mapping[str, str]) -> Stamp:
        proposal, seen = work.proposal, work.chain.witness
        first = seen.batch + 1 if seen is not None and seen.strand == proposal.strand else 0
        skipped = ", ".join(str(gap) for batch, gap in self._gaps if first <= batch <= proposal.batch)
        return Stamp(
            pipeline=self._identity.pipeline,
            strand=proposal.strand,
            holder=proposal.holder,
            batch=proposal.batch,
            batch_first=first,
            start=proposal.start,
            end=proposal.end,
            start_digest=proposal.start.digest,
            end_digest=proposal.end.digest,
            code=self._identity.code,
            savepoint=self._identity.savepoint,
            rows=work.rows,
            late=late,
            replayed=work.rows if replayed else 0,
            extra={**evidence, **({GAPS_FACT: skipped} if skipped else {})},
        )

    def _commit(self, work: _Work, stamp: Stamp) -> Snapshot | None:
        """Step 5 with every outcome, then step 6. None when the table needed no new snapshot."""
        name = work.chain.sink.name
        for left in reversed(range(COMMIT_TRIES)):
            try:
                committed = self._try_commit(work, stamp)
                break
            except CommitRefused as refused:
                found = self._find(work, stamp)
                if found is not None:  # an earlier try of ours landed after all
                    committed = found
                    break
                if refused.decision.verdict is Verdict.DUPLICATE:
                    self._discard(work, IntentState.DUPLICATE)
                    work.chain.witness = refused.decision.seen
                    return None
                self._discard(work, IntentState.REFUSED)
                raise refusal(self._identity, name, refused.decision) from refused
            except CommitConflict as conflict:
                if left == 0:
                    raise TableUnavailable(
                        f"table '{name}' is changed by others faster than batch {stamp.batch} could be committed; nothing of it "
                        f"entered the table ({conflict})",
                        next_command=f"strandline run {self._identity.pipeline}",
                    ) from conflict
            except CommitOutcomeUnknown as unknown:
                # Delete nothing, look first: the commit may have happened.
                landed = self._find(work, stamp, because=unknown)
                if landed is not None:
                    committed = landed
                    break
                if left == 0:
                    self._ledger.commits.settle(work.intent, IntentState.UNKNOWN)
                    raise CommitUnknown(
                        f"batch {stamp.batch} could not be committed to table '{name}' ({unknown}); it is not there now, its files are kept",
                        next_command=f"strandline run {self._identity.pipeline}",
                    ) from unknown
        reach(CrashPoint.COMMITTED, stamp.batch)
        if committed is None:
            self._ledger.commits.settle(work.intent, IntentState.DUPLICATE)
            self._ledger.batches.nothing_new(self._identity.pipeline, self._identity.strand, stamp.batch, name)
            return None
        work.chain.witness = stamp.witness
        self._ledger.commits.record_commit(commit_record(name, committed, stamp), work.intent)
        reach(CrashPoint.OUTCOME_RECORDED, stamp.batch)
        self._expire(work.chain)
        return committed

    def _try_commit(self, work: _Work, stamp: Stamp) -> Snapshot | None:
        def judge(mark: Witness | None, newest: Witness | None) -> Decision:
            return decide(work.proposal, mark, newest)

        if work.staged is not None:
            return work.chain.table.append(work.staged, stamp, judge)
        assert work.upsert is not None
        return work.upsert.commit(stamp, judge)

    def _find(self, work: _Work, stamp: Stamp, because: Exception | None = None) -> Snapshot | None:
        try:
            work.chain.table.refresh()
            return work.chain.table.own_snapshot(stamp)
        except Exception as error:
            self._ledger.commits.settle(work.intent, IntentState.UNKNOWN)
            raise CommitUnknown(
                f"whether batch {stamp.batch} entered table '{work.chain.sink.name}' is unknown ({because or error}) and the table cannot be "
                "read now; nothing was deleted, the next start finds out",
                next_command=f"strandline run {self._identity.pipeline}",
            ) from error

    def _discard(self, work: _Work, state: IntentState) -> None:
        """The table certainly does not hold our files: remove them. The ledger lists them until they are gone."""
        self._ledger.commits.settle(work.intent, state)
        if work.staged is not None:
            work.chain.table.delete_files(work.staged)
            self._ledger.commits.mark_removed(work.intent, [path for path, _, _ in work.staged.paths])
        elif work.upsert is not None:
            work.upsert.discard()

    def _expire(self, chain: TableChain) -> None:
        keep = chain.sink.keep_snapshots if chain.table.branch == MAIN else None  # a branch is kept whole until it is published
        if keep is not None and chain.table.snapshot_count() > keep + EXPIRE_EVERY:
            try:
                chain.table.expire_to(keep)
            except (CommitConflict, CommitOutcomeUnknown):
                pass  # housekeeping: the next batch tries again


def commit_record(table: str, committed: Snapshot, stamp: Stamp) -> CommitRecord:
    summary = committed.summary
    return CommitRecord(
        table=table,
        snapshot_id=committed.id,
        parent_id=committed.parent_id,
        sequence_number=committed.sequence_number,
        committed_at=rfc3339(from_millis(committed.timestamp_ms)),
        kind=stamp.kind.value,
        pipeline=stamp.pipeline,
        strand=stamp.strand,
        attempt=stamp.holder.attempt,
        attempt_id=stamp.holder.id,
        batch_first=stamp.batch_first,
        batch=stamp.batch,
        offsets_start=stamp.start.canonical() if stamp.start is not None else None,
        offsets_end=stamp.end.canonical() if stamp.end is not None else None,
        end_digest=stamp.end_digest,
        rows=stamp.rows,
        late=stamp.late,
        corrected=int(summary.get("spark.merge-into.num-target-rows-updated", stamp.corrected)),
        replayed=stamp.replayed,
        files=int(summary.get("added-data-files", 0)),
        manifests=int(summary.get("manifests-created", 0)),
        code=stamp.code,
    )


def boundary_stamp(
    identity: Identity, seen: Witness | None, reason: str, *, at: Witness | None = None, facts: Mapping[str, str] | None = None
) -> Stamp:
    """A boundary leaves the chain where it is (`seen`) or moves it (`at`), and puts a new holder on top."""
    base = at or seen
    assert base is not None, "a boundary on a table without a witness says where its chain begins"
    end, digest, batch = base.end, base.end_digest, base.batch
    return Stamp(
        pipeline=identity.pipeline,
        strand=identity.strand,
        holder=identity.holder,
        batch=batch,
        batch_first=batch,
        start=end,
        end=end,
        start_digest=digest,
        end_digest=digest,
        code=identity.code,
        savepoint=identity.savepoint,
        kind=StampKind.BOUNDARY,
        extra={"reason": reason, **({"parent": seen.strand} if seen and seen.strand != identity.strand else {}), **(facts or {})},
    )


def refusal(identity: Identity, table: str, decision: Decision) -> StrandlineError:
    """The fence's answer as the sentence an operator reads."""
    pipeline = identity.pipeline
    if decision.verdict in (Verdict.FENCED, Verdict.MOVED):
        return Fenced(
            f"attempt {identity.holder.attempt} of '{pipeline}' may no longer write to table '{table}': {decision.reason}",
            next_command="strandline status",
        )
    return ChainBroken(
        f"table '{table}' and the checkpoint of '{pipeline}' do not agree ({decision.verdict.value}): {decision.reason}",
        next_command=f"strandline history {table}",
    )


__all__ = ["BatchResult", "CommitProtocol", "Identity", "TableChain", "boundary_stamp", "commit_record", "refusal"]
