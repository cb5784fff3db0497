"""List and map state. Small ones live in their key's entry; long lists move into chunks, large maps into pages of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from strandline.state.codec import pack, unpack
from strandline.state.entry import Entry
from strandline.state.handles import Handle
from strandline.state.layout import TAIL, StateLayout
from strandline.state.pages import FORMAT, PagedTable

CHUNK_BYTES = 4096
"""Bytes of a chunk of a long list."""

_WINDOW = 16
"""Chunks that are fetched at a time while a long list is read."""

_FIRST, _NEXT, _COUNT, _NEWEST = 0, 1, 2, 4
"""Facts of a long list: numbers of its first and next chunk, elements in chunks, the last touch of anything in the first one."""


_MISSING = object()
"""No such key; an element may be null."""


class ListHandle(Handle):
    def get(self) -> list[Any]:
        return list(self)

    def __iter__(self) -> Iterator[Any]:
        if self._read_touches and isinstance(self._cell, dict):
            self._replace(list(self._elements()))  # to touch all of them is to write all of them
        for element in self._elements():
            if self._visible(element):
                self._touch(element)
                yield self._value(element)

    def __len__(self) -> int:
        if not self._hides_expired:
            return self.count()
        return sum(1 for element in self._elements() if self._visible(element))

    def exists(self) -> bool:
        return self.count() > 0 if not self._hides_expired else any(map(self._visible, self._elements()))

    def add(self, value: Any) -> None:
        element = self._element(value)
        cell = self._cell
        if cell is None:
            self._cell = [element]
        else:
            (cell[TAIL] if isinstance(cell, dict) else cell).append(element)
            self._entry.dirty = True

    def add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def update(self, values: Iterable[Any]) -> None:
        self._replace([self._element(value) for value in values])

    def clear(self) -> None:
        self._replace([])

    def fill(self, value: Any) -> None:
        self.update(value)

    def count(self) -> int:
        cell = self._cell
        if cell is None:
            return 0
        return int(cell[_COUNT]) + len(cell[TAIL]) if isinstance(cell, dict) else len(cell)

    def clean(self) -> int:
        if not self._ttl or self._cell is None:
            return 0
        before = self.count()
        if isinstance(self._cell, dict):
            self._clean_chunks()
        cell = self._cell
        tail = cell[TAIL] if isinstance(cell, dict) else cell
        kept = [element for element in tail if not self._expired(element)]
        if len(kept) < len(tail):
            self._cell = {**cell, TAIL: kept} if isinstance(cell, dict) else kept
        if self.count() == 0:
            self._cell = None
        return before - self.count()

    def expires(self) -> int | None:
        cell = self._cell
        if not self._ttl or cell is None:
            return None
        times = [element[1] for element in (cell[TAIL] if isinstance(cell, dict) else cell)]
        if isinstance(cell, dict) and cell[_NEXT] > cell[_FIRST]:
            times.append(cell[_NEWEST])
        return min(times) + self._ttl if times else None

    def spill(self) -> None:
        cell = self._cell
        tail = cell[TAIL] if isinstance(cell, dict) else cell
        if tail is None or len(pack(tail)) < CHUNK_BYTES // 2:
            return
        facts: dict[int, Any] = dict(cell) if isinstance(cell, dict) else {_FIRST: 0, _NEXT: 0, _COUNT: 0, TAIL: [], _NEWEST: 0}
        chunk: list[Any] = []
        size = 0
        chunks = []
        for element in tail:
            chunk.append(element)
            size += len(pack(element))
            if size >= CHUNK_BYTES:
                chunks.append(chunk)
                chunk, size = [], 0
        for full in [*chunks, chunk] if chunk else chunks:
            if facts[_FIRST] == facts[_NEXT] and self._ttl:
                facts[_NEWEST] = max(element[1] for element in full)
            self._entry.store.put_many([(self._key(facts[_NEXT]), pack([FORMAT, self._entry.epochs.number, full]))])
            facts[_NEXT] += 1
            facts[_COUNT] += len(full)
        facts[TAIL] = []
        self._cell = facts

    def _elements(self) -> Iterator[Any]:
        cell = self._cell
        if not isinstance(cell, dict):
            yield from cell or ()
            return
        for first in range(cell[_FIRST], cell[_NEXT], _WINDOW):
            for chunk in self._chunks(range(first, min(first + _WINDOW, cell[_NEXT]))):
                yield from chunk
        yield from cell[TAIL]

    def _chunks(self, numbers: Iterable[int]) -> Iterator[list[Any]]:
        for value in self._entry.store.get_many([self._key(number) for number in numbers]):
            assert value is not None, "a chunk that the key's entry names"
            _, epoch, elements = unpack(value)
            change = self._entry.epochs.element(epoch, self._layout) if epoch != self._entry.epochs.number else None
            yield elements if change is None else [change(element) for element in elements]

    def _clean_chunks(self) -> None:
        """Leading chunks go when all in them has expired: elements are added at the end, so the oldest are in front."""
        facts = dict(self._cell)
        while facts[_FIRST] < facts[_NEXT] and facts[_NEWEST] + self._ttl <= self._entry.now:
            (gone,) = self._chunks([facts[_FIRST]])
            self._entry.store.remove_many([self._key(facts[_FIRST])])
            facts[_FIRST] += 1
            facts[_COUNT] -= len(gone)
            if facts[_FIRST] < facts[_NEXT]:
                (chunk,) = self._chunks([facts[_FIRST]])
                facts[_NEWEST] = max(element[1] for element in chunk)
        if facts != self._cell:
            self._cell = facts

    def _replace(self, elements: list[Any]) -> None:
        cell = self._cell
        if isinstance(cell, dict):
            self._entry.store.remove_many([self._key(number) for number in range(cell[_FIRST], cell[_NEXT])])
        if cell is not None or elements:
            self._cell = elements or None

    def _key(self, chunk: int) -> bytes:
        return b"l" + pack([self._entry.key, self._layout.name, chunk])


class MapHandle(Handle):
    def __init__(self, entry: Entry, slot: int, layout: StateLayout) -> None:
        super().__init__(entry, slot, layout)
        self._keys = layout.key_codec
        self._open: PagedTable | None = None
        self._oldest: int | None = None

    def get(self, key: Any, default: Any = None) -> Any:
        packed = self._packed(key)
        element = self._find(packed)
        if element is _MISSING or not self._visible(element):
            return default
        if self._read_touches and not self._expired(element) and element[1] != self._entry.now:
            element[1] = self._entry.now
            self._store(packed, element)
        return self._value(element)

    def put(self, key: Any, value: Any) -> None:
        self._store(self._packed(key), self._element(value))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        self._drop(self._packed(key))

    def __contains__(self, key: object) -> bool:
        element = self._find(self._packed(key))
        return element is not _MISSING and self._visible(element)

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[Any, Any]]:
        for packed, element in list(self._all()) if not isinstance(self._cell, list) else self._all():
            if self._visible(element):
                if self._read_touches and not self._expired(element):
                    element[1] = self._entry.now
                    self._store(packed, element)
                yield self._keys.from_plain(unpack(packed)), self._value(element)

    def __len__(self) -> int:
        return self.count() if not self._hides_expired else sum(1 for _, element in self._all() if self._visible(element))

    def exists(self) -> bool:
        return self.count() > 0 if not self._hides_expired else any(self._visible(element) for _, element in self._all())

    def fill(self, value: Any) -> None:
        self.put_all(value)

    def clear(self) -> None:
        if isinstance(self._cell, list):
            self._table().drop()
            self._open = None
        super().clear()

    def count(self) -> int:
        if self._open is not None:
            return self._open.count
        cell = self._cell
        return 0 if cell is None else int(cell[1]) if isinstance(cell, list) else len(cell)

    def clean(self) -> int:
        first = self.expires()
        if first is None or first > self._entry.now:
            return 0
        gone = [packed for packed, element in self._all() if self._expired(element)]
        for packed in gone:
            self._drop(packed)
        if isinstance(self._cell, list):
            self._oldest = min((element[1] for _, element in self._all()), default=None)
            self._entry.dirty = True
        return len(gone)

    def expires(self) -> int | None:
        cell = self._cell
        if not self._ttl or not cell:
            return None
        if isinstance(cell, list):
            oldest = self._oldest if self._open is not None else cell[3]
        else:
            oldest = min(element[1] for element in cell.values())
        return None if oldest is None else oldest + self._ttl

    def spill(self) -> None:
        cell = self._cell
        if isinstance(cell, dict) and len(pack(cell)) > CHUNK_BYTES // 2:
            self._cell = [1, 0, 0, None]
            table = self._table()
            table.expect(len(cell))
            for packed, element in cell.items():
                self._store(packed, element)
            self.close()

    def close(self) -> None:
        table, self._open = self._open, None
        if table is None:
            return
        if table.count == 0:
            table.drop()
            self._cell = None
            return
        if any(page.dirty for page in table.loaded.values()):
            table.grow()
        table.flush()
        facts = [table.pages, table.count, table.size, self._oldest]
        if facts != self._cell:
            self._cell = facts

    def _packed(self, key: Any) -> bytes:
        return pack(self._keys.to_plain(key))

    def _find(self, packed: bytes) -> Any:
        if isinstance(self._cell, list):
            found = self._table().page_of(packed).entries.get(packed)
            return _MISSING if found is None else unpack(found)[0]
        return _MISSING if self._cell is None else self._cell.get(packed, _MISSING)

    def _store(self, packed: bytes, element: Any) -> None:
        if isinstance(self._cell, list):
            table = self._table()
            table.put(table.page_of(packed), packed, pack([element]))
            if self._ttl:
                self._oldest = element[1] if self._oldest is None else min(self._oldest, element[1])
            self._entry.dirty = True
        elif self._cell is None:
            self._cell = {packed: element}
        else:
            self._cell[packed] = element
            self._entry.dirty = True

    def _drop(self, packed: bytes) -> None:
        if isinstance(self._cell, list):
            table = self._table()
            table.remove(table.page_of(packed), packed)
            self._entry.dirty = True
        elif self._cell is not None and packed in self._cell:
            del self._cell[packed]
            self._cell = self._cell or None

    def _all(self) -> Iterator[tuple[bytes, Any]]:
        if isinstance(self._cell, list):
            for page in self._table().everything(_WINDOW):
                for packed, element in list(page.entries.items()):
                    yield packed, unpack(element)[0]
        elif self._cell is not None:
            yield from self._cell.items()

    def _table(self) -> PagedTable:
        if self._open is None:
            pages, count, size, self._oldest = self._cell
            epochs, owner = self._entry.epochs, self._entry.key

            def upgrade(epoch: int) -> Any:
                change = epochs.element(epoch, self._layout)
                return None if change is None else lambda entry: pack([change(unpack(entry)[0])])

            self._open = PagedTable(
                self._entry.store,
                lambda number: b"q" + pack([owner, self._layout.name, number]),
                pages,
                count,
                size,
                epochs.number,
                upgrade,
            )
        return self._open
