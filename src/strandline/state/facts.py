"""What a bucket says of itself: where its table and agendas stand, and its sizes, without a look at any page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.state.codec import pack, unpack

FACTS_KEY = b"m"
"""The store's key of a bucket's facts."""

AGENDAS = 3
"""One for each clock, and one for what expires."""

_FORMAT = 1


@dataclass(frozen=True)
class BucketFacts:
    pages: int = 1
    keys: int = 0
    size: int = 0
    """Bytes of keys and entries."""
    agendas: tuple[Any, ...] = (None,) * AGENDAS
    entries: Mapping[str, int] = field(default_factory=dict)
    """Stored elements by state, under the layout of the last batch that wrote here."""
    wake: int | None = None
    """When the bucket asked to be woken without events."""

    def encode(self) -> bytes:
        return pack([_FORMAT, self.pages, self.keys, self.size, list(self.agendas), dict(self.entries), self.wake])

    @classmethod
    def decode(cls, stored: bytes | None) -> BucketFacts:
        """A bucket that was never written holds nothing. Later formats are read here too, each by its number."""
        if stored is None:
            return cls()
        version, pages, keys, size, agendas, entries, wake = unpack(stored)
        if version != _FORMAT:
            raise ValueError(f"this state was written in format {version}; this version of Strandline reads format {_FORMAT}")
        return cls(pages, keys, size, tuple(agendas), entries, wake)
