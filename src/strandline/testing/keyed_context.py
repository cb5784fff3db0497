"""The context that the harness gives to a processor: the batch and the key at hand, timers and side outputs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from strandline.model.errors import DefinitionError
from strandline.model.times import from_millis
from strandline.state.declarations import Clock
from strandline.testing.keyed_kept import Kept, Timer
from strandline.testing.keyed_values import Shape, millis_of


class HarnessContext:
    """What a processor may ask about the batch and the key at hand, and its timers and side outputs."""

    def __init__(
        self,
        *,
        key: Any,
        watermark: datetime | None,
        processing_time: datetime,
        batch: int,
        clock: Clock | None,
        control: Mapping[str, Mapping[Any, Any]],
        clocks: frozenset[Clock],
        kept: Kept,
        waiting: set[Timer],
        side: dict[str, list[Any]],
        shapes: Mapping[str, Shape | None],
    ) -> None:
        self.key = key
        self.watermark = watermark
        self.processing_time = processing_time
        self.batch = batch
        self.clock = clock
        self.control = control
        self._clocks = clocks
        self._kept = kept
        self._waiting = waiting
        self._side = side
        self._shapes = shapes

    def set_timer(self, at: datetime, clock: Clock | None = None) -> None:
        """One that is set already stays what it is: it does not fire twice, nor any later because it was set again."""
        self._kept.timers.add(Timer(millis_of(at), self._declared(clock)))

    def delete_timer(self, at: datetime, clock: Clock | None = None) -> None:
        timer = Timer(millis_of(at), self._declared(clock))
        self._kept.timers.discard(timer)
        self._waiting.discard(timer)

    def timers(self, clock: Clock | None = None) -> list[datetime]:
        declared = self._declared(clock)
        return [from_millis(timer.at) for timer in sorted(self._kept.timers) if timer.clock == declared]

    def emit(self, output: str, row: Any) -> None:
        if output not in self._side:
            raise DefinitionError(f"there is no side output '{output}'; declared: {', '.join(self._side) or 'none'}")
        shape = self._shapes[output]
        self._side[output].append(shape.fit(row) if shape else row)

    def _declared(self, clock: Clock | None) -> Clock:
        """The clock that is meant: the only one that is declared, otherwise event time."""
        meant: Clock = clock if clock is not None else next(iter(self._clocks)) if len(self._clocks) == 1 else "event"
        if meant not in self._clocks:
            declared = " and ".join(f"'{one}'" for one in sorted(self._clocks)) or "none"
            raise DefinitionError(
                f"the processor uses a timer of the clock '{meant}', but declares {declared}; "
                "write timers = 'event', 'processing' or 'both' in its class, and a method on_timer"
            )
        return meant
