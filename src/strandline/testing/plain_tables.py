"""Tables that PyIceberg makes: no Spark is needed to write or to read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.project.config import Project
from strandline.testing.projects import write_sandbox

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog


@dataclass(frozen=True)
class PlainTables:
    """A project, and its catalog as PyIceberg opens it."""

    project: Project
    catalog: SqlCatalog

    def make(self, name: str, **types: Any) -> None:
        import pyarrow as pa

        self.catalog.create_table(name, pa.schema(list(types.items())))

    def append(self, name: str, summary: Mapping[str, str] | None = None, **columns: list[Any]) -> int:
        """A commit with these rows; the id of its snapshot."""
        import pyarrow as pa

        table = self.catalog.load_table(name)
        schema = table.schema().as_arrow()
        table.append(pa.table(columns, schema=schema) if columns else schema.empty_table(), snapshot_properties=dict(summary or {}))
        return self.head(name)

    def head(self, name: str) -> int:
        snapshot = self.catalog.load_table(name).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def tag(self, name: str, snapshot: int, tag: str) -> None:
        self.catalog.load_table(name).manage_snapshots().create_tag(snapshot, tag).commit()

    def untag(self, name: str, tag: str) -> None:
        self.catalog.load_table(name).manage_snapshots().remove_tag(tag).commit()

    def go_back(self, name: str, snapshot: int) -> None:
        self.catalog.load_table(name).manage_snapshots().set_current_snapshot(snapshot).commit()


@contextmanager
def plain_tables(folder: Path) -> Iterator[PlainTables]:
    from pyiceberg.catalog.sql import SqlCatalog

    project = write_sandbox(folder)
    Path(project.warehouse).mkdir()
    project.catalog_file.parent.mkdir(parents=True)
    catalog = SqlCatalog(project.profile.catalog.name, uri=f"sqlite:///{project.catalog_file}", warehouse=f"file://{project.warehouse}")
    try:
        catalog.create_namespace("shop")
        yield PlainTables(project, catalog)
    finally:
        catalog.engine.dispose()
