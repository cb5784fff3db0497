"""Savepoints of a pipeline between topics: the group's offsets go back with it, and rows in a topic are never delivered twice unasked."""

from __future__ import annotations

import json

import pytest

from strandline.model.errors import ChainBroken, UsageError
from strandline.model.fork import Fork, Into
from strandline.model.until import Until
from strandline.project.forks import declare_fork
from strandline.runtime.options import Allowances, AvailableNow, ClaimOnly, Continuous
from strandline.runtime.running import EndReason, RunSummary
from strandline.runtime.strands import Restoration
from strandline.savepoints.archive import find_archive
from strandline.savepoints.forking import plan_fork
from strandline.savepoints.publishing import plan_publication
from strandline.savepoints.restoring import plan_from_savepoint
from strandline.savepoints.session import SessionTags
from strandline.savepoints.table_plans import ROLLBACK
from strandline.savepoints.taking import Taker, Wish
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import table_rows
from strandline.testing.fixtures import Sandbox
from strandline.testing.kafka import KafkaForTests

pytestmark = pytest.mark.engine

GROUP = "strandline.relay.numbers"


def relay(kafka: KafkaForTests, source: str, out: str) -> str:
    """Each number once, from a topic into a table and another topic."""
    return f"""
import strandline as sl

@sl.pipeline(
    source=sl.kafka("{source}", bootstrap="{kafka.bootstrap}", schema="n bigint", start="earliest"),
    sinks={{"rows": sl.table("shop.numbers"), "told": sl.topic("{out}", bootstrap="{kafka.bootstrap}")}},
    checkpoint=sl.checkpoint(every="0 s"),
)
def relay(numbers):
    once = sl.dedupe(numbers, by="n", forever=True)
    return {{"rows": once, "told": once}}
"""


def numbers(first: int, last: int) -> list[str]:
    return [json.dumps({"n": n}) for n in range(first, last)]


def test_offsets_tables_and_topics_after_a_restore(sandbox: Sandbox, kafka: KafkaForTests) -> None:
    source = kafka.create_topic(kafka.topic("numbers"), partitions=1)
    out = kafka.create_topic(kafka.topic("out"))
    sandbox.pipelines(relay(kafka, source, out))

    def relayed() -> list[int]:
        return sorted(row["n"] for row in table_rows(sandbox.project, "shop.numbers"))

    def told() -> list[int]:
        return sorted(json.loads(record.value or b"{}")["n"] for record in kafka.read(out))

    kafka.produce(source, numbers(0, 10), partition=0)
    sandbox.run("relay")
    with SessionTags(sandbox.project, "test", sandbox.heard.say, sandbox.spark) as tags:
        saved = Taker(sandbox.project, sandbox.pipeline("relay"), sandbox.ledger, tags, sandbox.heard.say).take(Wish("me"))
    assert saved.positions.human(None) == f"{source}[0] 0–10"
    assert [(topic.name, topic.batch) for topic in saved.topics] == [(f"kafka:{out}", saved.batch)]
    kafka.produce(source, numbers(5, 20), partition=0)
    sandbox.run("relay")
    assert relayed() == told() == list(range(20))
    archive = find_archive(sandbox.project, "relay", saved.id)

    def restoration(again: frozenset[str] = frozenset()) -> Restoration:
        found = plan_from_savepoint(sandbox.project, sandbox.pipeline("relay"), sandbox.ledger, archive, ROLLBACK, again=again)
        return found.restoration

    with pytest.raises(ChainBroken, match=rf"topic 'kafka:{out}' holds batch .* would be delivered twice") as refused:
        restoration()
    assert refused.value.next_command == f"let it begin again there: add --start-table kafka:{out}"
    assert relayed() == list(range(20)), "refused before any table went back"
    again = frozenset([f"kafka:{out}"])
    sandbox.run("relay", allow=Allowances(start_tables=again, restoration=restoration(again)))

    assert relayed() == list(range(20)), "the table went back and forth again"
    assert told() == sorted([*range(20), *range(10, 20)]), "asked for: the topic got them again"
    assert kafka.group_offsets(GROUP)[source, 0] == 25


def test_a_fork_has_a_group_of_its_own_tells_topics_nothing_and_ends_where_it_is_told(sandbox: Sandbox, kafka: KafkaForTests) -> None:
    source = kafka.create_topic(kafka.topic("numbers"), partitions=1)
    out = kafka.create_topic(kafka.topic("out"))
    sandbox.pipelines(relay(kafka, source, out))
    kafka.produce(source, numbers(0, 10), partition=0)
    sandbox.run("relay")
    kafka.produce(source, numbers(5, 20), partition=0)

    def fork(name: str, begins: str, until: Until | None) -> RunSummary:
        wanted = Fork(name, "relay", Into(branch=name), begins, until=until, profile=sandbox.project.profile_name)
        plan = plan_fork(sandbox.project, sandbox.pipeline("relay"), wanted, sandbox.ledger, begins)
        assert plan.topics == (f"kafka:{out}",)
        declare_fork(sandbox.project, wanted)
        return sandbox.run(name, Continuous() if until else AvailableNow(), Allowances(restoration=plan.restoration))

    fork("trial", "0", None)
    bounded = fork("bounded", "start", Until(offsets={source: {0: 13}}))

    assert sorted(row["n"] for row in table_rows(sandbox.project, "shop.numbers@trial")) == list(range(20))
    assert sorted(row["n"] for row in table_rows(sandbox.project, "shop.numbers@bounded")) == list(range(10)), "offsets 10–12 repeat 5–7"
    assert bounded.reason is EndReason.REACHED
    assert len(kafka.read(out)) == 10, "only the pipeline itself tells"
    assert kafka.group_offsets(GROUP)[source, 0] == 10
    assert kafka.group_offsets("strandline.trial.numbers")[source, 0] == 25
    head = EmbeddedCatalog(sandbox.project).load("shop.numbers").on("bounded")
    assert next(head.ancestors()).summary["strandline.until"] == str(Until(offsets={source: {0: 13}}))
    with pytest.raises(UsageError, match="leaves out what is later"):
        plan_publication(sandbox.project, sandbox.ledger, "bounded")
    with pytest.raises(ChainBroken, match=rf"topic 'kafka:{out}' was written by 'relay' alone"):
        plan_publication(sandbox.project, sandbox.ledger, "trial")
    again = frozenset([f"kafka:{out}"])
    publication = plan_publication(sandbox.project, sandbox.ledger, "trial", again)
    sandbox.run("relay", ClaimOnly(), Allowances(start_tables=again, restoration=publication.restoration))
    kafka.produce(source, numbers(20, 25), partition=0)
    sandbox.run("relay")
    assert sorted(row["n"] for row in table_rows(sandbox.project, "shop.numbers")) == list(range(25))
    assert len(kafka.read(out)) == 15, "it goes on where the branch was"
