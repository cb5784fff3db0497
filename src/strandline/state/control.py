"""Control data: small tables that every key sees, the same rows in the same batch.

Each bucket keeps its own copy, as state: a restart finds it where the checkpoint left it, whatever the control source says by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from strandline.state.codec import Codec, codec_of, pack, unpack
from strandline.state.store import Store
from strandline.state.types import StructOf

DELETED = "_deleted"
"""A control row with this column set removes the row of its key."""


SNAPSHOT = "_snapshot"
"""Rows with this column are a whole table as of that snapshot, and take the place of all that was known; `sl.snapshots` makes them."""


def control_key(name: str) -> bytes:
    """The store's key of a control table."""
    return b"c" + name.encode()


def control_name(store_key: bytes) -> str | None:
    """The other way round; None for what is no control data."""
    return store_key[1:].decode() if store_key[:1] == b"c" else None


class ControlTable:
    """One control stream: rows by the value of a column, the newest counts."""

    def __init__(self, name: str, key: str, fields: StructOf) -> None:
        self.name = name
        names = [field.name for field in fields.fields]
        self._place = names.index(key)
        self._deleted = names.index(DELETED) if DELETED in names else None
        self._snapshot = names.index(SNAPSHOT) if SNAPSHOT in names else None
        self._codec: Codec = codec_of(fields)
        self._rows: dict[Any, list[Any]] = {}
        self._changed = False

    @property
    def store_key(self) -> bytes:
        return control_key(self.name)

    def restore(self, stored: bytes | None) -> None:
        self._rows = {} if stored is None else unpack(stored)

    def apply(self, rows: Iterable[Any]) -> None:
        """Take new rows, in order; of whole snapshots only the last one."""
        given = [self._codec.to_plain(row) for row in rows]
        if self._snapshot is not None and given:
            last = given[-1][self._snapshot]
            given = [plain for plain in given if plain[self._snapshot] == last and plain[self._place] is not None]
            self._rows, self._changed = {}, True
        for plain in given:
            key = plain[self._place]
            if self._deleted is not None and plain[self._deleted]:
                self._rows.pop(key, None)
            else:
                self._rows[key] = plain
            self._changed = True

    def content(self) -> bytes | None:
        """What must be written, if anything."""
        return pack(self._rows) if self._changed else None

    def view(self) -> Mapping[Any, Any]:
        rows = {}
        for plain in self._rows.values():
            row = self._codec.from_plain(plain)
            rows[row[self._place]] = row
        return MappingProxyType(rows)


class ControlTables:
    """All control data of a processor, and what this batch brings."""

    def __init__(self, tables: Iterable[ControlTable] = (), arrived: Mapping[str, Iterable[Any]] | None = None) -> None:
        self._tables = list(tables)
        self._arrived = arrived or {}

    def read(self, store: Store) -> Mapping[str, Mapping[Any, Any]]:
        if not self._tables:
            return {}
        for table, stored in zip(self._tables, store.get_many([table.store_key for table in self._tables]), strict=True):
            table.restore(stored)
            table.apply(self._arrived.get(table.name, ()))
        return MappingProxyType({table.name: table.view() for table in self._tables})

    def save(self, store: Store) -> None:
        writes = [(table.store_key, content) for table in self._tables if (content := table.content()) is not None]
        if writes:
            store.put_many(writes)
