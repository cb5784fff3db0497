"""The fence: one example for each verdict, then a table that lives through anything in any order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.model.fence import NEVER, Claim, Decision, Proposal, Verdict, decide, decide_claim, is_rolled_back, latest
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.positions import GeneratorPosition
from strandline.model.stamp import OFFSETS_INLINE_LIMIT, Holder, Stamp, StampKind, Witness, decode_mark, encode_mark

FIRST = Holder(1, "first")
SECOND = Holder(2, "second")


def at(events: int, source: str = "orders") -> Offsets:
    """How far the source was read; zero events is the origin."""
    return Offsets.of({source: GeneratorPosition(events, 0)}) if events else ORIGIN


def witness(batch: int, events: int, holder: Holder = FIRST, strand: str = "s1") -> Witness:
    return Witness(strand, holder, batch, at(events).digest, at(events))


def batch(number: int, start: int, end: int, holder: Holder = FIRST, strand: str = "s1") -> Proposal:
    return Proposal(strand, holder, number, at(start), at(end))


# -- one example for each verdict ----------------------------------------------------------------------------


def test_the_first_batch_of_a_pipeline_is_accepted() -> None:
    assert decide(batch(0, 0, 10), None, None).accepted


def test_the_batch_that_continues_the_table_is_accepted() -> None:
    seen = witness(0, 10)

    decision = decide(batch(1, 10, 20), seen, seen)

    assert decision == Decision(Verdict.ACCEPT, "continues batch 0", seen)


def test_a_batch_that_covers_empty_ones_before_it_is_accepted() -> None:
    assert decide(batch(4, 10, 50), witness(0, 10), witness(0, 10)).accepted


def test_the_next_attempt_of_the_same_strand_continues_without_a_boundary() -> None:
    assert decide(batch(1, 10, 20, SECOND), witness(0, 10), witness(0, 10)).accepted


def test_a_replay_is_a_duplicate() -> None:
    assert decide(batch(1, 10, 20), witness(1, 20), witness(1, 20)).verdict is Verdict.DUPLICATE


def test_a_replay_by_the_next_attempt_is_a_duplicate() -> None:
    assert decide(batch(1, 10, 20, SECOND), witness(1, 20), witness(1, 20)).verdict is Verdict.DUPLICATE


def test_a_replay_is_a_duplicate_after_its_snapshot_expired_because_the_mark_remembers() -> None:
    assert decide(batch(1, 10, 20), witness(1, 20), None).verdict is Verdict.DUPLICATE


def test_a_replay_is_a_duplicate_when_the_mark_was_lost_because_the_stamp_remembers() -> None:
    assert decide(batch(1, 10, 20), None, witness(1, 20)).verdict is Verdict.DUPLICATE


def test_a_zombie_is_fenced_by_a_newer_attempt_and_told_who_holds_the_pipeline() -> None:
    taken_over = witness(0, 10, SECOND)

    decision = decide(batch(1, 10, 20, FIRST), taken_over, taken_over)

    assert decision.verdict is Verdict.FENCED
    assert decision.reason == "attempt 2 (second) holds the pipeline, this is attempt 1 (first)"


def test_of_two_starts_with_the_same_number_the_first_to_commit_wins() -> None:
    theirs = witness(0, 10, Holder(1, "other"))

    assert decide(batch(1, 10, 20, FIRST), theirs, theirs).verdict is Verdict.FENCED


def test_a_zombie_replaying_its_own_last_batch_is_fenced_too() -> None:
    taken_over = witness(1, 20, SECOND)

    assert decide(batch(1, 10, 20, FIRST), taken_over, taken_over).verdict is Verdict.FENCED


def test_the_same_batch_with_other_offsets_is_a_conflict() -> None:
    assert decide(batch(1, 10, 25), witness(1, 20), witness(1, 20)).verdict is Verdict.CONFLICT


def test_an_old_checkpoint_is_behind() -> None:
    assert decide(batch(1, 10, 20, SECOND), witness(4, 50), witness(4, 50)).verdict is Verdict.BEHIND


def test_another_checkpoint_identity_is_another_strand() -> None:
    assert decide(batch(0, 0, 10, SECOND, "s2"), witness(4, 50), witness(4, 50)).verdict is Verdict.OTHER_STRAND


def test_a_table_rolled_back_without_a_boundary_is_refused() -> None:
    decision = decide(batch(5, 50, 60), witness(4, 50), witness(2, 30))

    assert decision.verdict is Verdict.ROLLED_BACK
    assert "from batch 4 to batch 2" in decision.reason


def test_a_table_rolled_back_to_before_our_first_commit_is_refused() -> None:
    """Its whole history is there and holds nothing of us, yet the mark remembers batches: expiry cannot cause that."""
    assert decide(batch(5, 50, 60), witness(4, 50), NEVER).verdict is Verdict.ROLLED_BACK


def test_a_rolled_back_table_still_remembers_its_holder() -> None:
    mark, newest = witness(4, 50, SECOND), witness(2, 30, FIRST)

    assert latest(mark, newest) == mark
    assert decide(batch(3, 30, 40, FIRST), mark, newest).verdict is Verdict.FENCED
    assert decide_claim(Claim(FIRST, newest), mark, newest).verdict is Verdict.FENCED


def test_a_table_that_others_wrote_before_us_takes_our_first_batch() -> None:
    just_made = witness(-1, 0)

    assert decide(batch(0, 0, 10), just_made, NEVER).accepted
    assert decide(batch(0, 0, 10), None, NEVER).accepted
    assert decide(batch(3, 30, 40), None, NEVER).verdict is Verdict.GAP


def test_records_between_the_table_and_the_batch_would_be_lost() -> None:
    assert decide(batch(1, 15, 20), witness(0, 10), witness(0, 10)).verdict is Verdict.GAP


def test_an_empty_table_and_a_checkpoint_in_the_middle_is_a_gap() -> None:
    decision = decide(batch(3, 30, 40), None, None)

    assert decision.verdict is Verdict.GAP
    assert "events 0–30" in decision.reason


def test_records_that_the_table_already_holds_would_be_doubled() -> None:
    assert decide(batch(1, 5, 20), witness(0, 10), witness(0, 10)).verdict is Verdict.OVERLAP


def test_positions_known_only_by_their_digest_cannot_be_compared_only_matched() -> None:
    digest_only = replace(witness(0, 10), end=None)

    assert decide(batch(1, 10, 20), digest_only, digest_only).accepted
    assert decide(batch(1, 15, 20), digest_only, digest_only).verdict is Verdict.UNRELATED


def test_a_claim_is_accepted_on_top_of_exactly_what_was_read() -> None:
    assert decide_claim(Claim(SECOND, witness(0, 10)), witness(0, 10), witness(0, 10)).accepted
    assert decide_claim(Claim(FIRST, None), None, None).accepted


def test_a_claim_is_moved_when_a_zombie_committed_after_the_table_was_read() -> None:
    now = witness(1, 20)

    decision = decide_claim(Claim(SECOND, witness(0, 10)), now, now)

    assert decision.verdict is Verdict.MOVED
    assert decision.seen == now


def test_a_claim_is_fenced_when_a_newer_attempt_claimed_first() -> None:
    assert decide_claim(Claim(SECOND, witness(0, 10)), witness(0, 10, Holder(3, "third")), None).verdict is Verdict.FENCED


def test_every_verdict_has_its_word() -> None:
    assert {verdict.value for verdict in Verdict} == {
        "accept",
        "duplicate",
        "fenced",
        "conflict",
        "behind",
        "other-strand",
        "rolled-back",
        "gap",
        "overlap",
        "unrelated",
        "moved",
    }


# -- any proposal against any table --------------------------------------------------------------------------

holders = st.builds(Holder, st.integers(1, 3), st.sampled_from("ab"))
events = st.sampled_from([0, 10, 20, 30])
proposals = st.builds(batch, st.integers(0, 3), events, events, holders, st.sampled_from(["s1", "s2"]))
witnesses = st.builds(witness, st.integers(-1, 3), events, holders, st.sampled_from(["s1", "s2"]))
digest_only_witnesses = witnesses.map(lambda w: replace(w, end=None))
marks = st.none() | witnesses | digest_only_witnesses
stamps = marks | st.just(NEVER)


@given(proposals, marks, stamps)
def test_only_the_right_holder_on_an_unbroken_chain_gets_in(proposal: Proposal, mark: Witness | None, newest: Witness | None) -> None:
    decision = decide(proposal, mark, newest)

    seen = latest(mark, newest)
    if seen is None:
        right = proposal.start == ORIGIN
    else:
        holds = seen.holder == proposal.holder or seen.holder.attempt < proposal.holder.attempt
        continues = (seen.strand, seen.end_digest) == (proposal.strand, proposal.start.digest) and seen.batch < proposal.batch
        right = holds and continues and not is_rolled_back(mark, newest)
    assert decision.accepted == right
    assert decision.seen == seen
    assert decision.reason


@given(proposals, witnesses)
def test_mark_and_stamp_that_agree_are_as_good_as_either_alone(proposal: Proposal, seen: Witness) -> None:
    both = decide(proposal, seen, seen)

    assert decide(proposal, seen, None) == both
    assert decide(proposal, None, seen) == both


@given(proposals, witnesses, witnesses)
def test_a_mark_that_lags_behind_the_stamp_is_not_believed(proposal: Proposal, mark: Witness, newest: Witness) -> None:
    assume(mark.rank < newest.rank)

    assert decide(proposal, mark, newest) == decide(proposal, None, newest)


@given(st.none() | witnesses, holders, events)
def test_what_was_accepted_is_a_duplicate_ever_after(seen: Witness | None, holder: Holder, end: int) -> None:
    proposal = Proposal("s1", holder, 0, ORIGIN, at(end))
    if seen is not None:
        assert seen.end is not None
        proposal = Proposal(seen.strand, seen.holder, seen.batch + 1, seen.end, at(end))
    assert decide(proposal, seen, seen).accepted
    entered = Witness(proposal.strand, proposal.holder, proposal.batch, proposal.end.digest, proposal.end)

    assert decide(proposal, entered, entered).verdict is Verdict.DUPLICATE
    assert decide(proposal, decode_mark(encode_mark(entered)), None).verdict is Verdict.DUPLICATE


@given(holders, marks, marks, stamps)
def test_a_claim_enters_only_on_top_of_what_it_read(
    holder: Holder, read: Witness | None, mark: Witness | None, newest: Witness | None
) -> None:
    decision = decide_claim(Claim(holder, read), mark, newest)

    now = latest(mark, newest)
    outranked = now is not None and (now.holder.attempt > holder.attempt or (now.holder.attempt == holder.attempt and now.holder != holder))
    if outranked:
        assert decision.verdict is Verdict.FENCED
    elif is_rolled_back(mark, newest):
        assert decision.verdict is Verdict.ROLLED_BACK
    else:
        assert decision.verdict is (Verdict.ACCEPT if now == read else Verdict.MOVED)


def test_a_boundary_that_starts_anew_may_stand_on_a_rolled_back_table() -> None:
    mark, older = (Witness("s", Holder(1, "a"), batch, f"{batch}") for batch in (4, 2))

    assert decide_claim(Claim(Holder(2, "b"), mark), mark, older).verdict is Verdict.ROLLED_BACK
    assert decide_claim(Claim(Holder(2, "b"), mark, anew=True), mark, older).verdict is Verdict.ACCEPT


# -- a table that lives through anything ---------------------------------------------------------------------

PIPELINE = "shop"


@dataclass
class SimulatedTable:
    """What Iceberg keeps, in its durable form: summaries of snapshots oldest first, and the property beside them."""

    snapshots: list[dict[str, str]] = field(default_factory=list)
    mark_text: str | None = None
    accepted: list[Stamp] = field(default_factory=list)
    """Every stamp that ever entered, whatever expired since: the truth that the invariants look at."""
    mark_is_current: bool = True
    complete: bool = True
    """Does the history still reach the very first snapshot?"""

    def mark(self) -> Witness | None:
        return decode_mark(self.mark_text)

    def newest(self) -> Witness | None:
        found = (Stamp.from_summary(summary) for summary in reversed(self.snapshots))
        nothing = NEVER if self.snapshots and self.complete else None
        return next((stamp.witness for stamp in found if stamp is not None and stamp.pipeline == PIPELINE), nothing)

    def seen(self) -> Witness | None:
        return latest(self.mark(), self.newest())

    def enter(self, stamp: Stamp) -> None:
        self.snapshots.append({"operation": "append", **stamp.to_summary()})
        self.mark_text = encode_mark(stamp.witness)
        self.mark_is_current = True
        self.accepted.append(stamp)

    def expire(self, keep: int) -> None:
        """Oldest first, never the head; a lost mark and a lost stamp together are beyond any fence, so not both."""
        while len(self.snapshots) > max(keep, 1):
            rest = SimulatedTable(self.snapshots[1:], complete=False)
            if not self.mark_is_current and rest.newest() != self.newest():
                return
            self.snapshots, self.complete = rest.snapshots, False


@dataclass
class Writer:
    """One process with its own copy of a checkpoint. It may be a zombie, or its copy may be old or its own."""

    holder: Holder
    strand: str
    ends: Mapping[int, int]
    """Events read at the end of each batch that its checkpoint knows: its memory."""
    batch: int
    proposal: Proposal | None = None
    claim: tuple[Claim, Stamp] | None = None


def stamp_of(writer: Writer, start: Offsets, end: Offsets, number: int, kind: StampKind) -> Stamp:
    return Stamp(PIPELINE, writer.strand, writer.holder, number, number, start, end, start.digest, end.digest, "src:1", kind)


picks = st.integers(0, 4)
"""Which writer acts, counted from the newest start: zombies act less often than holders, but they do."""


class TableLife(RuleBasedStateMachine):
    """Writers look, stage and commit as the protocol does, each step at its own time; everything else happens in between."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SimulatedTable()
        self.writers: list[Writer] = []
        self.attempts = 0
        self.strands = 0
        self.source = "orders"

    @initialize(long_offsets=st.booleans(), sizes=st.lists(st.integers(1, 3), max_size=4))
    def first_start(self, long_offsets: bool, sizes: list[int]) -> None:
        self.source = "orders" * (OFFSETS_INLINE_LIMIT if long_offsets else 1)  # long offsets leave only their digest in the table
        self.strands = self.attempts = 1
        self.writers = [Writer(Holder(1, "a"), "s1", {-1: 0}, 0)]
        self.run_batches(0, sizes)

    def at(self, reached: int) -> Offsets:
        return at(reached, self.source)

    def writer(self, pick: int) -> Writer:
        return self.writers[-1 - pick % len(self.writers)]

    # -- starts ----------------------------------------------------------------------------------------------

    @rule(pick=picks, back=st.integers(0, 3))
    def restart(self, pick: int, back: int) -> None:
        """The next attempt on the same checkpoint; `back` batches were not recorded there as complete."""
        old = self.writer(pick)
        self.attempts += 1
        first = max(0, old.batch - back)
        self.writers.append(Writer(Holder(self.attempts, "a"), old.strand, dict(old.ends), first))

    @rule(pick=picks, lost=st.integers(1, 4))
    def restart_from_an_older_copy(self, pick: int, lost: int) -> None:
        """The copy does not know the last batches, and will plan them anew."""
        old = self.writer(pick)
        self.attempts += 1
        first = max(0, old.batch - lost)
        known = {number: end for number, end in old.ends.items() if number < first}
        self.writers.append(Writer(Holder(self.attempts, "a"), old.strand, known, first))

    @rule(pick=picks)
    def start_twice_with_one_number(self, pick: int) -> None:
        """Two ledgers, or one that was lost: the number alone does not tell these two apart."""
        old = self.writer(pick)
        name = f"twin{len(self.writers)}"
        self.writers.append(Writer(Holder(old.holder.attempt, name), old.strand, dict(old.ends), old.batch))

    # -- batches ---------------------------------------------------------------------------------------------

    @rule(pick=picks, sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def run_batches(self, pick: int, sizes: list[int]) -> None:
        for more in sizes:
            self.look_and_stage(pick, more)
            self.commit(pick, killed=False)

    @rule(pick=picks, more=st.integers(1, 3))
    def look_and_stage(self, pick: int, more: int) -> None:
        writer = self.writer(pick)
        plan = dict(writer.ends)
        plan.setdefault(writer.batch, plan[writer.batch - 1] + more)
        writer.ends = plan
        seen = self.table.seen()
        if seen is None:
            start = ORIGIN
        elif seen.strand == writer.strand and seen.batch in plan:
            start = self.at(plan[seen.batch])
        elif seen.end is not None:
            start = seen.end
        else:
            return  # continuity cannot be shown
        proposal = Proposal(writer.strand, writer.holder, writer.batch, start, self.at(plan[writer.batch]))
        decision = decide(proposal, self.table.mark(), self.table.newest())
        if decision.verdict is Verdict.DUPLICATE:
            writer.batch += 1
        writer.proposal = proposal if decision.accepted else None

    @rule(pick=picks, killed=st.booleans())
    def commit(self, pick: int, killed: bool) -> None:
        """What was staged enters, or not; the table may be another one than at the look."""
        writer = self.writer(pick)
        proposal, writer.proposal = writer.proposal, None
        if proposal is None:
            return
        decision = decide(proposal, self.table.mark(), self.table.newest())
        if decision.accepted:
            self.table.enter(stamp_of(writer, proposal.start, proposal.end, proposal.batch, StampKind.BATCH))
        if decision.verdict in (Verdict.ACCEPT, Verdict.DUPLICATE) and not killed:
            writer.batch = proposal.batch + 1

    @rule(pick=picks, more=st.integers(1, 3), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), older=st.booleans())
    def freeze_between_look_and_commit(self, pick: int, more: int, sizes: list[int], older: bool) -> None:
        """The writer was accepted at its look; before it commits, another start on its checkpoint goes on."""
        frozen = self.writer(pick)
        self.look_and_stage(pick, more)
        if older:
            self.restart_from_an_older_copy(pick, lost=1)
        else:
            self.restart(pick, back=1)
        self.run_batches(0, sizes)
        self.commit(self.writers[::-1].index(frozen), killed=False)

    @rule(pick=picks, more=st.integers(0, 2))
    def batch_without_rows(self, pick: int, more: int) -> None:
        """Makes no snapshot; the next stamp covers it."""
        writer = self.writer(pick)
        plan = dict(writer.ends)
        plan.setdefault(writer.batch, plan[writer.batch - 1] + more)
        writer.ends, writer.proposal = plan, None
        writer.batch += 1

    # -- boundaries ------------------------------------------------------------------------------------------

    @rule(pick=picks, new_strand=st.booleans())
    def read_for_a_claim(self, pick: int, new_strand: bool) -> None:
        """A new attempt looks at the table, to take the pipeline over from another or to begin a new strand."""
        self.restart(pick, back=1)
        writer = self.writers[-1]
        seen = self.table.seen()
        if new_strand:
            self.strands += 1
            writer.strand, writer.ends, writer.batch, writer.proposal = f"s{self.strands}", {-1: 0}, 0, None
            boundary = stamp_of(writer, ORIGIN, ORIGIN, -1, StampKind.BOUNDARY)
        elif seen is not None and seen.strand == writer.strand:
            end = seen.end
            boundary = replace(
                stamp_of(writer, ORIGIN, ORIGIN, seen.batch, StampKind.BOUNDARY),
                start=end,
                end=end,
                start_digest=seen.end_digest,
                end_digest=seen.end_digest,
            )
        else:
            return
        writer.claim = (Claim(writer.holder, seen), boundary)

    @rule(pick=picks, new_strand=st.booleans(), sizes=st.lists(st.integers(1, 3), max_size=2))
    def take_over(self, pick: int, new_strand: bool, sizes: list[int]) -> None:
        """A boundary, while the writer before (a zombie now, if it is there) may commit in the window."""
        self.read_for_a_claim(pick, new_strand)
        self.run_batches(pick + 1, sizes)
        self.claim(0)

    @rule(pick=picks)
    def claim(self, pick: int) -> None:
        writer = self.writer(pick)
        if writer.claim is None:
            return
        (claim, boundary), writer.claim = writer.claim, None
        before = self.table.seen()
        decision = decide_claim(claim, self.table.mark(), self.table.newest())
        if decision.accepted:
            assert before == claim.seen, "a boundary entered on top of something it had not read"
            self.table.enter(boundary)
        elif before != claim.seen:
            assert decision.verdict in (Verdict.MOVED, Verdict.FENCED)

    # -- everybody else --------------------------------------------------------------------------------------

    @rule(operation=st.sampled_from(["append", "replace", "overwrite"]))
    def somebody_else_commits(self, operation: str) -> None:
        """Compaction, a foreign writer, or another pipeline of ours on the same table."""
        self.table.snapshots.append({"operation": operation})

    @rule()
    def another_pipeline_commits(self) -> None:
        other = Stamp("other", "x", Holder(99, "x"), 7, 7, ORIGIN, at(5), ORIGIN.digest, at(5).digest, "src:2")
        self.table.snapshots.append({"operation": "append", **other.to_summary()})

    @rule(keep=st.integers(1, 5))
    def old_snapshots_expire(self, keep: int) -> None:
        self.table.expire(keep)

    @precondition(lambda self: self.table.newest() not in (None, NEVER))  # expiry takes the oldest first, so this is the newest one
    @rule(lag=st.none() | st.integers(1, 5))
    def the_mark_is_lost_or_set_back(self, lag: int | None) -> None:
        """Somebody removes the property, or restores an old one, while the newest stamp is still there."""
        old = self.table.accepted[: -lag or None] if lag else []
        self.table.mark_text = encode_mark(old[-1].witness) if old else None
        self.table.mark_is_current = False

    @precondition(lambda self: self.table.accepted and self.table.mark_is_current)
    @rule(lost=st.integers(1, 5))
    def a_rollback_would_be_noticed(self, lost: int) -> None:
        """Somebody moves the table to an older snapshot, behind our last stamp: nothing of ours may go on from there."""
        last = self.table.accepted[-1]
        rolled_back = replace(self.table, snapshots=self.table.snapshots[:-lost])
        newest = rolled_back.newest()
        if newest is None or newest == self.table.newest() or last.batch < 0:
            return  # still ours, or no more to be told from expiry, or nothing of the strand was lost
        proposal = Proposal(last.strand, last.holder, last.batch + 1, last.end or self.at(1), self.at(10**6))
        assert decide(proposal, rolled_back.mark(), newest).verdict is Verdict.ROLLED_BACK

    # -- what must hold after every step -------------------------------------------------------------------------

    @invariant()
    def the_batches_form_one_unbroken_chain(self) -> None:
        for before, after in itertools.pairwise(self.table.accepted):
            if after.kind is StampKind.BATCH:
                assert after.strand == before.strand, "a strand went on without a boundary"
                assert after.start_digest == before.end_digest, "a gap or an overlap"
                assert after.batch > before.batch

    @invariant()
    def the_chain_of_each_strand_begins_at_the_origin(self) -> None:
        for _, chain in itertools.groupby(self.table.accepted, key=lambda stamp: stamp.strand):
            assert next(chain).start_digest == ORIGIN.digest

    @invariant()
    def each_batch_is_there_at_most_once(self) -> None:
        batches = [(stamp.strand, stamp.batch) for stamp in self.table.accepted if stamp.kind is StampKind.BATCH]
        assert len(batches) == len(set(batches))

    @invariant()
    def no_older_attempt_after_a_newer_one_and_no_twin_after_a_twin(self) -> None:
        for before, after in itertools.pairwise(self.table.accepted):
            assert after.holder.attempt >= before.holder.attempt
            assert after.holder.attempt > before.holder.attempt or after.holder == before.holder

    @invariant()
    def what_is_in_the_table_never_gets_in_again(self) -> None:
        """The latest batches, proposed again by whoever holds the pipeline now; the newest one is a plain replay."""
        if not self.table.accepted:
            return
        last = self.table.accepted[-1]
        for stamp in self.table.accepted[-4:]:
            if stamp.kind is StampKind.BATCH:
                assert stamp.start is not None and stamp.end is not None
                again = Proposal(stamp.strand, last.holder, stamp.batch, stamp.start, stamp.end)
                decision = decide(again, self.table.mark(), self.table.newest())
                assert not decision.accepted
                if stamp is last:
                    assert decision.verdict is Verdict.DUPLICATE


