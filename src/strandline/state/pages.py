"""A hash table of pages that grows one page at a time.

Many small entries share a page, so that one exchange with the store moves many of them. With linear hashing a page's number follows
from an entry's hash and the number of pages alone, and growth divides one page at a time: no directory, no rebuild.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from strandline.state.codec import pack, unpack
from strandline.state.store import Store

FORMAT = 1

PAGE_BYTES = 2048
"""Bytes of a page when it is divided, on average. Larger ones make fewer exchanges when all keys are touched, and more bytes to
rewrite when few are; between 1 and 4 KB both cost about the same (`bench/state.py`)."""

ENTRY_GUESS = 64
"""Bytes of an entry, while none is known."""


@dataclass(slots=True)
class Page:
    entries: dict[bytes, bytes]
    epoch: int
    """Under which schema its entries were written."""
    scheduled: list[int | None]
    """When the page is next on each agenda."""
    dirty: bool = False


Upgrade = Callable[[bytes], bytes]


def page_number(hashed: int, pages: int) -> int:
    """Where an entry lives in a table of this many pages."""
    level = pages.bit_length() - 1
    number = hashed & ((2 << level) - 1)
    return number if number < pages else number & ((1 << level) - 1)


@dataclass
class PagedTable:
    """Entries by key, in pages. Loaded pages stay until `flush`; the caller decides how many that may be."""

    store: Store
    key_of: Callable[[int], bytes]
    """The store's key of a page."""
    pages: int = 1
    count: int = 0
    size: int = 0
    """Bytes of all keys and entries."""
    epoch: int = 0
    upgrade: Callable[[int], Upgrade | None] = lambda epoch: None
    """How to bring an entry of an older epoch to the present one."""
    agendas: int = 0
    loaded: dict[int, Page] = field(default_factory=dict)
    on_divide: Callable[[int, Page], None] = lambda number, page: None

    def number_of(self, key: bytes) -> int:
        return page_number(crc32(key), self.pages)

    def load(self, numbers: Iterable[int]) -> None:
        """Make sure that these pages are in memory, in one exchange."""
        missing = [number for number in numbers if number not in self.loaded]
        if missing:
            for number, value in zip(missing, self.store.get_many([self.key_of(n) for n in missing]), strict=True):
                self.loaded[number] = self._decode(value)

    def page_of(self, key: bytes) -> Page:
        """The page of a key, loaded if need be."""
        number = self.number_of(key)
        page = self.loaded.get(number)
        if page is None:
            self.load([number])
            page = self.loaded[number]
        return page

    def put(self, page: Page, key: bytes, entry: bytes) -> None:
        old = page.entries.get(key)
        if old is None:
            self.count += 1
            self.size += len(key) + len(entry)
        else:
            self.size += len(entry) - len(old)
        page.entries[key] = entry
        page.dirty = True

    def remove(self, page: Page, key: bytes) -> None:
        old = page.entries.pop(key, None)
        if old is not None:
            self.count -= 1
            self.size -= len(key) + len(old)
            page.dirty = True

    def everything(self, window: int = 64) -> Iterator[Page]:
        """All pages, a window at a time; those that were not loaded before are let go again unless they were changed."""
        for first in range(0, self.pages, window):
            numbers = range(first, min(first + window, self.pages))
            held = {number for number in numbers if number in self.loaded}
            self.load(numbers)
            for number in numbers:
                yield self.loaded[number]
            for number in numbers:
                if number not in held and not self.loaded[number].dirty:
                    del self.loaded[number]

    def expect(self, keys: int) -> None:
        """Grow ahead for a batch of so many distinct keys: what is not here yet is new."""
        if keys > self.count:
            entry = self.size / self.count if self.count else ENTRY_GUESS
            self._grow_to(int(keys * entry / PAGE_BYTES) + 1)

    def grow(self) -> None:
        """Divide pages until they have their size again."""
        self._grow_to(min(self.size // PAGE_BYTES, self.count) + 1)

    def _grow_to(self, pages: int) -> None:
        if self.count == 0 and not self.loaded:
            self.pages = max(self.pages, pages)  # nothing to divide
        while self.pages < pages:
            # A window of divisions at a time; their sources are distinct, and loaded in one exchange.
            level = self.pages.bit_length() - 1
            last = min(pages, 2 << level, self.pages + 512)
            self.load(number - (1 << level) for number in range(self.pages, last))
            for new in range(self.pages, last):
                self._divide(new - (1 << level), new)
            self.pages = last

    def _divide(self, source: int, new: int) -> None:
        page = self.loaded[source]
        after = new + 1
        moving = {key: entry for key, entry in page.entries.items() if page_number(crc32(key), after) == new}
        if not moving:
            self.loaded[new] = Page({}, self.epoch, [None] * self.agendas)
            return
        page.entries = {key: entry for key, entry in page.entries.items() if key not in moving}
        page.dirty = True
        self.loaded[new] = Page(moving, page.epoch, list(page.scheduled), dirty=True)
        self.on_divide(new, self.loaded[new])

    def flush(self) -> None:
        """Write the pages that changed, drop the empty ones, and let all of them go."""
        writes, gone = [], []
        for number, page in self.loaded.items():
            if page.dirty:
                if page.entries:
                    writes.append((self.key_of(number), pack([FORMAT, page.epoch, page.scheduled, page.entries])))
                else:
                    gone.append(self.key_of(number))
        if gone:
            self.store.remove_many(gone)
        if writes:
            self.store.put_many(writes)
        self.loaded.clear()

    def drop(self) -> None:
        """Remove everything."""
        self.store.remove_many([self.key_of(number) for number in range(self.pages)])
        self.loaded.clear()
        self.pages, self.count, self.size = 1, 0, 0

    def _decode(self, value: bytes | None) -> Page:
        if value is None:
            return Page({}, self.epoch, [None] * self.agendas)
        page = decode_page(value)
        if page.epoch != self.epoch and (upgrade := self.upgrade(page.epoch)) is not None:
            before = sum(map(len, page.entries.values()))
            page.entries = {key: upgrade(entry) for key, entry in page.entries.items()}
            self.size += sum(map(len, page.entries.values())) - before
        page.epoch = self.epoch
        return page


def decode_page(value: bytes) -> Page:
    """A page as it was stored. Later formats are read here too, each by its number."""
    content: Any = unpack(value)
    version, epoch, scheduled, entries = content
    if version != FORMAT:
        raise ValueError(f"this state was written in format {version}; this version of Strandline reads format {FORMAT}")
    return Page(entries, epoch, scheduled)
