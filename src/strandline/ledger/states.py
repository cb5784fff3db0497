"""How large the state of each keyed operator was after a batch: growth that nobody asked for shows here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select

from strandline.ledger.records import StateSize
from strandline.ledger.schema import state_sizes
from strandline.model.times import rfc3339, utc_now

if TYPE_CHECKING:
    from strandline.ledger.records import Transaction


class StateSizes:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def record(self, sizes: list[StateSize]) -> None:
        """A batch that ran again replaces what was recorded of it."""
        if not sizes:
            return
        with self._transaction() as connection:
            for size in sizes:
                same = (
                    state_sizes.c.pipeline == size.pipeline,
                    state_sizes.c.strand == size.strand,
                    state_sizes.c.batch == size.batch,
                    state_sizes.c.operator == size.operator,
                )
                connection.execute(delete(state_sizes).where(*same))
                connection.execute(
                    insert(state_sizes).values(
                        pipeline=size.pipeline,
                        strand=size.strand,
                        batch=size.batch,
                        operator=size.operator,
                        keys=size.keys,
                        bytes=size.bytes,
                        touched=size.touched,
                        timers_fired=size.timers_fired,
                        expired=size.expired,
                        oldest_at=size.oldest_at,
                        entries=json.dumps(size.entries, sort_keys=True),
                        recorded_at=rfc3339(utc_now()),
                    )
                )

    def of_operator(self, pipeline: str, strand: str, operator: str, limit: int = 50) -> list[StateSize]:
        """The newest first."""
        with self._transaction() as connection:
            rows = connection.execute(
                select(state_sizes)
                .where(state_sizes.c.pipeline == pipeline, state_sizes.c.strand == strand, state_sizes.c.operator == operator)
                .order_by(state_sizes.c.batch.desc())
                .limit(limit)
            ).all()
        return [_size(row) for row in rows]

    def operators(self, pipeline: str, strand: str) -> list[str]:
        with self._transaction() as connection:
            query = select(state_sizes.c.operator).where(state_sizes.c.pipeline == pipeline, state_sizes.c.strand == strand).distinct()
            return sorted(row.operator for row in connection.execute(query))


def _size(row: Any) -> StateSize:
    return StateSize(
        row.pipeline,
        row.strand,
        row.batch,
        row.operator,
        row.keys,
        row.bytes,
        row.touched,
        row.timers_fired,
        row.expired,
        json.loads(row.entries),
        row.oldest_at,
    )
