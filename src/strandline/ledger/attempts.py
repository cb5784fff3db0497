"""Attempts: every start of a pipeline, its number, its process, its heartbeat, its end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select, update

from strandline.ledger.exclusive import hold_exclusively
from strandline.ledger.records import Attempt, AttemptStatus, ProcessIdentity
from strandline.ledger.schema import attempts
from strandline.model.times import rfc3339, utc_now

if TYPE_CHECKING:
    from strandline.ledger.records import Transaction


class Attempts:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def begin(
        self, pipeline: str, *, id: str, above: int, replaces: int | None, process: ProcessIdentity, code: str, tables: Iterable[str]
    ) -> Attempt | None:
        """Register the next attempt; None when another start slipped in since the caller looked.

        Args:
            above: the highest attempt number the tables know; the ledger may be younger than they are.
            replaces: the running attempt that the caller found dead or takes over.
        """
        now = rfc3339(utc_now())
        with self._transaction() as connection:
            hold_exclusively(connection)
            running = connection.execute(
                select(attempts.c.number).where(attempts.c.pipeline == pipeline, attempts.c.status == AttemptStatus.RUNNING.value)
            ).scalars()
            if any(number != replaces for number in running):
                return None
            if replaces is not None:
                connection.execute(
                    update(attempts)
                    .where(
                        attempts.c.pipeline == pipeline,
                        attempts.c.number == replaces,
                        attempts.c.status == AttemptStatus.RUNNING.value,  # it may have ended by itself since the caller looked
                    )
                    .values(status=AttemptStatus.LOST.value, ended_at=now, reason="found dead or silent by a later start")
                )
            highest = connection.execute(select(func.max(attempts.c.number)).where(attempts.c.pipeline == pipeline)).scalar()
            number = max(highest or 0, above) + 1
            connection.execute(
                insert(attempts).values(
                    pipeline=pipeline,
                    number=number,
                    id=id,
                    status=AttemptStatus.RUNNING.value,
                    host=process.host,
                    pid=process.pid,
                    process_started=process.started,
                    code=code,
                    tables=json.dumps(list(tables)),
                    started_at=now,
                    heartbeat_at=now,
                )
            )
            row = connection.execute(select(attempts).where(attempts.c.pipeline == pipeline, attempts.c.number == number)).one()
        return _attempt(row)

    def bind(self, attempt: Attempt, strand: str, tables: Iterable[str]) -> None:
        """Record what becomes known after the plan is built: the strand, and side tables."""
        self._set(attempt, strand=strand, tables=json.dumps(list(tables)))

    def beat(self, attempt: Attempt, progress: str) -> bool:
        """Say that we live. False when this attempt was declared lost: a newer one exists."""
        with self._transaction() as connection:
            touched = connection.execute(
                update(attempts)
                .where(
                    attempts.c.pipeline == attempt.pipeline,
                    attempts.c.number == attempt.number,
                    attempts.c.status == AttemptStatus.RUNNING.value,
                )
                .values(heartbeat_at=rfc3339(utc_now()), progress=progress)
            ).rowcount
        return touched == 1

    def end(self, attempt: Attempt, status: AttemptStatus, reason: str) -> None:
        self._set(attempt, status=status.value, ended_at=rfc3339(utc_now()), reason=reason)

    def _set(self, attempt: Attempt, **values: Any) -> None:
        with self._transaction() as connection:
            connection.execute(
                update(attempts).where(attempts.c.pipeline == attempt.pipeline, attempts.c.number == attempt.number).values(**values)
            )

    def latest(self, pipeline: str) -> Attempt | None:
        with self._transaction() as connection:
            row = connection.execute(
                select(attempts).where(attempts.c.pipeline == pipeline).order_by(attempts.c.number.desc()).limit(1)
            ).first()
        return _attempt(row) if row else None

    def lost(self, pipeline: str) -> list[Attempt]:
        """Attempts that were declared lost: some are dead, some may still wake up."""
        with self._transaction() as connection:
            rows = connection.execute(
                select(attempts).where(attempts.c.pipeline == pipeline, attempts.c.status == AttemptStatus.LOST.value)
            ).all()
        return [_attempt(row) for row in rows]

    def owner_of(self, strand: str) -> str | None:
        """The pipeline that a strand belongs to, if the ledger ever saw it run."""
        with self._transaction() as connection:
            return connection.execute(select(attempts.c.pipeline).where(attempts.c.strand == strand).limit(1)).scalar()

    def get(self, pipeline: str, number: int) -> Attempt | None:
        with self._transaction() as connection:
            row = connection.execute(select(attempts).where(attempts.c.pipeline == pipeline, attempts.c.number == number)).first()
        return _attempt(row) if row else None

    def latest_of_all(self) -> list[Attempt]:
        """The newest attempt of every pipeline, by name."""
        newest = select(attempts.c.pipeline, func.max(attempts.c.number).label("number")).group_by(attempts.c.pipeline).subquery()
        with self._transaction() as connection:
            rows = connection.execute(
                select(attempts)
                .join(newest, (attempts.c.pipeline == newest.c.pipeline) & (attempts.c.number == newest.c.number))
                .order_by(attempts.c.pipeline)
            ).all()
        return [_attempt(row) for row in rows]


def _attempt(row: Any) -> Attempt:
    return Attempt(
        pipeline=row.pipeline,
        number=row.number,
        id=row.id,
        status=AttemptStatus(row.status),
        strand=row.strand,
        process=ProcessIdentity(row.host, row.pid, row.process_started),
        code=row.code,
        tables=tuple(json.loads(row.tables)),
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
        ended_at=row.ended_at,
        reason=row.reason,
        progress=row.progress,
    )
