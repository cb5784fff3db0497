"""The key at hand: its cells while the user's code looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.state.layout import Epochs
from strandline.state.store import Store


class BufferedStore:
    """Keeps writes until `flush`, so that the chunks and pages of many keys travel together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[bytes, bytes | None] = {}

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        missing = [key for key in keys if key not in self._pending]
        found = dict(zip(missing, self._store.get_many(missing), strict=True)) if missing else {}
        return [self._pending[key] if key in self._pending else found[key] for key in keys]

    def put_many(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._pending.update(entries)

    def remove_many(self, keys: Sequence[bytes]) -> None:
        self._pending.update(dict.fromkeys(keys))

    def flush(self) -> None:
        if self._pending:
            if gone := [key for key, value in self._pending.items() if value is None]:
                self._store.remove_many(gone)
            if kept := [(key, value) for key, value in self._pending.items() if value is not None]:
                self._store.put_many(kept)
            self._pending.clear()


class Entry:
    """The cells of one key. Handles hold this object; the bucket puts one key after the other into it."""

    __slots__ = ("cells", "dirty", "epochs", "key", "now", "store")

    def __init__(self, store: Store, epochs: Epochs) -> None:
        self.store = BufferedStore(store)
        self.epochs = epochs
        self.key = b""
        self.cells: list[Any] = []
        self.dirty = False
        self.now = 0
        """The processing clock, in milliseconds."""
