"""Savepoints as the ledger remembers them: begun, complete, failed, disposed. A record is never removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, update

from strandline.ledger.records import ProcessIdentity, SavepointRecord, SavepointState
from strandline.ledger.schema import savepoints
from strandline.model.times import rfc3339, utc_now

if TYPE_CHECKING:
    from strandline.ledger.records import Transaction


class Savepoints:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def begin(self, record: SavepointRecord) -> None:
        """Before its first byte: whoever finds half a savepoint can tell what it was going to be."""
        with self._transaction() as connection:
            connection.execute(
                insert(savepoints).values(
                    id=record.id,
                    pipeline=record.pipeline,
                    type=record.type,
                    state=record.state.value,
                    strand=record.strand,
                    batch=record.batch,
                    location=record.location,
                    requested_by=record.requested_by,
                    note=record.note,
                    host=record.process.host,
                    pid=record.process.pid,
                    process_started=record.process.started,
                    begun_at=record.begun_at,
                )
            )

    def complete(self, savepoint: str, manifest_sha256: str, size: int) -> None:
        self._end(savepoint, SavepointState.COMPLETE, None, manifest_sha256=manifest_sha256, bytes=size)

    def fail(self, savepoint: str, reason: str) -> None:
        self._end(savepoint, SavepointState.FAILED, reason)

    def dispose(self, savepoint: str, reason: str) -> None:
        self._end(savepoint, SavepointState.DISPOSED, reason)

    def _end(self, savepoint: str, state: SavepointState, reason: str | None, **values: Any) -> None:
        with self._transaction() as connection:
            connection.execute(
                update(savepoints)
                .where(savepoints.c.id == savepoint)
                .values(state=state.value, reason=reason, ended_at=rfc3339(utc_now()), **values)
            )

    def get(self, savepoint: str) -> SavepointRecord | None:
        with self._transaction() as connection:
            row = connection.execute(select(savepoints).where(savepoints.c.id == savepoint)).one_or_none()
        return _record(row) if row is not None else None

    def of_pipeline(self, pipeline: str | None = None) -> list[SavepointRecord]:
        """Newest first."""
        query = select(savepoints).order_by(savepoints.c.begun_at.desc(), savepoints.c.id.desc())
        if pipeline is not None:
            query = query.where(savepoints.c.pipeline == pipeline)
        with self._transaction() as connection:
            return [_record(row) for row in connection.execute(query).all()]


def _record(row: Any) -> SavepointRecord:
    return SavepointRecord(
        row.id,
        row.pipeline,
        row.type,
        SavepointState(row.state),
        row.strand,
        row.batch,
        row.location,
        row.requested_by,
        row.note,
        ProcessIdentity(row.host, row.pid, row.process_started),
        row.begun_at,
        row.ended_at,
        row.manifest_sha256,
        row.bytes,
        row.reason,
    )
