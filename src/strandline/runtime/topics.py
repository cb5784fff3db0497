"""Output topics: one transaction per batch, with the batch's marker inside it.

The marker plays the part that stamp and mark play for a table: it says which batch entered last and who put it there.
A topic has no staging: the open transaction is the staging, invisible to `read_committed` readers until it commits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.messaging.connection import KafkaConnection
from strandline.messaging.transactions import TopicFenced, TopicOutcomeUnknown, TopicProblem, TransactionalTopic
from strandline.model.crash import CrashPoint, reach
from strandline.model.errors import ChainBroken, CommitUnknown, DefinitionError, Fenced
from strandline.model.fence import Proposal, Verdict, decide
from strandline.model.kafka import TopicSink
from strandline.model.marker import Marker
from strandline.model.stamp import Witness
from strandline.runtime.arrow_batches import arrow_batches

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELIVERY_TRIES = 3
"""A transaction whose outcome is unknown is looked up and, if it is not there, sent again this often."""

NULL_KEY = "strandline-null-key:"
"""Begins the error that a row without a key raises; `failures` makes a sentence of it."""

_POINTS = {"begun": CrashPoint.TOPIC_BEGUN, "sent": CrashPoint.TOPIC_SENT, "committed": CrashPoint.TOPIC_COMMITTED}


@dataclass
class TopicChain:
    """One output topic's side of the pipeline: its writer and how far its chain reaches."""

    sink: TopicSink
    connection: KafkaConnection
    topic_id: str
    writer: TransactionalTopic | None
    """None when delivery is at least once: Spark's own writer needs no marker and keeps none."""
    witness: Witness | None = None

    @property
    def name(self) -> str:
        return self.sink.name

    def holds(self, proposal: Proposal) -> bool:
        """Is this batch in the topic already? Nobody else can have written since our producer was initialised."""
        if self.writer is None or self.witness is None or self.witness.strand != proposal.strand:
            return False
        if self.witness.batch < proposal.batch:
            return False  # batches without rows leave no marker, so the topic may be several behind
        decision = decide(proposal, self.witness, None)
        if decision.verdict is Verdict.DUPLICATE:
            return True
        kind = Fenced if decision.verdict is Verdict.FENCED else ChainBroken
        raise kind(
            f"topic '{self.sink.topic}' and the checkpoint do not agree ({decision.verdict.value}): {decision.reason}",
            next_command=f"strandline history {self.name}",
        )

    def deliver(self, frame: DataFrame, proposal: Proposal, pipeline: str, confirm: Callable[[], object]) -> int:
        """Send a batch's rows; `confirm` runs when all are sent and may still call it off. Returns their number."""
        messages = message_frame(frame, self.sink)
        if self.writer is None:
            return self._append(messages, confirm)

        def marker(rows: int) -> Marker:
            confirm()
            return Marker(pipeline, proposal.strand, proposal.holder, proposal.batch, proposal.end.digest, rows, proposal.end)

        def reached(point: str) -> None:
            reach(_POINTS[point], proposal.batch)

        for left in reversed(range(DELIVERY_TRIES)):
            try:
                rows = self.writer.write(arrow_batches(messages), marker, reached)
            except (TopicFenced, TopicOutcomeUnknown) as unsure:
                landed = self._look_again(proposal, pipeline)
                if landed is not None:
                    return landed.rows
                if left == 0:
                    raise CommitUnknown(
                        f"batch {proposal.batch} could not be brought into topic '{self.sink.topic}' ({unsure}); it is not there now",
                        next_command=f"strandline run {pipeline}",
                    ) from unsure
            except TopicProblem as problem:
                raise problem.error from problem
            else:
                if rows > 0:
                    self.witness = Witness(proposal.strand, proposal.holder, proposal.batch, proposal.end.digest, proposal.end)
                return rows
        raise AssertionError("the last try returns or raises")

    def _look_again(self, proposal: Proposal, pipeline: str) -> Marker | None:
        """Open anew, which settles whatever was under way, and read the marker: did our batch land, and do we still hold it?"""
        found = self.open()
        if found is None:
            return None
        self.witness = found.witness
        if found.holder != proposal.holder and found.holder.attempt >= proposal.holder.attempt:
            raise Fenced(
                f"attempt {proposal.holder.attempt} of '{pipeline}' may no longer write to topic '{self.sink.topic}': attempt "
                f"{found.holder.attempt} ({found.holder.id}) holds it",
                next_command="strandline status",
            )
        return found if (found.batch, found.strand) == (proposal.batch, proposal.strand) else None

    def _append(self, messages: DataFrame, confirm: Callable[[], object]) -> int:
        options = {**self.connection.spark_options(), "topic": self.sink.topic, "includeHeaders": "true"}
        kept = messages.persist()  # counted and written from one evaluation; spills to disk when it does not fit
        try:
            rows = kept.count()
            confirm()
            kept.write.format("kafka").options(**options).save()
        finally:
            kept.unpersist()
        return rows

    def open(self) -> Marker | None:
        """Fence older producers, then read the marker."""
        if self.writer is None:
            return None
        try:
            return self.writer.open()
        except TopicProblem as problem:
            raise problem.error from problem

    def claim(self, marker: Marker) -> None:
        """Put our attempt on the topic."""
        assert self.writer is not None
        try:
            self.writer.claim(marker)
        except TopicProblem as problem:
            raise problem.error from problem

    def reopen(self) -> None:
        """After the cluster was away: a producer that failed is of no more use."""
        found = self.open()
        if found is not None:
            self.witness = found.witness

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def topic_chain(sink: TopicSink, connection: KafkaConnection, topic_id: str, pipeline: str) -> TopicChain:
    exact = sink.delivery == "exactly_once"
    return TopicChain(sink, connection, topic_id, TransactionalTopic(connection, pipeline, sink.topic, sink.partitioner) if exact else None)


