"""A small charge tries a stolen card out; a large one within a minute is held back and told to somebody."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame

import strandline as sl

SMALL, LARGE = 1.0, 500.0
MINUTE = timedelta(minutes=1)


class CardWatch(sl.KeyedProcess):
    tried = sl.value_state("struct<at: timestamp, amount: double>")

    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> Iterator[Any]:
        for payment in events:
            tried = self.tried.get()
            if tried is not None and payment.amount >= LARGE and payment.paid_at <= tried.at + MINUTE:
                ctx.emit("alerts", (key, tried.at, tried.amount, payment.paid_at, payment.amount))
                continue
            if payment.amount < SMALL:
                if tried is not None:
                    ctx.delete_timer(tried.at + MINUTE)
                self.tried.update((payment.paid_at, payment.amount))
                ctx.set_timer(payment.paid_at + MINUTE)
            yield key, payment.paid_at, payment.amount

    def on_timer(self, key: Any, at: datetime, ctx: sl.Context) -> None:
        self.tried.clear()  # the minute is over: most cards hold no state at all


@sl.pipeline(
    source=sl.files("data/payments", schema="card string, amount double, paid_at timestamp"),
    sinks={"accepted": sl.table("shop.payments"), "alerts": sl.table("shop.fraud_alerts")},
    event_time="paid_at",
    allowed_lateness="10 s",
    late="side_table",
)
def fraud(payments: DataFrame) -> dict[str, DataFrame]:
    found = sl.keyed(
        payments,
        by="card",
        order_by="paid_at",
        process=CardWatch(),
        output="card string, paid_at timestamp, amount double",
        side_outputs={"alerts": "card string, tried_at timestamp, tried_amount double, paid_at timestamp, amount double"},
    )
    return {"accepted": found.main, "alerts": found["alerts"]}
