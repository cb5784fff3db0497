"""Offsets: one position per source of a pipeline, and the arithmetic of their chains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from strandline.model.positions import Order, Position, position_from_json


@dataclass(frozen=True)
class Offsets:
    """One position per source; a source that was never read has none."""

    sources: tuple[tuple[str, Position | None], ...] = ()

    @classmethod
    def of(cls, sources: Mapping[str, Position | None]) -> Offsets:
        return cls(tuple(sorted(sources.items())))

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, Any] | None]) -> Offsets:
        return cls.of({name: None if value is None else position_from_json(value) for name, value in data.items()})

    def to_json(self) -> dict[str, Any]:
        return {name: None if p is None else {"kind": p.kind, **p.to_json()} for name, p in self.sources}

    def canonical(self) -> str:
        """Sources that were never read are left out, so the origin is the same whatever the sources are."""
        read = {name: value for name, value in self.to_json().items() if value is not None}
        return json.dumps(read, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    @property
    def is_origin(self) -> bool:
        return all(position is None for _, position in self.sources)

    def human(self, since: Offsets | None) -> str:
        """``files 3–5`` for one source, ``orders files 3–5, users events 0–10`` for several."""
        before = dict(since.sources) if since else {}
        read = [(name, p) for name, p in self.sources if p is not None]
        if not read:
            return "nothing read"
        parts = [(name, p.human(before.get(name))) for name, p in read]
        return parts[0][1] if len(parts) == 1 else ", ".join(f"{name} {text}" for name, text in parts)


ORIGIN = Offsets()


class Break(Enum):
    """How a chain fails to continue: `next` does not start where `last` ended."""

    GAP = "gap"
    OVERLAP = "overlap"
    UNRELATED = "unrelated"


def chain_break(last_end: Offsets, next_start: Offsets) -> Break | None:
    """None when `next_start` continues `last_end` exactly; an overlap in any source outweighs a gap."""
    if last_end.digest == next_start.digest:
        return None
    before, after = dict(last_end.sources), dict(next_start.sources)
    orders = {_order(before.get(name), after.get(name)) for name in before.keys() | after.keys()}
    if Order.UNRELATED in orders:
        return Break.UNRELATED
    return Break.OVERLAP if Order.BEFORE in orders else Break.GAP


def _order(a: Position | None, b: Position | None) -> Order:
    if a is None or b is None:
        return Order.SAME if a is b else (Order.AFTER if a is None else Order.BEFORE)
    return a.order(b)
