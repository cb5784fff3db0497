"""The exactly-once writer of a topic: zombies, kill -9, a broker that dies, and every row once.

Against a real broker. As a program, this file is one writer that a test may kill:

python test_transactions.py BOOTSTRAP TOPIC ATTEMPT BATCH ROWS POINT      POINT: where it kills itself, or "memory"
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from strandline.messaging import transactions as module
from strandline.messaging.connection import KafkaConnection
from strandline.messaging.transactions import (
    TopicFenced,
    TopicOutcomeUnknown,
    TopicProblem,
    TopicRejected,
    TopicUnavailable,
    TransactionalTopic,
)
from strandline.model.errors import ClusterUnreachable, CommitUnknown, Failure, Fenced, TrustViolation
from strandline.model.marker import Marker
from strandline.model.offsets import Offsets
from strandline.model.positions import GeneratorPosition
from strandline.model.stamp import Holder

if TYPE_CHECKING:
    from strandline.testing.kafka import KafkaForTests

pytestmark = pytest.mark.process

GIVE_UP = timedelta(seconds=5)
PIPELINE, STRAND = "totals", "7d0e7e52"


def marker(attempt: int, batch: int, rows: int = 0) -> Marker:
    end = Offsets.of({"clicks": GeneratorPosition(batch + 1, 0)} if batch >= 0 else {})
    return Marker(PIPELINE, STRAND, Holder(attempt, f"id-{attempt}"), batch, end.digest, rows, end)


def messages(values: Iterable[bytes | None], keys: Iterable[bytes | None] | None = None) -> pa.RecordBatch:
    values = list(values)
    keys = [None] * len(values) if keys is None else list(keys)
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def batch_rows(batch: int, rows: int) -> list[bytes]:
    return [b"%d-%d" % (batch, number) for number in range(rows)]


class Writer:
    """One process's side, as one attempt of the pipeline."""

    def __init__(self, bootstrap: str, topic: str, attempt: int = 1, **settings: timedelta) -> None:
        self.attempt = attempt
        self.topic = TransactionalTopic(KafkaConnection(bootstrap, give_up_after=GIVE_UP), PIPELINE, topic, **settings)  # type: ignore[arg-type]

    def open(self) -> Marker | None:
        return self.topic.open()

    def write(
        self, batch: int, rows: int = 3, reached: Callable[[str], object] = lambda point: None, of: Iterable[pa.RecordBatch] | None = None
    ) -> int:
        data = [messages(batch_rows(batch, rows))] if of is None else of
        return self.topic.write(data, lambda count: marker(self.attempt, batch, count), reached)


@pytest.fixture
def topic(kafka: KafkaForTests) -> str:
    return kafka.create_topic(kafka.topic("out"), partitions=2)


@pytest.fixture
def writer(kafka: KafkaForTests, topic: str) -> Iterator[Callable[[int], Writer]]:
    """Writers of one topic that know nothing of each other, as processes would."""
    made: list[Writer] = []

    def make(attempt: int = 1) -> Writer:
        made.append(Writer(kafka.bootstrap, topic, attempt))
        return made[-1]

    yield make
    for each in made:
        each.topic.close()


def values(kafka: KafkaForTests, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in kafka.read(topic))


# -- what is written -----------------------------------------------------------------------------------------


def test_rows_arrive_and_the_marker_names_their_batch(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]) -> None:
    points: list[str] = []
    first = writer(1)

    assert first.open() is None
    assert first.write(0, 3, points.append) == 3
    assert first.write(1, 2) == 2

    assert points == ["begun", "sent", "committed"]
    assert values(kafka, topic) == batch_rows(0, 3) + batch_rows(1, 2)
    assert writer(1).open() == marker(1, 1, 2)
    assert kafka.group_offsets(f"strandline.totals.{topic}.marker") == {(topic, 0): 3}


def test_keys_values_partitions_and_headers_arrive_as_they_are(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]) -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    rows = pa.record_batch(
        {
            "key": pa.array([b"k", None, b""], pa.binary()),
            "value": pa.array([b"v", b"", None], pa.binary()),
            "partition": pa.array([1, 0, None], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], [], None], pa.list_(pair)),
        }
    )
    first = writer(1)
    first.open()

    assert first.write(0, of=[rows]) == 3

    found = {record.value: record for record in kafka.read(topic)}
    assert {value: (record.key, record.headers) for value, record in found.items()} == {
        b"v": (b"k", (("h", b"1"), ("h", None))),
        b"": (None, ()),
        None: (b"", ()),
    }
    assert (found[b"v"].partition, found[b""].partition) == (1, 0)


