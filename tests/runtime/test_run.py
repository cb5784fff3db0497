"""Running pipelines end to end on the shared session: what lands in the tables, and what history says of it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

import strandline as sl
from strandline.evidence.history import Kind, history_of
from strandline.model.definition import GeneratorSource
from strandline.runtime.options import AvailableNow, ForBatches
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import assert_chain_unbroken, assert_rows_once, committed_batches, generated_orders, table_rows
from strandline.testing.fixtures import Sandbox

pytestmark = pytest.mark.engine

PLAIN = """
import strandline as sl

@sl.pipeline(source=sl.generator(events_per_batch=20, total=60), sink=sl.table("shop.orders"), checkpoint=sl.checkpoint(every="0 s"))
def orders(orders):
    return orders
"""


def test_every_event_lands_once_and_history_explains_each_snapshot(sandbox: Sandbox) -> None:
    sandbox.pipelines(PLAIN)

    summary = sandbox.run("orders")

    assert (summary.batches, summary.rows) == (3, 60)
    expected = list(generated_orders(sl.generator(total=60)))
    assert_rows_once(sandbox.project, "shop.orders", "order_id", [order.order_id for order in expected])
    rows = {row["order_id"]: row for row in table_rows(sandbox.project, "shop.orders")}
    assert all(rows[order.order_id]["amount"] == order.amount for order in expected)
    assert all(rows[order.order_id]["placed_at"] == order.placed_at for order in expected)
    assert_chain_unbroken(sandbox.project, "shop.orders", "orders")
    view = EmbeddedCatalog(sandbox.project).load("shop.orders")
    entries = history_of("shop.orders", view, sandbox.ledger)
    assert [(e.kind, e.batch, e.rows, e.offsets) for e in entries] == [
        (Kind.BATCH, 2, 20, "events 40–60"),
        (Kind.BATCH, 1, 20, "events 20–40"),
        (Kind.BATCH, 0, 20, "events 0–20"),
    ]
    assert view.format_version == 3


def test_a_restart_takes_the_next_attempt_and_goes_on_where_the_last_one_ended(sandbox: Sandbox) -> None:
    sandbox.pipelines(PLAIN)

    first = sandbox.run("orders", ForBatches(1))
    second = sandbox.run("orders")

    assert (first.attempt, second.attempt) == (1, 2)
    assert first.strand == second.strand
    assert_rows_once(sandbox.project, "shop.orders", "seq", range(60))
    assert not any(e.kind is Kind.BOUNDARY for e in history_of("shop.orders", EmbeddedCatalog(sandbox.project).load("shop.orders"), None))


def test_generator_matches_its_oracle_with_duplicates_late_and_out_of_order_events(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
        import strandline as sl

        @sl.pipeline(
            source=sl.generator(events_per_batch=500, total=500, seed=7, duplicates=0.2, late=0.1, out_of_order=0.3),
            sink=sl.table("shop.raw"),
        )
        def raw(orders):
            return orders
    """)

    sandbox.run("raw")

    oracle = sl.generator(events_per_batch=500, total=500, seed=7, duplicates=0.2, late=0.1, out_of_order=0.3)
    expected = {(o.seq, o.order_id, o.customer, o.amount, o.placed_at) for o in generated_orders(oracle)}
    found = {(r["seq"], r["order_id"], r["customer"], r["amount"], r["placed_at"]) for r in table_rows(sandbox.project, "shop.raw")}
    assert found == expected
    assert len({order_id for _, order_id, *_ in expected}) < 450, "the generator made no duplicates"


def late_ids(source: GeneratorSource, lateness: timedelta, per_batch: int) -> set[int]:
    """Which events Spark's rule calls late, computed by hand: not newer than the watermark of the batch before."""
    late: set[int] = set()
    newest: datetime | None = None
    watermarks: list[datetime | None] = [None]  # the watermark that batch N was planned with
    events = list(generated_orders(source))
    for begin in range(0, len(events), per_batch):
        batch = events[begin : begin + per_batch]
        number = begin // per_batch
        rule = watermarks[number - 1] if number > 0 else None
        on_time = [o for o in batch if rule is None or o.placed_at > rule]
        late |= {o.seq for o in batch} - {o.seq for o in on_time}
        newest = max([o.placed_at for o in on_time] + ([newest] if newest else []))
        watermarks.append(newest - lateness)
    return late


LATE = """
    import strandline as sl

    @sl.pipeline(
        source=sl.generator(events_per_batch=50, total=200, late=0.1, late_by="1 hour"),
        sink=sl.table("shop.orders"),
        event_time="placed_at", allowed_lateness="10 s", late="{policy}", checkpoint=sl.checkpoint(every="0 s"),
    )
    def orders(orders):
        return orders
"""
LATE_SOURCE = sl.generator(events_per_batch=50, total=200, late=0.1, late_by="1 hour")


