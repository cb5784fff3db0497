"""What the ledger knows of Kafka: topics as they were, gaps that were accepted, batches that entered a topic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, func, insert, select

from strandline.ledger.records import Delivery
from strandline.ledger.schema import deliveries, gaps, topics
from strandline.model.continuity import Gap, TopicFacts
from strandline.model.times import rfc3339, utc_now

if TYPE_CHECKING:
    from strandline.ledger.records import Transaction


class Topics:
    """Input topics by strand: id, partitions and retention bounds at every start, and when they change."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def record(self, pipeline: str, strand: str, attempt: int, facts: Mapping[str, TopicFacts]) -> None:
        now = rfc3339(utc_now())
        rows = [
            {
                "pipeline": pipeline,
                "strand": strand,
                "attempt": attempt,
                "topic": name,
                "topic_id": fact.id,
                "bounds": json.dumps({str(number): bounds for number, bounds in sorted(fact.bounds.items())}),
                "recorded_at": now,
            }
            for name, fact in sorted(facts.items())
        ]
        if rows:
            with self._transaction() as connection:
                connection.execute(insert(topics), rows)

    def latest(self, pipeline: str, strand: str) -> dict[str, TopicFacts]:
        """Each topic as it was last recorded for this strand."""
        newest = select(func.max(topics.c.id)).where(topics.c.pipeline == pipeline, topics.c.strand == strand).group_by(topics.c.topic)
        with self._transaction() as connection:
            rows = connection.execute(select(topics).where(topics.c.id.in_(newest))).all()
        return {
            row.topic: TopicFacts(row.topic_id, {int(number): (first, last) for number, (first, last) in json.loads(row.bounds).items()})
            for row in rows
        }


class Gaps:
    """Records that someone agreed not to read, and the batch whose range runs over them."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def accept(self, pipeline: str, strand: str, attempt: int, batch: int, accepted: Iterable[Gap]) -> None:
        """Accepting the same gap for the same batch again (a start that died) records it once."""
        known = set(self.of_batches(pipeline, strand, batch - 1, batch))
        now = rfc3339(utc_now())
        rows = [
            {
                "pipeline": pipeline,
                "strand": strand,
                "attempt": attempt,
                "batch": batch,
                "topic": gap.topic,
                "partition_number": gap.partition,
                "offset_start": gap.start,
                "offset_end": gap.end,
                "accepted_at": now,
            }
            for gap in accepted
            if gap not in known
        ]
        if rows:
            with self._transaction() as connection:
                connection.execute(insert(gaps), rows)

    def of_strand(self, pipeline: str, strand: str) -> list[tuple[int, Gap]]:
        """Every accepted gap with the batch that runs over it."""
        with self._transaction() as connection:
            rows = connection.execute(select(gaps).where(gaps.c.pipeline == pipeline, gaps.c.strand == strand).order_by(gaps.c.id)).all()
        return [(row.batch, Gap(row.topic, row.partition_number, row.offset_start, row.offset_end)) for row in rows]

    def of_batches(self, pipeline: str, strand: str, after: int, up_to: int) -> list[Gap]:
        """Gaps inside the batches after one, up to and including another."""
        return sorted(gap for batch, gap in self.of_strand(pipeline, strand) if after < batch <= up_to)


class Deliveries:
    """Batches that entered output topics."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def record(self, delivery: Delivery) -> None:
        """Recording the same batch of the same topic twice is once."""
        values = {**{k: v for k, v in vars(delivery).items() if k != "topic"}, "topic_name": delivery.topic}
        same = (
            deliveries.c.pipeline == delivery.pipeline,
            deliveries.c.strand == delivery.strand,
            deliveries.c.topic_name == delivery.topic,
            deliveries.c.batch == delivery.batch,
        )
        with self._transaction() as connection:
            if connection.execute(select(deliveries.c.id).where(*same)).first() is None:
                connection.execute(insert(deliveries).values(**values))

    def last(self, pipeline: str, strand: str, topic: str) -> Delivery | None:
        """The newest batch of a strand that the ledger saw enter a topic."""
        found = self._select(
            deliveries.c.pipeline == pipeline, deliveries.c.strand == strand, deliveries.c.topic_name == topic, newest_only=True
        )
        return found[0] if found else None

    def of_topic(self, topic: str) -> list[Delivery]:
        """Oldest first."""
        return self._select(deliveries.c.topic_name == topic)

    def _select(self, *conditions: ColumnElement[bool], newest_only: bool = False) -> list[Delivery]:
        query = select(deliveries).where(*conditions)
        query = (
            query.order_by(deliveries.c.batch.desc(), deliveries.c.id.desc()).limit(1) if newest_only else query.order_by(deliveries.c.id)
        )
        with self._transaction() as connection:
            rows = connection.execute(query).mappings().all()
        return [Delivery(topic=row["topic_name"], **{k: v for k, v in row.items() if k not in ("id", "topic_name")}) for row in rows]