def test_keys_land_where_the_java_client_puts_them(kafka: KafkaForTests, writer: Callable[[int], Writer]) -> None:
    wide = kafka.create_topic(kafka.topic("wide"), partitions=8)
    first = Writer(kafka.bootstrap, wide)
    first.open()

    first.write(0, of=[messages([b"1", b"2", b"3"], [b"21", b"foobar", b"a-little-bit-long-string"])])

    # murmur2 as in Kafka's own UtilsTest, without the sign, over 8 partitions
    expected = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert {record.key: record.partition for record in kafka.read(wide)} == {k: (h & 0x7FFFFFFF) % 8 for k, h in expected.items()}


@pytest.mark.parametrize("batches", [[], [messages([])]], ids=["no batch", "an empty one"])
def test_without_rows_nothing_is_written(
    kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer], batches: list[pa.RecordBatch]
) -> None:
    first = writer(1)
    first.open()
    first.write(0)
    before, points = kafka.ends(topic), list[str]()

    assert first.write(1, of=batches, reached=points.append) == 0

    assert (kafka.ends(topic), points) == (before, [])
    assert first.write(2) == 3  # still usable
    assert writer(1).open() == marker(1, 2, 3)


# -- claims and zombies --------------------------------------------------------------------------------------


def test_a_claim_before_any_batch_puts_the_attempt_on_the_topic(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]) -> None:
    first = writer(1)
    first.open()

    first.topic.claim(marker(1, -1))

    assert kafka.ends(topic) == {0: 0, 1: 0}
    assert writer(2).open() == marker(1, -1)


def test_a_claim_by_a_new_attempt_keeps_the_place_in_the_chain(writer: Callable[[int], Writer]) -> None:
    first, second = writer(1), writer(2)
    first.open()
    first.write(4)

    seen = second.open()
    assert seen is not None
    second.topic.claim(seen.taken_over(STRAND, Holder(2, "id-2")))

    found = writer(2).open()
    assert found is not None
    assert (found.batch, found.end_digest, found.rows, found.holder) == (4, seen.end_digest, 3, Holder(2, "id-2"))


def test_an_older_process_that_opens_later_finds_the_newer_claim_and_the_newer_goes_on(
    kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]
) -> None:
    newer, older = writer(2), writer(1)
    newer.open()
    newer.topic.claim(marker(2, -1))

    seen = older.open()  # and stops here

    assert seen is not None and seen.holder.attempt == 2
    with pytest.raises(TopicFenced):
        newer.write(0)
    assert newer.open() == marker(2, -1)  # still ours
    assert newer.write(0) == 3
    assert values(kafka, topic) == batch_rows(0, 3)


def test_a_zombie_cannot_commit_after_a_newer_one_opened(
    kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer], capfd: pytest.CaptureFixture[str]
) -> None:
    zombie, newer = writer(1), writer(2)
    zombie.open()
    zombie.write(0)

    def taken_over(point: str) -> None:
        if point == "sent":
            assert newer.open() == marker(1, 0, 3)

    with pytest.raises(TopicFenced, match=f"another process has taken topic '{topic}' over") as raised:
        zombie.write(1, reached=taken_over)

    assert isinstance(raised.value.error, Fenced)
    assert newer.write(1, 2) == 2
    assert values(kafka, topic) == batch_rows(0, 3) + batch_rows(1, 2)
    assert capfd.readouterr().err == ""  # the client would shout there


@pytest.mark.parametrize("sent", [0, 50_000])
def test_a_zombie_is_fenced_while_it_produces(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer], sent: int) -> None:
    zombie, newer = writer(1), writer(2)
    zombie.open()

    def rows() -> Iterator[pa.RecordBatch]:
        yield messages(batch_rows(0, sent or 1))
        if sent:
            time.sleep(0.3)  # what was sent is on the broker
        newer.open()
        yield messages(batch_rows(0, 10_000))

    with pytest.raises(TopicFenced):
        zombie.write(0, of=rows())

    assert newer.write(0) == 3
    assert values(kafka, topic) == batch_rows(0, 3)