def check_columns(frame: DataFrame, sink: TopicSink) -> None:
    """Every column that the sink names must be there, before anything runs."""
    named = [sink.key, sink.value, sink.partition, *sink.headers]
    missing = [name for name in named if name is not None and name not in frame.columns]
    if missing:
        raise DefinitionError(
            f"topic('{sink.topic}') uses column '{missing[0]}', but its rows have {', '.join(frame.columns)}",
            next_command="edit the pipeline's sink or transform",
        )


def message_frame(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """Rows as messages: key, value, and where declared headers and partition."""
    from pyspark.sql import functions as F

    def raw(name: str) -> Column:
        kind = dict(frame.dtypes)[name]
        column = F.col(f"`{name}`")
        return column if kind == "binary" else column.cast("string").cast("binary")

    columns: list[Column] = []
    if sink.key is None:
        columns.append(F.lit(None).cast("binary").alias("key"))
    else:
        error = F.raise_error(F.lit(f"{NULL_KEY} topic '{sink.topic}' needs a key and a row has none in column '{sink.key}'"))
        columns.append(F.when(F.col(f"`{sink.key}`").isNull(), error.cast("binary")).otherwise(raw(sink.key)).alias("key"))
    if sink.value is not None:
        columns.append(raw(sink.value).alias("value"))
    else:
        shown = [F.col(f"`{name}`") for name in frame.columns if name not in (sink.partition, *sink.headers)]
        columns.append(F.to_json(F.struct(*shown), {"ignoreNullFields": "false"}).cast("binary").alias("value"))
    if sink.headers:
        pairs = [F.struct(F.lit(name).alias("key"), raw(name).alias("value")) for name in sink.headers]
        columns.append(F.array(*pairs).alias("headers"))
    if sink.partition is not None:
        columns.append(F.col(f"`{sink.partition}`").cast("int").alias("partition"))
    return frame.select(*columns)
