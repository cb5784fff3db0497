"""A processor with its states bound to the key at hand."""

from __future__ import annotations

import copy

from strandline.state.containers import ListHandle, MapHandle
from strandline.state.declarations import (
    AggregatingDeclaration,
    KeyedProcess,
    ReducingDeclaration,
    StateDeclaration,
    ValueDeclaration,
    states_of,
)
from strandline.state.entry import Entry
from strandline.state.handles import FoldingHandle, Handle, ValueHandle
from strandline.state.layout import StateLayout


def bind(process: KeyedProcess, entry: Entry) -> tuple[KeyedProcess, list[Handle]]:
    """A copy of the processor whose attributes are handles, and the handles in the order of their cells."""
    bound = copy.copy(process)
    declared = states_of(process)  # by name: a class that was pickled may have its attributes in another order
    handles = []
    for slot, layout in enumerate(entry.epochs.current.states, start=1):
        handle = _handle(entry, slot, layout, declared[layout.name])
        setattr(bound, layout.name, handle)
        handles.append(handle)
    return bound, handles


def _handle(entry: Entry, slot: int, layout: StateLayout, declared: StateDeclaration) -> Handle:
    if isinstance(declared, ValueDeclaration):
        return ValueHandle(entry, slot, layout, declared)
    if isinstance(declared, ReducingDeclaration):
        return FoldingHandle(entry, slot, layout, lambda value: value, declared.reduce, None)
    if isinstance(declared, AggregatingDeclaration):
        create, add = declared.create, declared.add
        return FoldingHandle(entry, slot, layout, lambda value: add(create(), value), add, declared.result)
    return ListHandle(entry, slot, layout) if layout.kind == "list" else MapHandle(entry, slot, layout)
