"""The pipelines that crash tests run, and what their tables must hold in the end."""

from __future__ import annotations

import strandline as sl
from strandline.testing import CrashPoint, generated_orders

BATCH_POINTS = list(CrashPoint)[: list(CrashPoint).index(CrashPoint.CLAIMING)]
"""The points that every batch passes; those after them belong to takeovers, restores and savepoints."""

PER_BATCH = 20
TOTAL = 240
SOURCE = sl.generator(events_per_batch=PER_BATCH, total=TOTAL, seed=3, duplicates=0.1)

PIPELINES = f"""
import strandline as sl
from pyspark.sql import functions as F

source = sl.generator(events_per_batch={PER_BATCH}, total={TOTAL}, seed=3, duplicates=0.1)
quick = sl.checkpoint(every="0 s")


@sl.pipeline(source=source, sink=sl.table("shop.plain"), checkpoint=quick)
def plain(orders):
    return orders


@sl.pipeline(source=source, sink=sl.table("shop.deduped"), event_time="placed_at", allowed_lateness="1 hour", checkpoint=quick)
def deduped(orders):
    return orders.dropDuplicatesWithinWatermark(["order_id"])


@sl.pipeline(
    source=source, sink=sl.table("shop.totals", mode="upsert", key="customer", order_by="last_seq"), output_mode="update", checkpoint=quick
)
def totals(orders):
    return orders.groupBy("customer").agg(F.count("*").alias("orders"), F.max("seq").alias("last_seq"))


@sl.pipeline(source=source, sinks={{"even": sl.table("shop.even"), "odd": sl.table("shop.odd")}}, checkpoint=quick)
def split(orders):
    return {{"even": orders.where("seq % 2 = 0"), "odd": orders.where("seq % 2 = 1")}}
"""


def deduped_ids(events: int = TOTAL) -> set[str]:
    return {order.order_id for order in generated_orders(SOURCE, events)}


def orders_per_customer(events: int = TOTAL) -> dict[str, int]:
    counts: dict[str, int] = {}
    for order in generated_orders(SOURCE, events):
        counts[order.customer] = counts.get(order.customer, 0) + 1
    return counts
