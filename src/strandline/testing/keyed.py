"""A `KeyedProcess` without Spark: the reference for what it means, and the harness that its unit tests run on.

Everything is kept in plain dicts and done in the most obvious way, and nothing is shared with the engine but the declarations
and the conversion of values. So the engine can be held against it, and a processor that passes its tests here means the same
on a cluster::

    harness = KeyedHarness(RunningTotal(), by="customer", output="customer string, total double")
    out = harness.batch([{"customer": "ada", "amount": 3.0}])
    assert out.rows == [("ada", 3.0)]
    assert harness.state("ada") == {"total": 3.0}

A batch that raises leaves no trace, as on a cluster, where it would run again from the start.
"""

from __future__ import annotations

import copy
import functools
from collections import namedtuple
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, cast

from strandline.model.errors import DefinitionError, SourceProblem
from strandline.state.codec import WrongType, codec_of
from strandline.state.declarations import (
    AggregatingDeclaration,
    Clock,
    KeyedProcess,
    ListDeclaration,
    MapDeclaration,
    ReducingDeclaration,
    StateDeclaration,
    ValueDeclaration,
    clocks_of,
    states_of,
)
from strandline.state.types import parse_fields, parse_type

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
"""Processing time of the first batch when a test does not say; a fixed one, so that tests repeat."""

STEP = timedelta(seconds=1)
"""How far processing time moves from batch to batch when a test does not say."""

