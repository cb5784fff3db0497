"""Rows of a table as a branch, a tag or a snapshot shows it. The tables are made by PyIceberg: no Spark is needed to read them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from strandline.model.errors import NotFound
from strandline.project.config import Project
from strandline.tables.rows import RowsOf, rows_of
from strandline.testing.projects import write_sandbox


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A table with two snapshots; a tag names the first."""
    project = write_sandbox(tmp_path)
    Path(project.warehouse).mkdir()
    project.catalog_file.parent.mkdir(parents=True)
    catalog = SqlCatalog(project.profile.catalog.name, uri=f"sqlite:///{project.catalog_file}", warehouse=f"file://{project.warehouse}")
    catalog.create_namespace("shop")
    for name in ("orders", "empty"):
        catalog.create_table(f"shop.{name}", pa.schema([("id", pa.int64()), ("amount", pa.float64())]))
    orders = catalog.load_table("shop.orders")
    orders.append(pa.table({"id": [1, 2], "amount": [1.0, 2.0]}))
    orders.manage_snapshots().create_tag(orders.refresh().current_snapshot().snapshot_id, "before").commit()  # type: ignore[union-attr]
    orders.append(pa.table({"id": [3], "amount": [3.0]}))
    catalog.engine.dispose()
    return project


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
