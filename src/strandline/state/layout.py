"""How a processor's states lie in the bytes of a key: one cell per state, in order of declaration.

A key's entry is ``[timers, cell, cell, …]``; an empty cell is None. An *element* is a plain value, or ``[value, touched]`` when the state has a ttl.
The cell of a value, reducing or aggregating state is an element; a list's cell is a list of elements; a map's a dict from packed
keys to elements. A list that is too long for its key's page is a dict of facts instead, and a large map a list of facts: their elements
are elsewhere, in chunks and in pages of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from strandline.model.errors import DefinitionError
from strandline.state.codec import Codec, WrongType, codec_of
from strandline.state.declarations import (
    AggregatingDeclaration,
    Clock,
    KeyedProcess,
    ListDeclaration,
    MapDeclaration,
    ReducingDeclaration,
    StateDeclaration,
    Ttl,
    ValueDeclaration,
    clocks_of,
    states_of,
)
from strandline.state.evolution import Incompatible, upgrade
from strandline.state.types import Type, parse_type

Change = Callable[[Any], Any]

TAIL = 3
"""Where the facts of a long list hold the elements that are in no chunk yet."""

_FOLDED = frozenset(["value", "reducing", "aggregating"])

KINDS: Mapping[type[StateDeclaration], str] = {
    ValueDeclaration: "value",
    ListDeclaration: "list",
    MapDeclaration: "map",
    ReducingDeclaration: "reducing",
    AggregatingDeclaration: "aggregating",
}


@dataclass(frozen=True)
class StateLayout:
    """One state as it is stored."""

    name: str
    kind: str
    type: Type
    key_type: Type | None
    ttl: Ttl | None

    @cached_property
    def codec(self) -> Codec:
        return codec_of(self.type)

    @cached_property
    def key_codec(self) -> Codec:
        assert self.key_type is not None
        return codec_of(self.key_type)

    def as_json(self) -> dict[str, Any]:
        """What is kept beside the checkpoint. TTL is told for people; it may change freely."""
        return {
            "name": self.name,
            "kind": self.kind,
            "type": self.type.ddl,
            "key_type": self.key_type.ddl if self.key_type else None,
            "ttl_ms": self.ttl.milliseconds if self.ttl else None,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StateLayout:
        from datetime import timedelta

        key = found["key_type"]
        ttl = Ttl(timedelta(milliseconds=found["ttl_ms"])) if found["ttl_ms"] else None
        return cls(found["name"], found["kind"], parse_type(found["type"]), parse_type(key) if key else None, ttl)


@dataclass(frozen=True)
class Layout:
    """All states of a processor, and the clocks its timers use."""

    states: tuple[StateLayout, ...]
    clocks: frozenset[Clock] = frozenset()

    def as_json(self) -> dict[str, Any]:
        return {"version": 1, "states": [state.as_json() for state in self.states], "clocks": sorted(self.clocks)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Layout:
        return cls(tuple(map(StateLayout.from_json, found["states"])), frozenset(found["clocks"]))

    def slot(self, name: str) -> int:
        return next(slot for slot, state in enumerate(self.states, start=1) if state.name == name)


def layout_of(process: KeyedProcess) -> Layout:
    """Read and check a processor's declarations."""
    owner = type(process).__name__
    if type(process).process is KeyedProcess.process:
        raise DefinitionError(f"{owner} has no method process(self, key, events, ctx)")
    states = []
    for name, declared in states_of(process).items():
        try:
            kind = parse_type(declared.type)
            key = parse_type(declared.key_type) if isinstance(declared, MapDeclaration) else None
        except DefinitionError as wrong:
            raise DefinitionError(f"state '{name}' of {owner}: {wrong.message}") from wrong
        if isinstance(declared, ValueDeclaration) and declared.default is not None:
            try:
                codec_of(kind).to_plain(declared.default)
            except WrongType as wrong:
                raise DefinitionError(f"the default of state '{name}' of {owner} does not fit its type: {wrong}") from wrong
        states.append(StateLayout(name, KINDS[type(declared)], kind, key, declared.ttl))
    return Layout(tuple(states), clocks_of(process))


