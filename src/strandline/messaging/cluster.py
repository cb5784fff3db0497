"""What the driver asks a Kafka cluster: topics, bounds, group offsets, how much waits to be read.

Every answer comes within seconds or is an error in words; librdkafka would wait for minutes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.messaging.connection import KafkaConnection
from strandline.model.continuity import TopicFacts
from strandline.model.errors import ClusterUnreachable, SourceProblem, StrandlineError
from strandline.model.positions import KafkaPosition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient

PATIENCE = 8.0
"""Seconds to wait for one answer: a healthy cluster needs milliseconds, a restarting one is asked again by the caller."""

GROUP_PATIENCE = 3.0
"""Seconds for one question about a group, which is asked again until `PATIENCE` is over."""

_T = TypeVar("_T")
_Place = tuple[str, int]


class Cluster:
    """One cluster through one set of credentials. Safe across threads."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection
        self._trouble: KafkaError | None = None
        self._admin = self._new_client()
        self._reader: Consumer | None = None
        self._reading = threading.Lock()

    def _new_client(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.connection.client(error_cb=self._note))

    def _note(self, error: KafkaError) -> None:
        """librdkafka tells the real reason (refused, wrong password) here, and only 'timed out' to the caller."""
        from confluent_kafka import KafkaError

        if self._trouble is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error

    # -- topics ----------------------------------------------------------------------------------------------

    def topic_names(self, patience: float = PATIENCE) -> list[str]:
        metadata = self._ask(lambda: self._admin.list_topics(timeout=patience))
        return sorted(name for name in metadata.topics if not name.startswith("__"))

    def matching(self, pattern: str) -> list[str]:
        return [name for name in self.topic_names() if re.fullmatch(pattern, name)]

    def facts(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Id and bounds of each topic that exists; the others are left out."""
        from confluent_kafka import KafkaError, TopicCollection, TopicPartition

        names = sorted(set(topics))
        if not names:
            return {}
        described: dict[str, Any] = {}
        futures = self._ask(lambda: self._admin.describe_topics(TopicCollection(names), request_timeout=PATIENCE))
        for name, future in futures.items():
            answer = self._told(future, but=KafkaError.UNKNOWN_TOPIC_OR_PART)
            if answer is not None:
                described[name] = answer
        places = [TopicPartition(name, part.id) for name, topic in described.items() for part in topic.partitions]
        first = self._offsets({place: _spec().earliest() for place in places})
        last = self._offsets({place: _spec().latest() for place in places})
        return {
            name: TopicFacts(str(topic.topic_id), {part.id: (first[name, part.id], last[name, part.id]) for part in topic.partitions})
            for name, topic in described.items()
        }

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {name: facts.id for name, facts in self.facts(topics).items()}

    def stable_ends(self, places: Iterable[_Place]) -> dict[_Place, int]:
        """The end of what a `read_committed` reader can get: open transactions hold it back."""
        from confluent_kafka import IsolationLevel, TopicPartition

        asked = {TopicPartition(topic, number): _spec().latest() for topic, number in places}
        return self._offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)

    def offsets_since(self, moment: datetime, places: Iterable[_Place]) -> dict[_Place, int]:
        """The first offset at or after a moment; the end of the partition when all is older."""
        from confluent_kafka import TopicPartition

        wanted = [TopicPartition(topic, number) for topic, number in places]
        since = self._offsets({place: _spec().for_timestamp(int(moment.timestamp() * 1000)) for place in wanted})
        ends = self._offsets({place: _spec().latest() for place in wanted})
        return {place: offset if offset >= 0 else ends[place] for place, offset in since.items()}

    def _offsets(self, asked: Mapping[Any, Any], **options: Any) -> dict[_Place, int]:
        if not asked:
            return {}
        answers = self._ask(lambda: self._admin.list_offsets(dict(asked), request_timeout=PATIENCE, **options))
        return {(place.topic, place.partition): self._told(answer).offset for place, answer in answers.items()}

    # -- group offsets ---------------------------------------------------------------------------------------

    def group_offsets(self, group: str) -> dict[_Place, int]:
        """What the group has committed; empty when it does not exist."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        asked = [ConsumerGroupTopicPartitions(group)]
        found = self._of_group(
            group, lambda: self._admin.list_consumer_group_offsets(asked, request_timeout=GROUP_PATIENCE)
        ).topic_partitions
        return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}

    def commit_group(self, group: str, position: KafkaPosition) -> None:
        """Set the group's offsets; refused by the cluster while a consumer is a member of the group."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        places = [TopicPartition(topic, number, offset) for topic, number, offset in position.partitions]
        asked = [ConsumerGroupTopicPartitions(group, places)]
        self._of_group(group, lambda: self._admin.alter_consumer_group_offsets(asked, request_timeout=GROUP_PATIENCE))

    def _of_group(self, group: str, call: Callable[[], Mapping[str, Future[Any]]]) -> Any:
        """A broker that has just started, or taken over a group, needs a moment; the client does not wait for it by itself.

        And a client that asked for a group while its broker was restarted may wait for that answer for good: it is replaced.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._told(self._ask(call)[group])
            except ClusterUnreachable:
                self._admin = self._new_client()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    # -- what waits ------------------------------------------------------------------------------------------

    def oldest_waiting(self, position: KafkaPosition, places: Iterable[_Place], patience: float = 1.0) -> datetime | None:
        """When the oldest unread record was written; None when it cannot be told in time."""
        from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, TopicPartition

        from strandline.model.times import from_millis

        offsets = position.offsets
        wanted = [TopicPartition(topic, number, offsets[topic, number]) for topic, number in places]
        with self._reading:
            if self._reader is None:
                self._reader = Consumer(
                    self.connection.client(
                        group_id="strandline-lag",  # required by the client; nothing is committed under it
                        enable_auto_commit=False,
                        enable_auto_offset_store=False,
                        isolation_level="read_committed",
                        fetch_message_max_bytes=65536,
                        queued_max_messages_kbytes=256,
                        error_cb=lambda _: None,
                    )
                )
            seen: dict[_Place, int] = {}
            self._reader.assign(wanted)
            try:
                deadline = time.monotonic() + patience
                while len(seen) < len(wanted) and (left := deadline - time.monotonic()) > 0:
                    message = self._reader.poll(left)
                    if message is None or message.error() is not None:
                        continue
                    kind, at = message.timestamp()
                    if kind != TIMESTAMP_NOT_AVAILABLE:
                        seen.setdefault((str(message.topic()), int(message.partition() or 0)), at)
            finally:
                self._reader.unassign()
        return from_millis(min(seen.values())) if seen else None

    # -- asking ----------------------------------------------------------------------------------------------

    def why_unreachable(self, patience: float = 3.0) -> str | None:
        """None when the cluster answers; otherwise the reason in words."""
        try:
            self.topic_names(patience)
        except StrandlineError as error:
            return error.message
        return None

    def _ask(self, call: Callable[[], _T]) -> _T:
        from confluent_kafka import KafkaException

        self._trouble = None
        try:
            return call()
        except KafkaException as error:
            raise self._explain(error) from error

    def _told(self, future: Future[Any], *, but: int | None = None) -> Any:
        """A future's answer; None when it is the one error code that the caller expects."""
        from confluent_kafka import KafkaException

        try:
            return future.result()
        except KafkaException as error:
            if error.args[0].code() == but:
                return None
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> StrandlineError:
        self._admin.poll(0)
        return explain(self.connection.bootstrap, error.args[0], self._trouble)

    def close(self) -> None:
        with self._reading:
            if self._reader is not None:
                self._reader.close()
                self._reader = None


