"""A `KeyedProcess` without Spark: the reference for what it means, and the harness that its unit tests run on.

Everything is kept in plain dicts and done in the most obvious way, and nothing is shared with the engine but the declarations
and the conversion of values and times. So the engine can be held against it, and a processor that passes its tests here means
the same on a cluster::

    harness = KeyedHarness(RunningTotal(), by="customer", output="customer string, total double")
    out = harness.batch([{"customer": "ada", "amount": 3.0}])
    assert out.rows == [("ada", 3.0)]
    assert harness.state("ada") == {"total": 3.0}

A batch that raises leaves no trace, as on a cluster, where it would run again from the start.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, cast

from strandline.model.errors import DefinitionError, SourceProblem
from strandline.model.times import from_millis, to_millis
from strandline.state.declarations import Clock, KeyedProcess, clocks_of, states_of
from strandline.testing.keyed_context import HarnessContext
from strandline.testing.keyed_control import ControlTable
from strandline.testing.keyed_kept import Kept, Timer, expired
from strandline.testing.keyed_states import Desk, handle_of
from strandline.testing.keyed_values import as_dict, millis_of, named_row, rows_of, shape_of

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
"""Processing time of the first batch when a test does not say; a fixed one, so that tests repeat."""

STEP = timedelta(seconds=1)
"""How far processing time moves from batch to batch when a test does not say."""


@dataclass(frozen=True)
class BatchOutput:
    """What one batch wrote."""

    rows: list[Any]
    """The main output: tuples in the declared order when `output` was given, otherwise whatever was returned or yielded."""
    side: dict[str, list[Any]] = field(default_factory=dict)
    """The side outputs by name; every declared one is there."""


class KeyedHarness:
    """Runs a processor batch by batch, by the letter of docs/design/keyed-state.md.

    `by`, `order_by`, `output` and `side_outputs` are what the pipeline declares; without `output` (or with side outputs given as
    names alone) rows come back as they were emitted, unchecked. `control` names the key column of each control table.
    """

    def __init__(
        self,
        process: KeyedProcess,
        *,
        by: str | Sequence[str],
        order_by: str | None = None,
        output: str | None = None,
        side_outputs: Mapping[str, str | None] | Iterable[str] | None = None,
        control: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(process, KeyedProcess):
            raise DefinitionError(f"a harness runs an instance of a KeyedProcess, not {process!r}")
        self._by = by if isinstance(by, str) else tuple(by)
        self._order_by = order_by
        self._shape = shape_of(output)
        named = side_outputs if isinstance(side_outputs, Mapping) else dict.fromkeys(side_outputs or ())
        self._side_shapes = {name: shape_of(ddl) for name, ddl in named.items()}
        self._declared = states_of(process)
        self._clocks = clocks_of(process)

        self._kept: dict[Any, Kept] = {}
        self._control = {name: ControlTable(name, column) for name, column in (control or {}).items()}
        self._columns: tuple[str, ...] = ()
        self._batches = 0
        self._watermark: int | None = None
        self._processing_time: int | None = None

        self._desk = Desk()
        self._process = copy.copy(process)
        self._handles = {name: handle_of(name, declaration, self._desk) for name, declaration in self._declared.items()}
        for name, handle in self._handles.items():
            setattr(self._process, name, handle)

    def batch(
        self,
        events: Iterable[Any] = (),
        *,
        watermark: datetime | None = None,
        processing_time: datetime | None = None,
        control: Mapping[str, Iterable[Any]] | None = None,
    ) -> BatchOutput:
        """One batch: control rows first, then the events of every key, then the timers that are due, then the cleaning.

        Events are dicts or named tuples; a column that an event lacks is null in it. A clock that is left out keeps the watermark,
        and moves processing time on by a second.
        """
        now, mark = self._clocks_of_batch(watermark, processing_time)
        tables = self._control_of_batch(control or {})
        columns, by_key = self._events_of_batch(events)
        working: dict[Any, Kept] = {}
        out = BatchOutput([], {name: [] for name in self._side_shapes})

        def turn(key: Any, call: Callable[[HarnessContext], Iterable[Any] | None], clock: Clock | None, waiting: set[Timer]) -> None:
            kept = working[key]
            self._desk.sit(kept, now)
            try:
                context = HarnessContext(
                    key=key,
                    watermark=None if mark is None else from_millis(mark),
                    processing_time=from_millis(now),
                    batch=self._batches,
                    clock=clock,
                    control=tables_seen,
                    clocks=self._clocks,
                    kept=kept,
                    waiting=waiting,
                    side=out.side,
                    shapes=self._side_shapes,
                )
                for row in rows_of(call(context)):
                    out.rows.append(self._shape.fit(row) if self._shape else row)
            finally:
                self._desk.leave()

        def at_work(key: Any) -> Kept:
            """A copy to work on, so that a batch that raises changes nothing."""
            if key not in working:
                working[key] = self._kept[key].copy() if key in self._kept else Kept()
            return working[key]

        tables_seen = MappingProxyType({name: table.seen() for name, table in tables.items()})

        for key, of_key in by_key.items():
            at_work(key)
            turn(key, functools.partial(self._process.process, key, of_key), None, set())

        for key in [*working, *(key for key in self._kept if key not in working)]:
            held = working.get(key) or self._kept[key]
            due = sorted(timer for timer in held.timers if timer.is_due(now, mark))
            waiting = set(due)
            for timer in due:
                if timer not in waiting:
                    continue  # deleted before its turn
                waiting.remove(timer)
                at_work(key).timers.remove(timer)
                turn(key, functools.partial(self._process.on_timer, key, from_millis(timer.at)), timer.clock, waiting)

        for key, held in working.items():
            for name, entries in held.states.items():
                held.states[name] = {slot: entry for slot, entry in entries.items() if not expired(self._declared[name], entry, now)}
            self._kept[key] = held
            if not held.timers and not any(held.states.values()):
                del self._kept[key]
        self._control, self._columns = tables, columns
        self._processing_time, self._watermark = now, mark
        self._batches += 1
        return out

    def state(self, key: Any) -> dict[str, Any]:
        """What a key holds, by name of the state, without what is empty or expired: lists as lists, maps as dicts, otherwise the value.

        A reducing state shows its value, an aggregating state its accumulator. Looking touches nothing.
        """
        held = self._kept.get(key, Kept())
        now = self._processing_time or 0
        found = {}
        for name, handle in self._handles.items():
            entries = held.states.get(name, {})
            alive = [entry for entry in entries.values() if not expired(self._declared[name], entry, now)]
            if alive:
                found[name] = handle.shown(alive)
        return found

    def timers(self, key: Any) -> list[tuple[Clock, datetime]]:
        """The timers that a key waits for, in the order in which they would fire."""
        return [(timer.clock, from_millis(timer.at)) for timer in sorted(self._kept.get(key, Kept()).timers)]

    def keys(self) -> set[Any]:
        """The keys that hold a state or wait for a timer."""
        return {key for key in self._kept if self.timers(key) or self.state(key)}

    # -- what a batch is given ---------------------------------------------------------------------------------

    def _clocks_of_batch(self, watermark: datetime | None, processing_time: datetime | None) -> tuple[int, int | None]:
        if processing_time is not None:
            now = millis_of(processing_time)
        elif self._processing_time is None:
            now = to_millis(START)
        else:
            now = self._processing_time + STEP // timedelta(milliseconds=1)
        mark = self._watermark if watermark is None else millis_of(watermark)
        for clock, before, after in (("processing time", self._processing_time, now), ("watermark", self._watermark, mark)):
            if before is not None and after is not None and after < before:
                raise ValueError(f"the {clock} of a batch cannot go back from {from_millis(before)} to {from_millis(after)}")
        return now, mark

    def _control_of_batch(self, given: Mapping[str, Iterable[Any]]) -> dict[str, ControlTable]:
        tables = {name: table.copy() for name, table in self._control.items()}
        for name, rows in given.items():
            if name not in tables:
                raise DefinitionError(f"there is no control data named '{name}'; declared: {', '.join(tables) or 'none'}")
            for row in rows:
                tables[name].upsert(as_dict(row, "a control row"))
        return tables

    def _events_of_batch(self, events: Iterable[Any]) -> tuple[tuple[str, ...], dict[Any, list[Any]]]:
        """All columns so far, and the events by key, both in order of first appearance."""
        given = [as_dict(event, "an event") for event in events]
        columns = tuple(dict.fromkeys([*self._columns, *(column for event in given for column in event)]))
        if given and self._order_by is not None and self._order_by not in columns:
            raise DefinitionError(f"order_by='{self._order_by}' is no column of the events; they have {', '.join(columns)}")
        by_key: dict[Any, list[dict[str, Any]]] = {}
        for event in given:
            by_key.setdefault(self._key_of(event), []).append(event)
        if self._order_by is not None:
            for of_key in by_key.values():
                of_key.sort(key=lambda event: _nulls_first(event.get(cast(str, self._order_by))))
        return columns, {key: [named_row("Event", columns, event) for event in of_key] for key, of_key in by_key.items()}

    def _key_of(self, event: dict[str, Any]) -> Any:
        for column in (self._by,) if isinstance(self._by, str) else self._by:
            if event.get(column) is None:
                raise SourceProblem(
                    f"the key column '{column}' is null in the record {event!r}; filter such records out, or give them a key"
                )
        return event[self._by] if isinstance(self._by, str) else named_row("Key", self._by, event)


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, value)
