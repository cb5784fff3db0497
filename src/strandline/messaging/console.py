"""Making, filling and reading topics by hand: enough for development, without a Kafka installation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.messaging.cluster import PATIENCE, Cluster, explain
from strandline.messaging.connection import KafkaConnection
from strandline.model.errors import NotFound, Refused, UsageError
from strandline.model.kafka import check_topic

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


@dataclass(frozen=True)
class Line:
    """One message as it is shown."""

    partition: int
    offset: int
    key: str | None
    value: str | None


def create_topic(connection: KafkaConnection, name: str, partitions: int) -> None:
    """Make a topic; one of that name that is there already is not touched."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    check_topic("kafka create", name)
    admin = AdminClient(connection.client())
    future = admin.create_topics([NewTopic(name, num_partitions=partitions)], request_timeout=PATIENCE)[name]
    try:
        future.result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            raise Refused(f"topic '{name}' exists already; nothing was changed", next_command=f"strandline kafka read {name}") from error
        raise explain(connection.bootstrap, error.args[0]) from error


def send(connection: KafkaConnection, topic: str, lines: Iterable[str], key_field: str | None) -> int:
    """Send each line as a message, all or none: they are read whole before the first is sent."""
    from confluent_kafka import Producer

    messages = [(line, _key(number, line, key_field)) for number, line in enumerate(lines, start=1) if line.strip()]
    _partitions(connection, topic)
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(connection.client(partitioner="murmur2_random", linger_ms=20, message_timeout_ms=int(PATIENCE * 1000)))
    for value, key in messages:
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    if failed:
        raise explain(connection.bootstrap, failed[0])
    return len(messages)


def _key(number: int, line: str, field: str | None) -> str | None:
    if field is None:
        return None
    try:
        return str(json.loads(line)[field])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"line {number} is no JSON object with a field '{field}'; nothing was sent", next_command="leave --key out"
        ) from error


def read(connection: KafkaConnection, topic: str) -> Iterator[Line]:
    """Every committed message from the oldest to the present end, partition by partition."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    for number in _partitions(connection, topic):
        consumer = Consumer(
            connection.client(
                group_id="strandline-console",
                enable_auto_commit=False,
                isolation_level="read_committed",
                enable_partition_eof=True,
            )
        )
        try:
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(PATIENCE)
                error = message.error() if message is not None else None
                if message is None or (error is not None and error.code() == KafkaError._PARTITION_EOF):
                    break
                if error is not None:
                    raise explain(connection.bootstrap, error)
                yield Line(number, message.offset() or 0, _text(message.key()), _text(message.value()))
        finally:
            consumer.close()


def _partitions(connection: KafkaConnection, topic: str) -> list[int]:
    cluster = Cluster(connection)
    facts = cluster.facts([topic]).get(topic)
    if facts is None:
        there = ", ".join(cluster.topic_names()) or "none"
        raise NotFound(f"there is no topic '{topic}' (topics there: {there})", next_command=f"strandline kafka create {topic}")
    return sorted(facts.bounds)


def _text(raw: str | bytes | None) -> str | None:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