def test_a_zombie_cannot_claim(writer: Callable[[int], Writer]) -> None:
    zombie, newer = writer(1), writer(2)
    zombie.open()
    newer.open()
    newer.topic.claim(marker(2, -1))

    with pytest.raises(TopicFenced):
        zombie.topic.claim(marker(1, -1))

    assert newer.write(0) == 3


# -- failures on our side ------------------------------------------------------------------------------------


def test_rows_that_fail_abort_the_transaction_and_pass_through(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]) -> None:
    first = writer(1)
    first.open()
    first.write(0)
    trouble = ZeroDivisionError("in the user's transform")

    def rows() -> Iterator[pa.RecordBatch]:
        yield messages(batch_rows(1, 10_000))
        raise trouble

    with pytest.raises(ZeroDivisionError) as raised:
        first.write(1, of=rows())

    assert raised.value is trouble
    assert values(kafka, topic) == batch_rows(0, 3)  # and the read ends: no open transaction holds it back
    with pytest.raises(RuntimeError, match="call open"):
        first.write(1)
    assert first.open() == marker(1, 0, 3)
    assert first.write(1) == 3


def test_a_marker_that_fails_aborts_the_transaction(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]) -> None:
    first = writer(1)
    first.open()

    def refuse(rows: int) -> Marker:
        raise TrustViolation(f"{rows} rows too many")

    with pytest.raises(TrustViolation, match="3 rows too many"):
        first.topic.write([messages(batch_rows(0, 3))], refuse)

    assert values(kafka, topic) == []
    assert writer(1).open() is None


def test_rows_that_fail_before_the_first_leave_the_writer_open(writer: Callable[[int], Writer]) -> None:
    first = writer(1)
    first.open()

    def rows() -> Iterator[pa.RecordBatch]:
        yield messages([])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        first.write(0, of=rows())

    assert first.write(0) == 3


def test_a_marker_that_was_changed_by_hand_stops_the_opening(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import AdminClient

    first = writer(1)
    first.open()
    first.write(0)
    first.topic.close()
    asked = ConsumerGroupTopicPartitions(first.topic.marker_group, [TopicPartition(topic, 0, 0)])
    admin = AdminClient(kafka.settings())  # which must live until it has answered
    for answer in admin.alter_consumer_group_offsets([asked]).values():
        answer.result()

    with pytest.raises(TrustViolation, match="was changed by hand"):
        first.open()


# -- what the cluster refuses --------------------------------------------------------------------------------


def test_an_unknown_topic_is_refused_at_once(kafka: KafkaForTests) -> None:
    began = time.monotonic()

    with pytest.raises(TopicRejected, match="topic 'nowhere' cannot be written: Unknown topic or partition") as raised:
        Writer(kafka.bootstrap, "nowhere").open()

    assert time.monotonic() - began < 3
    assert isinstance(raised.value.error, Failure)
    assert raised.value.error.next_command


def test_a_message_that_is_too_large_is_refused_by_name(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]) -> None:
    first = writer(1)
    first.open()

    with pytest.raises(TopicRejected, match=rf"topic '{topic}' cannot be written: Message size too large \(raise the topic's") as raised:
        first.write(0, of=[messages([b"fits", os.urandom(2_000_000)])])

    assert "nothing of the batch is visible" in str(raised.value)
    assert values(kafka, topic) == []
    assert first.open() is None
    assert first.write(0) == 3


def test_a_message_larger_than_the_queue_is_refused(monkeypatch: pytest.MonkeyPatch, writer: Callable[[int], Writer]) -> None:
    monkeypatch.setattr(module, "LARGEST_MESSAGE", 10_000)
    first = writer(1)
    first.open()

    with pytest.raises(TopicRejected, match="Message size too large"):
        first.write(0, of=[messages([b"x" * 20_000])])


def test_small_messages_enter_a_topic_that_takes_only_small_batches(kafka: KafkaForTests) -> None:
    """The client fills batches up to its own limit, and a batch that the topic refuses is lost with all its messages."""
    small = kafka.create_topic(kafka.topic("small"), max_message_bytes=20_000)
    first = Writer(kafka.bootstrap, small)
    first.open()

    assert first.write(0, of=[messages(os.urandom(200) for _ in range(5_000))]) == 5_000

    assert len(kafka.read(small)) == 5_000


