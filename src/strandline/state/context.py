"""What a processor may ask about the batch and the key at hand, and its timers."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from strandline.model.errors import DefinitionError
from strandline.model.times import from_millis, to_millis
from strandline.state.declarations import Clock
from strandline.state.entry import Entry

CLOCKS: tuple[Clock, ...] = ("event", "processing")
"""Their order in a key's entry, and which fires first on a tie."""


class BucketContext:
    """One object for all keys of a bucket's batch."""

    def __init__(self, entry: Entry, clocks: frozenset[Clock], emit: Callable[[str, Any], None], owner: str) -> None:
        self._entry = entry
        self._clocks = clocks
        self._emit = emit
        self._owner = owner
        self._sole: Clock | None = next(iter(clocks)) if len(clocks) == 1 else None
        self.key: Any = None
        self.clock: Clock | None = None
        self.batch = 0
        self.watermark: datetime | None = None
        self.processing_time = from_millis(0)
        self.deleted: set[tuple[int, int]] = set()
        """Timers of the key at hand that were deleted while its due timers fire: one that is set again is a new one."""
        self.control: Mapping[str, Mapping[Any, Any]] = {}

    def set_timer(self, at: datetime, clock: Clock | None = None) -> None:
        times = self._times(clock, make=True)
        millis = to_millis(at)
        place = bisect_left(times, millis)
        if place == len(times) or times[place] != millis:
            insort(times, millis)
            self._entry.dirty = True

    def delete_timer(self, at: datetime, clock: Clock | None = None) -> None:
        times = self._times(clock)
        millis = to_millis(at)
        if millis in times:
            times.remove(millis)
            self._entry.dirty = True
            self.deleted.add((millis, CLOCKS.index(clock or self._sole or "event")))

    def timers(self, clock: Clock | None = None) -> list[datetime]:
        return [from_millis(at) for at in self._times(clock)]

    def emit(self, output: str, row: Any) -> None:
        self._emit(output, row)

    def _times(self, clock: Clock | None, make: bool = False) -> list[int]:
        chosen = clock or self._sole or "event"
        if chosen not in self._clocks:
            declared = (
                f"its timers are '{self._sole}'" if self._sole else "it declares both clocks" if self._clocks else "it has no on_timer"
            )
            raise DefinitionError(
                f"{self._owner} uses a timer of the clock '{chosen}', but {declared}; declare timers = 'both' or '{chosen}'"
            )
        timers: list[list[int]] | None = self._entry.cells[0]
        if timers is None:
            timers = [[], []]
            if make:
                self._entry.cells[0] = timers
        return timers[CLOCKS.index(chosen)]
