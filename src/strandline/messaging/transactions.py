"""The exactly-once writer of one output topic: a batch's rows and its marker in one Kafka transaction.

Three rules carry it:

1. A producer is initialised *before* the marker is read. That ends whatever an older producer had under way, so what is
   read then cannot change any more, except by a producer that fences this one.
2. The marker is committed with the rows or not at all. After a crash, or a commit whose outcome is unknown, it tells the truth.
   So it is also read back after each commit: a broker says "committed" before it has told the partitions, and one that dies
   in between may forget to (KAFKA-20734).
3. After any failure the producer is thrown away. The next `open` begins anew at rule 1.

An older process that opens later fences us too, but finds our claim and stops; we open again and go on. So `TopicFenced`
is a reason to look, not yet to stop: the marker's holder decides.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from strandline.messaging.connection import KafkaConnection
from strandline.model.errors import ClusterUnreachable, CommitUnknown, Failure, Fenced, StrandlineError
from strandline.model.marker import Marker, decode_marker, encode_marker
from strandline.model.times import human_duration

if TYPE_CHECKING:
    import pyarrow as pa

TRANSACTION_TIMEOUT = timedelta(minutes=10)
"""A batch that takes longer is aborted by the broker. An open transaction holds readers back, so it must not be endless."""

LONGEST_TRANSACTION = timedelta(minutes=15)
"""What brokers allow by default (`transaction.max.timeout.ms`)."""

CHUNK = 4096
"""Rows turned into Python objects at a time."""

QUEUE_MESSAGES = 100_000
QUEUE_KILOBYTES = 65_536
"""The client's queue. It is full when the broker is slower than we are; more would cost memory and gain no speed."""

LARGEST_MESSAGE = 60_000_000
"""Only the queue limits us: how large a message may be is for the topic to say, which knows its size after compression."""

BATCH_BYTES = 262_144
"""Faster than the client's default of 1 MB, and a quarter of what topics take by default."""

SLICE = 1.0
"""Seconds inside the client per call: it hears no Ctrl-C there."""

MARKER_PATIENCE = 10.0
"""Seconds for the marker to be taken: a healthy cluster needs milliseconds. Longer outages are waited out by the caller."""

ABORT_PATIENCE = 10.0
"""Aborting is a courtesy to readers: the next `open`, or the broker's timeout, does it as well."""

_LOG = logging.getLogger("strandline.messaging")
_LOG.addHandler(logging.NullHandler())  # without one, the client's last words go to stderr

