"""Rows of a table as it is, or as a branch, a tag or a snapshot shows it, read without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.model.errors import NotFound
from strandline.project.config import Project
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import MAIN

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RowsOf:
    """One state of a table."""

    name: str
    """As it was asked for: ``shop.orders`` or ``shop.orders@tag``."""
    metadata: str
    snapshot: int | None
    """None when the table is empty."""
    columns: tuple[str, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        from pyiceberg.table import StaticTable

        if self.snapshot is not None:
            table = StaticTable.from_metadata(self.metadata)
            yield from table.scan(snapshot_id=self.snapshot, selected_fields=self.columns).to_arrow_batch_reader()

    def records(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Row by row, these columns of it."""
        for batch in self.batches():
            yield from batch.select(list(columns)).to_pylist()


def rows_of(project: Project, asked: str) -> RowsOf:
    """Find ``TABLE`` or ``TABLE@REF``, where REF is a branch, a tag or the id of a snapshot."""
    table, _, ref = asked.partition("@")
    catalog = EmbeddedCatalog(project)
    view = catalog.load(table)
    snapshot = view.refs.get(ref or MAIN)
    if snapshot is None and ref not in ("", MAIN):
        if not ref.isdigit() or int(ref) not in view.snapshots:
            known = ", ".join(sorted(name for name in view.refs if name != MAIN)) or "none"
            raise NotFound(
                f"table '{table}' has no branch, tag or snapshot '{ref}' (branches and tags: {known})",
                next_command=f"strandline history {table}",
            )
        snapshot = int(ref)
    return rows_at(project, asked, table, snapshot)


def rows_at(project: Project, name: str, table: str, snapshot: int | None) -> RowsOf:
    """A table as a snapshot shows it, or empty."""
    catalog = EmbeddedCatalog(project)
    view, location = catalog.load(table), catalog.metadata_location(table)
    assert location is not None
    return RowsOf(name, location, snapshot, view.column_names(snapshot))