TestTableLife = TableLife.TestCase
TestTableLife.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_replay_after_compaction_and_expiry_is_still_a_duplicate(keep: int) -> None:
    """The way in which Iceberg's own streaming sink doubles rows."""
    table = SimulatedTable()
    writer = Writer(FIRST, "s1", {-1: 0}, 0)
    for number in range(5):
        table.enter(stamp_of(writer, at(number * 10), at(number * 10 + 10), number, StampKind.BATCH))
    table.snapshots += [{"operation": "replace"}, {"operation": "replace"}]

    table.expire(keep)

    assert table.newest() is None, "every stamp expired"
    assert decide(batch(4, 40, 50, SECOND), table.mark(), table.newest()).verdict is Verdict.DUPLICATE
    assert decide(batch(3, 30, 40, SECOND), table.mark(), table.newest()).verdict is Verdict.BEHIND
    assert decide(batch(5, 50, 60, SECOND), table.mark(), table.newest()).accepted


def test_new_data_after_restoring_an_older_checkpoint_is_an_error_not_silence() -> None:
    """The way in which Iceberg's own streaming sink loses rows: it skips every epoch it has seen."""
    table = witness(9, 100)

    decision = decide(batch(5, 50, 67, SECOND), table, table)

    assert decision.verdict is Verdict.BEHIND
    assert not decision.accepted