def _spec() -> Any:
    import confluent_kafka.admin as admin  # which re-exports it without saying so to type checkers

    return admin.OffsetSpec  # type: ignore[attr-defined]


def explain(bootstrap: str, error: KafkaError, trouble: KafkaError | None = None) -> StrandlineError:
    """A client's error code as the sentence an operator reads."""
    from confluent_kafka import KafkaError

    real = trouble if trouble is not None and error.code() in _LOST else error
    code, words = real.code(), _words(real)
    if code in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        return SourceProblem(
            f"the Kafka cluster at {bootstrap} does not accept the credentials: {words}",
            next_command="check kafka.security in strandline.yaml, then: strandline doctor",
        )
    if code in (KafkaError._SSL,):
        return SourceProblem(f"no secure connection to the Kafka cluster at {bootstrap}: {words}", next_command="strandline doctor")
    if code in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ):
        return SourceProblem(f"this user may not do that on the Kafka cluster at {bootstrap}: {words}", next_command="strandline doctor")
    if code in _LOST:
        return ClusterUnreachable(
            f"the Kafka cluster at {bootstrap} does not answer: {words}", next_command="strandline kafka status, or check kafka.bootstrap"
        )
    return SourceProblem(f"the Kafka cluster at {bootstrap} answers with an error: {words}", next_command="strandline doctor")


def _lost() -> frozenset[int]:
    from confluent_kafka import KafkaError

    return frozenset(
        [
            KafkaError._TRANSPORT,
            KafkaError._TIMED_OUT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._RESOLVE,
            KafkaError._TIMED_OUT_QUEUE,
            KafkaError.REQUEST_TIMED_OUT,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            KafkaError.NOT_COORDINATOR,
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.BROKER_NOT_AVAILABLE,
            KafkaError.NETWORK_EXCEPTION,
        ]
    )


_LOST = _lost()


def _words(error: KafkaError) -> str:
    """librdkafka's text without its thread names, addresses of threads and counters."""
    text = error.str()
    text = re.sub(r"^[\w.:/\[\]-]+(?: \[\w+\])?: ", "", text)
    text = re.sub(r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)", "", text)
    return text.strip().rstrip(".") or error.name()
