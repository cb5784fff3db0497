"""Finding a table's current metadata without a JVM.

The embedded catalog is a SQLite file shared with Iceberg's Java `JdbcCatalog`. Reading it directly, and the
metadata file it points to, answers in milliseconds; loading an Iceberg client alone would take longer than that.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from strandline.model.errors import NotFound, TableUnavailable
from strandline.project.config import Project
from strandline.tables.view import TableView


class CatalogFile:
    """The catalog's SQLite file, by its place and name: all that Spark's workers are told of it."""

    def __init__(self, file: Path, name: str) -> None:
        self._file = file
        self._name = name

    def tables(self) -> list[str]:
        rows = self._query("SELECT table_namespace, table_name FROM iceberg_tables WHERE catalog_name = ? ORDER BY 1, 2", self._name)
        return [f"{namespace}.{name}" for namespace, name in rows]

    def metadata_location(self, table: str) -> str | None:
        """Where the table's current metadata lies; None when the catalog does not know the table."""
        namespace, _, name = table.rpartition(".")
        rows = self._query(
            "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
            self._name,
            namespace,
            name,
        )
        return str(rows[0][0]) if rows else None

    def _query(self, sql: str, *arguments: str) -> list[tuple[Any, ...]]:
        if not self._file.exists():
            return []
        try:
            connection = sqlite3.connect(f"file:{quote(str(self._file))}?mode=ro", uri=True, timeout=5)
            try:
                return connection.execute(sql, arguments).fetchall()
            finally:
                connection.close()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise TableUnavailable(f"the catalog {self._file} cannot be read: {error}", next_command="strandline doctor") from error
        except sqlite3.DatabaseError as error:
            raise TableUnavailable(f"the catalog {self._file} is damaged: {error}", next_command="strandline doctor") from error


class EmbeddedCatalog(CatalogFile):
    """The tables of a project."""

    def __init__(self, project: Project) -> None:
        super().__init__(project.catalog_file, project.profile.catalog.name)

    def find(self, table: str) -> TableView | None:
        """The table as it is now; None when the catalog does not know it."""
        location = self.metadata_location(table)
        return None if location is None else TableView(table, read_metadata(table, location))

    def load(self, table: str) -> TableView:
        view = self.find(table)
        if view is None:
            known = ", ".join(self.tables()) or "none yet"
            raise NotFound(f"there is no table '{table}' in the catalog (tables: {known})", next_command="strandline status")
        return view


def read_metadata(table: str, location: str) -> dict[str, Any]:
    try:
        raw = local_path(location).read_bytes()
        content: dict[str, Any] = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        return content
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise TableUnavailable(
            f"the metadata file {location} of table '{table}' cannot be read: {error}", next_command="strandline doctor"
        ) from error


def local_path(location: str) -> Path:
    """``file:/a/b`` and ``/a/b`` → a path."""
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(location)
