"""What the generator must have produced, computed without Spark."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from strandline.model.definition import GeneratorSource
from strandline.model.times import from_millis


@dataclass(frozen=True)
class Order:
    seq: int
    order_id: str
    customer: str
    amount: float
    placed_at: datetime


def generated_orders(source: GeneratorSource, events: int | None = None) -> Iterator[Order]:
    """The first `events` orders of a generator (all of them when it declares a total), duplicates included."""
    count = events if events is not None else source.total
    if count is None:
        raise ValueError("an endless generator needs events=…")

    def chance(salt: str, of: int) -> int:
        return zlib.crc32(f"{source.seed}:{salt}:{of}".encode())

    def happens(share: float, salt: str, of: int) -> bool:
        return chance(salt, of) < int(share * 2**32)

    for seq in range(count):
        n = seq
        if seq > 0 and happens(source.duplicates, "duplicate", seq):
            n = seq - (1 + chance("distance", seq) % min(seq, source.DUPLICATE_REACH))
        behind = int(source.late_by.total_seconds() * 1000) if happens(source.late, "late", n) else 0
        behind += chance("jitter", n) % source.JITTER_MS if happens(source.out_of_order, "order", n) else 0
        yield Order(
            seq=seq,
            order_id=f"o-{n:09d}",
            customer=f"c-{chance('customer', n) % source.CUSTOMERS:03d}",
            amount=(chance("amount", n) % 100000) / 100,
            placed_at=from_millis(source.start_ms + int(n * (1000 / source.rate)) - behind),
        )
