"""The state of two checkpoints, operator by operator and key by key, whatever partitions and buckets their keys are in.

A bucket is decoded at a time; of one side a digest per key is kept, as of tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strandline.evidence.comparing import Rows
from strandline.evidence.plain import as_json
from strandline.evidence.state_rows import parse_rows, rows_by_key
from strandline.evidence.states import TIMERS
from strandline.model.times import from_millis, rfc3339
from strandline.state.reading import Held, KeyState

if TYPE_CHECKING:
    from strandline.runtime.keyed.inspecting import StateReader, StoredOperator


@dataclass(frozen=True)
class StateAt:
    """The state of one checkpoint after one batch."""

    name: str
    reader: StateReader
    batch: int
    now: int | None
    """The clock by which entries have expired, in milliseconds."""


@dataclass(frozen=True)
class OperatorPair:
    name: str
    left: Rows
    right: Rows
    key: tuple[str, ...]


@dataclass(frozen=True)
class Pairs:
    both: tuple[OperatorPair, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]


def pair_operators(
    left: StateAt | None, left_operators: Sequence[StoredOperator], right: StateAt | None, right_operators: Sequence[StoredOperator]
) -> Pairs:
    """Ours by name, Spark's by kind and order. One of ours that is left over in each is the same under another name."""
    mine, theirs = _named(left_operators), _named(right_operators)
    matched = [(mine.pop(name), theirs.pop(name)) for name in list(mine) if name in theirs and _comparable(mine[name], theirs[name])]
    renamed = [[name for name, operator in rest.items() if operator.record is not None] for rest in (mine, theirs)]
    if len(renamed[0]) == len(renamed[1]) == 1 and _comparable(mine[renamed[0][0]], theirs[renamed[1][0]]):
        matched.append((mine.pop(renamed[0][0]), theirs.pop(renamed[1][0])))
    both = tuple(_pair(left, one, right, other) for one, other in matched if left is not None and right is not None)
    return Pairs(both, tuple(operator.name for operator in mine.values()), tuple(operator.name for operator in theirs.values()))


def _named(operators: Sequence[StoredOperator]) -> dict[tuple[str, int], StoredOperator]:
    found: dict[tuple[str, int], StoredOperator] = {}
    for operator in operators:
        name = operator.record.name if operator.record is not None else f"spark:{operator.spark_name}"
        found[name, sum(known == name for known, _ in found)] = operator
    return found


def _comparable(one: StoredOperator, other: StoredOperator) -> bool:
    """Keys of as many columns can be put side by side."""
    if one.record is None or other.record is None:
        return one.record is other.record is None
    return len(one.keys.names) == len(other.keys.names)


def _pair(left: StateAt, one: StoredOperator, right: StateAt, other: StoredOperator) -> OperatorPair:
    name = one.name if one.name == other.name else f"{one.name} / {other.name}"
    if one.record is None:
        key = ("key", "side") if one.is_join else ("key",)
        return OperatorPair(name, NativeRows(left, one), NativeRows(right, other), key)
    names = tuple(one.keys.names)
    return OperatorPair(name, KeyedRows(left, one, names), KeyedRows(right, other, names), names)


@dataclass(frozen=True)
class KeyedRows:
    """One of our operators: a row per key, a column per state.

    As user code would see it: entries that have expired and wait to be cleaned up are not there, and when one was touched is nothing it holds.
    """

    at: StateAt
    operator: StoredOperator
    key: tuple[str, ...]
    """Names of the key's columns, those of the first side for both."""

    @property
    def name(self) -> str:
        return f"{self.at.name} '{self.operator.name}'"

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.key, *self._states().values())

    def _states(self) -> dict[str, str]:
        """Column by state; a state that is named like a column of the key gets another name."""
        current = self.operator.epochs.current
        names = [*(state.name for state in current.states), *([TIMERS] if current.clocks else [])]
        return {name: name if name not in self.key else f"state_{name}" for name in names}

    def records(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        states = self._states()
        for bucket in self.at.reader.buckets(self.operator, self.at.batch, self.at.now):
            for found in bucket:
                content = {column: _content(found, state) for state, column in states.items()}
                if any(content.values()):
                    row = dict(zip(self.key, map(as_json, found.key), strict=True)) | {
                        name: value and value[0] for name, value in content.items()
                    }
                    yield {name: row[name] for name in columns}


def _content(found: KeyState, state: str) -> tuple[Any] | None:
    """What a key holds in a state; None when that is nothing, which a value that is false or zero is not."""
    if state == TIMERS:
        timers = [{"clock": clock, "at": rfc3339(from_millis(at))} for clock, at in found.timers]
        return (timers,) if timers else None
    held = found.states.get(state)
    alive = tuple(element for element in held.elements if not element.expired) if held is not None else ()
    return (_value(replace(held, elements=alive)),) if held is not None and alive else None


def _value(held: Held) -> Any:
    """A map's entries have no order."""
    value = as_json(held.value)
    return sorted(value, key=repr) if held.layout.kind == "map" and isinstance(value, list) else value


@dataclass(frozen=True)
class NativeRows:
    """One of Spark's operators: a row per key, and per side of a join."""

    at: StateAt
    operator: StoredOperator

    @property
    def name(self) -> str:
        return f"{self.at.name} '{self.operator.name}'"

    @property
    def columns(self) -> tuple[str, ...]:
        return ("key", "side", "value") if self.operator.is_join else ("key", "value")

    def records(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        rows = rows_by_key(self.at.reader, self.operator, self.at.batch)
        for found in self.at.reader.ask(self.operator, self.at.batch, rows.toLocalIterator):
            row = {"key": json.loads(found["k"]), "side": found["s"], "value": parse_rows(found["rows"])}
            yield {name: row[name] for name in columns}
