"""Intents (what is about to enter a table) and commits (what did)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, insert, select, update

from strandline.ledger.batches import record_plan
from strandline.ledger.records import BatchRecord, CommitRecord, Intent, IntentState, StagedFile
from strandline.ledger.schema import commits, files, intents
from strandline.model.times import rfc3339, utc_now

if TYPE_CHECKING:
    from strandline.ledger.records import Transaction


class Commits:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def record_intents(self, plan: BatchRecord, staged: Sequence[Intent]) -> list[int]:
        """Step 4 of the protocol: one transaction for the batch's plan and the staged files of all its tables."""
        now = rfc3339(utc_now())
        with self._transaction() as connection:
            record_plan(connection, plan)
            return [_insert_intent(connection, intent, IntentState.STAGED, now) for intent in staged]

    def record_leftover(self, intent: Intent, state: IntentState) -> None:
        """Files found after the fact, such as those on a branch that a killed attempt left behind."""
        with self._transaction() as connection:
            _insert_intent(connection, intent, state, rfc3339(utc_now()))

    def record_commit(self, commit: CommitRecord, intent: int | None = None) -> None:
        """Step 6: the outcome, and the end of the intent that led to it. Recording the same snapshot twice is once."""
        with self._transaction() as connection:
            known = connection.execute(
                select(commits.c.id).where(commits.c.table_name == commit.table, commits.c.snapshot_id == commit.snapshot_id)
            ).first()
            if known is None:
                connection.execute(
                    insert(commits).values(table_name=commit.table, **{k: v for k, v in vars(commit).items() if k != "table"})
                )
            if intent is not None:
                _settle(connection, intent, IntentState.COMMITTED)

    def settle(self, intent: int, state: IntentState) -> None:
        with self._transaction() as connection:
            _settle(connection, intent, state)

    def last_batch_commit(self, pipeline: str, table: str, strand: str) -> CommitRecord | None:
        """The newest batch of a strand that the ledger saw enter a table since its last boundary, which sets a new start."""
        mine = (commits.c.pipeline == pipeline, commits.c.table_name == table)
        boundary = select(func.max(commits.c.id)).where(*mine, commits.c.kind == "boundary").scalar_subquery()
        with self._transaction() as connection:
            row = connection.execute(
                select(commits)
                .where(
                    *mine,
                    commits.c.strand == strand,
                    commits.c.kind == "batch",
                    commits.c.id > func.coalesce(boundary, 0),
                )
                .order_by(commits.c.batch.desc(), commits.c.id.desc())
                .limit(1)
            ).first()
        return _commit(row) if row else None

    def has_commits(self, pipeline: str, table: str) -> bool:
        with self._transaction() as connection:
            found = connection.execute(
                select(commits.c.id).where(commits.c.pipeline == pipeline, commits.c.table_name == table).limit(1)
            ).first()
        return found is not None

    def of_table(self, table: str) -> list[CommitRecord]:
        """Oldest first."""
        with self._transaction() as connection:
            rows = connection.execute(select(commits).where(commits.c.table_name == table).order_by(commits.c.id)).all()
        return [_commit(row) for row in rows]

    def of_batches(self, pipeline: str, strand: str, first: int, last: int) -> list[CommitRecord]:
        """What the batches first…last of a strand brought into tables, oldest first."""
        with self._transaction() as connection:
            rows = connection.execute(
                select(commits)
                .where(
                    commits.c.pipeline == pipeline,
                    commits.c.strand == strand,
                    commits.c.kind == "batch",
                    commits.c.batch >= first,
                    commits.c.batch <= last,
                )
                .order_by(commits.c.id)
            ).all()
        return [_commit(row) for row in rows]

    def unsettled(self, states: Iterable[IntentState], pipeline: str | None = None) -> list[Intent]:
        """Intents in the given states with the files that were not removed yet."""
        query = select(intents).where(intents.c.state.in_([state.value for state in states])).order_by(intents.c.id)
        if pipeline is not None:
            query = query.where(intents.c.pipeline == pipeline)
        with self._transaction() as connection:
            rows = connection.execute(query).all()
            return [_intent(connection, row) for row in rows]

    def mark_removed(self, intent: int, paths: Iterable[str]) -> None:
        with self._transaction() as connection:
            for path in paths:
                connection.execute(
                    update(files).where(files.c.intent == intent, files.c.path == path).values(removed_at=rfc3339(utc_now()))
                )


def _insert_intent(connection: Connection, intent: Intent, state: IntentState, now: str) -> int:
    result = connection.execute(
        insert(intents).values(
            pipeline=intent.pipeline,
            strand=intent.strand,
            batch=intent.batch,
            table_name=intent.table,
            attempt=intent.attempt,
            attempt_id=intent.attempt_id,
            state=state.value,
            rows=sum(file.rows for file in intent.files),
            bytes=sum(file.bytes for file in intent.files),
            recorded_at=now,
        )
    )
    key = result.inserted_primary_key
    assert key is not None
    if intent.files:
        connection.execute(insert(files), [{"intent": key[0], "path": f.path, "rows": f.rows, "bytes": f.bytes} for f in intent.files])
    return int(key[0])


def _settle(connection: Connection, intent: int, state: IntentState) -> None:
    connection.execute(update(intents).where(intents.c.id == intent).values(state=state.value, settled_at=rfc3339(utc_now())))


def _intent(connection: Connection, row: Any) -> Intent:
    left = connection.execute(select(files).where(files.c.intent == row.id, files.c.removed_at.is_(None)).order_by(files.c.path)).all()
    return Intent(
        pipeline=row.pipeline,
        strand=row.strand,
        batch=row.batch,
        table=row.table_name,
        attempt=row.attempt,
        attempt_id=row.attempt_id,
        files=tuple(StagedFile(f.path, f.rows, f.bytes) for f in left),
        id=row.id,
        state=IntentState(row.state),
    )


def _commit(row: Any) -> CommitRecord:
    values = dict(row._mapping)
    values.pop("id")
    return CommitRecord(table=values.pop("table_name"), **values)
