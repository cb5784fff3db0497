"""Strands and their parents: a checkpoint identity either begins at the sources, or goes on from a batch of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select

from strandline.ledger.records import StrandRecord
from strandline.ledger.schema import strands

if TYPE_CHECKING:
    from strandline.ledger.records import Transaction


class Strands:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def record(self, strand: StrandRecord) -> None:
        """Once per strand; a start that is repeated says the same again."""
        with self._transaction() as connection:
            connection.execute(delete(strands).where(strands.c.pipeline == strand.pipeline, strands.c.strand == strand.strand))
            connection.execute(insert(strands).values(**vars(strand)))

    def get(self, pipeline: str, strand: str) -> StrandRecord | None:
        with self._transaction() as connection:
            row = connection.execute(select(strands).where(strands.c.pipeline == pipeline, strands.c.strand == strand)).one_or_none()
        return _record(row) if row is not None else None

    def of_pipeline(self, pipeline: str) -> list[StrandRecord]:
        """In the order they began."""
        with self._transaction() as connection:
            rows = connection.execute(select(strands).where(strands.c.pipeline == pipeline).order_by(strands.c.begun_at)).all()
        return [_record(row) for row in rows]

    def descended_from(self, savepoint: str) -> list[StrandRecord]:
        with self._transaction() as connection:
            rows = connection.execute(select(strands).where(strands.c.savepoint == savepoint).order_by(strands.c.begun_at)).all()
        return [_record(row) for row in rows]


def _record(row: Any) -> StrandRecord:
    return StrandRecord(row.pipeline, row.strand, row.kind, row.parent, row.parent_batch, row.savepoint, row.attempt, row.begun_at)