DELETED = "_deleted"
"""Column of a control row that says: forget this key."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_ONLY = None
"""Where a state that holds a single entry holds it."""


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
        self._shape = _shape_of(output)
        named = side_outputs if isinstance(side_outputs, Mapping) else dict.fromkeys(side_outputs or ())
        self._side_shapes = {name: _shape_of(ddl) for name, ddl in named.items()}
        self._declared = states_of(process)
        self._clocks = clocks_of(process)

        self._kept: dict[Any, _Kept] = {}
        self._control = {name: _ControlTable(name, column) for name, column in (control or {}).items()}
        self._columns: tuple[str, ...] = ()
        self._batches = 0
        self._watermark: int | None = None
        self._processing_time: int | None = None

        self._desk = _Desk()
        self._process = copy.copy(process)
        self._handles = {name: _handle(name, declaration, self._desk) for name, declaration in self._declared.items()}
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
        working: dict[Any, _Kept] = {}
        out = BatchOutput([], {name: [] for name in self._side_shapes})

        def turn(key: Any, call: Callable[[_Context], Iterable[Any] | None], clock: Clock | None, waiting: set[_Timer]) -> None:
            kept = working[key]
            self._desk.sit(kept, now)
            try:
                context = _Context(
                    key=key,
                    watermark=None if mark is None else _instant(mark),
                    processing_time=_instant(now),
                    batch=self._batches,
                    clock=clock,
                    control=tables_seen,
                    clocks=self._clocks,
                    kept=kept,
                    waiting=waiting,
                    side=out.side,
                    shapes=self._side_shapes,
                )
                for row in _rows_of(call(context)):
                    out.rows.append(self._shape.fit(row) if self._shape else row)
            finally:
                self._desk.leave()

        def at_work(key: Any) -> _Kept:
            """A copy to work on, so that a batch that raises changes nothing."""
            if key not in working:
                working[key] = self._kept[key].copy() if key in self._kept else _Kept()
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
                turn(key, functools.partial(self._process.on_timer, key, _instant(timer.at)), timer.clock, waiting)

        for key, held in working.items():
            for name, entries in held.states.items():
                held.states[name] = {slot: entry for slot, entry in entries.items() if not _expired(self._declared[name], entry, now)}
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
        held = self._kept.get(key, _Kept())
        now = self._processing_time or 0
        found = {}
        for name, handle in self._handles.items():
            entries = held.states.get(name, {})
            alive = [entry for entry in entries.values() if not _expired(self._declared[name], entry, now)]
            if alive:
                found[name] = handle.shown(alive)
        return found

    def timers(self, key: Any) -> list[tuple[Clock, datetime]]:
        """The timers that a key waits for, in the order in which they would fire."""
        return [(timer.clock, _instant(timer.at)) for timer in sorted(self._kept.get(key, _Kept()).timers)]

    def keys(self) -> set[Any]:
        """The keys that hold a state or wait for a timer."""
        return {key for key in self._kept if self.timers(key) or self.state(key)}

    # -- what a batch is given ---------------------------------------------------------------------------------

    def _clocks_of_batch(self, watermark: datetime | None, processing_time: datetime | None) -> tuple[int, int | None]:
        if processing_time is not None:
            now = _millis(processing_time)
        elif self._processing_time is None:
            now = _millis(START)
        else:
            now = self._processing_time + STEP // _MILLISECOND
        mark = self._watermark if watermark is None else _millis(watermark)
        for clock, before, after in (("processing time", self._processing_time, now), ("watermark", self._watermark, mark)):
            if before is not None and after is not None and after < before:
                raise ValueError(f"the {clock} of a batch cannot go back from {_instant(before)} to {_instant(after)}")
        return now, mark

    def _control_of_batch(self, given: Mapping[str, Iterable[Any]]) -> dict[str, _ControlTable]:
        tables = {name: table.copy() for name, table in self._control.items()}
        for name, rows in given.items():
            if name not in tables:
                raise DefinitionError(f"there is no control data named '{name}'; declared: {', '.join(tables) or 'none'}")
            for row in rows:
                tables[name].upsert(_as_dict(row, "a control row"))
        return tables

    def _events_of_batch(self, events: Iterable[Any]) -> tuple[tuple[str, ...], dict[Any, list[Any]]]:
        """All columns so far, and the events by key, both in order of first appearance."""
        given = [_as_dict(event, "an event") for event in events]
        columns = tuple(dict.fromkeys([*self._columns, *(column for event in given for column in event)]))
        if given and self._order_by is not None and self._order_by not in columns:
            raise DefinitionError(f"order_by='{self._order_by}' is no column of the events; they have {', '.join(columns)}")
        by_key: dict[Any, list[dict[str, Any]]] = {}
        for event in given:
            by_key.setdefault(self._key_of(event), []).append(event)
        if self._order_by is not None:
            for of_key in by_key.values():
                of_key.sort(key=lambda event: _nulls_first(event.get(cast(str, self._order_by))))
        return columns, {key: [_named("Event", columns, event) for event in of_key] for key, of_key in by_key.items()}

    def _key_of(self, event: dict[str, Any]) -> Any:
        for column in (self._by,) if isinstance(self._by, str) else self._by:
            if event.get(column) is None:
                raise SourceProblem(
                    f"the key column '{column}' is null in the record {event!r}; filter such records out, or give them a key"
                )
        return event[self._by] if isinstance(self._by, str) else _named("Key", self._by, event)


# -- what is kept of a key -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """What expires as one: a value, an element of a list, an entry of a map."""

    plain: Any
    touched: int
    key: Any = None
    """The plain key of a map's entry."""


@dataclass(frozen=True, order=True)
class _Timer:
    """Sorted as they fire: by time, and "event" comes before "processing"."""

    at: int
    clock: Clock

    def is_due(self, now: int, mark: int | None) -> bool:
        shows = now if self.clock == "processing" else mark
        return shows is not None and shows >= self.at


@dataclass
class _Kept:
    """All that is kept of one key."""

    states: dict[str, dict[Any, _Entry]] = field(default_factory=dict)
    """By name of the state: its entries, a list's by number, a map's by key, a single one under `_ONLY`."""
    timers: set[_Timer] = field(default_factory=set)

    def copy(self) -> _Kept:
        return _Kept({name: dict(entries) for name, entries in self.states.items()}, set(self.timers))