class Epochs:
    """The layouts a strand's state was written under, oldest first; the last one is in force."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = tuple(layouts)
        self.current = self.layouts[-1]
        self._elements: dict[tuple[int, str], Change | None] = {}
        self._entries: dict[int, Callable[[list[Any]], list[Any]] | None] = {}

    @property
    def number(self) -> int:
        return len(self.layouts) - 1

    def check(self) -> None:
        """Every older layout must lead to the present one; raises `Incompatible`."""
        for epoch in range(self.number):
            self.entry(epoch)

    def element(self, epoch: int, state: StateLayout) -> Change | None:
        """How one stored element of a state (a value, a list's element, a map's value) comes from an older epoch."""
        if (epoch, state.name) not in self._elements:
            old = next((found for found in self.layouts[epoch].states if found.name == state.name), None)
            self._elements[epoch, state.name] = None if old is None else _element_upgrade(old, state)
        return self._elements[epoch, state.name]

    def entry(self, epoch: int) -> Callable[[list[Any]], list[Any]] | None:
        """How a key's entry comes from an older epoch; None when nothing changes."""
        if epoch not in self._entries:
            self._entries[epoch] = self._entry(epoch) if epoch != self.number else None
        return self._entries[epoch]

    def _entry(self, epoch: int) -> Callable[[list[Any]], list[Any]] | None:
        """States are matched by name. A new state starts empty; one that was not declared for a while is left behind."""
        since = [{state.name for state in layout.states} for layout in self.layouts[epoch:]]
        before = {
            state.name: slot
            for slot, state in enumerate(self.layouts[epoch].states, start=1)
            if all(state.name in names for names in since)
        }
        moves = [(before.get(state.name), state, self.element(epoch, state)) for state in self.current.states]
        slots = [slot for slot, _, _ in moves]
        if slots == list(range(1, len(self.layouts[epoch].states) + 1)) and all(change is None for _, _, change in moves):
            return None

        def apply(entry: list[Any]) -> list[Any]:
            cells = [entry[0]]
            for slot, state, change in moves:
                cell = entry[slot] if slot is not None else None
                cells.append(_changed(state, cell, change) if cell is not None and change is not None else cell)
            return cells

        return apply


def _changed(state: StateLayout, cell: Any, change: Change) -> Any:
    if state.kind == "list":
        if isinstance(cell, dict):
            return {**cell, TAIL: [change(element) for element in cell[TAIL]]}  # chunks know their own epoch
        return [change(element) for element in cell]
    if state.kind == "map":
        return {key: change(value) for key, value in cell.items()} if isinstance(cell, dict) else cell
    return change(cell)


def carried(old: StateLayout, new: StateLayout) -> Change | None:
    """How the plain value of one element is carried over, whatever is kept beside it; None when it stays as it is."""
    if old.kind != new.kind and not {old.kind, new.kind} <= _FOLDED:
        raise Incompatible(new.name, f"changes from {old.kind} state to {new.kind} state")
    if old.key_type != new.key_type:
        raise Incompatible(new.name, "changes the type of its keys")
    try:
        return upgrade(old.type, new.type)
    except Incompatible as wrong:
        raise Incompatible(f"{new.name}.{wrong.path}" if wrong.path else new.name, wrong.reason) from wrong


def _element_upgrade(old: StateLayout, new: StateLayout) -> Change | None:
    change = carried(old, new)
    if (old.ttl is None) != (new.ttl is None):
        raise Incompatible(new.name, "gains or loses its ttl; entries hold the time of their last touch only with one")
    if change is None or new.ttl is None:
        return change
    return lambda element: [change(element[0]), element[1]]


def time_mode(layout: Layout) -> Literal["none", "eventtime", "processingtime"]:
    """What Spark must know of our clocks: which one may wake a bucket that has no events."""
    if "processing" in layout.clocks:
        return "processingtime"
    return "eventtime" if layout.clocks else "none"
