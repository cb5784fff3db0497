"""Events: what happened, append-only, for people and for later evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from strandline.ledger.records import Event
from strandline.ledger.schema import events
from strandline.model.times import rfc3339, utc_now

if TYPE_CHECKING:
    from strandline.ledger.records import Transaction


class Events:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def add(self, pipeline: str, kind: str, detail: str, attempt: int | None = None) -> None:
        with self._transaction() as connection:
            connection.execute(insert(events).values(at=rfc3339(utc_now()), pipeline=pipeline, attempt=attempt, kind=kind, detail=detail))

    def of_pipeline(self, pipeline: str, limit: int = 100) -> list[Event]:
        """Newest first."""
        with self._transaction() as connection:
            rows = connection.execute(select(events).where(events.c.pipeline == pipeline).order_by(events.c.id.desc()).limit(limit)).all()
        return [Event(row.at, row.pipeline, row.attempt, row.kind, row.detail) for row in rows]