def _expired(declaration: StateDeclaration, entry: _Entry, now: int) -> bool:
    return declaration.ttl is not None and now >= entry.touched + declaration.ttl.milliseconds


class _Desk:
    """Whose turn it is: the handles of a processor always speak of this key, at this time."""

    def __init__(self) -> None:
        self._kept: _Kept | None = None
        self.now = 0

    def sit(self, kept: _Kept, now: int) -> None:
        self._kept, self.now = kept, now

    def leave(self) -> None:
        self._kept = None

    def entries(self, name: str) -> dict[Any, _Entry]:
        if self._kept is None:
            raise DefinitionError(f"the state '{name}' was used outside of process and on_timer, where it speaks of no key")
        return self._kept.states.setdefault(name, {})


# -- handles ---------------------------------------------------------------------------------------------------------


class _Handle:
    """What all states have in common: entries that are seen or not, and touched by writing and perhaps by reading."""

    def __init__(self, name: str, declaration: StateDeclaration, desk: _Desk) -> None:
        self._name = name
        self._declaration = declaration
        self._desk = desk
        self._codec = codec_of(parse_type(declaration.type))

    def exists(self) -> bool:
        return bool(self._seen())

    def clear(self) -> None:
        self._entries.clear()

    def shown(self, alive: list[_Entry]) -> Any:
        """The state for a person who looks at it from outside."""
        return self._python(alive[0].plain)

    @property
    def _entries(self) -> dict[Any, _Entry]:
        return self._desk.entries(self._name)

    def _seen(self) -> dict[Any, _Entry]:
        """The entries that the processor gets to see."""
        ttl = self._declaration.ttl
        if ttl is None or ttl.visibility == "return_expired_if_not_cleaned_up":
            return dict(self._entries)
        return {slot: entry for slot, entry in self._entries.items() if not _expired(self._declaration, entry, self._desk.now)}

    def _read(self, seen: dict[Any, _Entry]) -> list[_Entry]:
        """Entries for their content: reading keeps alive what is alive, if so declared; what has expired stays so."""
        ttl = self._declaration.ttl
        if ttl is not None and ttl.update == "read_and_write":
            for slot, entry in seen.items():
                if not _expired(self._declaration, entry, self._desk.now):
                    self._entries[slot] = replace(entry, touched=self._desk.now)
        return list(seen.values())

    def _read_one(self, slot: Any) -> _Entry | None:
        seen = self._seen()
        return self._read({slot: seen[slot]})[0] if slot in seen else None

    def _read_all(self) -> list[_Entry]:
        return self._read(self._seen())

    def _write(self, slot: Any, plain: Any, key: Any = None) -> None:
        self._entries[slot] = _Entry(plain, self._desk.now, key)

    def _plain(self, value: Any) -> Any:
        return self._codec.to_plain(value)

    def _python(self, plain: Any) -> Any:
        return self._codec.from_plain(plain)


class _Value(_Handle):
    _declaration: ValueDeclaration

    def get(self) -> Any:
        entry = self._read_one(_ONLY)
        if entry is None:
            return self._python(self._plain(self._declaration.default))
        return self._python(entry.plain)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._write(_ONLY, self._plain(value))


class _List(_Handle):
    def get(self) -> list[Any]:
        return [self._python(entry.plain) for entry in self._read_all()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self._seen())

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        plain = [self._plain(value) for value in values]
        free = next(reversed(self._entries), -1) + 1
        for number, each in enumerate(plain, free):
            self._write(number, each)

    def update(self, values: Iterable[Any]) -> None:
        plain = [self._plain(value) for value in values]
        self.clear()
        for number, each in enumerate(plain):
            self._write(number, each)

    def shown(self, alive: list[_Entry]) -> Any:
        return [self._python(entry.plain) for entry in alive]


