"""A real Kafka broker for tests: make topics, put records in, take them out, break it.

The fixture `kafka` gives one `KafkaForTests` per test run; names from `topic()` keep tests apart.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from strandline.runtime.broker import Broker
from strandline.runtime.ports import LOOPBACK

PATIENCE = 30.0
"""Seconds for any one question to the broker: a hundred times what one takes."""

QUEUE = 50_000
"""Records in flight at most: half of what the client holds by default."""

Payload = str | bytes | None
Headers = Mapping[str, str | bytes | None]


@dataclass(frozen=True)
class Record:
    """What a consumer saw."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 0
    """Milliseconds since 1970."""


@dataclass
class Sender:
    """Takes records, and tells at the end which of them the broker refused."""

    producer: Producer
    problems: list[KafkaError] = field(default_factory=list)

    def produce(
        self,
        topic: str,
        values: Sequence[Payload],
        keys: Sequence[Payload] | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """One record per value; `headers` go with each of them."""
        for value, key in zip(values, keys or [None] * len(values), strict=True):
            if len(self.producer) >= QUEUE:  # the client refuses more than it can hold
                self.producer.flush(PATIENCE)
            self.producer.produce(
                topic,
                value,
                key,
                partition=-1 if partition is None else partition,
                headers=dict(headers) if headers else None,
                on_delivery=self._delivered,
            )

    def flush(self) -> None:
        left = self.producer.flush(PATIENCE)
        assert not left, f"{left} records were not delivered within {PATIENCE} s"
        assert not self.problems, f"{len(self.problems)} records were refused: {self.problems[0]}"

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.problems.append(error)


class KafkaForTests:
    """A broker of one's own in a folder, and the questions and mischief that tests need."""

    def __init__(self, folder: Path, properties: Mapping[str, str] | None = None, say: Callable[[str], None] = print) -> None:
        self.broker = Broker(folder, properties, say)
        self.broker.up(0)
        self.bootstrap = str(self.broker.status().bootstrap)

    def settings(self, **more: Any) -> dict[str, Any]:
        """Configuration of a client of this broker; ``_`` in a name stands for ``.``."""
        named = {key.replace("_", "."): value for key, value in more.items()}
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200, **named}

    # -- topics --------------------------------------------------------------------------------------------------

    def topic(self, prefix: str = "test") -> str:
        """A name that no other test has; the topic itself is made by `create_topic`."""
        return f"{prefix}-{uuid.uuid4().hex[:8]}"

    def create_topic(self, name: str, partitions: int = 1, **config: object) -> str:
        """Make a topic and wait until it can be written; ``retention_ms=1000`` sets ``retention.ms``. Returns the name."""
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        self._do(lambda admin: admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))
        self._until(lambda: self._partitions(name) == list(range(partitions)), f"topic {name} was made")
        return name

    def delete_topic(self, name: str) -> None:
        self._do(lambda admin: admin.delete_topics([name]))
        self._until(lambda: not self._partitions(name), f"topic {name} was deleted")

    def add_partitions(self, name: str, total: int) -> None:
        self._do(lambda admin: admin.create_partitions([NewPartitions(name, total)]))
        self._until(lambda: len(self._partitions(name)) == total, f"topic {name} has {total} partitions")

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Drop what is older, as retention would."""
        self._do(lambda admin: admin.delete_records([TopicPartition(topic, partition, before_offset)]))

    def topic_id(self, name: str) -> str:
        """Differs between a topic and another one of the same name made after it was deleted."""
        (found,) = self._do(lambda admin: admin.describe_topics(TopicCollection([name])))
        return str(found.topic_id)

    # -- records -------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        values: Sequence[Payload],
        keys: Sequence[Payload] | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Write records and wait until the broker has them all."""
        sender = Sender(Producer(self.settings()))
        sender.produce(topic, values, keys, partition, headers)
        sender.flush()

    @contextmanager
    def transaction(self, commit: bool = True, id: str | None = None) -> Iterator[Sender]:
        """Records produced inside are committed at the end, or aborted: when `commit` is false, or when an error passes."""
        producer = Producer(self.settings(transactional_id=id or uuid.uuid4().hex))
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        sender = Sender(producer)
        try:
            yield sender
            sender.flush()  # also before an abort: the records shall be in the log, marked as aborted
        except BaseException:
            producer.abort_transaction(PATIENCE)
            raise
        if commit:
            producer.commit_transaction(PATIENCE)
        else:
            producer.abort_transaction(PATIENCE)

    def read(self, topic: str, isolation: Literal["read_committed", "read_uncommitted"] = "read_committed") -> list[Record]:
        """All records of all partitions, from the start to the present end; partition after partition."""
        settings = self.settings(
            group_id="strandline-testing",
            isolation_level=isolation,
            enable_partition_eof=True,
            enable_auto_commit=False,
            fetch_wait_max_ms=50,
        )
        starts = self.starts(topic)  # as numbers: told to find the beginning itself, the client first waits half a second
        open_partitions = set(starts)
        found: list[Record] = []
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(topic, number, start) for number, start in starts.items()])
            deadline = time.monotonic() + PATIENCE
            while open_partitions:
                assert time.monotonic() < deadline, f"{topic} was not read to its end within {PATIENCE} s"
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    found.append(_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition() or 0)
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def ends(self, topic: str) -> dict[int, int]:
        """The offset that the next record of each partition gets; markers of transactions count as records do."""
        return {number: end for number, (_, end) in self._bounds(topic).items()}

    def starts(self, topic: str) -> dict[int, int]:
        """The offset of the oldest record that each partition still has."""
        return {number: start for number, (start, _) in self._bounds(topic).items()}

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """What a consumer group has committed; empty when it has not, or does not exist."""
        (found,) = self._do(lambda admin: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {(p.topic, p.partition): p.offset for p in found.topic_partitions if p.error is None and p.offset >= 0}

    # -- mischief ------------------------------------------------------------------------------------------------

    def delete_group(self, group: str) -> None:
        """Forget a group's offsets, as a cluster does when nobody used them for a week."""
        self._do(lambda admin: admin.delete_consumer_groups([group]))

    def kill(self) -> None:
        """`kill -9` the broker."""
        self.broker.kill()

    def restart(self) -> None:
        """Bring it back at the same address with the same data; clients that waited go on."""
        self.broker.up(int(self.bootstrap.rpartition(":")[2]))

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The broker is dead inside, and back afterwards, whatever the test did: the next test needs it."""
        self.kill()
        try:
            yield
        finally:
            self.restart()

    def stop(self) -> None:
        self.broker.down()

    # -- asking --------------------------------------------------------------------------------------------------

    def _do(self, ask: Callable[[AdminClient], Mapping[Any, Future[Any]]]) -> list[Any]:
        """A client per question: none is left over from before an outage. It must live until its answers are there."""
        admin = AdminClient(self.settings())
        return [answer.result(PATIENCE) for answer in ask(admin).values()]

    def _partitions(self, topic: str) -> list[int]:
        """Those that have a leader."""
        known = AdminClient(self.settings()).list_topics(timeout=PATIENCE).topics.get(topic)
        return [] if known is None else sorted(number for number, p in known.partitions.items() if p.leader >= 0)

    def _bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        consumer = Consumer(self.settings(group_id="strandline-testing"))
        try:
            found = {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=PATIENCE)
                for number in self._partitions(topic)
            }
        finally:
            consumer.close()
        return {number: bounds for number, bounds in found.items() if bounds is not None}

    def _until(self, done: Callable[[], bool], what: str) -> None:
        """The controller answers first, the broker knows a moment later."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"not so within {PATIENCE} s: {what}"
            time.sleep(0.02)


def sasl_plain_listener(port: int, users: Mapping[str, str]) -> dict[str, str]:
    """Properties of a broker that, beside its open port, asks for a user and a password (SASL/PLAIN) at another."""
    quoted = {name: password.replace("\\", "\\\\").replace('"', '\\"') for name, password in users.items()}
    logins = " ".join(f'user_{name}="{password}"' for name, password in quoted.items())
    login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {logins};"
    return {
        "listeners": f"SASL_PLAINTEXT://{LOOPBACK}:{port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
    }


def _record(message: Message) -> Record:
    headers = tuple((name, value.encode() if isinstance(value, str) else value) for name, value in _pairs(message.headers()))
    return Record(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=message.key(),
        value=message.value(),
        headers=headers,
        timestamp=message.timestamp()[1],
    )


def _pairs(headers: Any) -> list[tuple[str, Any]]:
    return list(headers.items()) if isinstance(headers, dict) else list(headers or [])