@pytest.mark.parametrize("policy", ["drop", "side_table", "label"])
def test_late_rows_are_counted_and_treated_as_declared(sandbox: Sandbox, policy: str) -> None:
    sandbox.pipelines(LATE.format(policy=policy))

    sandbox.run("orders")

    late = late_ids(LATE_SOURCE, timedelta(seconds=10), 50)
    assert late, "the generator made no late events"
    everything = set(range(200))
    entries = history_of("shop.orders", EmbeddedCatalog(sandbox.project).load("shop.orders"), None)
    assert sum(entry.late or 0 for entry in entries) == len(late)
    if policy == "label":
        labelled = {row["seq"] for row in table_rows(sandbox.project, "shop.orders") if row["_late"]}
        assert labelled == late
        assert_rows_once(sandbox.project, "shop.orders", "seq", everything)
    else:
        assert_rows_once(sandbox.project, "shop.orders", "seq", everything - late)
        assert_rows_once(sandbox.project, "shop.orders__late", "seq", late if policy == "side_table" else ())


def test_several_sources_and_several_tables_share_one_batch(sandbox: Sandbox) -> None:
    folder = sandbox.folder / "data"
    folder.mkdir()
    (folder / "customers.jsonl").write_text('{"customer": "c-001", "name": "Ada"}\n{"customer": "c-002", "name": "Ben"}\n')
    sandbox.pipelines("""
        import strandline as sl

        @sl.pipeline(
            sources={
                "orders": sl.generator(events_per_batch=30, total=60),
                "customers": sl.files("data", schema="customer string, name string"),
            },
            sinks={"orders": sl.table("shop.orders"), "customers": sl.table("shop.customers")},
        )
        def shop(orders, customers):
            return {"orders": orders, "customers": customers}
    """)

    sandbox.run("shop")

    assert_rows_once(sandbox.project, "shop.orders", "seq", range(60))
    assert_rows_once(sandbox.project, "shop.customers", "name", ["Ada", "Ben"])
    ends = json.loads(sandbox.ledger.commits.of_table("shop.customers")[0].offsets_end or "{}")
    assert ends["customers"]["files"] == 1
    assert committed_batches(sandbox.project, "shop.customers") == [0], "a batch without rows for a table makes no snapshot"


def test_the_next_stamp_covers_batches_that_had_no_rows(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
        import strandline as sl

        @sl.pipeline(source=sl.generator(events_per_batch=10, total=50), sink=sl.table("shop.ends"), checkpoint=sl.checkpoint(every="0 s"))
        def ends(orders):
            return orders.where("seq < 10 or seq >= 40")
    """)

    sandbox.run("ends")

    entries = history_of("shop.ends", EmbeddedCatalog(sandbox.project).load("shop.ends"), None)
    assert [(e.batch_first, e.batch, e.offsets) for e in entries] == [(1, 4, "events 10–50"), (0, 0, "events 0–10")]
    assert_chain_unbroken(sandbox.project, "shop.ends", "ends")


def test_upsert_keeps_the_newest_version_of_each_key(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
        import strandline as sl
        from pyspark.sql import functions as F

        @sl.pipeline(
            source=sl.generator(events_per_batch=40, total=160),
            sink=sl.table("shop.totals", mode="upsert", key="customer", order_by="last_seq"),
            output_mode="update", checkpoint=sl.checkpoint(every="0 s"),
        )
        def totals(orders):
            return orders.groupBy("customer").agg(F.count("*").alias("orders"), F.max("seq").alias("last_seq"))
    """)

    sandbox.run("totals")

    expected: dict[str, int] = {}
    for order in generated_orders(sl.generator(total=160)):
        expected[order.customer] = expected.get(order.customer, 0) + 1
    found = {row["customer"]: row["orders"] for row in table_rows(sandbox.project, "shop.totals")}
    assert found == expected
    assert_chain_unbroken(sandbox.project, "shop.totals", "totals")
    records = sandbox.ledger.commits.of_table("shop.totals")
    assert [record.corrected > 0 for record in records] == [False, True, True, True]
    assert not [ref for ref in EmbeddedCatalog(sandbox.project).load("shop.totals").refs if ref != "main"], "a merge branch was left"


def test_tables_are_created_as_declared(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
        import strandline as sl

        @sl.pipeline(
            source=sl.generator(events_per_batch=100, total=100, rate=0.001),
            sink=sl.table("shop.parts", partition_by=["days(placed_at)", "bucket(4, customer)"], sort_by="amount",
                          properties={"comment": "it's ours"}, format_version=2),
        )
        def parts(orders):
            return orders
    """)

    sandbox.run("parts", AvailableNow())

    view = EmbeddedCatalog(sandbox.project).load("shop.parts")
    assert view.format_version == 2
    assert view.properties["comment"] == "it's ours"
    assert view.partition_transforms == ["day(placed_at)", "bucket[4](customer)"]
    files = sandbox.sql("SELECT file_path FROM {c}.shop.parts.files")
    assert len(files) > 1
    assert_rows_once(sandbox.project, "shop.parts", "seq", range(100))