@pytest.mark.parametrize("number", [2, -1])
def test_a_partition_that_is_not_there_is_refused_by_name(
    kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer], number: int
) -> None:
    rows = pa.record_batch({"key": pa.array([None], pa.binary()), "value": pa.array([b"v"], pa.binary()), "partition": pa.array([number])})
    first = writer(1)
    first.open()

    with pytest.raises(TopicRejected, match=f"a row names partition {number}, the topic has 0 to 1"):
        first.write(0, of=[messages([b"other"]), rows])

    assert values(kafka, topic) == []


def test_a_transaction_that_takes_too_long_says_so(kafka: KafkaForTests, topic: str) -> None:
    first = Writer(kafka.bootstrap, topic, transaction_timeout=timedelta(seconds=2))
    first.open()

    def rows() -> Iterator[pa.RecordBatch]:
        yield messages(batch_rows(0, 3))
        time.sleep(13)  # brokers look every ten seconds
        yield messages(batch_rows(0, 3))

    with pytest.raises(TopicUnavailable, match="lasted 1[3-9].* s, the broker ends it after 2 s"):
        first.write(0, of=rows())

    assert values(kafka, topic) == []
    assert first.open() is None
    assert first.write(0) == 3


# -- when the broker dies ------------------------------------------------------------------------------------


def settle(writer: Writer, batch: int, of: Iterable[pa.RecordBatch] | None = None) -> str:
    """What the protocol does: look, and write what is not there."""
    writer.topic._patience = 60  # a broker that has just been restarted may be busy
    found = writer.open()
    if found is not None and found.batch == batch:
        return "was there"
    assert found is None or found.batch == batch - 1
    writer.write(batch, of=of)
    return "written again"


def test_a_broker_restarted_under_a_transaction_costs_no_row(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]) -> None:
    first = writer(1)
    first.topic._patience = 60  # more than a restart takes on a busy machine
    first.open()
    first.write(0)
    restarting = threading.Thread(target=kafka.restart)

    def rows() -> Iterator[pa.RecordBatch]:
        yield messages(batch_rows(1, 20_000))
        kafka.kill()
        restarting.start()
        yield messages(b"%d-%d" % (1, number) for number in range(20_000, 200_000))  # more than the queue holds

    try:
        assert first.write(1, of=rows()) == 200_000
    except TopicUnavailable:
        pass  # the client may have lost its handle of the broker, and cannot send the marker then
    finally:
        restarting.join()

    settle(first, 1, of=[messages(batch_rows(1, 200_000))])
    assert values(kafka, topic) == sorted([*batch_rows(0, 3), *batch_rows(1, 200_000)])
    assert first.open() == marker(1, 1, 200_000)


def test_a_broker_that_stays_away_gives_unavailable_and_nothing_is_visible(
    kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]
) -> None:
    first = writer(1)
    first.open()
    first.write(0)
    began = 0.0

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal began
        yield messages(batch_rows(1, 1_000))
        kafka.kill()
        began = time.monotonic()
        yield messages(batch_rows(1, 1_000))

    with kafka.outage():
        with pytest.raises(TopicUnavailable, match="does not answer: .*; nothing of the batch is visible") as raised:
            first.write(1, of=rows())
        assert time.monotonic() - began < 2 * GIVE_UP.total_seconds() + 5
        assert isinstance(raised.value.error, ClusterUnreachable)
        with pytest.raises(TopicUnavailable, match="does not answer: .*refused") as from_open:
            first.open()
        assert "visible" not in str(from_open.value)  # which nobody knows now

    assert settle(first, 1) == "written again"
    assert values(kafka, topic) == batch_rows(0, 3) + batch_rows(1, 3)


@pytest.mark.parametrize("back", [True, False], ids=["back at once", "away too long"])
def test_a_broker_killed_before_the_commit_and_restarted(
    kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer], back: bool
) -> None:
    """Whatever the writer is told, the marker tells the truth afterwards."""
    first = writer(1)
    first.open()
    first.write(0)

    def kill(point: str) -> None:
        if point == "sent":
            kafka.kill()
            if back:
                kafka.restart()

    try:
        first.write(1, reached=kill)
        told = "committed"
    except TopicProblem as problem:
        assert isinstance(problem, TopicOutcomeUnknown)
        assert isinstance(problem.error, CommitUnknown)
        told = "unknown"
    finally:
        kafka.restart()

    assert back or told == "unknown"
    assert settle(first, 1) in ("was there", "written again")
    assert values(kafka, topic) == batch_rows(0, 3) + batch_rows(1, 3)


