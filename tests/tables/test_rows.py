"""Rows of a table as a branch, a tag or a snapshot shows it. The tables are made by PyIceberg: no Spark is needed to read them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.model.errors import NotFound
from strandline.project.config import Project
from strandline.tables.rows import RowsOf, rows_of
from strandline.testing.plain_tables import PlainTables


@pytest.fixture
def project(tables: PlainTables) -> Project:
    """A table with two snapshots; a tag names the first."""
    for name in ("shop.orders", "shop.empty"):
        tables.make(name, id=pa.int64(), amount=pa.float64())
    first = tables.append("shop.orders", id=[1, 2], amount=[1.0, 2.0])
    tables.tag("shop.orders", first, "before")
    tables.append("shop.orders", id=[3], amount=[3.0])
    return tables.project


def ids(rows: RowsOf) -> list[int]:
    return sorted(number for batch in rows.batches() for number in batch.column("id").to_pylist())


def test_a_table_as_it_is_and_as_it_was(project: Project) -> None:
    assert ids(rows_of(project, "shop.orders")) == [1, 2, 3]
    before = rows_of(project, "shop.orders@before")
    assert ids(before) == [1, 2]
    assert ids(rows_of(project, f"shop.orders@{before.snapshot}")) == [1, 2]
    assert before.columns == ("id", "amount")


def test_an_empty_table_has_no_rows(project: Project) -> None:
    assert ids(rows_of(project, "shop.empty")) == []


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("shop.nothing", "there is no table 'shop.nothing'"),
        ("shop.orders@nope", r"table 'shop.orders' has no branch, tag or snapshot 'nope' \(branches and tags: before\)"),
        ("shop.orders@42", "has no branch, tag or snapshot '42'"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(project: Project, asked: str, words: str) -> None:
    with pytest.raises(NotFound, match=words):
        rows_of(project, asked)
