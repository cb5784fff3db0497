"""A visit ends when nothing comes for half an hour: a timer per visitor, moved on by every click."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame

import strandline as sl

GAP = timedelta(minutes=30)


class Visits(sl.KeyedProcess):
    visit = sl.value_state("struct<started: timestamp, last: timestamp, clicks: bigint>")

    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> Iterator[Any]:
        for click in events:
            visit = self.visit.get()
            if visit is not None:
                ctx.delete_timer(visit.last + GAP)
                if click.at - visit.last >= GAP:
                    yield (key, *visit)
                    visit = None
            started, last, clicks = visit or (click.at, click.at, 0)
            last = max(last, click.at)
            self.visit.update((started, last, clicks + 1))
            ctx.set_timer(last + GAP)

    def on_timer(self, key: Any, at: datetime, ctx: sl.Context) -> Iterator[Any]:
        yield (key, *self.visit.get())
        self.visit.clear()


@sl.pipeline(
    source=sl.files("data/clicks", schema="visitor string, page string, at timestamp"),
    sink=sl.table("shop.visits"),
    event_time="at",
    allowed_lateness="10 minutes",
    late="side_table",
)
def sessions(clicks: DataFrame) -> DataFrame:
    return sl.keyed(
        clicks, by="visitor", order_by="at", process=Visits(), output="visitor string, started timestamp, ended timestamp, clicks bigint"
    )
