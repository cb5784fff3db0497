"""What a user declares about Kafka: where it is, what is read from it, what is written to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from strandline.model.choices import SECRET_NAME, choice
from strandline.model.errors import DefinitionError
from strandline.model.secrets import Secret

MessageFormat = Literal["json", "avro", "string", "bytes"]
Isolation = Literal["read_committed", "read_uncommitted"]
Malformed = Literal["stop", "quarantine"]
Metadata = Literal["key", "headers", "topic", "partition", "offset", "timestamp"]
Delivery = Literal["exactly_once", "at_least_once"]
Partitioner = Literal["murmur2_random", "consistent_random", "random"]
StartWord = Literal["earliest", "latest", "committed"]
StartOffsets = Mapping[str, Mapping[int, int]]
Setting = str | Secret

SECURITY_KEYS = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
)
"""Settings that both clients in use understand, the one inside Spark and the one beside it."""


def check_security(what: str, security: Mapping[str, object]) -> None:
    for key, value in security.items():
        if key not in SECURITY_KEYS:
            raise DefinitionError(f"{what} has '{key}'; allowed: {', '.join(SECURITY_KEYS)}")
        if SECRET_NAME.search(key) and isinstance(value, str):
            raise DefinitionError(f"{what} has a literal '{key}'; write it as a reference: secret(env='NAME') or secret(file='path')")


@dataclass(frozen=True)
class KafkaAccess:
    """How to reach a cluster. What is not said here comes from the profile's `kafka:` section."""

    bootstrap: str | None = None
    security: Mapping[str, Setting] = field(default_factory=dict)
    give_up_after: timedelta = timedelta(minutes=2)
    """A cluster that cannot be reached is waited for this long; then the run fails."""

    def __post_init__(self) -> None:
        check_security("kafka(security=…)", self.security)
        if self.bootstrap is not None and not re.fullmatch(r"[^\s,:]+:\d+(,[^\s,:]+:\d+)*", self.bootstrap):
            raise DefinitionError(f"kafka(bootstrap=…) is '{self.bootstrap}'; it is host:port, or several with commas between them")
        if self.give_up_after < timedelta(seconds=5):
            raise DefinitionError("kafka(give_up_after=…) is shorter than 5 s, which a broker's restart takes")


@dataclass(frozen=True)
class Registry:
    """A Confluent-compatible schema registry; see `strandline.kafka`."""

    url: str
    user: str | None = None
    password: Secret | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https?://[^@\s]+", self.url):
            raise DefinitionError("registry(url) must be http(s)://host:port without a password in it; use user=… and password=secret(…)")


@dataclass(frozen=True)
class KafkaSource:
    """Topics of a Kafka cluster; see `strandline.kafka`."""

    kind: ClassVar[str] = "kafka"
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    access: KafkaAccess = KafkaAccess()
    schema: str | None = None
    format: MessageFormat = "json"
    start: StartWord | datetime | StartOffsets = "earliest"
    group: str | None = None
    isolation: Isolation = "read_committed"
    malformed: Malformed = "stop"
    metadata: tuple[Metadata, ...] = ()
    registry: Registry | None = None
    max_offsets_per_batch: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        choice("kafka(format=…)", self.format, MessageFormat)
        choice("kafka(isolation=…)", self.isolation, Isolation)
        choice("kafka(malformed=…)", self.malformed, Malformed)
        for name in self.metadata:
            choice("kafka(metadata=…)", name, Metadata)
        if isinstance(self.start, str):
            choice("kafka(start=…)", self.start, StartWord)
        elif isinstance(self.start, datetime) and self.start.tzinfo is None:
            raise DefinitionError(f"kafka(start={self.start.isoformat()}) has no time zone; write datetime(…, tzinfo=timezone.utc)")
        if bool(self.topics) == (self.pattern is not None):
            raise DefinitionError("kafka(…) takes topics or pattern=…, one of them")
        for topic in self.topics:
            check_topic("kafka", topic)
        parsed = self.format in ("json", "avro")
        if parsed and not self.schema:
            raise DefinitionError(f"kafka(format='{self.format}') needs schema=…, such as 'order_id string, amount double'")
        if not parsed and self.schema:
            raise DefinitionError(f"kafka(format='{self.format}') gives one column named value; schema=… belongs to json and avro")
        if not parsed and self.malformed == "quarantine":
            raise DefinitionError(f"kafka(format='{self.format}', malformed='quarantine'): every message is a valid {self.format}")
        if self.registry is not None and self.format != "avro":
            raise DefinitionError("kafka(registry=…) is only used by format='avro'")
        if self.max_offsets_per_batch is not None and self.max_offsets_per_batch < 1:
            raise DefinitionError(f"kafka(max_offsets_per_batch=…) is {self.max_offsets_per_batch}; it must be at least 1")


@dataclass(frozen=True)
class TopicSink:
    """A Kafka topic; see `strandline.topic`."""

    topic: str
    access: KafkaAccess = KafkaAccess()
    key: str | None = None
    value: str | None = None
    """Column that holds the message; without it the message is all columns as JSON."""
    headers: tuple[str, ...] = ()
    partition: str | None = None
    partitioner: Partitioner = "murmur2_random"
    """The Java client's default, so that our keys land where everyone else's do."""
    delivery: Delivery = "exactly_once"

    def __post_init__(self) -> None:
        check_topic("topic", self.topic)
        choice("topic(delivery=…)", self.delivery, Delivery)
        choice("topic(partitioner=…)", self.partitioner, Partitioner)
        if self.partition is not None and self.partitioner != "murmur2_random":
            raise DefinitionError(f"topic('{self.topic}') has both partition and partitioner; the column already decides")
        if self.delivery == "at_least_once" and self.partitioner != "murmur2_random":
            raise DefinitionError(f"topic('{self.topic}', partitioner=…) is only used by delivery='exactly_once'")

    @property
    def name(self) -> str:
        """How ledger, history and messages call it, beside table names."""
        return f"{TOPIC_PREFIX}{self.topic}"


TOPIC_PREFIX = "kafka:"


def check_topic(where: str, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
        raise DefinitionError(f"{where}: '{name}' is no topic name; it holds letters, digits, '.', '_' and '-'")