class _Map(_Handle):
    def __init__(self, name: str, declaration: MapDeclaration, desk: _Desk) -> None:
        super().__init__(name, declaration, desk)
        self._key_codec = codec_of(parse_type(declaration.key_type))

    def get(self, key: Any, default: Any = None) -> Any:
        entry = self._read_one(_slot(self._plain_key(key)))
        return default if entry is None else self._python(entry.plain)

    def put(self, key: Any, value: Any) -> None:
        self._put([(key, value)])

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        self._put(entries.items())

    def remove(self, key: Any) -> None:
        self._entries.pop(_slot(self._plain_key(key)), None)

    def __contains__(self, key: object) -> bool:
        return _slot(self._plain_key(key)) in self._seen()

    def __len__(self) -> int:
        return len(self._seen())

    def keys(self) -> Iterator[Any]:
        return iter([self._python_key(entry.key) for entry in self._read_all()])

    def values(self) -> Iterator[Any]:
        return iter([self._python(entry.plain) for entry in self._read_all()])

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter([(self._python_key(entry.key), self._python(entry.plain)) for entry in self._read_all()])

    def _put(self, entries: Iterable[tuple[Any, Any]]) -> None:
        plain = [(self._plain_key(key), self._plain(value)) for key, value in entries]
        for key, value in plain:
            self._write(_slot(key), value, key)

    def shown(self, alive: list[_Entry]) -> Any:
        return {self._python_key(entry.key): self._python(entry.plain) for entry in alive}

    def _plain_key(self, key: Any) -> Any:
        if key is None:
            raise WrongType("", f"{self._key_codec.kind.ddl} NOT NULL", None, f"it is a key of the map state '{self._name}'")
        return self._key_codec.to_plain(key)

    def _python_key(self, plain: Any) -> Any:
        return self._key_codec.from_plain(plain)


class _Folding(_Handle):
    """Reducing and aggregating state: what the declared function makes of the old and the added replaces the old."""

    def _old(self) -> Any:
        """What `get()` would show, so an expired one is folded on only where it is also returned."""
        entry = self._seen().get(_ONLY)
        return None if entry is None else self._python(entry.plain)

    def _fold(self, new: Any) -> None:
        if new is None:
            self.clear()
        else:
            self._write(_ONLY, self._plain(new))


class _Reducing(_Folding):
    _declaration: ReducingDeclaration

    def add(self, value: Any) -> None:
        added, old = self._python(self._plain(value)), self._old()
        self._fold(added if old is None else self._declaration.reduce(old, added))

    def get(self) -> Any:
        entry = self._read_one(_ONLY)
        return None if entry is None else self._python(entry.plain)


class _Aggregating(_Folding):
    _declaration: AggregatingDeclaration

    def add(self, value: Any) -> None:
        old = self._old()
        self._fold(self._declaration.add(self._declaration.create() if old is None else old, value))

    def get(self) -> Any:
        entry = self._read_one(_ONLY)
        if entry is None:
            return None
        accumulator = self._python(entry.plain)
        return accumulator if self._declaration.result is None else self._declaration.result(accumulator)


def _handle(name: str, declaration: StateDeclaration, desk: _Desk) -> _Handle:
    if isinstance(declaration, MapDeclaration):
        return _Map(name, declaration, desk)
    kinds: list[tuple[type[StateDeclaration], type[_Handle]]] = [
        (ValueDeclaration, _Value),
        (ListDeclaration, _List),
        (ReducingDeclaration, _Reducing),
        (AggregatingDeclaration, _Aggregating),
    ]
    for declared, handle in kinds:
        if isinstance(declaration, declared):
            return handle(name, declaration, desk)
    raise DefinitionError(f"the state '{name}' is declared as {declaration!r}, which the harness does not know")


# -- the context -----------------------------------------------------------------------------------------------------


