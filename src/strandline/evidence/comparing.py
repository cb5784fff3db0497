"""Two tables, two states of a table, or the state of two operators, row by row: what only one of them has, and what differs.

Of one side a digest per row is kept, the other is read past it: memory follows the rows of the smaller side, not their width.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from strandline.evidence.plain import as_json
from strandline.model.errors import UsageError

COMPARE_VERSION = 1


class Rows(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    def records(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]: ...


@dataclass(frozen=True)
class Difference:
    """One key. A side that does not have it is None."""

    key: Mapping[str, Any]
    left: Mapping[str, Any] | None
    right: Mapping[str, Any] | None


@dataclass(frozen=True)
class Group:
    """Rows of both sides with one value of a column."""

    value: Any
    left: int
    right: int
    different: int
    """Keys with this value that only one side has, or that differ."""


@dataclass
class Comparison:
    left: str
    right: str
    key: tuple[str, ...]
    left_rows: int = 0
    right_rows: int = 0
    equal: int = 0
    only_left: int = 0
    only_right: int = 0
    differing: int = 0
    doubled_left: int = 0
    """Rows whose key came before; the first of them is compared."""
    doubled_right: int = 0
    columns_only_left: tuple[str, ...] = ()
    columns_only_right: tuple[str, ...] = ()
    examples: list[Difference] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)

    @property
    def same(self) -> bool:
        doubles = self.doubled_left or self.doubled_right
        return not (self.only_left or self.only_right or self.differing or doubles or self.columns_only_left or self.columns_only_right)


def compare(
    left: Rows, right: Rows, key: Sequence[str] = (), by: str | None = None, limit: int = 10, ignore: Collection[str] = ()
) -> Comparison:
    """Without a key whole rows are compared, and a row that is there twice counts twice.

    Args:
        by: a column to break the counts down by; instants are taken by day.
        limit: so many differences are shown with their values.
        ignore: columns that do not count, in whichever side they are.
    """
    common = tuple(name for name in left.columns if name in right.columns and name not in ignore)
    for name in (*key, *([by] if by else [])):
        if name not in common:
            raise UsageError(
                f"'{name}' is not a column of both {left.name} and {right.name} ({', '.join(common)})",
                next_command=f"strandline compare {left.name} {right.name} --key {common[0] if common else 'COLUMN'}",
            )
    found = Comparison(
        left.name,
        right.name,
        tuple(key),
        columns_only_left=tuple(name for name in left.columns if name not in (*common, *ignore)),
        columns_only_right=tuple(name for name in right.columns if name not in (*common, *ignore)),
    )
    comparer = _ByKey(found, tuple(key), common, by) if key else _WholeRows(found, common, common, by)
    comparer.take_left(left)
    comparer.pass_right(right)
    found.examples = comparer.examples(left, right, limit)
    found.groups = comparer.groups()
    return found


class _ByKey:
    """Rows are known by their key; the digest tells whether the rest is the same."""

    def __init__(self, found: Comparison, key: tuple[str, ...], columns: tuple[str, ...], by: str | None) -> None:
        self._found = found
        self._key = key
        self._columns = columns
        self._by = by
        self._waiting: dict[bytes, tuple[bytes, Any]] = {}
        self._different: dict[bytes, None] = {}
        self._totals: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0])

    def take_left(self, side: Rows) -> None:
        for identity, digest, group in self._rows(side):
            self._found.left_rows += 1
            self._totals[group][0] += 1
            if identity in self._waiting:
                self._found.doubled_left += 1
            else:
                self._waiting[identity] = (digest, group)

    def pass_right(self, side: Rows) -> None:
        met: set[bytes] = set()
        for identity, digest, group in self._rows(side):
            self._found.right_rows += 1
            self._totals[group][1] += 1
            if identity in met:
                self._found.doubled_right += 1
                continue
            met.add(identity)
            there = self._waiting.pop(identity, None)
            if there is None:
                self._found.only_right += 1
                self._note(identity, group)
            elif there[0] != digest:
                self._found.differing += 1
                self._note(identity, group)
            else:
                self._found.equal += 1
        self._found.only_left = len(self._waiting)
        for identity, (_, group) in self._waiting.items():
            self._note(identity, group)

    def _note(self, identity: bytes, group: Any) -> None:
        self._different[identity] = None
        self._totals[group][2] += 1

    def groups(self) -> list[Group]:
        if self._by is None:
            return []
        ordered = sorted(self._totals.items(), key=lambda entry: (entry[0] is not None, str(entry[0])))
        return [Group(as_json(value), *counts) for value, counts in ordered]

    def examples(self, left: Rows, right: Rows, limit: int) -> list[Difference]:
        """The values of the first differences, by a second look at both sides."""
        wanted = list(self._different)[:limit]
        if not wanted:
            return []
        values = [self._values(side, set(wanted)) for side in (left, right)]
        shown = []
        for identity in wanted:
            of_left, of_right = (side.get(identity) for side in values)
            row = of_left or of_right or {}
            shown.append(Difference({name: row.get(name) for name in self._key}, of_left, of_right))
        return shown

    def _values(self, side: Rows, wanted: set[bytes]) -> dict[bytes, dict[str, Any]]:
        found: dict[bytes, dict[str, Any]] = {}
        for row in side.records(self._columns):
            identity = _digest(row[name] for name in self._key)
            if identity in wanted and identity not in found:
                found[identity] = {name: as_json(row[name]) for name in self._columns}
        return found

    def _rows(self, side: Rows) -> Iterator[tuple[bytes, bytes, Any]]:
        rest = [name for name in self._columns if name not in self._key]
        for row in side.records(self._columns):
            group = _group(row[self._by]) if self._by is not None else None
            yield _digest(row[name] for name in self._key), _digest(row[name] for name in rest), group


class _WholeRows(_ByKey):
    """A row is its own key, and may be there several times."""

    def __init__(self, found: Comparison, key: tuple[str, ...], columns: tuple[str, ...], by: str | None) -> None:
        super().__init__(found, key, columns, by)
        self._counts: Counter[bytes] = Counter()
        self._group_of: dict[bytes, Any] = {}

    def take_left(self, side: Rows) -> None:
        for identity, _, group in self._rows(side):
            self._found.left_rows += 1
            self._totals[group][0] += 1
            self._counts[identity] += 1
            self._group_of[identity] = group

    def pass_right(self, side: Rows) -> None:
        for identity, _, group in self._rows(side):
            self._found.right_rows += 1
            self._totals[group][1] += 1
            if self._counts[identity] > 0:
                self._counts[identity] -= 1
                self._found.equal += 1
            else:
                self._found.only_right += 1
                self._note(identity, group)
        for identity, left_over in self._counts.items():
            if left_over > 0:
                self._found.only_left += left_over
                self._note(identity, self._group_of[identity])


def _digest(values: Iterable[Any]) -> bytes:
    """Sixteen bytes that differ when the values do; text and numbers that look alike are told apart."""
    return hashlib.blake2b(repr([_comparable(value) for value in values]).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _comparable(value: Any) -> Any:
    """Maps come in any order, and -0.0 equals 0.0 to every reader."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {name: _comparable(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_comparable(part) for part in value]
    return value


def _group(value: Any) -> Any:
    return value.date() if isinstance(value, datetime) else value
