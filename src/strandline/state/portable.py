"""State as a table: one row per key, in the types that were declared; and from such rows back to the cells of a key.

What is stored in pages names the layout it was written under. A table does not: whoever reads it needs no strandline, and what is read
from it may enter any layout that its types lead to, in any number of buckets.

| column | holds |
| --- | --- |
| `key` | a struct of the key's columns |
| `states` | a struct with a field per state: a value, an array of a list's elements, or an array of a map's `key` and `value` |
| `timers` | a struct with the moments of each clock; null without timers |

Where a state has a ttl, a value or element is a struct of `value` and `touched`; a map's entries have `touched` beside them. What is
absent is null, and every field may be: what may be null in a state is said by its declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strandline.state.codec import pack, unpack
from strandline.state.context import CLOCKS
from strandline.state.declarations import Clock
from strandline.state.evolution import describe
from strandline.state.layout import Layout, StateLayout, carried
from strandline.state.types import ArrayOf, Field, MapOf, Primitive, StructOf, Type

KEY = "key"
STATES = "states"
TIMERS = "timers"

_MOMENT = Primitive("timestamp")
_TIMERS = StructOf(tuple(Field(clock, ArrayOf(_MOMENT)) for clock in CLOCKS))
_MICROS = 1000
"""Of a millisecond: tables hold moments to the microsecond, state to the millisecond."""

Elements = Sequence[tuple[bytes | None, Any]]
"""What a key holds in one state: a map's packed keys (None elsewhere) with the elements, as they are stored."""


def portable_fields(key: StructOf, layout: Layout) -> StructOf:
    """The table's columns."""
    states = tuple(Field(state.name, _held(state)) for state in layout.states)
    own = [Field(STATES, StructOf(states))] if states else []
    return StructOf((Field(KEY, _nullable(key)), *own, Field(TIMERS, _TIMERS)))


def _held(state: StateLayout) -> Type:
    value = _nullable(state.type)
    touched = [Field("touched", _MOMENT)] if state.ttl else []
    if state.kind == "map":
        assert state.key_type is not None
        return ArrayOf(StructOf((Field("key", _nullable(state.key_type)), Field("value", value), *touched)))
    element = StructOf((Field("value", value), *touched)) if touched else value
    return ArrayOf(element) if state.kind == "list" else element


def _nullable(kind: Any) -> Any:
    """Absent states are null with all their parts, so no part may be declared otherwise."""
    if isinstance(kind, StructOf):
        return StructOf(tuple(Field(field.name, _nullable(field.type)) for field in kind.fields))
    if isinstance(kind, ArrayOf):
        return ArrayOf(_nullable(kind.element))
    return MapOf(_nullable(kind.key), _nullable(kind.value)) if isinstance(kind, MapOf) else kind


# -- out of a bucket -----------------------------------------------------------------------------------------------------


class PortableRows:
    """Makes rows for `state.arrow.table_of`: their values are plain, nothing is decoded on the way."""

    def __init__(self, key: StructOf, single_key: bool, layout: Layout) -> None:
        self.fields = portable_fields(key, layout)
        self._single = single_key
        self._states = [_out(state) for state in layout.states]

    def row(self, packed: bytes, timers: Any, states: Sequence[Elements]) -> list[Any]:
        key = unpack(packed)
        held = [make(elements) if elements else None for make, elements in zip(self._states, states, strict=True)]
        due = [[at * _MICROS for at in times] for times in timers] if timers and any(timers) else None
        return [[key] if self._single else key, *([held] if held else []), due]


def _out(state: StateLayout) -> Callable[[Elements], Any]:
    mortal = state.ttl is not None

    def element(stored: Any) -> Any:
        return [stored[0], stored[1] * _MICROS] if mortal else stored

    if state.kind == "list":
        return lambda elements: [element(stored) for _, stored in elements]
    if state.kind != "map":
        return lambda elements: element(elements[0][1])
    if mortal:
        return lambda elements: [[unpack(key or b""), *element(stored)] for key, stored in elements]
    return lambda elements: [[unpack(key or b""), stored] for key, stored in elements]


# -- into a bucket -------------------------------------------------------------------------------------------------------


class Entries:
    """Makes packed keys and entries of plain rows, under another layout than they were written under.

    Args:
        touched: in milliseconds, when what was kept without a ttl counts as touched.

    Raises:
        Incompatible: a state cannot be carried over.
    """

    def __init__(self, single_key: bool, saved: Layout, declared: Layout, touched: int) -> None:
        self._single = single_key
        self._clocks = [clock in declared.clocks for clock in CLOCKS]
        places = {state.name: (place, state) for place, state in enumerate(saved.states)}
        self._cells: list[tuple[int, Callable[[Any], Any]] | None] = []
        for state in declared.states:
            place, before = places.get(state.name, (0, None))
            self._cells.append(None if before is None else (place, _into(before, state, touched)))

    def key(self, columns: Sequence[Any]) -> bytes:
        return pack(columns[0] if self._single else list(columns))

    def entry(self, states: Sequence[Any] | None, timers: Sequence[Any] | None) -> bytes:
        cells: list[Any] = [self._timers(timers)]
        for source in self._cells:
            held = None if source is None or states is None else states[source[0]]
            cells.append(None if held is None or source is None else source[1](held))
        return pack(cells)

    def _timers(self, timers: Sequence[Any] | None) -> Any:
        if timers is None:
            return None
        kept = [[at // _MICROS for at in times or ()] if known else [] for known, times in zip(self._clocks, timers, strict=True)]
        return kept if any(kept) else None


def _into(old: StateLayout, new: StateLayout, touched: int) -> Callable[[Any], Any]:
    change = carried(old, new)
    was_mortal, is_mortal = old.ttl is not None, new.ttl is not None

    def element(plain: Any, at: int | None) -> Any:
        value = plain if change is None else change(plain)
        return [value, touched if at is None else at // _MICROS] if is_mortal else value

    def single(held: Any) -> Any:
        return element(held[0], held[1]) if was_mortal else element(held, None)

    if new.kind == "list":
        return lambda held: [single(each) for each in held] or None
    if new.kind != "map":
        return single
    if was_mortal:
        return lambda held: {pack(key): element(plain, at) for key, plain, at in held} or None
    return lambda held: {pack(key): element(plain, None) for key, plain in held} or None


# -- what would change ---------------------------------------------------------------------------------------------------


def undeclared_clocks(declared: Layout, timers: Mapping[str, int]) -> list[Clock]:
    """Clocks with saved timers that the processor no longer has."""
    return [clock for clock in CLOCKS if timers.get(clock) and clock not in declared.clocks]


def carried_changes(saved: Layout, declared: Layout) -> list[str]:
    """What happens to the states of an operator, in clauses; `Incompatible` when one cannot be carried over."""
    before = {state.name: state for state in saved.states}
    changes: list[str] = []
    for state in declared.states:
        old = before.pop(state.name, None)
        if old is None:
            changes.append(f"state '{state.name}' begins empty")
            continue
        carried(old, state)
        changes += [f"state '{state.name}' {change}" for change in describe(old.type, state.type)]
        if (old.ttl is None) != (state.ttl is None):
            changes.append(f"state '{state.name}' {'gains a ttl, counted from the savepoint' if state.ttl else 'loses its ttl'}")
    return changes + [f"state '{name}' is dropped" for name in before]
