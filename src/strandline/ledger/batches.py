"""Batches: the offset range of every checkpoint, kept longer than the checkpoint keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, insert, select, update

from strandline.ledger.records import BatchRecord
from strandline.ledger.schema import batches
from strandline.model.times import rfc3339, utc_now

if TYPE_CHECKING:
    from strandline.ledger.records import Transaction


class Batches:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def get(self, pipeline: str, strand: str, batch: int) -> BatchRecord | None:
        with self._transaction() as connection:
            row = connection.execute(
                select(batches).where(batches.c.pipeline == pipeline, batches.c.strand == strand, batches.c.batch == batch)
            ).first()
        return _record(row) if row is not None else None

    def between(self, pipeline: str, strand: str, after: int, before: int) -> dict[int, BatchRecord]:
        """Records of the batches strictly between two others, by number."""
        with self._transaction() as connection:
            rows = connection.execute(
                select(batches).where(
                    batches.c.pipeline == pipeline, batches.c.strand == strand, batches.c.batch > after, batches.c.batch < before
                )
            ).all()
        return {row.batch: _record(row) for row in rows}

    def knows(self, pipeline: str, strand: str) -> bool:
        """Has this ledger seen any batch of the strand?"""
        with self._transaction() as connection:
            query = select(batches.c.batch).where(batches.c.pipeline == pipeline, batches.c.strand == strand).limit(1)
            return connection.execute(query).first() is not None

    def newest(self, pipeline: str, strand: str) -> int | None:
        with self._transaction() as connection:
            query = select(func.max(batches.c.batch)).where(batches.c.pipeline == pipeline, batches.c.strand == strand)
            found = connection.execute(query).scalar_one()
        return None if found is None else int(found)

    def span(self, pipeline: str, strand: str) -> tuple[int, int] | None:
        """The first and the last batch that is known; None when none is."""
        with self._transaction() as connection:
            query = select(func.min(batches.c.batch), func.max(batches.c.batch))
            first, last = connection.execute(query.where(batches.c.pipeline == pipeline, batches.c.strand == strand)).one()
        return None if first is None else (int(first), int(last))

    def inherit(self, record: BatchRecord) -> None:
        """A batch that a strand did not run itself: the one it goes on from."""
        with self._transaction() as connection:
            record_plan(connection, record)

    def bring(self, records: Iterable[BatchRecord]) -> None:
        """Batches that another ledger saw, with the time when they were complete. May be repeated."""
        with self._transaction() as connection:
            for record in records:
                record_plan(connection, record)
                connection.execute(
                    update(batches)
                    .where(batches.c.pipeline == record.pipeline, batches.c.strand == record.strand, batches.c.batch == record.batch)
                    .values(completed_at=record.completed_at)
                )

    def nothing_new(self, pipeline: str, strand: str, batch: int, table: str) -> None:
        """The batch had rows for a table, but all were older than what it holds: no snapshot will tell of it."""
        self.brought(pipeline, strand, batch, table, 0)

    def brought(self, pipeline: str, strand: str, batch: int, output: str, rows: int) -> None:
        """How many rows an output really got, where that is only known after the plan was recorded."""
        record = self.get(pipeline, strand, batch)
        assert record is not None
        rows_by_table = json.dumps(record.rows_by_table | {output: rows})
        with self._transaction() as connection:
            connection.execute(
                update(batches)
                .where(batches.c.pipeline == pipeline, batches.c.strand == strand, batches.c.batch == batch)
                .values(rows_by_table=rows_by_table)
            )

    def complete(self, pipeline: str, strand: str, up_to: int) -> None:
        """`commits/N` exists in the checkpoint: batch N and all before it are complete."""
        with self._transaction() as connection:
            connection.execute(
                update(batches)
                .where(
                    batches.c.pipeline == pipeline,
                    batches.c.strand == strand,
                    batches.c.batch <= up_to,
                    batches.c.completed_at.is_(None),
                )
                .values(completed_at=rfc3339(utc_now()))
            )


def _record(row: Any) -> BatchRecord:
    return BatchRecord(
        row.pipeline,
        row.strand,
        row.batch,
        row.attempt,
        row.offsets_start,
        row.offsets_end,
        row.end_digest,
        json.loads(row.rows_by_table),
        row.completed_at,
        json.loads(row.evidence) if row.evidence else {},
    )


def record_plan(connection: Connection, record: BatchRecord) -> None:
    """Write a batch's plan inside the caller's transaction; a replay replaces the record of the attempt before it."""
    same = (batches.c.pipeline == record.pipeline, batches.c.strand == record.strand, batches.c.batch == record.batch)
    connection.execute(delete(batches).where(*same))
    connection.execute(
        insert(batches).values(
            pipeline=record.pipeline,
            strand=record.strand,
            batch=record.batch,
            attempt=record.attempt,
            offsets_start=record.offsets_start,
            offsets_end=record.offsets_end,
            end_digest=record.end_digest,
            rows_by_table=json.dumps(record.rows_by_table),
            evidence=json.dumps(record.evidence) if record.evidence else None,
            planned_at=rfc3339(utc_now()),
        )
    )
