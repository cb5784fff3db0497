"""Taking hold of tables: check that each agrees with the checkpoint, and write the boundary where one is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from strandline.ledger import Ledger
from strandline.ledger.records import Delivery, IntentState
from strandline.model.crash import CrashPoint, reach
from strandline.model.errors import ChainBroken, Fenced, Refused, TableUnavailable
from strandline.model.fence import Claim, Decision, Verdict, decide_claim, latest
from strandline.model.marker import Marker
from strandline.model.offsets import ORIGIN
from strandline.model.stamp import WRITER_FACT, Holder, Stamp, Witness, encode_mark, mark_key
from strandline.model.times import rfc3339, utc_now
from strandline.runtime.agreement import CheckpointFacts, TableFacts, check_table
from strandline.runtime.options import Allowances
from strandline.runtime.positions import Positions
from strandline.runtime.protocol import Identity, TableChain, boundary_stamp, commit_record, refusal
from strandline.runtime.strands import FORK, PUBLISH, PUBLISHED_BY, RESTORE, StrandOrigin, TableStart
from strandline.runtime.topics import TopicChain
from strandline.tables.jvm import Begin, CommitConflict, CommitOutcomeUnknown, CommitRefused, Entrance, JvmTable, Move, Retired
from strandline.tables.view import MAIN

CLAIM_TRIES = 10
"""A zombie may commit between our look and our claim, once per batch; ten in a row means it is not a zombie."""

NEW_STRAND = "new-strand"
START_TABLE = "start-table"
FIRST_START = "first-start"
_ENTERING = (RESTORE, FORK, PUBLISH)
"""A table enters a strand that goes on from another."""

LEFT_FOR_ANOTHER = "left-for-another-branch"

ABANDONED_PREFIX = "strandline-abandoned-"
"""Tags that keep what a restore left behind reachable, until somebody releases it."""


@dataclass(frozen=True)
class _Boundary:
    """One that is to be written, and what was read before."""

    stamp: Stamp
    claim: Claim
    entrance: Entrance | None = None

    def judge(self, mark: Witness | None, newest: Witness | None) -> Decision:
        return decide_claim(self.claim, mark, newest)


@dataclass(frozen=True)
class Claims:
    """One start's view of all its tables."""

    identity: Identity
    ledger: Ledger
    checkpoint: CheckpointFacts
    positions: Positions
    reason: str | None
    """Why every table must be claimed; None when the last holder is provably gone."""
    allow: Allowances
    origin: StrandOrigin | None = None
    """Where the strand comes from, if it goes on from another."""
    branch: str = MAIN
    """Where it writes."""

    def birth_mark(self) -> dict[str, str]:
        """Properties of a table made now: from its first moment it remembers that the chain starts at the sources' origin.

        Only while that is true. A table made later gets its start by a boundary.
        """
        if self.checkpoint.next_batch > 0:
            return {}
        return {mark_key(self.identity.pipeline, self.branch): encode_mark(self._at_origin())}

    def _at_origin(self) -> Witness:
        origin = self.positions.origin
        return Witness(self.identity.strand, self.identity.holder, -1, origin.digest, origin)

    def check_missing(self, table: str, *, is_side_table: bool) -> None:
        """A table that does not exist yet: refuse before it is made, if rows would be missing from it."""
        if self.origin is not None and table in self.origin.tables and self.origin.tables[table].head is None:
            return
        if self.reason != NEW_STRAND and not self._begins_here(table, is_side_table):
            self._check(table, None, None)

    def settle_with(self, chain: TableChain, *, is_side_table: bool) -> str | None:
        """Check the table, claim it if need be, and return the reason of the boundary that was written."""
        mark, newest = chain.table.witnesses(self.identity.pipeline)
        reason = self.reason
        self._check_unpublished(chain, latest(mark, newest))
        if self.origin is not None and self._enters(chain.sink.name, latest(mark, newest)) is not None:
            reason = self.origin.how
        elif reason != NEW_STRAND:
            begins_here = self._begins_here(chain.sink.name, is_side_table) and self.checkpoint.next_batch > 0
            if begins_here and (latest(mark, newest) is None or chain.sink.name in self.allow.start_tables):
                reason = START_TABLE
            else:
                self._check(chain.sink.name, mark, newest)
                if latest(mark, newest) is None:
                    reason = reason or FIRST_START  # an existing table that this pipeline has never written to
        if reason in (RESTORE, PUBLISH, NEW_STRAND):
            self._fence_others(chain.table)
        if reason is not None:
            self._claim(chain, reason)
        chain.witness = latest(*chain.table.witnesses(self.identity.pipeline))
        return reason

    def _enters(self, table: str, seen: Witness | None) -> TableStart | None:
        """How a table enters a strand that goes on from another; None when it did already, or needs no entrance."""
        start = self.origin.tables.get(table) if self.origin is not None else None
        return start if seen is None or seen.strand != self.identity.strand else None

    def _begins_here(self, table: str, is_side_table: bool) -> bool:
        """Asked for by name; or a side table that was switched on while the pipeline was already running."""
        if table in self.allow.start_tables:
            return True
        never_written = not self.ledger.commits.has_commits(self.identity.pipeline, table)
        return is_side_table and never_written and self.ledger.batches.knows(self.identity.pipeline, self.identity.strand)

    def settle_with_topic(self, chain: TopicChain) -> None:
        """Take hold of an output topic: fence older producers, read its marker, check it, put our attempt on it."""
        if chain.writer is None:
            return
        me = self.identity
        found = chain.open()
        seen = found.witness if found is not None else self._remembered(chain, me.strand)
        if seen is None and self.origin is not None:
            seen = self._remembered(chain, self.origin.parent)
        if seen is not None and seen.holder.attempt >= me.holder.attempt and seen.holder != me.holder:
            raise Fenced(
                f"attempt {me.holder.attempt} of '{me.pipeline}' may not write to topic '{chain.sink.topic}': attempt {seen.holder.attempt} "
                f"({seen.holder.id}) holds it",
                next_command="strandline status",
            )
        anew = self.reason == NEW_STRAND
        if anew:
            place = self._at_origin()
        elif chain.name in self.allow.start_tables and self.checkpoint.next_batch > 0:
            place = self._at_checkpoint(chain.name)
        elif self.origin is not None and (seen is None or seen.strand != me.strand):
            self._check_delivered(chain.name, self.origin, seen)
            place = self._at_checkpoint(chain.name)
        else:
            delivered = self.ledger.deliveries.last(me.pipeline, me.strand, chain.name)
            self._compare(chain.name, seen, None, delivered.batch if delivered else None, kind="topic")
            place = seen or self._at_origin()
            if found is not None and found.batch >= 0 and (delivered is None or delivered.batch < found.batch):
                self._catch_up(chain, found)
        chain.claim(Marker(me.pipeline, me.strand, me.holder, place.batch, place.end_digest, end=place.end))
        chain.witness = Witness(me.strand, me.holder, place.batch, place.end_digest, place.end)
        self._settle_intents(chain, place.batch)

    def _check_delivered(self, topic: str, origin: StrandOrigin, seen: Witness | None) -> None:
        """Rows in a topic cannot be taken back: what was delivered after the batch that is restored would be delivered again."""
        if seen is not None and (seen.strand != origin.parent or seen.batch > origin.batch):
            raise ChainBroken(
                f"topic '{topic}' holds batch {seen.batch} of strand {seen.strand}, and batch {origin.batch} is restored: the rows in between "
                "cannot be taken back and would be delivered twice",
                next_command=f"let it begin again there: add --start-table {topic}",
            )

    def _catch_up(self, chain: TopicChain, found: Marker) -> None:
        """A killed attempt delivered this batch and could not record it any more: the marker tells the ledger."""
        start, end = self.positions.after(found.batch - 1), self.positions.after(found.batch)
        by = self.ledger.attempts.get(found.pipeline, found.holder.attempt)
        delivery = Delivery(
            chain.name,
            chain.topic_id,
            found.pipeline,
            found.strand,
            found.holder.attempt,
            found.holder.id,
            found.batch,
            start.canonical() if start is not None else "{}",
            end.canonical() if end is not None else "{}",
            found.end_digest,
            found.rows,
            chain.sink.delivery,
            by.code if by is not None else "",
            rfc3339(utc_now()),
        )
        self.ledger.deliveries.record(delivery)
        self.ledger.events.add(
            self.identity.pipeline, "ledger-caught-up", f"{chain.name}: batch {found.batch}", self.identity.holder.attempt
        )

    def _settle_intents(self, chain: TopicChain, reached: int) -> None:
        """What killed attempts announced and never settled: in the topic up to its marker, nowhere after it."""
        for intent in self.ledger.commits.unsettled([IntentState.STAGED, IntentState.UNKNOWN], self.identity.pipeline):
            if intent.table == chain.name:
                self.ledger.commits.settle(intent.id, IntentState.COMMITTED if intent.batch <= reached else IntentState.REFUSED)

    def _remembered(self, chain: TopicChain, strand: str) -> Witness | None:
        """Markers are group offsets, which a cluster forgets when idle. The ledger's word counts if nothing was under way."""
        me = self.identity
        last = self.ledger.deliveries.last(me.pipeline, strand, chain.name)
        if last is None or last.topic_id != chain.topic_id:
            return None
        open_ones = self.ledger.commits.unsettled([IntentState.STAGED, IntentState.UNKNOWN], me.pipeline)
        if any(intent.table == chain.name and intent.batch > last.batch for intent in open_ones):
            return None
        return Witness(last.strand, Holder(last.attempt, last.attempt_id), last.batch, last.end_digest)

    def _check(self, table: str, mark: Witness | None, newest: Witness | None) -> None:
        recorded = self.ledger.commits.last_batch_commit(self.identity.pipeline, table, self.identity.strand)
        self._compare(table, mark, newest, recorded.batch if recorded else None)

    def _compare(self, table: str, mark: Witness | None, newest: Witness | None, recorded: int | None, kind: str = "table") -> None:
        me = self.identity
        seen = latest(mark, newest)
        same_strand = seen is not None and seen.strand == me.strand
        rows_since: dict[int, int | None] = {}
        if seen is not None and same_strand and self.ledger.batches.knows(me.pipeline, me.strand):
            records = self.ledger.batches.between(me.pipeline, me.strand, seen.batch, self.checkpoint.next_batch)
            for batch in range(seen.batch + 1, self.checkpoint.next_batch):
                rows_since[batch] = records[batch].rows_by_table.get(table) if batch in records else None
        facts = TableFacts(table, mark, newest, recorded, rows_since, kind)
        at_witness = self.positions.after(seen.batch) if seen is not None and same_strand else None
        check_table(facts, self.checkpoint, me.pipeline, at_witness)

    def _claim(self, chain: TableChain, reason: str) -> None:
        def offer() -> _Boundary:
            seen = latest(*chain.table.witnesses(self.identity.pipeline))
            place = self._new_place(chain.sink.name, reason) or (self._at_origin() if seen is None else None)
            entrance = self._entrance(chain, seen) if reason in _ENTERING else None
            if entrance is not None:  # the fence will judge the history that the boundary is put on
                target = entrance.to if isinstance(entrance, Move) else entrance.at or chain.table.head_id(MAIN)
                seen = latest(*chain.table.witnesses(self.identity.pipeline, at=target))
            published = self.origin.publishes if reason == PUBLISH and self.origin is not None else None
            facts = {WRITER_FACT: published.pipeline} if published is not None else {}
            stamp = boundary_stamp(self.identity, seen, reason, at=place, facts=facts)
            return _Boundary(stamp, Claim(self.identity.holder, seen, anew=reason in (NEW_STRAND, START_TABLE, *_ENTERING)), entrance)

        put = self._put(chain.table, offer)
        assert put is not None
        self.ledger.events.add(self.identity.pipeline, "boundary", f"{chain.sink.name}: {reason}", self.identity.holder.attempt)
        reach(CrashPoint.CLAIMED, put.stamp.batch)

    def _put(self, table: JvmTable, offer: Callable[[], _Boundary | None]) -> _Boundary | None:
        """Write the boundary on top of exactly what was read; read again if a commit slipped in between.

        Args:
            offer: the boundary for the table as it is now; None when it needs none.
        """
        for _ in range(CLAIM_TRIES):
            table.refresh()
            boundary = offer()
            if boundary is None:
                return None
            try:
                committed = table.claim(boundary.stamp, boundary.judge, boundary.entrance)
            except CommitRefused as refused:
                if refused.decision.verdict is Verdict.MOVED:
                    continue
                raise refusal(self.identity, table.name, refused.decision) from refused
            except (CommitConflict, CommitOutcomeUnknown):
                continue  # if it landed after all, the next look sees it, and a second boundary does no harm
            self.ledger.commits.record_commit(commit_record(table.name, committed, boundary.stamp))
            return boundary
        raise TableUnavailable(
            f"table '{table.name}' could not be claimed: the catalog is not reachable, or another attempt keeps committing to it",
            next_command="strandline status",
        )

    def _new_place(self, table: str, reason: str) -> Witness | None:
        """Where the boundary puts the chain; None leaves it where it is."""
        if reason in (NEW_STRAND, FIRST_START):
            return self._at_origin()
        if reason in (START_TABLE, *_ENTERING):
            return self._at_checkpoint(table)
        return None

    def _check_unpublished(self, chain: TableChain, seen: Witness | None) -> None:
        if seen is not None and seen.holder.id == PUBLISHED_BY and seen.strand == self.identity.strand:
            raise Fenced(
                f"branch '{self.branch}' of table '{chain.sink.name}' was published: '{self.identity.pipeline}' has nothing to write to any more",
                next_command=f"strandline history {chain.sink.name}",
            )

    def _fence_others(self, table: JvmTable) -> None:
        """The pipeline may have written elsewhere in the table before: whoever did must not do so any longer."""
        ending = self.origin.publishes.branch if self.origin is not None and self.origin.publishes is not None else None
        for branch in table.marked_branches(self.identity.pipeline):
            if branch not in (self.branch, ending):
                self._fence(table.on(branch))

    def _fence(self, table: JvmTable) -> None:
        def offer() -> _Boundary | None:
            seen = latest(*table.witnesses(self.identity.pipeline))
            if seen is None or seen.holder == self.identity.holder:
                return None
            stamp = boundary_stamp(replace(self.identity, strand=seen.strand), seen, LEFT_FOR_ANOTHER)  # the chain stays where it is
            return _Boundary(stamp, Claim(self.identity.holder, seen))

        self._put(table, offer)

    def _entrance(self, chain: TableChain, seen: Witness | None) -> Entrance | None:
        """What the table must do to enter the strand; refused when it is no longer what it was when that was decided."""
        start, at = self._enters(chain.sink.name, seen), chain.table.head_id()
        if start is None or self.origin is None:
            return None
        if self.checkpoint.next_batch != self.origin.begins_after + 1:
            raise ChainBroken(
                f"table '{chain.sink.name}' should enter the strand at batch {self.origin.batch}, but the checkpoint is at batch "
                f"{self.checkpoint.next_batch} already: rows before that would be missing from it",
                next_command=f"strandline run {self.identity.pipeline} --start-table {chain.sink.name}",
            )
        if at != start.head and not chain.table.only_maintained_since(start.head):
            raise moved_since(self.identity.pipeline, self.origin, chain.sink.name, at)
        if at is None and self.branch != MAIN:
            return Begin(start.rollback_to)
        keep_as = f"{ABANDONED_PREFIX}{self.identity.pipeline}-{self.identity.holder.attempt}"
        if (ended := self.origin.publishes) is not None and start.rollback_to is not None:
            taken = Witness(self.origin.parent, Holder(ended.attempt, ended.attempt_id), -1, ORIGIN.digest)
            return Move(start.rollback_to, at, keep_as, Retired(ended.branch, ended.pipeline, taken))
        if start.rollback_to is None or start.rollback_to == at or at is None:
            return None
        return Move(start.rollback_to, at, keep_as)

    def _at_checkpoint(self, output: str) -> Witness:
        batch = self.checkpoint.next_batch - 1
        end = self.positions.after(batch)
        if end is None:
            raise TableUnavailable(f"the position after batch {batch} is unknown, so '{output}' cannot begin there")
        return Witness(self.identity.strand, self.identity.holder, batch, end.digest, end)


def moved_since(pipeline: str, origin: StrandOrigin, table: str, at: int | None) -> Refused:
    """A table that is no longer what it was when somebody decided what happens to it."""
    again = {
        RESTORE: f"strandline run {pipeline} --from-savepoint {origin.savepoint} --tables rollback"
        if origin.savepoint
        else f"strandline run {pipeline} --from-checkpoint {origin.batch} --tables rollback",
        FORK: f"strandline discard {pipeline}, then fork again",
        PUBLISH: f"strandline publish {origin.publishes.branch if origin.publishes else ''}",
    }[origin.how]
    return Refused(
        f"table '{table}' has moved since the plan was made: its newest snapshot was {origin.tables[table].head}, now it is {at}",
        next_command=f"{again}, which plans anew",
    )
