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
    handles = []
    for slot, (layout, declared) in enumerate(zip(entry.epochs.current.states, states_of(process).values(), strict=True), start=1):
        handle = _handle(entry, slot, layout, declared)
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
