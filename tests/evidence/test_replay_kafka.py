"""A batch between topics run again: read from the cluster once more, told to nobody there."""

from __future__ import annotations

import json

import pytest

from strandline.evidence.replaying import replay
from strandline.model.errors import DataLost
from strandline.testing.fixtures import Sandbox
from strandline.testing.kafka import KafkaForTests

pytestmark = pytest.mark.engine


def test_a_batch_from_kafka_is_read_again_and_neither_group_nor_topic_moves(sandbox: Sandbox, kafka: KafkaForTests) -> None:
    source = kafka.create_topic(kafka.topic("numbers"), partitions=1)
    out = kafka.create_topic(kafka.topic("out"))
    sandbox.pipelines(f"""
import strandline as sl

@sl.pipeline(
    source=sl.kafka("{source}", bootstrap="{kafka.bootstrap}", schema="n bigint", start="earliest", max_offsets_per_batch=10),
    sinks={{"rows": sl.table("shop.numbers"), "told": sl.topic("{out}", bootstrap="{kafka.bootstrap}")}},
    checkpoint=sl.checkpoint(every="0 s"),
)
def relay(numbers):
    once = sl.dedupe(numbers, by="n", forever=True)
    return {{"rows": once, "told": once}}
""")
    kafka.produce(source, [json.dumps({"n": n}) for n in [*range(15), *range(5), *range(15, 25)]], partition=0)
    sandbox.run("relay")
    group = kafka.group_offsets("strandline.relay.numbers")
    told = len(kafka.read(out))

    for batch in (0, 1, 2):
        found = replay(sandbox.project, sandbox.pipeline("relay"), sandbox.ledger, batch, sandbox.heard, session=sandbox.spark)
        assert found.same, (batch, found)
        assert found.offsets == f"{source}[0] {batch * 10}–{batch * 10 + 10}"
    assert (found.tables[0].comparison.equal, found.topics[0].topic, found.topics[0].replayed) == (10, f"kafka:{out}", 10)
    assert kafka.group_offsets("strandline.relay.numbers") == group
    assert len(kafka.read(out)) == told

    kafka.delete_records(source, 0, 15)
    with pytest.raises(DataLost, match=rf"{source}.*; nothing was written") as lost:
        replay(sandbox.project, sandbox.pipeline("relay"), sandbox.ledger, 1, sandbox.heard, session=sandbox.spark)
    assert "replay a newer batch" in lost.value.next_command
    assert replay(sandbox.project, sandbox.pipeline("relay"), sandbox.ledger, 2, sandbox.heard, session=sandbox.spark).same
