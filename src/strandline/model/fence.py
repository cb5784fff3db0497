"""The fence: may this commit enter the table? A pure function over plain values.

The same function runs inside the Iceberg commit (through a thin JVM adapter, again on every retry), before
staging ("look first"), and in the property tests, so the rule lives once.

What it is given: the *mark* (table property, survives snapshot expiry) and the *newest* stamp of the pipeline
among the branch's ancestors (survives a lost property). Either may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from strandline.model.offsets import ORIGIN, Break, Offsets, chain_break
from strandline.model.stamp import Holder, Witness


class Verdict(Enum):
    """The closed list of answers. Only ACCEPT lets a commit through."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"  # this very batch is in the table: a replay, already done
    FENCED = "fenced"  # a newer attempt, or another start with our number, holds the pipeline
    CONFLICT = "conflict"  # this batch is in the table with other offsets
    BEHIND = "behind"  # a later batch is in the table: our checkpoint is old
    OTHER_STRAND = "other-strand"  # the table belongs to another checkpoint identity
    ROLLED_BACK = "rolled-back"  # the table's history lost our newest stamp without a boundary
    GAP = "gap"  # records between the table's end and our start would be lost
    OVERLAP = "overlap"  # records would enter the table twice
    UNRELATED = "unrelated"  # our start and the table's end cannot be compared
    MOVED = "moved"  # claim only: the table changed since it was read


@dataclass(frozen=True)
class Proposal:
    """A batch that wants to enter the table."""

    strand: str
    holder: Holder
    batch: int
    start: Offsets
    end: Offsets


@dataclass(frozen=True)
class Claim:
    """A boundary that wants to enter the table, made after reading `seen` there."""

    holder: Holder
    seen: Witness | None
    anew: bool = False
    """The boundary moves the chain to a place of its own, so a rollback behind it hides nothing."""


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    reason: str
    seen: Witness | None = None

    @property
    def accepted(self) -> bool:
        return self.verdict is Verdict.ACCEPT


def latest(mark: Witness | None, newest: Witness | None) -> Witness | None:
    """The witness to believe: the one that reaches further (either can lag when someone tampers)."""
    newest = None if newest is NEVER else newest
    if mark is None or newest is None:
        return mark or newest
    return mark if mark.rank >= newest.rank else newest


def is_rolled_back(mark: Witness | None, newest: Witness | None) -> bool:
    """A stamp of ours is still in the ancestry, but an older one than the mark remembers.

    Expiry cannot cause that: it removes the oldest ancestors first, so the newest stamp is there or none is.
    `NEVER` is a history of which it is known that it holds no stamp of ours: fine only before our first commit.
    """
    if mark is None or newest is None or newest.rank >= mark.rank:
        return False
    return newest is not NEVER or mark.batch >= 0


NEVER = Witness("", Holder(0, ""), -1, ORIGIN.digest, ORIGIN)
"""What a history witnesses that certainly holds nothing of us: it reaches its very first snapshot without a stamp of ours,
or the snapshot that the mark names is still kept, but not in it."""

_BREAKS = {Break.GAP: Verdict.GAP, Break.OVERLAP: Verdict.OVERLAP, Break.UNRELATED: Verdict.UNRELATED}


def decide(proposal: Proposal, mark: Witness | None, newest: Witness | None) -> Decision:
    """May `proposal` be committed on top of what the table shows?"""
    seen = latest(mark, newest)
    if seen is None:
        if proposal.start.is_origin:
            return Decision(Verdict.ACCEPT, "first commit of this pipeline")
        return Decision(
            Verdict.GAP,
            f"the table holds nothing of this pipeline, yet batch {proposal.batch} starts after {proposal.start.human(None)}",
        )
    if _outranks(seen.holder, proposal.holder):
        return Decision(
            Verdict.FENCED,
            f"attempt {seen.holder.attempt} ({seen.holder.id}) holds the pipeline, this is attempt "
            f"{proposal.holder.attempt} ({proposal.holder.id})",
            seen,
        )
    if is_rolled_back(mark, newest):
        assert mark is not None and newest is not None
        return Decision(
            Verdict.ROLLED_BACK,
            f"the table was rolled back from batch {mark.batch} to batch {newest.batch} without a boundary",
            seen,
        )
    if seen.strand != proposal.strand:
        return Decision(
            Verdict.OTHER_STRAND,
            f"the table was last written by strand {seen.strand} (batch {seen.batch}), this checkpoint is strand {proposal.strand}",
            seen,
        )
    if seen.batch > proposal.batch:
        return Decision(
            Verdict.BEHIND, f"the table already holds batch {seen.batch}, this checkpoint is only at batch {proposal.batch}", seen
        )
    if seen.batch == proposal.batch:
        if seen.end_digest == proposal.end.digest:
            return Decision(Verdict.DUPLICATE, f"batch {proposal.batch} is already in the table", seen)
        return Decision(Verdict.CONFLICT, f"batch {proposal.batch} is in the table with other offsets", seen)
    if seen.end_digest == proposal.start.digest:
        return Decision(Verdict.ACCEPT, f"continues batch {seen.batch}", seen)
    how = chain_break(seen.end, proposal.start) if seen.end is not None else Break.UNRELATED
    verdict = _BREAKS[how or Break.UNRELATED]
    table_end = seen.end.human(None) if seen.end is not None else f"digest {seen.end_digest[:12]}"
    return Decision(
        verdict, f"the table ends at {table_end}, batch {proposal.batch} starts at {proposal.start.human(None)}: {verdict.value}", seen
    )


def decide_claim(claim: Claim, mark: Witness | None, newest: Witness | None) -> Decision:
    """May a boundary enter? Only on top of exactly what was read: a zombie's commit in between must be seen first."""
    seen = latest(mark, newest)
    if seen is not None and _outranks(seen.holder, claim.holder):
        return Decision(Verdict.FENCED, f"attempt {seen.holder.attempt} ({seen.holder.id}) claimed the pipeline first", seen)
    if is_rolled_back(mark, newest) and not claim.anew:
        return Decision(Verdict.ROLLED_BACK, "the table was rolled back without a boundary", seen)
    if seen != claim.seen:
        return Decision(Verdict.MOVED, "another commit of this pipeline arrived after the table was read", seen)
    return Decision(Verdict.ACCEPT, "nothing moved since the table was read", seen)


def _outranks(seen: Holder, ours: Holder) -> bool:
    """The same number with another id is a double start that the ledger could not see: the first to commit wins."""
    return seen.attempt > ours.attempt or (seen.attempt == ours.attempt and seen.id != ours.id)
