"""Taking hold of tables: check that each agrees with the checkpoint, and write the boundary where one is needed."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.ledger import Ledger
from strandline.model.errors import TableUnavailable
from strandline.model.fence import Claim, Decision, Verdict, decide_claim, latest
from strandline.model.offsets import ORIGIN
from strandline.model.stamp import Witness, encode_mark, mark_key
from strandline.runtime.agreement import CheckpointFacts, TableFacts, check_table
from strandline.runtime.options import Allowances
from strandline.runtime.positions import Positions
from strandline.runtime.protocol import Identity, TableChain, boundary_stamp, commit_record, refusal
from strandline.tables.jvm import CommitConflict, CommitOutcomeUnknown, CommitRefused

CLAIM_TRIES = 10
"""A zombie may commit between our look and our claim, once per batch; ten in a row means it is not a zombie."""

NEW_STRAND = "new-strand"
START_TABLE = "start-table"
FIRST_START = "first-start"


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

    def birth_mark(self) -> dict[str, str]:
        """Properties of a table made now: from its first moment it remembers that the chain starts at the sources' origin.

        Only while that is true. A table made later gets its start by a boundary.
        """
        if self.checkpoint.next_batch > 0:
            return {}
        nothing_yet = Witness(self.identity.strand, self.identity.holder, -1, ORIGIN.digest, ORIGIN)
        return {mark_key(self.identity.pipeline): encode_mark(nothing_yet)}

    def check_missing(self, table: str, *, is_side_table: bool) -> None:
        """A table that does not exist yet: refuse before it is made, if rows would be missing from it."""
        if self.reason != NEW_STRAND and not self._begins_here(table, is_side_table):
            self._check(table, None, None)

    def settle_with(self, chain: TableChain, *, is_side_table: bool) -> str | None:
        """Check the table, claim it if need be, and return the reason of the boundary that was written."""
        mark, newest = chain.table.witnesses(self.identity.pipeline)
        reason = self.reason
        if reason != NEW_STRAND:
            begins_here = self._begins_here(chain.sink.name, is_side_table) and self.checkpoint.next_batch > 0
            if begins_here and (latest(mark, newest) is None or chain.sink.name in self.allow.start_tables):
                reason = START_TABLE
            else:
                self._check(chain.sink.name, mark, newest)
                if latest(mark, newest) is None:
                    reason = reason or FIRST_START  # an existing table that this pipeline has never written to
        if reason is not None:
            self._claim(chain, reason)
        chain.witness = latest(*chain.table.witnesses(self.identity.pipeline))
        return reason

    def _begins_here(self, table: str, is_side_table: bool) -> bool:
        """Asked for by name; or a side table that was switched on while the pipeline was already running."""
        if table in self.allow.start_tables:
            return True
        never_written = not self.ledger.commits.has_commits(self.identity.pipeline, table)
        return is_side_table and never_written and self.ledger.batches.knows(self.identity.pipeline, self.identity.strand)

    def _check(self, table: str, mark: Witness | None, newest: Witness | None) -> None:
        me = self.identity
        seen = latest(mark, newest)
        recorded = self.ledger.commits.last_batch_commit(me.pipeline, table, me.strand)
        same_strand = seen is not None and seen.strand == me.strand
        rows_since: dict[int, int | None] = {}
        if seen is not None and same_strand and self.ledger.batches.knows(me.pipeline, me.strand):
            records = self.ledger.batches.between(me.pipeline, me.strand, seen.batch, self.checkpoint.next_batch)
            for batch in range(seen.batch + 1, self.checkpoint.next_batch):
                rows_since[batch] = records[batch].rows_by_table.get(table) if batch in records else None
        facts = TableFacts(table, mark, newest, recorded.batch if recorded else None, rows_since)
        at_witness = self.positions.after(seen.batch) if seen is not None and same_strand else None
        check_table(facts, self.checkpoint, me.pipeline, at_witness)

    def _claim(self, chain: TableChain, reason: str) -> None:
        """Write the boundary on top of exactly what was read; read again if a commit slipped in between."""
        for _ in range(CLAIM_TRIES):
            chain.table.refresh()
            seen = latest(*chain.table.witnesses(self.identity.pipeline))
            stamp = boundary_stamp(self.identity, seen, reason, at=self._new_place(chain.sink.name, reason))
            claim = Claim(self.identity.holder, seen, anew=reason in (NEW_STRAND, START_TABLE))

            def judge(mark: Witness | None, newest: Witness | None, claim: Claim = claim) -> Decision:
                return decide_claim(claim, mark, newest)

            try:
                committed = chain.table.claim(stamp, judge)
            except CommitRefused as refused:
                if refused.decision.verdict is Verdict.MOVED:
                    continue
                raise refusal(self.identity, chain.sink.name, refused.decision) from refused
            except (CommitConflict, CommitOutcomeUnknown):
                continue  # if it landed after all, the next look sees it, and a second boundary does no harm
            self.ledger.commits.record_commit(commit_record(chain.sink.name, committed, stamp))
            self.ledger.events.add(self.identity.pipeline, "boundary", f"{chain.sink.name}: {reason}", self.identity.holder.attempt)
            return
        raise TableUnavailable(
            f"table '{chain.sink.name}' could not be claimed: the catalog is not reachable, or another attempt keeps committing to it",
            next_command="strandline status",
        )

    def _new_place(self, table: str, reason: str) -> Witness | None:
        """Where the boundary puts the chain; None leaves it where it is."""
        if reason == NEW_STRAND:
            return Witness(self.identity.strand, self.identity.holder, -1, ORIGIN.digest, ORIGIN)
        if reason == START_TABLE:
            batch = self.checkpoint.next_batch - 1
            end = self.positions.after(batch)
            if end is None:
                raise TableUnavailable(f"the position after batch {batch} is unknown, so '{table}' cannot begin there")
            return Witness(self.identity.strand, self.identity.holder, batch, end.digest, end)
        return None
