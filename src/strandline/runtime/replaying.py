"""Running one recorded batch again, for its rows alone: no table, topic, group or attempt hears of it.

The scratch checkpoint holds the batch as planned and not completed, so Spark runs exactly that one, with the offsets, the watermark and
the clock it had. Its rows are handed over inside the batch; then the query is ended before Spark could plan another.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.ledger import Ledger
from strandline.model.definition import Pipeline, TableSink
from strandline.model.errors import DataLost
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.positions import KafkaPosition
from strandline.project.config import Project
from strandline.runtime.callback import for_each_batch
from strandline.runtime.dataflow import Dataflow, build
from strandline.runtime.failures import explain_batch_failure, explain_query_failure
from strandline.runtime.keyed.building import KeyedBuild, check_dropped_state
from strandline.runtime.keyed.records import operator_records
from strandline.runtime.lateness import LateWatermark
from strandline.runtime.positions import Positions
from strandline.runtime.sources import KafkaReader, SourceReader, readers_of
from strandline.runtime.upsert import merge_into, newest_per_key
from strandline.tables.jvm import JvmTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Take: TypeAlias = "Callable[[Dataflow, DataFrame], None]"
"""Gets the rows of the batch, which are gone when it returns."""


class _Over(Exception):
    """Raised at the end of the batch, so that Spark neither completes it nor goes on."""


@dataclass(frozen=True)
class Rerun:
    """One batch of a strand, and the checkpoint that holds it and nothing after it."""

    project: Project
    pipeline: Pipeline
    ledger: Ledger
    strand: str
    parent: str | None
    """The strand that this one goes on from: its topics are the same."""
    batch: int
    scratch: Checkpoint

    def run(self, spark: SparkSession, take: Take) -> tuple[Offsets, Offsets]:
        """Returns the range that was read."""
        readers = readers_of(self.project, self.pipeline)
        try:
            return self._run(spark, readers, take)
        finally:
            for reader in _kafka(readers).values():
                reader.close()

    def _run(self, spark: SparkSession, readers: Mapping[str, SourceReader], take: Take) -> tuple[Offsets, Offsets]:
        for reader in readers.values():
            reader.check()
        for reader in _kafka(readers).values():
            reader.accepting = frozenset(self.ledger.gaps.of_batches(self.pipeline.name, self.strand, self.batch - 1, self.batch))
        lateness = LateWatermark(self.scratch.location, 0)
        lateness.set(self.scratch.late_watermark_ms(self.batch))
        keyed = KeyedBuild(operator_records(self.scratch))
        origin = self.scratch.origin() or ORIGIN
        dataflow = build(spark, self.pipeline, readers, origin, lateness, keyed)
        check_dropped_state(keyed)
        positions = Positions(self.pipeline.name, self.strand, self.scratch, self.ledger, readers, dataflow.source_lines, origin)
        start, end = positions.planned(self.batch)
        self._check_still_there(readers, start)

        def confirm() -> None:
            self._prove(readers, start, end)

        self._query(spark, dataflow, take, confirm)
        return start, end

    def _query(self, spark: SparkSession, dataflow: Dataflow, take: Take, confirm: Callable[[], None]) -> None:
        from pyspark.errors import StreamingQueryException

        ended: list[BaseException | None] = []

        def on_batch(frame: DataFrame, _batch: int) -> None:
            kept = frame.persist()  # each use would otherwise run the stateful plan once more, on state that has moved on
            try:
                take(dataflow, kept)
                confirm()
                ended.append(None)
            except Exception as error:  # noqa: BLE001 - told by the thread that waits
                ended.append(error)
            finally:
                kept.unpersist()
            raise _Over

        writer = (
            dataflow.frame.writeStream.queryName(f"{self.pipeline.name}-replay-{uuid.uuid4().hex[:12]}")
            .outputMode(self.pipeline.output_mode)
            .option("checkpointLocation", self.scratch.location)
        )
        query = for_each_batch(writer, spark, on_batch).trigger(processingTime="0 seconds").start()
        again = f"strandline replay {self.pipeline.name} --batch {self.batch}"
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if not ended:
                confirm()  # records that vanished say more than Spark's error about them
                raise explain_query_failure(self.pipeline.name, error, again) from error
        finally:
            query.stop()
        failure = ended[0] if ended else None
        if failure is not None:
            confirm()
            raise explain_batch_failure(self.pipeline.name, failure, again) from failure

    # -- Kafka -----------------------------------------------------------------------------------------------------------

    def _check_still_there(self, readers: Mapping[str, SourceReader], start: Offsets) -> None:
        ids: dict[str, str] = {}
        for strand in (*([self.parent] if self.parent else []), self.strand):
            ids |= {topic: facts.id for topic, facts in self.ledger.topics.latest(self.pipeline.name, strand).items()}
        places = dict(start.sources)
        for name, reader in _kafka(readers).items():
            at = places.get(name)
            try:
                reader.take_up(at if isinstance(at, KafkaPosition) else KafkaPosition(()), ids)
            except DataLost as lost:
                raise self._without_choices(lost) from lost

    def _prove(self, readers: Mapping[str, SourceReader], start: Offsets, end: Offsets) -> None:
        before, after = dict(start.sources), dict(end.sources)
        for name, reader in readers.items():
            try:
                reader.prove(before.get(name), after.get(name))
            except DataLost as lost:
                raise self._without_choices(lost) from lost

    def _without_choices(self, lost: DataLost) -> DataLost:
        """A run may go on over a gap. What a batch read, it either reads again or not."""
        newer = f"replay a newer batch; strandline checkpoint list {self.pipeline.name} shows them"
        return DataLost(lost.message, next_command=newer)


def _kafka(readers: Mapping[str, SourceReader]) -> dict[str, KafkaReader]:
    return {name: reader for name, reader in readers.items() if isinstance(reader, KafkaReader)}


def put_on_branch(table: JvmTable, sink: TableSink, rows: DataFrame, branch: str, summary: Mapping[str, str]) -> None:
    """What the batch would do to the table, done to a branch of it."""
    if sink.mode == "upsert":
        merge_into(table.on_branch(branch), newest_per_key(rows, sink), sink, summary)
        return
    writer = rows.writeTo(table.on_branch(branch))
    for key, value in summary.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()
