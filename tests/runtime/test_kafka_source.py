"""Kafka topics as a source, on a real broker: what is read, what stamps and ledger say of it, what is refused."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from strandline.evidence.history import history_of
from strandline.messaging.cluster import Cluster
from strandline.messaging.connection import KafkaConnection
from strandline.model.continuity import Gap
from strandline.model.errors import ClusterUnreachable, DataLost, Refused, SourceProblem, UsageError
from strandline.model.positions import KafkaPosition
from strandline.runtime.options import Allowances, ForBatches
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing.fixtures import Sandbox
from strandline.testing.kafka import KafkaForTests

pytestmark = pytest.mark.engine


def numbers(first: int, last: int) -> list[str]:
    return [json.dumps({"n": n}) for n in range(first, last)]


@pytest.fixture
def topic(kafka: KafkaForTests) -> str:
    return kafka.create_topic(kafka.topic("numbers"), partitions=2)


def declare(sandbox: Sandbox, kafka: KafkaForTests, topic: str, more: str = "", body: str = "return numbers", schema: bool = True) -> None:
    columns = 'schema="n int", ' if schema else ""
    sandbox.pipelines(
        f"""
        from datetime import datetime, timezone
        import strandline as sl

        @sl.pipeline(
            source=sl.kafka("{topic}", bootstrap="{kafka.bootstrap}", {columns}{more}),
            sink=sl.table("shop.numbers"), checkpoint=sl.checkpoint(every="0 s"),
        )
        def numbers(numbers):
            {body}
        """
    )


def found(sandbox: Sandbox) -> list[int]:
    return [int(str(row["n"])) for row in sandbox.sql("select n from {c}.shop.numbers order by n")]


def newest(sandbox: Sandbox) -> Any:
    return history_of("shop.numbers", EmbeddedCatalog(sandbox.project).load("shop.numbers"), sandbox.ledger)[0]


GROUP = "strandline.numbers.numbers"


# -- what is read, and what is known of it ---------------------------------------------------------------------


def test_rows_offsets_groups_and_topic_ids_tell_the_same_story(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    declare(sandbox, kafka, topic)
    kafka.produce(topic, numbers(0, 10), partition=0)
    kafka.produce(topic, numbers(10, 15), partition=1)

    sandbox.run("numbers")
    kafka.produce(topic, numbers(15, 20), partition=0)
    sandbox.run("numbers")

    assert found(sandbox) == list(range(20))
    entry = newest(sandbox)
    assert entry.offsets == f"{topic}[0] 10–15"
    assert entry.topics == {topic: kafka.topic_id(topic)}
    assert kafka.group_offsets(GROUP) == {(topic, 0): 15, (topic, 1): 5}
    known = sandbox.ledger.topics.latest("numbers", entry.strand)
    assert known[topic].id == kafka.topic_id(topic)
    assert known[topic].bounds == {0: (0, 15), 1: (0, 5)}
    progress = json.loads(sandbox.ledger.attempts.latest("numbers").progress)  # type: ignore[union-attr, arg-type]
    assert progress["lag"] == "0 records"
    assert progress["lag_by_source"]["numbers"]["count"] == 0


def test_a_strand_begins_where_it_is_told_to(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    kafka.produce(topic, numbers(0, 10), partition=0)
    declare(sandbox, kafka, topic, f'start={{"{topic}": {{0: 7}}}}')

    sandbox.run("numbers")

    assert found(sandbox) == [7, 8, 9]
    assert newest(sandbox).offsets == f"{topic}[0] 7–10", "the first range starts where reading started, not at zero"


def test_latest_is_decided_once_and_for_all_at_the_first_start(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    kafka.produce(topic, numbers(0, 3), partition=0)
    declare(sandbox, kafka, topic, 'start="latest"')
    sandbox.run("numbers")
    kafka.produce(topic, numbers(3, 5), partition=0)

    sandbox.run("numbers")

    assert found(sandbox) == [3, 4], "a second start must not look for the end again"


def test_a_moment_and_the_committed_offsets_of_a_group_are_starts_too(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    kafka.produce(topic, numbers(0, 4), partition=0)
    declare(sandbox, kafka, topic)
    sandbox.run("numbers")
    kafka.produce(topic, numbers(4, 6), partition=0)
    declare(sandbox, kafka, topic, 'start="committed"')

    sandbox.run("numbers", allow=Allowances(new_strand=True))

    assert found(sandbox) == list(range(6)), "the new strand went on where the group was"
    moment = datetime.now(timezone.utc)
    kafka.produce(topic, numbers(6, 7), partition=0)
    declare(sandbox, kafka, topic, f"start=datetime.fromisoformat('{moment.isoformat()}')")
    sandbox.run("numbers", allow=Allowances(new_strand=True))
    assert found(sandbox) == list(range(7))


def test_everything_a_message_carries_is_there_as_a_column(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    kafka.produce(topic, ["7"], keys=["k"], partition=1, headers={"trace": b"t-1"})
    declare(
        sandbox,
        kafka,
        topic,
        'format="string", metadata=["key", "headers", "topic", "partition", "offset", "timestamp"]',
        "return numbers.selectExpr('cast(value as int) n', 'kafka_key', 'kafka_headers', 'kafka_topic', 'kafka_partition', 'kafka_offset', 'kafka_timestamp')",
        schema=False,
    )

    sandbox.run("numbers")

    row = sandbox.sql("select * from {c}.shop.numbers")[0]
    assert (row["n"], row["kafka_key"], row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]) == (7, "k", topic, 1, 0)
    assert [(h["key"], bytes(h["value"])) for h in row["kafka_headers"]] == [("trace", b"t-1")]  # type: ignore[attr-defined]


def test_batches_are_limited_by_offsets(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    kafka.produce(topic, numbers(0, 30), partition=0)
    declare(sandbox, kafka, topic, "max_offsets_per_batch=10")

    summary = sandbox.run("numbers")

    assert (summary.batches, summary.rows) == (3, 30)


def test_topics_by_pattern_include_those_that_come_later(sandbox: Sandbox, kafka: KafkaForTests) -> None:
    prefix = kafka.topic("many")
    kafka.create_topic(f"{prefix}.a")
    kafka.produce(f"{prefix}.a", numbers(0, 2))
    sandbox.pipelines(
        f"""
        import strandline as sl

        @sl.pipeline(source=sl.kafka(pattern="{prefix}[.].*", bootstrap="{kafka.bootstrap}", schema="n int"), sink=sl.table("shop.numbers"))
        def numbers(numbers):
            return numbers
        """
    )
    sandbox.run("numbers")
    kafka.create_topic(f"{prefix}.b")
    kafka.produce(f"{prefix}.b", numbers(2, 5))

    sandbox.run("numbers")

    assert found(sandbox) == [0, 1, 2, 3, 4]


# -- messages that do not fit ------------------------------------------------------------------------------------


def test_a_message_that_does_not_fit_stops_the_run_by_name(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    kafka.produce(topic, ['{"n": 1}', '{"n": "one"}'], partition=1)
    declare(sandbox, kafka, topic)

    with pytest.raises(SourceProblem) as refused:
        sandbox.run("numbers")

    assert f"{topic}[1] offset 1: the value is not JSON of the declared schema" in refused.value.message
    assert EmbeddedCatalog(sandbox.project).load("shop.numbers").snapshots == {}, "nothing entered the table"


def test_messages_that_do_not_fit_are_kept_with_their_place(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    kafka.produce(topic, ['{"n": 1}', "{half", '{"m": 2}'], partition=1)
    kafka.produce(topic, [None], keys=["gone"], partition=0)
    declare(sandbox, kafka, topic, 'malformed="quarantine"', schema=False)
    source = (sandbox.folder / "pipelines" / "tested.py").read_text()
    (sandbox.folder / "pipelines" / "tested.py").write_text(source.replace("malformed=", 'schema="n int not null", malformed='))

    sandbox.run("numbers")

    assert found(sandbox) == [1]
    kept = sandbox.sql("select topic, partition, offset, key, record, reason from {c}.shop.numbers__quarantine order by partition, offset")
    assert [(k["partition"], k["offset"], k["key"], k["record"]) for k in kept] == [
        (0, 0, "gone", None),
        (1, 1, None, "{half"),
        (1, 2, None, '{"m": 2}'),
    ]
    assert [k["reason"] for k in kept] == [
        "the message has no value (a tombstone)",
        "the value is not JSON of the declared schema",
        "field 'n' is missing",
    ]


# -- transactions upstream -----------------------------------------------------------------------------------


def test_aborted_and_open_transactions_are_never_read_and_markers_confuse_nobody(
    sandbox: Sandbox, kafka: KafkaForTests, topic: str
) -> None:
    declare(sandbox, kafka, topic)
    with kafka.transaction() as sender:
        sender.produce(topic, numbers(0, 3), partition=0)
    with kafka.transaction(commit=False) as sender:
        sender.produce(topic, numbers(100, 103), partition=0)
    with kafka.transaction() as sender:
        sender.produce(topic, numbers(3, 5), partition=0)

    sandbox.run("numbers")

    assert found(sandbox) == [0, 1, 2, 3, 4]
    assert newest(sandbox).rows == 5
    assert newest(sandbox).offsets == f"{topic}[0] 0–{kafka.ends(topic)[0]}", "ranges count markers, rows do not"
    progress = json.loads(sandbox.ledger.attempts.latest("numbers").progress)  # type: ignore[union-attr, arg-type]
    assert progress["lag"] == "0 records"


# -- the topic moved under us ----------------------------------------------------------------------------------


def test_new_partitions_are_picked_up_and_recorded(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    declare(sandbox, kafka, topic)
    kafka.produce(topic, numbers(0, 2), partition=0)
    sandbox.run("numbers")
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, numbers(2, 4), partition=2)

    sandbox.run("numbers")

    assert found(sandbox) == [0, 1, 2, 3]
    strand = newest(sandbox).strand
    assert set(sandbox.ledger.topics.latest("numbers", strand)[topic].bounds) == {0, 1, 2}


def test_a_topic_made_again_is_refused_whether_it_is_shorter_or_longer(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    """Spark alone reads a longer one without a word from where it stopped, and loses what lies before."""
    declare(sandbox, kafka, topic)
    kafka.produce(topic, numbers(0, 5), partition=0)
    sandbox.run("numbers")
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=2)
    kafka.produce(topic, numbers(5, 7), partition=0)

    with pytest.raises(DataLost, match="topic-recreated.*deleted and made again") as shorter:
        sandbox.run("numbers")
    kafka.produce(topic, numbers(7, 20), partition=0)
    with pytest.raises(DataLost, match="topic-recreated") as longer:
        sandbox.run("numbers")

    assert found(sandbox) == [0, 1, 2, 3, 4], "nothing was skipped silently"
    assert "--new-strand" in shorter.value.next_command
    assert f"--accept-gap {topic}:0:0-5" in longer.value.next_command

    sandbox.run("numbers", allow=Allowances(new_strand=True))

    assert found(sandbox) == list(range(20))


def test_a_recreated_topic_is_seen_even_when_the_ledger_is_lost(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    declare(sandbox, kafka, topic)
    kafka.produce(topic, numbers(0, 5), partition=0)
    sandbox.run("numbers")
    for file in sandbox.project.catalog_file.parent.glob("ledger.db*"):
        file.unlink()
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=2)
    kafka.produce(topic, numbers(0, 9), partition=0)

    with pytest.raises(DataLost, match="topic-recreated"):
        sandbox.run("numbers")


def test_fewer_partitions_and_no_topic_at_all_are_refused(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    declare(sandbox, kafka, topic)
    kafka.produce(topic, numbers(0, 2), partition=1)
    sandbox.run("numbers")
    kafka.delete_topic(topic)
    with pytest.raises(SourceProblem, match="does not exist on the Kafka cluster"):
        sandbox.run("numbers")
    kafka.create_topic(topic, partitions=1)

    with pytest.raises(DataLost, match=r"partitions-shrunken.*has 1 partitions, the checkpoint knows partition 1"):
        sandbox.run("numbers")


def test_removed_records_are_named_and_only_the_named_gap_is_accepted(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    declare(sandbox, kafka, topic)
    kafka.produce(topic, numbers(0, 5), partition=0)
    sandbox.run("numbers")
    kafka.delete_records(topic, 0, 3)
    sandbox.run("numbers")  # records below the position were read: removing them loses nothing
    kafka.produce(topic, numbers(5, 20), partition=0)
    kafka.delete_records(topic, 0, 12)

    with pytest.raises(DataLost) as lost:
        sandbox.run("numbers")

    assert f"offsets-removed: {topic}[0] 5–12 was removed" in lost.value.message
    assert f"--accept-gap {topic}:0:5-12" in lost.value.next_command
    with pytest.raises(DataLost):
        sandbox.run("numbers", allow=Allowances(accept_gaps=frozenset([Gap(topic, 0, 5, 11)])))

    sandbox.run("numbers", allow=Allowances(accept_gaps=frozenset([Gap(topic, 0, 5, 12)])))

    assert found(sandbox) == [0, 1, 2, 3, 4, *range(12, 20)]
    entry = newest(sandbox)
    assert entry.gaps == f"{topic}[0] 5–12"
    assert entry.offsets == f"{topic}[0] 5–20 (without {topic}[0] 5–12)"
    assert [gap for _, gap in sandbox.ledger.gaps.of_strand("numbers", entry.strand)] == [Gap(topic, 0, 5, 12)]
    assert any(e.kind == "gap-accepted" for e in sandbox.ledger.events.of_pipeline("numbers"))
    kafka.produce(topic, numbers(20, 21), partition=0)
    sandbox.run("numbers")
    assert newest(sandbox).gaps is None, "the gap belongs to the batch that ran over it"


def test_a_gap_that_is_not_there_cannot_be_accepted(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    declare(sandbox, kafka, topic)
    kafka.produce(topic, numbers(0, 5), partition=0)
    sandbox.run("numbers")

    with pytest.raises(Refused, match="that is not missing now"):
        sandbox.run("numbers", allow=Allowances(accept_gaps=frozenset([Gap(topic, 0, 5, 12)])))


def test_records_that_vanish_between_two_batches_are_named_while_running(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    """Retention overtakes a running pipeline: a later batch asks for what is gone."""
    declare(sandbox, kafka, topic, "max_offsets_per_batch=2")
    large = "x" * 700_000  # a consumer fetches about 1 MB ahead, and what it holds in memory cannot vanish
    for n in range(30):  # progress is told while later batches run: enough of them for the news to overtake
        kafka.produce(topic, [json.dumps({"n": n, "padding": large})], partition=0)
    real = sandbox.heard.progress

    def remove(progress: Any) -> None:
        real(progress)
        kafka.delete_records(topic, 0, 30)

    sandbox.heard.progress = remove  # type: ignore[method-assign]

    with pytest.raises(DataLost, match=rf"{topic}\[0\] \d+–30 was removed"):
        sandbox.run("numbers")

    rows = found(sandbox)
    assert rows == list(range(len(rows))) and len(rows) % 2 == 0 and 2 <= len(rows) < 30, "whole batches only"


# -- the group ---------------------------------------------------------------------------------------------------


def test_a_group_that_was_tampered_with_is_reported_and_set_right(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    declare(sandbox, kafka, topic)
    kafka.produce(topic, numbers(0, 5), partition=0)
    sandbox.run("numbers")
    Cluster(KafkaConnection(kafka.bootstrap)).commit_group(GROUP, KafkaPosition.of({topic: {0: 2}}))

    sandbox.run("numbers")

    assert found(sandbox) == [0, 1, 2, 3, 4], "the checkpoint rules"
    assert kafka.group_offsets(GROUP)[topic, 0] == 5
    told = [e.detail for e in sandbox.ledger.events.of_pipeline("numbers") if e.kind == "group-differs"]
    assert told == [f"group '{GROUP}' says {topic}[0] 2 instead of 5; the checkpoint rules, the group is set to it"]


# -- what cannot work --------------------------------------------------------------------------------------------


def test_a_start_outside_the_topic_is_refused_with_what_helps(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    kafka.produce(topic, numbers(0, 3), partition=0)
    declare(sandbox, kafka, topic, f'start={{"{topic}": {{0: 99}}}}')

    with pytest.raises(DataLost, match=r"cannot start where it is told to") as refused:
        sandbox.run("numbers")

    assert refused.value.next_command.startswith("change start=… of source 'numbers'")


def test_an_unknown_topic_and_a_wrong_address_are_one_sentence_each(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    declare(sandbox, kafka, "nowhere")
    with pytest.raises(SourceProblem, match="topic 'nowhere' does not exist on the Kafka cluster at .*topics there: "):
        sandbox.run("numbers")
    sandbox.pipelines((sandbox.folder / "pipelines" / "tested.py").read_text().replace(kafka.bootstrap, "127.0.0.1:9"))

    with pytest.raises(ClusterUnreachable, match=r"the Kafka cluster at 127.0.0.1:9 does not answer: .*Connection refused"):
        sandbox.run("numbers")


def test_a_gap_is_only_understood_in_its_own_form() -> None:
    with pytest.raises(UsageError, match=r"'orders:0' is no gap; write topic:partition:from-to"):
        Gap.parse("orders:0")


def test_only_so_many_batches(sandbox: Sandbox, kafka: KafkaForTests, topic: str) -> None:
    """A stop between two batches leaves the group at the last complete one."""
    kafka.produce(topic, numbers(0, 30), partition=0)
    declare(sandbox, kafka, topic, "max_offsets_per_batch=10")

    sandbox.run("numbers", ForBatches(2))

    assert found(sandbox) == list(range(20))
    assert kafka.group_offsets(GROUP)[topic, 0] == 20