def test_a_commit_whose_answer_is_lost_is_found_by_its_marker(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]) -> None:
    """A broker that hangs takes the request and carries it out when it wakes up."""
    first = writer(1)
    first.open()
    broker = kafka.broker.status().pid
    assert broker is not None

    def freeze(point: str) -> None:
        if point == "sent":
            os.kill(broker, signal.SIGSTOP)

    try:
        with pytest.raises(TopicOutcomeUnknown, match=f"whether the transaction on topic '{topic}' was committed is unknown"):
            first.write(0, reached=freeze)
    finally:
        os.kill(broker, signal.SIGCONT)

    settle(first, 0)
    assert values(kafka, topic) == batch_rows(0, 3)


def test_a_commit_is_believed_only_when_its_marker_can_be_read(
    kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = writer(1)
    first.open()
    broker = kafka.broker.status().pid
    assert broker is not None
    confirm = TransactionalTopic._confirm

    def freeze_then_confirm(*arguments: Any) -> None:
        os.kill(broker, signal.SIGSTOP)  # it has said that it commits
        confirm(*arguments)

    monkeypatch.setattr(TransactionalTopic, "_confirm", freeze_then_confirm)
    try:
        with pytest.raises(TopicOutcomeUnknown):
            first.write(0)
    finally:
        os.kill(broker, signal.SIGCONT)
    monkeypatch.undo()

    assert settle(first, 0) == "was there"
    assert values(kafka, topic) == batch_rows(0, 3)


def test_a_marker_that_stays_pending_is_explained(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer]) -> None:
    """A transaction that is not ours holds it; brokers have left such ones behind (KAFKA-20734)."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    first = writer(1)
    first.open()
    first.write(0)
    stranger = Producer(kafka.settings(transactional_id=f"stranger-{topic}"))
    stranger.init_transactions(30)
    stranger.begin_transaction()
    group = Consumer(kafka.settings(group_id=first.topic.marker_group)).consumer_group_metadata()
    stranger.send_offsets_to_transaction([TopicPartition(topic, 0, 9)], group, 30)

    with pytest.raises(
        TopicUnavailable, match=f"the marker of topic '{topic}' is part of a transaction that .* neither commits nor"
    ) as raised:
        first.open()

    assert "find-hanging" in raised.value.error.next_command
    stranger.abort_transaction(30)
    assert first.open() == marker(1, 0, 3)


# -- when the writer dies ------------------------------------------------------------------------------------


def run_writer(kafka: KafkaForTests, topic: str, attempt: int, batch: int, rows: int, point: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, kafka.bootstrap, topic, *map(str, (attempt, batch, rows)), point]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("point", ["begun", "sent", "committed"])
def test_kill_9_loses_and_doubles_nothing(kafka: KafkaForTests, topic: str, writer: Callable[[int], Writer], point: str) -> None:
    first = writer(1)
    first.open()
    first.write(0)

    died = run_writer(kafka, topic, 2, 1, 5_000, point)
    assert died.returncode == -signal.SIGKILL, died.stderr

    third = writer(3)
    found = third.open()
    assert found == (marker(2, 1, 5_000) if point == "committed" else marker(1, 0, 3))
    if point != "committed":
        third.write(1, 5_000)
    assert values(kafka, topic) == sorted(batch_rows(0, 3) + batch_rows(1, 5_000))


def test_a_million_rows_pass_through_little_memory(kafka: KafkaForTests, topic: str) -> None:
    done = run_writer(kafka, topic, 1, 0, 1_000_000, "memory")

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rows"] == 1_000_000
    assert told["grown_mb"] < 150, told  # the queue and what the client needs around it; the rows alone are 100 MB
    ends = kafka.ends(topic)
    assert 1_000_000 <= sum(ends.values()) <= 1_000_004  # rows and the ends of transactions


def main(bootstrap: str, topic: str, attempt: int, batch: int, rows: int, point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def made() -> Iterator[pa.RecordBatch]:
        size = 50_000
        for start in range(0, rows, size):
            numbers = range(start, min(start + size, rows))
            yield messages([b"%d-%d" % (batch, n) + (b"x" * 80 if point == "memory" else b"") for n in numbers])

    one = Writer(bootstrap, topic, attempt)
    one.open()
    for _ in made():
        pass  # what making the rows needs shall not count
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    count = one.write(batch, of=made(), reached=die)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(json.dumps({"rows": count, "grown_mb": grown, "seconds": round(time.monotonic() - began, 2)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
