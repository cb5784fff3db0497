"""State as a checkpoint holds it, seen through Spark: what is listed, shown, compared and exported is what the events made of it."""

from __future__ import annotations

import shutil
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.evidence.state_export import export_state
from strandline.evidence.state_rows import ShownState, state_diff, state_rows
from strandline.evidence.states import StateSource, find_state, resolve, state_list
from strandline.model.errors import CheckpointDamaged, NotFound
from strandline.runtime.keyed.inspecting import StateReader
from strandline.runtime.options import ForBatches
from strandline.testing import generated_orders
from strandline.testing.fixtures import Sandbox

pytestmark = pytest.mark.engine

KEYED = """
import strandline as sl
from datetime import timedelta

class Totals(sl.KeyedProcess):
    best = sl.map_state("string", "double")
    recent = sl.list_state("struct<at: timestamp, amount: double>", ttl=sl.ttl("7 days"))
    total = sl.reducing_state("double", lambda a, b: a + b)

    def process(self, key, events, ctx):
        for e in events:
            self.total.add(e.amount)
            self.recent.add((e.placed_at, e.amount))
            self.best.put(e.order_id, e.amount)
        ctx.set_timer(ctx.processing_time + timedelta(days=1))
        yield key, self.total.get()

    timers = "processing"
    def on_timer(self, key, at, ctx):
        return []

class Seen(sl.KeyedProcess):
    last = sl.value_state("bigint")

    def process(self, key, events, ctx):
        self.last.update(max(e.seq for e in events))
        yield key.customer, key.even, self.last.get()

@sl.pipeline(
    source=sl.generator(events_per_batch=20, total=60, seed=3),
    sinks={
        "totals": sl.table("shop.totals", mode="upsert", key="customer", order_by="total"),
        "seen": sl.table("shop.seen", mode="upsert", key=["customer", "even"], order_by="last"),
    },
    output_mode="update", checkpoint=sl.checkpoint(every="0 s"),
)
def remembering(orders):
    fresh = orders.dropDuplicates(["order_id"])
    totals = sl.keyed(fresh, by="customer", process=Totals(), order_by="seq", output="customer string, total double")
    halves = orders.selectExpr("customer", "seq % 2 = 0 as even", "seq")
    seen = sl.keyed(halves, by=["customer", "even"], process=Seen(), output="customer string, even boolean, last bigint")
    return {"totals": totals, "seen": seen}
"""
ORDERS = list(generated_orders(sl.generator(events_per_batch=20, total=60, seed=3)))


def opened(sandbox: Sandbox, pipeline: str) -> tuple[StateSource, StateReader]:
    source = find_state(sandbox.project, pipeline)
    return source, StateReader(sandbox.spark, source.checkpoint, source.records, pipeline)


def amounts(until: int) -> dict[str, list[tuple[datetime, float]]]:
    found: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for order in ORDERS[:until]:
        found[order.customer].append((order.placed_at, order.amount))
    return found


