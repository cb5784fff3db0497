"""Where a bucket's bytes live: entries of bytes, asked for and written many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Store(Protocol):
    """The entries of one bucket. One call is one exchange with whoever keeps them, however many entries it names."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys; None where there is none."""
        ...

    def put_many(self, entries: Sequence[tuple[bytes, bytes]]) -> None: ...

    def remove_many(self, keys: Sequence[bytes]) -> None:
        """Entries that do not exist are no error."""
        ...


class MemoryStore:
    """Entries in a dict: for tests, and for reading a copy of a bucket."""

    def __init__(self, entries: dict[bytes, bytes] | None = None) -> None:
        self.entries = {} if entries is None else entries
        self.exchanges = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.exchanges += 1
        return [self.entries.get(key) for key in keys]

    def put_many(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self.exchanges += 1
        self.entries.update(entries)

    def remove_many(self, keys: Sequence[bytes]) -> None:
        self.exchanges += 1
        for key in keys:
            self.entries.pop(key, None)
