"""Requests: how one process asks another, on this machine or elsewhere, to do something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, update

from strandline.ledger.records import Request
from strandline.ledger.schema import requests
from strandline.model.times import rfc3339, utc_now

if TYPE_CHECKING:
    from strandline.ledger.records import Transaction

STOP = "stop"
CANCEL = "cancel"
SAVEPOINT = "savepoint"
STOP_WITH_SAVEPOINT = "stop-savepoint"


class Requests:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def ask(self, pipeline: str, attempt: int, kind: str, requested_by: str, wish: str = "") -> int:
        """Ask one attempt: a request it never saw must not hit the next one."""
        with self._transaction() as connection:
            result = connection.execute(
                insert(requests).values(
                    pipeline=pipeline, attempt=attempt, kind=kind, requested_by=requested_by, requested_at=rfc3339(utc_now()), wish=wish
                )
            )
            key = result.inserted_primary_key
        assert key is not None
        return int(key[0])

    def open(self, pipeline: str, attempt: int) -> list[Request]:
        with self._transaction() as connection:
            rows = connection.execute(
                select(requests)
                .where(requests.c.pipeline == pipeline, requests.c.attempt == attempt, requests.c.answered_at.is_(None))
                .order_by(requests.c.id)
            ).all()
        return [_request(row) for row in rows]

    def get(self, request: int) -> Request:
        with self._transaction() as connection:
            return _request(connection.execute(select(requests).where(requests.c.id == request)).one())

    def report(self, request: int, progress: str) -> None:
        """How far the one who was asked has come."""
        with self._transaction() as connection:
            connection.execute(update(requests).where(requests.c.id == request).values(progress=progress))

    def answer(self, request: int, answer: str) -> None:
        with self._transaction() as connection:
            connection.execute(update(requests).where(requests.c.id == request).values(answered_at=rfc3339(utc_now()), answer=answer))


def _request(row: Any) -> Request:
    return Request(row.id, row.pipeline, row.kind, row.requested_by, row.requested_at, row.wish or "", row.progress, row.answer)
