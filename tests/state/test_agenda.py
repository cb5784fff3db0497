"""The timing wheel: what is scheduled comes when it is due, once, and not before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandline.state.agenda import TICK_BITS, Agenda
from strandline.state.store import MemoryStore

TICK = 1 << TICK_BITS

moments = st.one_of(st.integers(0, 20 * TICK), st.integers(0, 10_000_000), st.integers(1_700_000_000_000, 1_900_000_000_000))


@given(st.lists(st.tuples(st.sampled_from(["schedule", "advance", "restart"]), st.integers(0, 9), moments), max_size=60))
def test_items_come_when_their_tick_has_come(steps: list[tuple[str, int, int]]) -> None:
    """An item that comes is put on the agenda again by its caller; a later entry of it may be forgotten, or bring it once more."""
    store = MemoryStore()
    agenda = Agenda(b"e", store)
    waiting: set[tuple[int, int]] = set()
    known: set[tuple[int, int]] = set()
    now = 0
    for step, item, at in steps:
        if step == "schedule":
            agenda.schedule(item, at)
            waiting.add((item, at))
            known.add((item, at))
        elif step == "advance":
            now = max(now, at)
            due = agenda.take_due(now)
            must, may = ({item for item, at in entries if at >> TICK_BITS <= now >> TICK_BITS} for entries in (waiting, known))
            assert len(due) == len(set(due))
            assert must <= set(due) <= may
            waiting = {(item, at) for item, at in waiting if at >> TICK_BITS > now >> TICK_BITS and item not in due}
            known = {(item, at) for item, at in known if at >> TICK_BITS > now >> TICK_BITS}
        else:
            agenda.save()
            agenda = Agenda.restore(b"e", store, agenda.facts())
        upcoming = agenda.next_due()
        if waiting:
            assert upcoming is not None
            assert upcoming <= max(min(at for _, at in waiting), now)
        agenda.save()

    agenda.take_due(2_000_000_000_000)
    agenda.save()
    assert agenda.is_empty
    assert store.entries == {}, "nothing is left behind"


def test_far_and_near_are_both_found_in_few_exchanges() -> None:
    store = MemoryStore()
    agenda = Agenda(b"e", store)
    agenda.take_due(1_700_000_000_000)
    week = 7 * 24 * 3600 * 1000
    for item in range(1000):
        agenda.schedule(item, 1_700_000_000_000 + item * week // 1000)
    agenda.save()
    before = store.exchanges

    due = agenda.take_due(1_700_000_000_000 + week)

    assert sorted(due) == list(range(1000))
    assert store.exchanges - before <= 2
