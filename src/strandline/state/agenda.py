"""Which pages have something due, found without looking at the others: a timing wheel of wheels.

Time is cut into ticks. Level 0 has a slot for each of the next 64 ticks, level 1 for each 64 ticks, and so on. An item far away
sits in a coarse slot; when its time comes nearer it moves to a finer one. Which slots are occupied is a number of 64
bits per level, so the next one is found without asking the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from strandline.state.codec import pack, unpack
from strandline.state.store import Store

TICK_BITS = 8
"""A tick is 256 ms: pages, not timers, are on the agenda, and whether a timer is due is decided in the page, to the millisecond."""

_BITS = 6
_SLOTS = 1 << _BITS
_MASK = _SLOTS - 1
_NOW = -1
"""The level of items that are due already: they come first, whatever the clock shows."""


@dataclass
class Agenda:
    """The agenda of one clock. Changes stay in memory until `save`."""

    name: bytes
    store: Store
    cursor: int = 0
    """The last tick that was taken."""
    occupied: dict[int, int] = field(default_factory=dict)
    """Bits of the occupied slots by level."""
    _added: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    _taken: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def restore(cls, name: bytes, store: Store, facts: Any) -> Agenda:
        return cls(name, store, facts[0], dict(facts[1])) if facts else cls(name, store)

    def facts(self) -> Any:
        """What `restore` needs; the slots themselves are in the store."""
        return [self.cursor, [[level, bits] for level, bits in sorted(self.occupied.items()) if bits]]

    @property
    def is_empty(self) -> bool:
        return not any(self.occupied.values())

    def schedule(self, item: int, at: int) -> None:
        """Put an item on the agenda for the millisecond `at`; what is past is due at once."""
        tick = max(at, 0) >> TICK_BITS
        place = self._place(tick) if tick > self.cursor else (_NOW, 0)
        self._added.setdefault(place, []).append((item, tick))
        self.occupied[place[0]] = self.occupied.get(place[0], 0) | (1 << place[1])

    def take_due(self, now: int) -> list[int]:
        """The items that are due at the millisecond `now`, each once; the clock does not go back."""
        end = max(now >> TICK_BITS, self.cursor)
        due: dict[int, None] = {}
        later: list[tuple[int, int]] = []
        places = list(self._passed(end))
        self.cursor = end
        for item, tick in self._take(places):
            if tick <= end:
                due[item] = None
            else:
                later.append((item, tick))
        for item, tick in later:
            if item not in due:
                self.schedule(item, tick << TICK_BITS)
        return list(due)

    def next_due(self) -> int | None:
        """A millisecond at which it is worth looking again, at or before the next item's."""
        if self.is_empty:
            return None
        if self.occupied.get(_NOW):
            return self.cursor << TICK_BITS
        starts = []
        for level, bits in self.occupied.items():
            if level == _NOW:
                continue
            here = self.cursor >> (_BITS * level)
            distances = [((slot - here) & _MASK) or _SLOTS for slot in range(_SLOTS) if bits >> slot & 1]
            if distances:
                starts.append((here + min(distances)) << (_BITS * level))
        return min(starts) << TICK_BITS

    def save(self) -> None:
        """Write what changed: slots that were taken vanish, slots that were added to grow."""
        grown = list(self._added)
        old = self.store.get_many([self._key(place) for place in grown if place not in self._taken])
        known = dict(zip([place for place in grown if place not in self._taken], old, strict=True))
        writes = []
        for place in grown:
            stored = known.get(place)
            items = unpack(stored) if stored is not None else []
            items.extend([item, tick] for item, tick in self._added[place])
            writes.append((self._key(place), pack(items)))
        gone = [self._key(place) for place in self._taken if place not in self._added]
        if gone:
            self.store.remove_many(gone)
        if writes:
            self.store.put_many(writes)
        self._added.clear()
        self._taken.clear()

    def _place(self, tick: int) -> tuple[int, int]:
        level = ((tick ^ self.cursor).bit_length() - 1) // _BITS
        return level, (tick >> (_BITS * level)) & _MASK

    def _passed(self, end: int) -> Iterator[tuple[int, int]]:
        """Occupied slots that begin at or before `end`. The slot that holds `end` is passed in part: its later items go back."""
        for level, bits in self.occupied.items():
            if level == _NOW:
                if bits:
                    yield _NOW, 0
                continue
            here, there = self.cursor >> (_BITS * level), end >> (_BITS * level)
            for number in range(here + 1, min(there, here + _SLOTS) + 1):
                if bits >> (number & _MASK) & 1:
                    yield level, number & _MASK

    def _take(self, places: list[tuple[int, int]]) -> list[tuple[int, int]]:
        stored = [place for place in places if place not in self._taken]
        found: list[tuple[int, int]] = []
        for value in self.store.get_many([self._key(place) for place in stored]) if stored else []:
            if value is not None:
                found.extend((item, tick) for item, tick in unpack(value))
        for place in places:
            found.extend(self._added.pop(place, ()))
            self._taken.add(place)
            self.occupied[place[0]] &= ~(1 << place[1])
        return found

    def _key(self, place: tuple[int, int]) -> bytes:
        return b"a" + pack([self.name, *place])
