"""Orders in euros. The rates are control data: every key sees them, and a new rate counts from the batch in which it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame

import strandline as sl

CENT = Decimal("0.01")


class InEuros(sl.KeyedProcess):
    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> Iterator[Any]:
        rates = ctx.control["rates"]
        for order in events:
            if order.currency in rates:
                yield order.order_id, key, (order.amount * rates[order.currency].euros).quantize(CENT)
            else:
                ctx.emit("unrated", (order.order_id, order.currency, order.amount))


@sl.pipeline(
    sources={
        "orders": sl.files("data/orders", schema="order_id string, customer string, currency string, amount decimal(12,2)"),
        "rates": sl.files("data/rates", schema="currency string, euros decimal(10,4), _deleted boolean"),
    },
    sinks={"orders": sl.table("shop.orders_in_euros"), "unrated": sl.table("shop.unrated_orders")},
)
def enriched(orders: DataFrame, rates: DataFrame) -> dict[str, DataFrame]:
    found = sl.keyed(
        orders,
        by="customer",
        process=InEuros(),
        control={"rates": (rates, "currency")},
        output="order_id string, customer string, euros decimal(12,2)",
        side_outputs={"unrated": "order_id string, currency string, amount decimal(12,2)"},
    )
    return {"orders": found.main, "unrated": found["unrated"]}
