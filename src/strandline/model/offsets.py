"""Source positions and the arithmetic of offset chains.

A `Position` says how far one source was read; `Offsets` holds one position per source of a pipeline.
Two facts matter for exactly-once: whether two positions are *the same*, and if not, which way they differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol


class Order(Enum):
    SAME = "same"
    BEFORE = "before"
    AFTER = "after"
    UNRELATED = "unrelated"


class Position(Protocol):
    """How far one source was read. Implementations are frozen, hashable and JSON-able."""

    kind: ClassVar[str]

    def order(self, other: Position) -> Order:
        """Where `other` lies relative to this position."""
        ...

    def human(self, since: Position | None) -> str:
        """The range ``since → self`` in the shortest words an operator understands; a bare place when they are the same."""
        ...


@dataclass(frozen=True)
class FilesPosition:
    """A directory source: how many log entries, how many files, and a hash chain over their names.

    Spark's own offset for files is a bare counter, so two histories that read different files look alike.
    The chain tells them apart.
    """

    kind: ClassVar[str] = "files"
    log: int
    files: int
    chain: str

    def order(self, other: Position) -> Order:
        if self == other:
            return Order.SAME
        if not isinstance(other, FilesPosition) or self.log == other.log:
            return Order.UNRELATED
        return Order.AFTER if other.log > self.log else Order.BEFORE

    def human(self, since: Position | None) -> str:
        first = since.files if isinstance(since, FilesPosition) else 0
        return f"files {first + 1}–{self.files}" if self.files > first else f"files at {self.files}"


@dataclass(frozen=True)
class GeneratorPosition:
    """The event generator: events made so far, and the event-time clock Spark keeps beside it."""

    kind: ClassVar[str] = "generator"
    offset: int
    timestamp: int

    def order(self, other: Position) -> Order:
        if self == other:
            return Order.SAME
        if not isinstance(other, GeneratorPosition) or self.offset == other.offset:
            return Order.UNRELATED
        return Order.AFTER if other.offset > self.offset else Order.BEFORE

    def human(self, since: Position | None) -> str:
        first = since.offset if isinstance(since, GeneratorPosition) else 0
        return f"events {first}–{self.offset}" if self.offset > first else f"events at {self.offset}"


_KINDS: dict[str, type[FilesPosition] | type[GeneratorPosition]] = {
    FilesPosition.kind: FilesPosition,
    GeneratorPosition.kind: GeneratorPosition,
}


@dataclass(frozen=True)
class Offsets:
    """One position per source; a source that was never read has none."""

    sources: tuple[tuple[str, Position | None], ...] = ()

    @classmethod
    def of(cls, sources: Mapping[str, Position | None]) -> Offsets:
        return cls(tuple(sorted(sources.items())))

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, Any] | None]) -> Offsets:
        def decode(value: Mapping[str, Any] | None) -> Position | None:
            if value is None:
                return None
            fields = {k: v for k, v in value.items() if k != "kind"}
            return _KINDS[value["kind"]](**fields)

        return cls.of({name: decode(value) for name, value in data.items()})

    def to_json(self) -> dict[str, Any]:
        return {
            name: None if p is None else {"kind": p.kind, **asdict(p)}  # type: ignore[call-overload]
            for name, p in self.sources
        }

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


def chain_hash(previous: str, entries: Iterable[str]) -> str:
    """One more link of a files chain; the order of entries inside one link does not matter."""
    link = hashlib.sha256(previous.encode())
    for entry in sorted(entries):
        link.update(b"\n" + entry.encode())
    return link.hexdigest()[:32]
