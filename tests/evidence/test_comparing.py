"""Comparing two states of a table: what only one has, what differs, what is doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.evidence.comparing import Comparison, Difference, Group, compare
from strandline.model.errors import UsageError


@dataclass(frozen=True)
class InMemory:
    name: str
    table: pa.Table

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    def records(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        yield from self.table.select(list(columns)).to_pylist()


def side(name: str, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> InMemory:
    return InMemory(name, pa.Table.from_pylist(rows, schema=schema))


def orders(*rows: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"id": number, "amount": amount} for number, amount in rows]


def compared(left: list[dict[str, Any]], right: list[dict[str, Any]], **options: Any) -> Comparison:
    return compare(side("a", left), side("b", right), **options)


def test_equal_tables_are_the_same_in_whatever_order() -> None:
    found = compared(orders((1, 1.0), (2, 2.0), (3, 0.0)), orders((3, -0.0), (1, 1.0), (2, 2.0)), key=["id"])

    assert found.same
    assert (found.left_rows, found.right_rows, found.equal, found.examples) == (3, 3, 3, [])


def test_keys_of_one_side_and_values_that_differ_are_shown() -> None:
    found = compared(orders((1, 1.0), (2, 2.0), (3, 3.0)), orders((2, 2.0), (3, 3.5), (4, 4.0)), key=["id"])

    assert not found.same
    assert (found.equal, found.only_left, found.only_right, found.differing) == (1, 1, 1, 1)
    assert sorted(found.examples, key=lambda shown: shown.key["id"]) == [
        Difference({"id": 1}, {"id": 1, "amount": 1.0}, None),
        Difference({"id": 3}, {"id": 3, "amount": 3.0}, {"id": 3, "amount": 3.5}),
        Difference({"id": 4}, None, {"id": 4, "amount": 4.0}),
    ]


def test_a_doubled_row_is_never_the_same() -> None:
    assert not compared(orders((1, 1.0)), orders((1, 1.0), (1, 1.0)), key=["id"]).same
    assert compared(orders((1, 1.0)), orders((1, 1.0), (1, 1.0)), key=["id"]).doubled_right == 1
    whole = compared(orders((1, 1.0), (1, 1.0)), orders((1, 1.0)))
    assert (whole.equal, whole.only_left, whole.same) == (1, 1, False)


def test_counts_by_a_column_and_instants_by_day() -> None:
    def at(day: int, hour: int, number: int) -> dict[str, Any]:
        return {"id": number, "placed_at": datetime(2026, 1, day, hour, tzinfo=timezone.utc)}

    found = compared([at(1, 1, 1), at(1, 9, 2), at(2, 1, 3)], [at(1, 1, 1), at(2, 1, 3), at(2, 2, 4)], key=["id"], by="placed_at")

    assert found.groups == [Group("2026-01-01", 2, 1, 1), Group("2026-01-02", 1, 2, 1)]


def test_columns_of_one_side_are_told_and_not_compared() -> None:
    found = compare(side("a", [{"id": 1, "old": 1}]), side("b", [{"id": 1, "new": 2}]), key=["id"])

    assert (found.equal, found.columns_only_left, found.columns_only_right, found.same) == (1, ("old",), ("new",), False)


def test_columns_that_are_ignored_do_not_count_in_either_side() -> None:
    left, right = side("a", [{"id": 1, "at": 1, "old": 2}]), side("b", [{"id": 1, "at": 9}])

    assert compare(left, right, key=["id"], ignore=["at", "old"]).same
    assert compare(left, right, ignore=["at", "old"]).same
    assert not compare(left, right, key=["id"], ignore=["old"]).same


def test_text_and_numbers_that_look_alike_differ() -> None:
    assert not compare(side("a", [{"v": "1"}]), side("b", [{"v": 1}])).same


def test_nested_values_are_compared_by_what_they_hold() -> None:
    left = [{"id": 1, "tags": ["x", "y"], "who": {"name": "ada", "age": 3}}]

    assert compared(left, [{"id": 1, "tags": ["x", "y"], "who": {"age": 3, "name": "ada"}}], key=["id"]).same
    assert not compared(left, [{"id": 1, "tags": ["y", "x"], "who": {"name": "ada", "age": 3}}], key=["id"]).same


def test_only_so_many_differences_are_shown() -> None:
    found = compared(orders(*((n, 1.0) for n in range(50))), orders((0, 1.0)), key=["id"], limit=5)

    assert (found.only_left, len(found.examples)) == (49, 5)


@pytest.mark.parametrize("options", [{"key": ["nope"]}, {"by": "nope"}])
def test_a_column_that_is_not_there_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"'nope' is not a column of both a and b \(id, amount\)"):
        compared(orders((1, 1.0)), orders((1, 1.0)), **options)


rows = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=30)


@given(rows, rows)
def test_whole_rows_are_compared_as_python_compares_them(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    found = compare(
        side("a", [{"k": k, "v": v} for k, v in left], schema), side("b", [{"k": k, "v": v} for k, v in right], schema), limit=100
    )

    one, other = Counter(left), Counter(right)
    assert found.only_left == sum((one - other).values())
    assert found.only_right == sum((other - one).values())
    assert found.equal == sum((one & other).values())
    assert found.same == (one == other)
