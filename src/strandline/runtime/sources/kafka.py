"""Kafka topics as a source: Spark's own Kafka stream, started at known offsets, parsed, and proven to be complete."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from strandline.checkpoints.storage import Storage
from strandline.messaging.cluster import Cluster
from strandline.messaging.connection import KafkaConnection
from strandline.messaging.registry import RegistryConnection, SchemaRegistry
from strandline.model.continuity import Gap, Loss, TopicFacts, losses, unaccepted
from strandline.model.errors import ClusterUnreachable, DataLost, SourceProblem
from strandline.model.kafka import KafkaSource
from strandline.model.positions import KafkaPosition, Position
from strandline.model.stamp import TOPICS_FACT
from strandline.model.times import utc_now
from strandline.model.until import Until
from strandline.runtime.sources.messages import MessageParser, declared_schema
from strandline.runtime.sources.reader import SOURCE_OPTION, Facts, Lag, Notice, PositionReader, SourceRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIMEOUTS = {
    # Spark's defaults let a dead broker hang for minutes; the running attempt waits and starts again by itself.
    "kafka.request.timeout.ms": "10000",
    "kafka.default.api.timeout.ms": "15000",
    "kafka.socket.connection.setup.timeout.ms": "5000",
    "kafka.reconnect.backoff.max.ms": "1000",
    "kafkaConsumer.pollTimeoutMs": "30000",
}
_LAG_EVERY = 2.0
"""Seconds between two looks at how much waits: each costs a round trip, and one fetch while something waits."""


class KafkaReader:
    def __init__(
        self,
        name: str,
        source: KafkaSource,
        connection: KafkaConnection,
        registry: RegistryConnection | None,
        group: str,
        pipeline: str,
        until: Until | None = None,
    ) -> None:
        self.name = name
        self._until = until
        self.group = group
        self.connection = connection
        self.notice: Notice = lambda _kind, _text: None
        self._source = source
        self._registry = registry
        self._pipeline = pipeline
        self._opened: Cluster | None = None
        self._closed = False
        self._known: dict[str, TopicFacts] = {}
        self.accepting: frozenset[Gap] = frozenset()
        """Gaps that someone agreed to step over; narrowed to those that are really there by `take_up`."""
        self._lag: tuple[float, Position | None, Lag] | None = None
        self._parser = MessageParser(name, source, registry)

    @property
    def cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = Cluster(self.connection)
        return self._opened

    def close(self) -> None:
        self._closed = True  # the heartbeat may still ask for the lag, which must not connect anew
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # -- before a start --------------------------------------------------------------------------------------

    def check(self) -> None:
        there = self.cluster.topic_names()
        missing = sorted(set(self._source.topics) - set(there))
        if missing:
            shown = ", ".join(there[:10]) or "none"
            raise SourceProblem(
                f"source '{self.name}': topic '{missing[0]}' does not exist on the Kafka cluster at {self.connection.bootstrap} "
                f"(topics there: {shown})",
                next_command=f"create the topic, then: strandline run {self._pipeline}",
            )
        if self._until is not None and self._until.moment is None:
            self._check_end(self._until)

    def _check_end(self, until: Until) -> None:
        """A partition without an end would be read for ever, one that is not there never reaches it."""
        there = {(topic, number) for topic, facts in self.cluster.facts(self._topics()).items() for number in facts.bounds}
        named = {(topic, number) for topic, parts in until.offsets.items() for number in parts}
        if open_ended := sorted(there - named):
            raise SourceProblem(
                f"source '{self.name}': {open_ended[0][0]}[{open_ended[0][1]}] has no end in --until, and every partition needs one",
                next_command="the same command with an offset for each partition",
            )

    def _topics(self) -> list[str]:
        return list(self._source.topics) if self._source.pattern is None else self.cluster.matching(self._source.pattern)

    def begin(self) -> KafkaPosition:
        """Resolve the declared start to offsets now, so that a strand's first range is known before anything runs."""
        facts = self.cluster.facts(self._topics())
        first = {(topic, number): bounds[0] for topic, fact in facts.items() for number, bounds in fact.bounds.items()}
        start = self._source.start
        if start == "earliest":
            chosen = first
        elif start == "latest":
            chosen = {(topic, number): bounds[1] for topic, fact in facts.items() for number, bounds in fact.bounds.items()}
        elif start == "committed":
            committed = self.cluster.group_offsets(self.group)
            chosen = {place: committed.get(place, offset) for place, offset in first.items()}
        elif isinstance(start, datetime):
            chosen = self.cluster.offsets_since(start, first)
        else:
            assert isinstance(start, Mapping)
            asked = {(topic, number): offset for topic, parts in start.items() for number, offset in parts.items()}
            if unknown := sorted(set(asked) - set(first)):
                raise SourceProblem(
                    f"source '{self.name}': start names {unknown[0][0]}[{unknown[0][1]}], which does not exist",
                    next_command=f"edit the start of source '{self.name}'",
                )
            chosen = {place: asked.get(place, offset) for place, offset in first.items()}
        position = KafkaPosition(tuple(sorted((topic, number, offset) for (topic, number), offset in chosen.items())))
        if found := losses(position, {}, facts):
            raise DataLost(
                f"source '{self.name}' cannot start where it is told to (start={start!r}): {found[0].reason}",
                next_command=f"change start=… of source '{self.name}', then: strandline run {self._pipeline}",
            )
        return position

    def take_up(self, needed: KafkaPosition, recorded: Mapping[str, str]) -> list[Loss]:
        """Compare what a start must read next with what is there. Losses that nobody accepted are an error."""
        facts = self.cluster.facts({*self._topics(), *needed.topics})
        found = losses(needed, recorded, facts)
        if open_ones := unaccepted(found, self.accepting):
            raise self._lost(open_ones, f"source '{self.name}' cannot go on where it stopped")
        self._known = facts
        self.accepting = frozenset(loss.gap for loss in found if loss.gap is not None)
        return found

    @property
    def known(self) -> Mapping[str, TopicFacts]:
        """The topics as this attempt last saw them."""
        return self._known

    def _lost(self, found: list[Loss], what: str) -> DataLost:
        shown = "; ".join(f"{loss.kind.value}: {loss.reason}" for loss in found[:5])
        more = f" (and {len(found) - 5} more)" if len(found) > 5 else ""
        afresh = f"strandline run {self._pipeline} --new-strand"
        if all(loss.gap is not None for loss in found):
            flags = " ".join(f"--accept-gap {loss.gap.argument}" for loss in found if loss.gap is not None)
            choice = f"accept the loss: strandline run {self._pipeline} {flags} (or begin anew from the source's start: {afresh})"
        else:
            choice = f"put the records back, or begin anew on top of what the table holds: {afresh}"
        return DataLost(f"{what}: {shown}{more}; nothing was written", next_command=choice)

    # -- the stream ------------------------------------------------------------------------------------------

    def read(self, spark: SparkSession, origin: Position | None) -> SourceRows:
        s = self._source
        if self._registry is not None:
            with SchemaRegistry(self._registry) as registry:
                for topic in self._topics():
                    registry.check(topic, declared_schema(s).names)
        reader = (
            spark.readStream.format("kafka")
            .options(**_TIMEOUTS)
            .options(**self.connection.spark_options())
            .option(SOURCE_OPTION, self.name)
            .option("startingOffsets", self._starting(origin))
            .option("kafka.isolation.level", s.isolation)
            # Where a gap was accepted, Spark must step over it; `prove` still refuses any other.
            .option("failOnDataLoss", str(not self.accepting).lower())
            .option("includeHeaders", str("headers" in s.metadata).lower())
        )
        reader = reader.option("subscribe", ",".join(s.topics)) if s.pattern is None else reader.option("subscribePattern", s.pattern)
        if s.max_offsets_per_batch is not None:
            reader = reader.option("maxOffsetsPerTrigger", s.max_offsets_per_batch)
        return self._parser.parse(self._before_end(reader.options(**s.options).load()))

    def _before_end(self, records: DataFrame) -> DataFrame:
        if self._until is None:
            return records
        if self._until.moment is not None:
            return records.where(f"timestamp < timestamp'{self._until.moment.isoformat()}'")
        ends = [(topic, number, at) for topic, parts in self._until.offsets.items() for number, at in parts.items()]
        beyond = " or ".join(f"(topic = '{topic}' and partition = {number} and offset >= {at})" for topic, number, at in ends)
        return records.where(f"not ({beyond})")

    def _starting(self, origin: Position | None) -> str:
        """Spark wants every partition named; those that appeared since the origin was fixed are read from their start."""
        if not isinstance(origin, KafkaPosition) or not origin.partitions:
            return "earliest"
        named = {topic: {str(n): offset for n, offset in parts.items()} for topic, parts in origin.by_topic().items()}
        for topic, facts in self.cluster.facts(self._topics()).items():
            for number in facts.bounds:
                named.setdefault(topic, {}).setdefault(str(number), -2)
        return json.dumps(named)

    def positions(self, checkpoint: Storage, index: int) -> PositionReader:
        return lambda line: KafkaPosition.from_json({"topics": json.loads(line)})

    def prove(self, start: Position | None, end: Position | None) -> Facts:
        """Log starts only ever grow: what is still there now was there when the batch was read."""
        if not isinstance(end, KafkaPosition):
            return {}
        facts = self.cluster.facts(end.topics)
        self._notice_news(facts)
        ids = {topic: fact.id for topic, fact in self._known.items()}
        needed = start if isinstance(start, KafkaPosition) else KafkaPosition(())
        found = unaccepted(losses(needed, ids, facts), self._covered(needed))
        ends = losses(end, ids, facts)
        found += [loss for loss in ends if loss.gap is None and loss not in found]
        if found:
            raise self._lost(found, f"records of source '{self.name}' vanished while they were read")
        return {TOPICS_FACT: {topic: fact.id for topic, fact in facts.items()}, **self._parser.facts()}

    def _covered(self, needed: KafkaPosition) -> list[Gap]:
        """Accepted gaps that begin where this batch begins; for a recreated topic, those that end there."""
        return [gap for gap in self.accepting if needed.offsets.get((gap.topic, gap.partition)) in (gap.start, gap.end)]

    def _notice_news(self, facts: Mapping[str, TopicFacts]) -> None:
        for topic, fact in facts.items():
            before = self._known.get(topic)
            if before is None:
                self.notice("topic-found", f"source '{self.name}' reads topic '{topic}' with {len(fact.bounds)} partitions")
            elif new := sorted(set(fact.bounds) - set(before.bounds)):
                shown = ", ".join(f"{topic}[{number}]" for number in new)
                self.notice("partitions-added", f"source '{self.name}' now also reads {shown}")
            else:
                continue
            # The id stays the first one seen: a topic that was made again must not pass for the old one.
            self._known[topic] = TopicFacts(before.id if before else fact.id, fact.bounds)

    # -- while running ---------------------------------------------------------------------------------------

    def exhausted(self, position: Position | None) -> bool:
        return True  # Spark's own available-now trigger reads up to the ends it found

    def reached(self, position: Position | None) -> bool:
        if self._until is None or not isinstance(position, KafkaPosition):
            return False
        if self._until.moment is not None:
            if utc_now() < self._until.moment:
                return False
            ends = self.cluster.offsets_since(self._until.moment, position.offsets)
        else:
            ends = {(topic, number): at for topic, parts in self._until.offsets.items() for number, at in parts.items()}
        return all(position.offsets.get(place, 0) >= at for place, at in ends.items() if place[0] in position.topics)

    def lag(self, position: Position | None) -> Lag | None:
        now = time.monotonic()
        if self._lag is not None and (self._closed or now - self._lag[0] < _LAG_EVERY) and self._lag[1] == position:
            return self._lag[2]
        if self._closed:
            return None
        try:
            found = self._measure_lag(position)
        except (ClusterUnreachable, SourceProblem):
            return None
        self._lag = (now, position, found)
        return found

    def _measure_lag(self, position: Position | None) -> Lag:
        at = position if isinstance(position, KafkaPosition) else KafkaPosition(())
        read = at.offsets
        topics = set(at.topics) | set(self._source.topics)
        places = {(topic, number): bounds for topic, fact in self.cluster.facts(topics).items() for number, bounds in fact.bounds.items()}
        ends = self.cluster.stable_ends(places)
        waiting = {place: end - max(read.get(place, 0), places[place][0]) for place, end in ends.items()}
        behind = {place: count for place, count in waiting.items() if count > 0}
        if not behind:
            return Lag(0, "records")
        oldest = self.cluster.oldest_waiting(KafkaPosition.of(_nested({p: max(read.get(p, 0), places[p][0]) for p in behind})), behind)
        seconds = max(0.0, (utc_now() - oldest).total_seconds()) if oldest is not None else None
        return Lag(sum(behind.values()), "records", seconds)


def _nested(offsets: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (topic, number), offset in offsets.items():
        found.setdefault(topic, {})[number] = offset
    return found
