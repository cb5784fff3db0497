"""Topics as outputs, on a real broker: what a message holds, what a replay does, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from strandline.evidence.deliveries import deliveries_json, deliveries_of
from strandline.model.errors import ChainBroken, DefinitionError, Fenced, NotFound, SourceProblem
from strandline.model.stamp import Holder
from strandline.runtime.options import Allowances, ForBatches
from strandline.testing import generated_orders
from strandline.testing.fixtures import Sandbox
from strandline.testing.kafka import KafkaForTests

pytestmark = pytest.mark.engine


@pytest.fixture
def out(kafka: KafkaForTests) -> str:
    return kafka.create_topic(kafka.topic("out"), partitions=3)


def declare(sandbox: Sandbox, kafka: KafkaForTests, out: str, more: str = "", body: str = "return orders", total: int = 40) -> None:
    sandbox.pipelines(
        f"""
        import strandline as sl

        @sl.pipeline(
            source=sl.generator(events_per_batch=10, total={total}),
            sink=sl.topic("{out}", bootstrap="{kafka.bootstrap}", {more}),
            checkpoint=sl.checkpoint(every="0 s"),
        )
        def relay(orders):
            {body}
        """
    )


def delivered(kafka: KafkaForTests, out: str) -> list[int]:
    return sorted(json.loads(record.value or b"{}")["seq"] for record in kafka.read(out))


def test_each_batch_is_one_transaction_and_the_ledger_tells_of_it(sandbox: Sandbox, kafka: KafkaForTests, out: str) -> None:
    declare(sandbox, kafka, out)

    summary = sandbox.run("relay")

    assert delivered(kafka, out) == list(range(40))
    assert summary.rows == 40
    found = deliveries_of(f"kafka:{out}", sandbox.ledger)
    assert [(e.delivery.batch, e.delivery.rows, e.delivery.delivery, e.offsets) for e in found] == [
        (n, 10, "exactly_once", f"events {n * 10}–{n * 10 + 10}") for n in (3, 2, 1, 0)
    ]
    assert deliveries_json(f"kafka:{out}", found)["deliveries"][0]["topic_id"] == kafka.topic_id(out)
    progress = json.loads(sandbox.ledger.attempts.latest("relay").progress)  # type: ignore[union-attr, arg-type]
    assert progress["delivered"] == {f"kafka:{out}": 40}


def test_key_headers_and_partition_come_from_columns(sandbox: Sandbox, kafka: KafkaForTests, out: str) -> None:
    declare(
        sandbox,
        kafka,
        out,
        'key="customer", headers=["order_id"], partition="place"',
        "return orders.selectExpr('seq', 'customer', 'order_id', 'cast(seq % 2 as int) place', 'cast(null as string) note')",
    )

    sandbox.run("relay")

    records = kafka.read(out)
    orders = {order.seq: order for order in generated_orders(sandbox.pipeline("relay").sources["orders"])}  # type: ignore[arg-type]
    assert len(records) == 40
    for record in records:
        value = json.loads(record.value or b"{}")
        order = orders[value["seq"]]
        assert value == {"seq": order.seq, "customer": order.customer, "note": None}, "headers and partition are not in the message"
        assert record.key == order.customer.encode()
        assert record.headers == (("order_id", order.order_id.encode()),)
        assert record.partition == order.seq % 2


def test_one_column_can_be_the_whole_message(sandbox: Sandbox, kafka: KafkaForTests, out: str) -> None:
    declare(sandbox, kafka, out, 'value="order_id"', total=10)

    sandbox.run("relay")

    assert {record.value for record in kafka.read(out)} >= {b"o-000000000", b"o-000000009"}


def test_keys_land_where_java_clients_put_them(sandbox: Sandbox, kafka: KafkaForTests, out: str) -> None:
    """Murmur2: both writers agree on the partition of every key."""
    declare(sandbox, kafka, out, 'key="customer"')
    sandbox.run("relay")
    ours = {record.key: record.partition for record in kafka.read(out)}
    theirs = kafka.create_topic(kafka.topic("theirs"), partitions=3)
    declare(sandbox, kafka, theirs, 'key="customer", delivery="at_least_once"')

    sandbox.run("relay", allow=Allowances(new_strand=True))

    assert {record.key: record.partition for record in kafka.read(theirs)} == ours
    (last, *_) = reversed(sandbox.ledger.deliveries.of_topic(f"kafka:{theirs}"))
    assert last.delivery == "at_least_once"


def test_a_row_without_a_key_stops_the_run(sandbox: Sandbox, kafka: KafkaForTests, out: str) -> None:
    declare(sandbox, kafka, out, 'key="who"', "return orders.selectExpr('seq', 'if(seq = 13, null, customer) who')")

    with pytest.raises(SourceProblem, match=f"topic '{out}' needs a key and a row has none in column 'who'"):
        sandbox.run("relay")

    assert delivered(kafka, out) == list(range(10)), "the first batch, and nothing of the second"


def test_what_cannot_be_written_is_said_before_anything_is(sandbox: Sandbox, kafka: KafkaForTests, out: str) -> None:
    declare(sandbox, kafka, out, 'key="color"')
    with pytest.raises(DefinitionError, match=r"uses column 'color', but its rows have seq, order_id"):
        sandbox.run("relay")
    declare(sandbox, kafka, "nowhere")

    with pytest.raises(NotFound, match="output topic 'nowhere' does not exist"):
        sandbox.run("relay")


def test_an_older_checkpoint_never_delivers_twice(sandbox: Sandbox, kafka: KafkaForTests, out: str) -> None:
    declare(sandbox, kafka, out)
    sandbox.run("relay", ForBatches(2))
    checkpoint = Path(sandbox.project.checkpoint_of("relay"))
    shutil.copytree(checkpoint, sandbox.folder / "older")
    sandbox.run("relay")
    shutil.rmtree(checkpoint)
    shutil.copytree(sandbox.folder / "older", checkpoint)

    with pytest.raises(ChainBroken, match=rf"older than topic 'kafka:{out}'"):
        sandbox.run("relay")

    assert delivered(kafka, out) == list(range(40))


def test_a_marker_that_the_cluster_forgot_is_taken_from_the_ledger(sandbox: Sandbox, kafka: KafkaForTests, out: str) -> None:
    """Group offsets expire when a pipeline rests for a week."""
    declare(sandbox, kafka, out)
    sandbox.run("relay", ForBatches(2))
    kafka.delete_group(f"strandline.relay.{out}.marker")

    sandbox.run("relay")

    assert delivered(kafka, out) == list(range(40))


def test_an_output_topic_made_again_is_refused_until_it_may_begin_here(sandbox: Sandbox, kafka: KafkaForTests, out: str) -> None:
    declare(sandbox, kafka, out)
    sandbox.run("relay", ForBatches(2))
    kafka.delete_topic(out)
    kafka.create_topic(out, partitions=3)

    with pytest.raises(ChainBroken, match=rf"the ledger saw batch 1 enter topic 'kafka:{out}'"):
        sandbox.run("relay")
    sandbox.run("relay", allow=Allowances(start_tables=frozenset([f"kafka:{out}"])))

    assert delivered(kafka, out) == list(range(20, 40))


def test_a_newer_holder_in_the_topic_is_never_fenced_back(sandbox: Sandbox, kafka: KafkaForTests, out: str) -> None:
    """Two ledgers that do not know each other: the topic itself tells who came later."""
    from strandline.messaging.connection import KafkaConnection
    from strandline.messaging.transactions import TransactionalTopic
    from strandline.model.marker import Marker

    declare(sandbox, kafka, out)
    sandbox.run("relay", ForBatches(1))
    elsewhere = TransactionalTopic(KafkaConnection(kafka.bootstrap), "relay", out)
    seen = elsewhere.open()
    assert seen is not None
    elsewhere.claim(Marker("relay", seen.strand, Holder(99, "elsewhere"), seen.batch, seen.end_digest))

    with pytest.raises(Fenced, match="attempt 99"):
        sandbox.run("relay")
