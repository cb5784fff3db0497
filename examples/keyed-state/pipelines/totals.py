"""What each customer has spent so far, brought up to date with every batch."""

from __future__ import annotations

from collections.abc import Iterator
from operator import add
from typing import Any

from pyspark.sql import DataFrame

import strandline as sl


class Totals(sl.KeyedProcess):
    orders = sl.reducing_state("bigint", add)
    total = sl.reducing_state("decimal(12,2)", add)
    largest = sl.reducing_state("decimal(12,2)", max)

    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> Iterator[Any]:
        for order in events:
            self.orders.add(1)
            self.total.add(order.amount)
            self.largest.add(order.amount)
        yield {"customer": key, "orders": self.orders.get(), "total": self.total.get(), "largest": self.largest.get()}


@sl.pipeline(
    source=sl.files("data/orders", schema="order_id string, customer string, currency string, amount decimal(12,2)"),
    sink=sl.table("shop.customer_totals", mode="upsert", key="customer", order_by="orders"),
    output_mode="update",
)
def totals(orders: DataFrame) -> DataFrame:
    return sl.keyed(
        orders,
        by="customer",
        process=Totals(),
        output="customer string, orders bigint, total decimal(12,2), largest decimal(12,2)",
    )