def test_keyed_state_is_listed_shown_compared_and_exported_after_every_batch(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.pipelines(KEYED)
    sandbox.run("remembering", ForBatches(3))
    source, reader = opened(sandbox, "remembering")
    operators = reader.operators(2)

    def shown(state: str, at: int = 2, limit: int = 1000, key: str | None = None) -> ShownState:
        return state_rows(source, reader, resolve("remembering", operators, state, None), at, limit, key)

    # the list
    listed = state_list(source, reader, sandbox.ledger, 2)
    by_name = {operator.name: operator for operator in listed.operators}
    assert set(by_name) == {"totals", "seen", "dedupe"}
    totals = by_name["totals"]
    assert (totals.keyed, totals.key, totals.keys, totals.partitions) == (True, "customer string", len(amounts(60)), 2)
    assert (totals.bytes or 0) > 0
    assert totals.largest_partition >= totals.average_partition == totals.keys / 2
    assert [(s.name, s.kind, s.type_text, s.ttl_text, s.entries) for s in totals.states] == [
        ("best", "map", "map<string, double>", "", 60),
        ("recent", "list", "struct<at: timestamp, amount: double>", "7 d", 60),
        ("total", "reducing", "double", "", len(amounts(60))),
    ]
    assert totals.states[0].oldest_touch is None
    assert totals.states[1].oldest_touch is not None and listed.processing_time is not None
    assert totals.states[1].oldest_touch < listed.processing_time
    assert (by_name["seen"].key, by_name["seen"].states[0].name) == ("customer string, even boolean", "last")
    assert (by_name["dedupe"].keyed, by_name["dedupe"].keys) == (False, 60)
    assert [(s.name, s.text) for s in listed.sources] == [("orders", "events 0–60")]
    [(size,)] = [sandbox.ledger.state_sizes.of_operator("remembering", str(source.strand), "totals", 1)]
    assert (size.keys, size.bytes) == (totals.keys, totals.bytes)

    # what a state holds, now and before
    for at, until in ((0, 20), (2, 60)):
        sums = {customer: sum(amount for _, amount in rows) for customer, rows in amounts(until).items()}
        assert {row["key"]["customer"]: row["value"] for row in shown("total", at).rows} == pytest.approx(sums)
    customer = max(amounts(60), key=lambda each: len(amounts(60)[each]))
    (row,) = shown("recent", key=customer).rows
    assert [e["value"]["amount"] for e in row["elements"]] == pytest.approx([a for _, a in amounts(60)[customer]])
    assert not any(e["expired"] for e in row["elements"])
    assert shown("best", key=customer).total == len(amounts(60)[customer])
    assert shown("recent", key="nobody").rows == ()
    assert (len(shown("total", limit=3).rows), shown("total", limit=3).total) == (3, len(amounts(60)))
    last = max(order.seq for order in ORDERS if order.customer == customer and order.seq % 2 == 0)
    assert shown("last", key=f'["{customer}", true]').rows == ({"key": {"customer": customer, "even": True}, "value": last},)
    assert shown("timers", limit=1).total >= len(amounts(60))
    assert {row["clock"] for row in shown("timers").rows} == {"processing"}

    # what became different
    (diff,) = state_diff(reader, [o for o in operators if o.name == "totals"], 0, 1, 1000)
    before, after = amounts(20), amounts(40)
    assert (diff.added, diff.removed) == (len(after) - len(before), 0)
    assert diff.changed == sum(1 for each in before if before[each] != after[each])
    changed = next(change for change in diff.changes if change["change"] == "changed")
    old = changed["states"]["total"]
    assert old["before"] == pytest.approx(sum(a for _, a in before[changed["key"]["customer"]]))
    assert old["after"] == pytest.approx(sum(a for _, a in after[changed["key"]["customer"]]))
    assert len(state_diff(reader, operators, 0, 2, 2)[0].changes) == 2

    # a file of it
    def exported(state: str) -> Any:
        file = tmp_path / f"{state}.parquet"
        rows = export_state(reader, resolve("remembering", operators, state, None), 2, file)
        table = pq.read_table(file)
        assert table.num_rows == rows
        return table

    recent = exported("recent")
    assert recent.column_names == ["customer", "elements", "touched"]
    assert {row["customer"]: [(e["at"], e["amount"]) for e in row["elements"]] for row in recent.to_pylist()} == amounts(60)
    assert all(len(row["touched"]) == len(row["elements"]) for row in recent.to_pylist())
    best = exported("best")
    assert sum(len(row["entries"]) for row in best.to_pylist()) == 60
    assert str(best.schema.field("entries").type).startswith("map<string, double")
    assert exported("last").column_names == ["customer", "even", "value"]
    assert exported("timers").column_names == ["customer", "clock", "at"]
    assert exported("dedupe").num_rows == 60

    # state that is not there
    with pytest.raises(NotFound, match=r"operator 'totals' has no state 'totl'.*did you mean 'total'"):
        resolve("remembering", operators, "totl", "totals")
    with pytest.raises(NotFound, match="batch 7 of 'remembering' is not in its checkpoint, which holds the completed batches 0 to 2"):
        source.batch(7)
    for operator in operators:
        for partition in Path(source.checkpoint.location, "state", str(operator.id)).glob("[0-9]*"):
            shutil.rmtree(partition)
    with pytest.raises(CheckpointDamaged, match="after batch 2 cannot be read"):
        shown("total")


NATIVE = """
import strandline as sl

@sl.pipeline(source=sl.generator(events_per_batch=20, total=40, seed=3), sink=sl.table("shop.counts", mode="upsert", key="customer", order_by="count"),
             output_mode="update", checkpoint=sl.checkpoint(every="0 s"))
def counts(orders):
    return orders.groupBy("customer").count()

@sl.pipeline(sources={"left": sl.generator(events_per_batch=10, total=20, seed=3), "right": sl.generator(events_per_batch=10, total=20, seed=3)},
             sink=sl.table("shop.pairs"), event_time={"left": "placed_at", "right": "placed_at"}, checkpoint=sl.checkpoint(every="0 s"))
def pairs(left, right):
    other = right.selectExpr("order_id as other", "placed_at as other_at")
    return left.join(other, (left.order_id == other.other) & (left.placed_at == other.other_at)).select("order_id", "amount")

@sl.pipeline(source=sl.generator(events_per_batch=20, total=20), sink=sl.table("shop.plain"))
def plain(orders):
    return orders
"""


def test_state_of_sparks_own_operators_is_rows(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.pipelines(NATIVE)
    sandbox.run("counts")
    source, reader = opened(sandbox, "counts")
    (operator,) = reader.operators(1)
    target = resolve("counts", [operator], "stateStoreSave", None)

    def counted(until: int) -> dict[str, int]:
        return {customer: len(rows) for customer, rows in amounts(until).items()}

    found = state_rows(source, reader, target, 1, 1000, None)
    assert {row["key"]["customer"]: row["value"]["count"] for row in found.rows} == counted(40)
    customer = ORDERS[0].customer
    assert state_rows(source, reader, target, 0, 20, customer).rows == (
        {"key": {"customer": customer}, "value": {"count": counted(20)[customer]}},
    )
    (diff,) = state_diff(reader, [operator], 0, 1, 1000)
    assert (diff.added, diff.removed) == (len(counted(40)) - len(counted(20)), 0)
    assert diff.changed == sum(1 for each, n in counted(20).items() if counted(40)[each] != n)
    assert export_state(reader, target, 1, tmp_path / "counts.parquet") == len(counted(40))

    sandbox.run("pairs")
    _, reader = opened(sandbox, "pairs")
    last = find_state(sandbox.project, "pairs").batches[-1]
    listed = state_list(find_state(sandbox.project, "pairs"), reader, sandbox.ledger, last)
    (join,) = listed.operators
    assert (join.name, [s.name for s in join.states]) == ("symmetricHashJoin", ["left", "right"])
    assert [s.name for s in listed.sources] == ["left", "right"]
    assert join.keys == sum(state.entries for state in join.states) > 0

    sandbox.run("plain")
    with pytest.raises(NotFound, match="pipeline 'plain' keeps no state"):
        find_state(sandbox.project, "plain")
