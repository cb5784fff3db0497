"""Requests: how one process asks another, on this machine or elsewhere, to do something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import insert, select, update

from strandline.ledger.records import Request
from strandline.ledger.schema import requests
from strandline.model.times import rfc3339, utc_now

if TYPE_CHECKING:
    from strandline.ledger.records import Transaction

STOP = "stop"
CANCEL = "cancel"


class Requests:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def ask(self, pipeline: str, attempt: int, kind: str, requested_by: str) -> int:
        """Ask one attempt: a request it never saw must not hit the next one."""
        with self._transaction() as connection:
            result = connection.execute(
                insert(requests).values(
                    pipeline=pipeline, attempt=attempt, kind=kind, requested_by=requested_by, requested_at=rfc3339(utc_now())
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
        return [Request(row.id, row.pipeline, row.kind, row.requested_by, row.requested_at) for row in rows]

    def answer(self, request: int, answer: str) -> None:
        with self._transaction() as connection:
            connection.execute(update(requests).where(requests.c.id == request).values(answered_at=rfc3339(utc_now()), answer=answer))