_FENCED = frozenset([KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH])
_PURGED = frozenset([KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
"""Not why a delivery failed: others were thrown away with the one that did."""
_VAGUE = frozenset([KafkaError._STATE, KafkaError._FATAL, KafkaError._CONFLICT, KafkaError._INCONSISTENT, *_PURGED])
"""Codes that say that something is wrong, not what."""
_REJECTED = frozenset(
    [
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    ]
)
"""Trying again would give the same answer."""
_PASSING = frozenset(
    [
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
    ]
)
"""Trying again soon may give another."""

_HINTS = {
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes, or send smaller messages",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create it first",
    KafkaError._UNKNOWN_TOPIC: "create it first",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user needs Write, Read and Describe on the topic; Read is for the marker",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "raise the broker's transaction.max.timeout.ms",
}

_INVISIBLE = "; nothing of the batch is visible"

_CLIENT_ERRORS = (KafkaException, SystemError)
"""A fatal error, such as being fenced, may come as either; see `_reason`."""

_T = TypeVar("_T")


class TopicProblem(Exception):
    """A transaction that did not end well; `error` is what an operator is told when nothing can be done about it."""

    def __init__(self, error: StrandlineError) -> None:
        super().__init__(error.message)
        self.error = error


class TopicFenced(TopicProblem):
    """Another producer was initialised after ours, or our transaction took too long. Most likely nothing is visible: look."""


class TopicOutcomeUnknown(TopicProblem):
    """The commit was asked for and not confirmed: `open` again and look at the marker."""


class TopicUnavailable(TopicProblem):
    """The cluster did not answer in time, or ended the transaction; nothing of the batch is visible. From `open`: nothing was learnt."""


class TopicRejected(TopicProblem):
    """The cluster refuses these rows, or us: nothing of the batch is visible, and trying again will not help."""


@dataclass
class _Reports:
    """What the client tells on the side. It refers to no producer, so that a producer is freed when it is let go."""

    failed: KafkaError | None = None
    """Why a delivery failed; the transaction cannot be committed any more."""
    trouble: KafkaError | None = None
    """The latest connection error: callers only hear "timed out"."""

    def delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and (self.failed is None or self.failed.code() in _PURGED):
            self.failed = error

    def errs(self, error: KafkaError) -> None:
        if self.trouble is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.trouble = error


@dataclass
class _Outcome:
    """How a call on another thread ended, if it did."""

    returned: bool = False
    error: BaseException | None = None

    def running(self, call: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - handed over to the thread that asked
                self.error = error
            self.returned = True

        return run


@dataclass
class _Session:
    """One initialised producer, good until its first failure."""

    producer: Producer
    reader: Consumer
    """Reads the marker. It never subscribes."""
    group: Any
    """The marker's group, in the form that transactions take."""
    partitions: int
    reports: _Reports = field(default_factory=_Reports)
    began: float = 0.0


class TransactionalTopic:
    """Writes one topic for one pipeline. Call from one thread; `open` first, and again after any failure."""

    def __init__(
        self,
        connection: KafkaConnection,
        pipeline: str,
        topic: str,
        partitioner: str = "murmur2_random",
        transaction_timeout: timedelta = TRANSACTION_TIMEOUT,
    ) -> None:
        self.topic = topic
        # Pipeline names hold no dot, so two pairs never give the same id.
        self.transactional_id = f"strandline.{pipeline}.{topic}"
        self.marker_group = f"{self.transactional_id}.marker"
        self._connection = connection
        self._partitioner = partitioner
        self._timeout = min(transaction_timeout, LONGEST_TRANSACTION)
        self._patience = connection.give_up_after.total_seconds()
        self._session: _Session | None = None

    # -- taking hold ---------------------------------------------------------------------------------------------

    def open(self) -> Marker | None:
        """Fence every older producer, end what it had under way, then read what the topic holds."""
        self.close()
        reports = _Reports()
        reader = self._new_reader("read_committed", reports)
        try:
            partitions = self._patiently(lambda seconds: self._count_partitions(reader, seconds))
            self._session = _Session(self._new_producer(reports), reader, reader.consumer_group_metadata(), partitions, reports)
            self._patiently(self._session.producer.init_transactions)
            place = self._patiently(lambda seconds: self._read_marker(reader, seconds))
            return decode_marker(self.topic, place.offset, place.metadata) if place.offset >= 0 else None
        except _CLIENT_ERRORS as error:
            reader.poll(0)  # lets the client tell its connection errors
            if self._session is not None:
                self._say_why(self._session)
            raise (self._hanging() or self._refused(_reason(error), reports)) from error
        except BaseException:
            self.close()
            raise

    def _new_reader(self, isolation: str, reports: _Reports) -> Consumer:
        """`read_committed` makes the broker hold its answer back while a transaction's offsets are pending."""
        settings = self._connection.client(
            group_id=self.marker_group,
            isolation_level=isolation,
            enable_auto_commit=False,
            retry_backoff_ms=5,  # a commit needs some milliseconds to become readable; the default of 100 would be felt in every batch
            error_cb=reports.errs,
        )
        return Consumer({**settings, "logger": _LOG})

    def _count_partitions(self, reader: Consumer, seconds: float) -> int:
        # Asked by a consumer: a producer's question would create the topic where clusters do that.
        found = reader.list_topics(self.topic, seconds).topics[self.topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return len(found.partitions)

    def _read_marker(self, reader: Consumer, seconds: float) -> TopicPartition:
        (place,) = reader.committed([TopicPartition(self.topic, 0)], seconds)
        if place.error is not None:
            raise KafkaException(place.error)
        return place

    def _new_producer(self, reports: _Reports) -> Producer:
        timeout = int(self._timeout.total_seconds() * 1000)
        settings = self._connection.client(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout,
            message_timeout_ms=timeout,  # how long to wait for a broker is decided here, by `give_up_after`
            # The client waits this long for a dead coordinator, whatever it is told when asked to send offsets.
            socket_timeout_ms=min(int(self._patience * 1000), 10_000, timeout),
            partitioner=self._partitioner,
            compression_type="lz4",
            linger_ms=20,
            batch_size=self._batch_bytes(),
            queue_buffering_max_messages=QUEUE_MESSAGES,
            queue_buffering_max_kbytes=QUEUE_KILOBYTES,
            message_max_bytes=LARGEST_MESSAGE,
            delivery_report_only_error=True,
            error_cb=reports.errs,
        )
        return Producer({**settings, "on_delivery": reports.delivered, "logger": _LOG})

    def _batch_bytes(self) -> int:
        """A topic's limit holds for whole batches, and the client does not split one that is refused."""
        from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

        asked = ConfigResource(ResourceType.TOPIC, self.topic)
        admin = AdminClient(self._connection.client())
        try:
            told = admin.describe_configs([asked], request_timeout=min(self._patience, 5.0))[asked].result()
            limit = int(told["max.message.bytes"].value)
        except (KafkaException, KeyError):
            return BATCH_BYTES  # not everybody may ask; most topics keep the default
        return max(1, min(BATCH_BYTES, limit - limit // 8))

    # -- writing -------------------------------------------------------------------------------------------------

    def claim(self, marker: Marker) -> None:
        """Put a marker without rows: an older process that opens later finds our attempt and stops."""
        session = self._opened()
        with self._aborted_by_errors(session):
            self._begin(session)
            self._send_marker(session, marker)
        self._commit(session, marker)

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        marker_of_rows: Callable[[int], Marker],
        reached: Callable[[str], object] = lambda point: None,
    ) -> int:
        """One transaction: every row, then the marker. Returns the number of rows; without rows nothing is written.

        Columns: `key` and `value` (bytes or null), and if there are any `partition` (null: the partitioner decides) and
        `headers` (a list of key and value). `reached` is told "begun", "sent" (all is with the broker) and "committed".
        What the batches or the callables raise aborts the transaction and passes through.
        """
        session = self._opened()
        rows = 0
        with self._aborted_by_errors(session):
            for chunk in _chunks(batches):
                if rows == 0:
                    self._begin(session)
                    reached("begun")
                self._produce(session, chunk)
                rows += chunk.num_rows
            if rows == 0:
                return 0
            self._flush(session)
            marker = marker_of_rows(rows)
            self._send_marker(session, marker)
            reached("sent")
        self._commit(session, marker)
        reached("committed")
        return rows

    @contextmanager
    def _aborted_by_errors(self, session: _Session) -> Iterator[None]:
        try:
            yield
        except TopicProblem:
            raise  # which has done so
        except BaseException:
            if session.began:
                self._abort(session)
            raise

    def _begin(self, session: _Session) -> None:
        session.reports.failed = session.reports.trouble = None
        try:
            session.producer.begin_transaction()
        except _CLIENT_ERRORS as error:
            raise self._failed(session, _reason(error)) from error
        session.began = time.monotonic()

    def _produce(self, session: _Session, chunk: pa.RecordBatch) -> None:
        produce, topic, rows = session.producer.produce, self.topic, self._arguments(session, chunk)
        row: tuple[Any, ...]
        left = True
        while left:
            try:
                for row in rows:  # which goes on after a row that found no room
                    produce(topic, *row)
                left = False
            except BufferError:
                self._wait_for_room(session, partial(produce, topic, *row))
            except KafkaException as error:
                raise self._failed(session, _reason(error)) from error
        self._serve(session, lambda: session.producer.poll(0))

    def _arguments(self, session: _Session, chunk: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """What `produce` takes after the topic; as few as will do, for speed."""
        names, nothing = chunk.schema.names, [None] * chunk.num_rows
        values, keys = chunk.column("value").to_pylist(), chunk.column("key").to_pylist()
        if "partition" not in names and "headers" not in names:
            return zip(values, keys, strict=True)
        partitions = chunk.column("partition").to_pylist() if "partition" in names else nothing
        wrong = next((number for number in partitions if number is not None and not 0 <= number < session.partitions), None)
        if wrong is not None:  # -1 would mean "any" to the client
            self._abort(session)
            raise self._rejected(f"a row names partition {wrong}, the topic has 0 to {session.partitions - 1}", _INVISIBLE)
        headers = chunk.column("headers").to_pylist() if "headers" in names else nothing
        return (
            (value, key, -1 if partition is None else partition, None, None, 0, [(pair["key"], pair["value"]) for pair in pairs or ()])
            for value, key, partition, pairs in zip(values, keys, partitions, headers, strict=True)
        )

    def _wait_for_room(self, session: _Session, again: Callable[[], None]) -> None:
        """The queue is full: wait for the broker to take something, as long as it does take something."""
        deadline = time.monotonic() + self._patience
        while True:
            self._serve(session, lambda: session.producer.poll(0.05))
            try:
                return again()
            except BufferError:
                if time.monotonic() > deadline:
                    raise self._failed(session, KafkaError(KafkaError._TIMED_OUT)) from None

    def _flush(self, session: _Session) -> None:
        waiting, deadline = len(session.producer), time.monotonic() + self._patience
        while left := self._serve(session, lambda: session.producer.flush(SLICE)):
            if left < waiting:
                waiting, deadline = left, time.monotonic() + self._patience
            elif time.monotonic() > deadline:
                raise self._failed(session, KafkaError(KafkaError._TIMED_OUT))
        session.reports.trouble = None  # the broker has taken everything: whatever it was is over

    def _serve(self, session: _Session, call: Callable[[], int]) -> int:
        """Let the client call back, then see whether a delivery failed: the transaction is lost then, so stop early."""
        try:
            answer = call()
        except _CLIENT_ERRORS as error:
            raise self._failed(session, _reason(error)) from error
        if session.reports.failed is not None:
            raise self._failed(session, session.reports.failed)
        return answer

    def _send_marker(self, session: _Session, marker: Marker) -> None:
        place = TopicPartition(self.topic, 0, marker.offset, metadata=encode_marker(marker))
        limit = min(self._patience, MARKER_PATIENCE)

        def send() -> None:
            # In one piece: unlike the others, this call does not go on where it was.
            self._patiently(lambda seconds: session.producer.send_offsets_to_transaction([place], session.group, seconds), limit, limit)

        # On a thread of its own: this call may never return, whatever its time limit says. The client drops its handle of a
        # broker that is missing from the cluster's metadata, as one is while it starts, but goes on to send offsets to it.
        # The producer is given up then, with the thread that waits in it; the next `open` aborts what it had sent.
        outcome = _Outcome()
        call = Thread(target=outcome.running(send), name="strandline-marker", daemon=True)
        call.start()
        call.join(limit + 2.0)
        if not outcome.returned:
            raise self._refused(KafkaError(KafkaError._TIMED_OUT), session.reports, _INVISIBLE)
        if outcome.error is not None:
            if not isinstance(outcome.error, _CLIENT_ERRORS):
                raise outcome.error
            raise self._failed(session, _reason(outcome.error)) from outcome.error

    def _commit(self, session: _Session, marker: Marker) -> None:
        try:
            self._patiently(session.producer.commit_transaction)
            self._confirm(session, marker)
        except _CLIENT_ERRORS as error:
            reason = _reason(error)
            self._say_why(session)
            self.close()
            if reason.code() in _FENCED:
                raise self._fenced() from error
            raise TopicOutcomeUnknown(
                CommitUnknown(
                    f"whether the transaction on topic '{self.topic}' was committed is unknown: {self._words(reason, session.reports)}",
                    next_command="strandline status",
                )
            ) from error
        except BaseException:
            self.close()
            raise
        session.began = 0.0

    def _confirm(self, session: _Session, marker: Marker) -> None:
        """Read the marker back. Another one is a newer process's, which has seen ours: let the caller look, too."""
        session.reader.poll(0)  # serves what has gathered since the last time
        if self._patiently(lambda seconds: self._read_marker(session.reader, seconds)).metadata != encode_marker(marker):
            raise KafkaException(KafkaError(KafkaError._FENCED))

    # -- when it fails -------------------------------------------------------------------------------------------

    def _failed(self, session: _Session, reason: KafkaError) -> TopicProblem:
        """Before the commit: abort, and say what happened. The first error seen is often not the one that tells."""
        self._say_why(session)
        seen = [reason, session.reports.failed, self._state_of(session)]
        lasted = timedelta(seconds=time.monotonic() - session.began if session.began else 0.0)
        seen.append(self._abort(session))
        known = [error for error in seen if error is not None]
        fenced = any(error.code() in _FENCED for error in known)
        if fenced and lasted >= self._timeout:  # so does the broker end what takes too long
            return TopicUnavailable(
                Failure(
                    f"the transaction on topic '{self.topic}' lasted {human_duration(lasted)}, the broker ends it after "
                    f"{human_duration(self._timeout)}{_INVISIBLE}",
                    next_command="make batches smaller, then run again",
                )
            )
        if fenced:
            return self._fenced()
        telling = next((error for error in known if error.code() not in _VAGUE), reason)
        return self._refused(telling, session.reports, _INVISIBLE)

    def _fenced(self) -> TopicFenced:
        return TopicFenced(
            Fenced(
                f"another process has taken topic '{self.topic}' over from this one, or a transaction took longer than "
                f"{human_duration(self._timeout)}",
                next_command="strandline status",
            )
        )

    def _hanging(self) -> TopicUnavailable | None:
        """Is there an answer that is only held back? Our producer has ended all that was its own; someone else left this behind."""
        if self._session is None:
            return None
        self.close()
        try:
            self._read_marker(self._new_reader("read_uncommitted", _Reports()), SLICE)
        except _CLIENT_ERRORS:
            return None
        return TopicUnavailable(
            Failure(
                f"the marker of topic '{self.topic}' is part of a transaction that the Kafka cluster at {self._connection.bootstrap} neither "
                "commits nor aborts: whether its last batch is in the topic cannot be told",
                next_command=f"kafka-transactions.sh --bootstrap-server {self._connection.bootstrap} find-hanging --topic __consumer_offsets",
            )
        )

    def _refused(self, reason: KafkaError, reports: _Reports, so: str = "") -> TopicProblem:
        self.close()
        code, words = reason.code(), self._words(reason, reports)
        if code in _FENCED:
            return self._fenced()
        if code in _REJECTED or (code in _PASSING and reports.trouble is not None and reports.trouble.code() in _REJECTED):
            return self._rejected(words, so)
        late = "does not answer" if code in _PASSING else "reports an error"
        return TopicUnavailable(
            ClusterUnreachable(
                f"topic '{self.topic}' could not be written, the Kafka cluster at {self._connection.bootstrap} {late}: {words}{so}",
                next_command="strandline doctor",
            )
        )

    def _rejected(self, words: str, so: str) -> TopicRejected:
        return TopicRejected(Failure(f"topic '{self.topic}' cannot be written: {words}{so}", next_command="strandline doctor"))

    def _say_why(self, session: _Session) -> None:
        """Connection errors are told only to those who poll."""
        try:
            session.producer.poll(0)
        except _CLIENT_ERRORS:
            pass  # the fatal error that brought us here

    def _state_of(self, session: _Session) -> KafkaError | None:
        """Inside a transaction, to begin one does nothing, and tells why the present one has failed, if it has."""
        try:
            session.producer.begin_transaction()
        except _CLIENT_ERRORS as error:
            return _reason(error)
        return None

    def _abort(self, session: _Session) -> KafkaError | None:
        """Tell the broker, if it listens, and let the producer go."""
        try:
            self._patiently(session.producer.abort_transaction, patience=min(self._patience, ABORT_PATIENCE))
        except _CLIENT_ERRORS as error:
            return _reason(error)
        finally:
            self.close()
        return None

    def close(self) -> None:
        """Let producer and reader go. A producer's own `close` would wait without end for a broker that is away."""
        self._session = None

    # -- helpers -------------------------------------------------------------------------------------------------

    def _opened(self) -> _Session:
        if self._session is None:
            raise RuntimeError(f"topic '{self.topic}' is not open: call open() first, and again after a failure")
        return self._session

    def _patiently(self, call: Callable[[float], _T], slice: float = SLICE, patience: float | None = None) -> _T:
        """Ask again while the answer may change. The client's calls go on where they were when asked again."""
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        while True:
            seconds = max(0.1, min(slice, deadline - time.monotonic()))
            try:
                return call(seconds)
            except KafkaException as error:
                reason = _reason(error)
                if time.monotonic() >= deadline or not (reason.retriable() or reason.code() in _PASSING):
                    raise
                time.sleep(0.05)

    def _words(self, reason: KafkaError, reports: _Reports) -> str:
        if reason.code() in _PASSING and reports.trouble is not None:
            # "host:port/bootstrap: Connect to … failed: Connection refused (after 0ms in state CONNECT)"
            return re.sub(r"^\S+: | \(after \d+ms in state [^)]*\)$", "", reports.trouble.str())
        # The text of a code is a sentence; that of an error also holds numbers which only the client's authors can read.
        words = KafkaError(reason.code()).str().removeprefix("Broker: ").removeprefix("Local: ")
        hint = _HINTS.get(reason.code())
        return f"{words} ({hint})" if hint else words


def _reason(error: BaseException) -> KafkaError:
    """The client's own error. It raises a fatal one and then calls back with it still set, which Python makes a SystemError."""
    told = error.__cause__ if isinstance(error, SystemError) else error
    return told.args[0] if isinstance(told, KafkaException) else KafkaError(KafkaError._FAIL, str(error))


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pieces that may become Python objects without hurting; empty batches give none."""
    for batch in batches:
        for start in range(0, batch.num_rows, CHUNK):
            yield batch.slice(start, CHUNK)