class _Context:
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
        kept: _Kept,
        waiting: set[_Timer],
        side: dict[str, list[Any]],
        shapes: Mapping[str, _Shape | None],
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
        self._kept.timers.add(_Timer(_millis(at), self._declared(clock)))

    def delete_timer(self, at: datetime, clock: Clock | None = None) -> None:
        timer = _Timer(_millis(at), self._declared(clock))
        self._kept.timers.discard(timer)
        self._waiting.discard(timer)

    def timers(self, clock: Clock | None = None) -> list[datetime]:
        declared = self._declared(clock)
        return [_instant(timer.at) for timer in sorted(self._kept.timers) if timer.clock == declared]

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


# -- control data ----------------------------------------------------------------------------------------------------


@dataclass
class _ControlTable:
    """The rows of one control stream that count now: per key the one that came last."""

    name: str
    key: str
    columns: tuple[str, ...] = ()
    rows: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def copy(self) -> _ControlTable:
        return _ControlTable(self.name, self.key, self.columns, dict(self.rows))

    def upsert(self, row: dict[str, Any]) -> None:
        key = row.get(self.key)
        if key is None:
            raise SourceProblem(f"the key column '{self.key}' of the control data '{self.name}' is null in the record {row!r}")
        if row.get(DELETED):
            self.rows.pop(key, None)
            return
        self.columns = tuple(dict.fromkeys([*self.columns, *(column for column in row if column != DELETED)]))
        self.rows[key] = row

    def seen(self) -> Mapping[Any, Any]:
        return MappingProxyType({key: _named("Row", self.columns, row) for key, row in self.rows.items()})


# -- rows and values -------------------------------------------------------------------------------------------------


class _Shape:
    """The declared schema of an output."""

    def __init__(self, ddl: str) -> None:
        self._fields = parse_fields(ddl)
        self._codec = codec_of(self._fields)

    def fit(self, row: Any) -> tuple[Any, ...]:
        if row is None:
            raise WrongType("", self._fields.ddl, None, "it is a row of an output")
        return tuple(self._codec.from_plain(self._codec.to_plain(row)))


def _shape_of(ddl: str | None) -> _Shape | None:
    return None if ddl is None else _Shape(ddl)


def _rows_of(returned: Iterable[Any] | None) -> Iterable[Any]:
    """What was returned or yielded, row by row; a single row is refused, because a tuple of values looks like a tuple of rows."""
    if returned is None:
        return ()
    if isinstance(returned, (str, bytes, Mapping)) or hasattr(returned, "_fields") or not isinstance(returned, Iterable):
        raise DefinitionError(f"process and on_timer return a list of rows, or yield rows; this one returned {returned!r}")
    return returned


def _as_dict(row: Any, what: str) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return dict(row)
    if hasattr(row, "_asdict"):
        return dict(row._asdict())
    raise ValueError(f"{what} of a batch is a dict or a named tuple, not {row!r}")


@functools.lru_cache(maxsize=256)
def _row_class(name: str, columns: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple(name, columns, rename=True)


def _named(name: str, columns: tuple[str, ...], row: Mapping[str, Any]) -> Any:
    return _row_class(name, columns)(*(row.get(column) for column in columns))


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, value)


def _slot(plain: Any) -> Hashable:
    """A plain value as a key of a dict."""
    if isinstance(plain, (list, tuple)):
        return tuple(_slot(each) for each in plain)
    if isinstance(plain, dict):
        return frozenset((_slot(key), _slot(value)) for key, value in plain.items())
    return cast(Hashable, "NaN" if plain != plain else plain)


def _millis(at: datetime) -> int:
    """Milliseconds since 1970, what is finer cut off; without a time zone it is UTC."""
    if not isinstance(at, datetime):
        raise ValueError(f"a time is a datetime, not {at!r}")
    return ((at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)) - _EPOCH) // _MILLISECOND


def _instant(millis: int) -> datetime:
    return _EPOCH + millis * _MILLISECOND
