"""Positions: how far one source was read, for each kind of source.

Two facts matter for exactly-once: whether two positions are *the same*, and if not, which way they differ.
"""

from __future__ import annotations

import hashlib
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

    def to_json(self) -> dict[str, Any]:
        """Without the kind; `position_from_json` is the way back."""
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FilesPosition:
        return cls(**data)

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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GeneratorPosition:
        return cls(**data)

    def human(self, since: Position | None) -> str:
        first = since.offset if isinstance(since, GeneratorPosition) else 0
        return f"events {first}–{self.offset}" if self.offset > first else f"events at {self.offset}"


@dataclass(frozen=True)
class KafkaPosition:
    """Topics of a cluster: the next offset to read, by topic and partition.

    Offsets count transaction markers too, so the difference of two positions is not a number of rows.
    """

    kind: ClassVar[str] = "kafka"
    partitions: tuple[tuple[str, int, int], ...]
    """(topic, partition, next offset), sorted."""

    @classmethod
    def of(cls, offsets: Mapping[str, Mapping[int, int]]) -> KafkaPosition:
        return cls(tuple(sorted((topic, number, offset) for topic, parts in offsets.items() for number, offset in parts.items())))

    @property
    def offsets(self) -> dict[tuple[str, int], int]:
        return {(topic, number): offset for topic, number, offset in self.partitions}

    @property
    def topics(self) -> list[str]:
        return sorted({topic for topic, _, _ in self.partitions})

    def by_topic(self) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for topic, number, offset in self.partitions:
            found.setdefault(topic, {})[number] = offset
        return found

    def order(self, other: Position) -> Order:
        if self == other:
            return Order.SAME
        if not isinstance(other, KafkaPosition):
            return Order.UNRELATED
        ours, theirs = self.offsets, other.offsets
        # A partition that only one side knows counts as read from its start there and not at all here.
        ahead = any(offset > ours.get(place, -1) for place, offset in theirs.items())
        behind = any(offset > theirs.get(place, -1) for place, offset in ours.items())
        if ahead and behind:
            return Order.UNRELATED
        return Order.AFTER if ahead else Order.BEFORE

    def to_json(self) -> dict[str, Any]:
        return {"topics": {topic: {str(n): offset for n, offset in parts.items()} for topic, parts in self.by_topic().items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KafkaPosition:
        return cls.of({topic: {int(n): int(offset) for n, offset in parts.items()} for topic, parts in data["topics"].items()})

    def human(self, since: Position | None) -> str:
        """``orders[0] 120–240``: from the first offset read up to the next one to read."""
        before = since.offsets if isinstance(since, KafkaPosition) else {}
        moved = [(t, n, before.get((t, n), 0), offset) for t, n, offset in self.partitions if offset > before.get((t, n), 0)]
        if not moved:
            return ", ".join(f"{topic} at {_places(parts)}" for topic, parts in self.by_topic().items()) or "no partition"
        if len(moved) > SHOWN_PARTITIONS:
            total = sum(offset - first for _, _, first, offset in moved)
            return f"{', '.join(sorted({t for t, _, _, _ in moved}))}: {total} offsets in {len(moved)} partitions"
        return ", ".join(f"{topic}[{number}] {first}–{offset}" for topic, number, first, offset in moved)


@dataclass(frozen=True)
class SnapshotPosition:
    """A small table read whole: the snapshot that was read last."""

    kind: ClassVar[str] = "snapshots"
    sequence: int
    snapshot: int

    def order(self, other: Position) -> Order:
        if self == other:
            return Order.SAME
        if not isinstance(other, SnapshotPosition) or self.sequence == other.sequence:
            return Order.UNRELATED
        return Order.AFTER if other.sequence > self.sequence else Order.BEFORE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SnapshotPosition:
        return cls(int(data["sequence"]), int(data["snapshot"]))

    def human(self, since: Position | None) -> str:
        return f"at snapshot {self.snapshot}" if self.snapshot else "no snapshot yet"


SHOWN_PARTITIONS = 8
"""Ranges of more partitions than this are summed up in one line; ledger and stamp keep each."""


def _places(parts: Mapping[int, int]) -> str:
    shown = [f"[{number}] {offset}" for number, offset in sorted(parts.items())]
    return ", ".join(shown) if len(shown) <= SHOWN_PARTITIONS else f"{len(shown)} partitions"


_KINDS: dict[str, type[FilesPosition] | type[GeneratorPosition] | type[KafkaPosition] | type[SnapshotPosition]] = {
    kind.kind: kind for kind in (FilesPosition, GeneratorPosition, KafkaPosition, SnapshotPosition)
}


def position_from_json(data: Mapping[str, Any]) -> Position:
    return _KINDS[data["kind"]].from_json({key: value for key, value in data.items() if key != "kind"})


def chain_hash(previous: str, entries: Iterable[str]) -> str:
    """One more link of a files chain; the order of entries inside one link does not matter."""
    link = hashlib.sha256(previous.encode())
    for entry in sorted(entries):
        link.update(b"\n" + entry.encode())
    return link.hexdigest()[:32]
