"""What Spark does natively, under our names: real streams in several batches, and plain Python beside them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strandline as sl
from strandline.model.errors import DefinitionError
from strandline.testing import generated_orders, table_rows
from strandline.testing.fixtures import Sandbox

pytestmark = pytest.mark.engine

START = datetime(2026, 1, 1, 9, tzinfo=timezone.utc)
LATENESS = 10
FAR = 100_000
"""A time so much later that everything before it is final."""

Event = tuple[str, int]
"""Who, and when in seconds after the start."""


class Stream:
    """Events that come batch by batch, in files; times go in and come out as seconds after the start."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._runs = 0

    def rows(self, side: str = "left", time: str = "at", watermark: bool = True) -> DataFrame:
        (self._folder / side).mkdir(exist_ok=True)
        read = self._spark.readStream.schema(f"who string, {time} timestamp").json(str(self._folder / side))
        return read.withWatermark(time, f"{LATENESS} seconds") if watermark else read

    def collect(
        self, build: Callable[[], DataFrame], *batches: Sequence[Event] | Mapping[str, Sequence[Event]], time: str = "at"
    ) -> list[Any]:
        """The rows of all batches."""
        found: list[Any] = []
        for batch in batches:
            self._runs += 1
            for side, events in (batch if isinstance(batch, Mapping) else {"left": batch}).items():
                (self._folder / side).mkdir(exist_ok=True)
                name = "at" if side == "left" else time
                lines = [json.dumps({"who": who, name: (START + timedelta(seconds=at)).isoformat()}) + "\n" for who, at in events]
                (self._folder / side / f"{self._runs}.json").write_text("".join(lines))
            self._run(build(), found)
        return found

    def _run(self, frame: DataFrame, into: list[Any]) -> None:
        times = [field.name for field in frame.schema.fields if field.dataType.typeName() == "timestamp"]
        seconds = {name: F.unix_timestamp(name) - int(START.timestamp()) for name in times}

        def keep(batch: DataFrame, number: int) -> None:
            into.extend(tuple(row) for row in batch.withColumns(seconds).collect())

        started = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._folder / "checkpoint"))
        started.trigger(availableNow=True).start().awaitTermination()


@pytest.fixture
def stream(spark_home: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark_home, tmp_path)


# -- deduplication -----------------------------------------------------------------------------------------------------


def test_a_duplicate_is_dropped_within_the_given_time_and_not_long_after_it(stream: Stream) -> None:
    """`within` is not the watermark's delay: here it is six times as long."""
    found = stream.collect(
        lambda: sl.dedupe(stream.rows(), by="who", within="60 s"),
        [("a", 0), ("b", 5)],
        [("a", 50), ("a", 58), ("b", 65)],
        [("c", 200)],
        [("a", 201), ("c", 195)],
    )

    assert found == [("a", 0), ("b", 5), ("c", 200), ("a", 201)] or found == [("b", 5), ("a", 0), ("c", 200), ("a", 201)]


def test_without_a_time_key_and_event_time_make_the_duplicate(stream: Stream) -> None:
    batches = [[("a", 0), ("a", 0), ("b", 3)], [("a", 0), ("a", 1), ("b", 3)]]

    found = stream.collect(lambda: sl.dedupe(stream.rows(), by="who"), *batches)

    assert sorted(found) == sorted({event for batch in batches for event in batch})


def test_for_ever_needs_no_watermark_and_the_rest_says_so(stream: Stream) -> None:
    found = stream.collect(lambda: sl.dedupe(stream.rows(watermark=False), by=["who"], forever=True), [("a", 0)], [("a", FAR), ("b", 0)])
    assert sorted(found) == [("a", 0), ("b", 0)]

    for within in (None, "1 minute"):
        with pytest.raises(
            DefinitionError, match=r"sl\.dedupe needs a watermark.*declare event_time= in sl\.pipeline, or write forever=True"
        ):
            sl.dedupe(stream.rows(watermark=False), by="who", within=within)


# -- windows -----------------------------------------------------------------------------------------------------------

CLICKS: list[list[Event]] = [
    [("a", 0), ("a", 7), ("b", 12), ("a", 31)],
    [("b", 28), ("a", 36), ("a", 59), ("b", 61)],
    [("a", 90), ("c", 119), ("c", 121)],
    [("z", FAR)],
]
"""Never late: the watermark is ten seconds behind the newest event of the batches before."""


def counted(windows: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int, int]]:
    counts: dict[tuple[str, int, int], int] = defaultdict(int)
    for window in windows:
        counts[window] += 1
    return sorted((*window, count) for window, count in counts.items())


def every_click() -> list[Event]:
    return [event for batch in CLICKS[:-1] for event in batch]


def test_tumbling_windows(stream: Stream) -> None:
    found = stream.collect(lambda: sl.tumbling(stream.rows(), time="at", size="30 s", by="who").agg(F.count("*").alias("n")), *CLICKS)

    assert sorted(found) == counted((who, at // 30 * 30, at // 30 * 30 + 30) for who, at in every_click())


def test_sliding_windows_without_a_key(stream: Stream) -> None:
    found = stream.collect(lambda: sl.sliding(stream.rows(), time="at", size="30 s", slide="10 s").agg(F.count("*").alias("n")), *CLICKS)

    starts = [(at // 10 * 10 - back, at // 10 * 10 - back + 30) for _, at in every_click() for back in (0, 10, 20)]
    assert sorted(found) == [row[1:] for row in counted(("", *window) for window in starts)]


def test_sessions(stream: Stream) -> None:
    found = stream.collect(lambda: sl.sessions(stream.rows(), time="at", gap="20 s", by=["who"]).agg(F.count("*").alias("n")), *CLICKS)

    expected = []
    for who in "abc":
        times = sorted(at for name, at in every_click() if name == who)
        session = [times[0]]
        for at in [*times[1:], FAR]:
            if at - session[-1] >= 20:
                expected.append((who, session[0], session[-1] + 20, len(session)))
                session = []
            session.append(at)
    assert sorted(found) == sorted(expected)


# -- joins -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["inner", "left"])
def test_two_streams_are_joined_within_their_times(stream: Stream, how: Any) -> None:
    orders: list[list[Event]] = [[("a", 0), ("b", 10), ("c", 20)], [("a", 70), ("d", 75)], [("z", FAR)]]
    payments: list[list[Event]] = [[("a", 30), ("a", 61), ("b", 100)], [("d", 50), ("c", 80), ("a", 99)], [("y", FAR)]]

    def build() -> DataFrame:
        paid = stream.rows("right", "paid_at")
        return sl.join_streams(stream.rows(), paid, on="who", left_time="at", right_time="paid_at", within="1 minute", how=how)

    batches = [{"left": left, "right": right} for left, right in zip(orders, payments, strict=True)]
    found = stream.collect(build, *batches, time="paid_at")

    ordered, paid = ([event for batch in side[:-1] for event in batch] for side in (orders, payments))
    pairs: list[tuple[str, int, int | None]] = [
        (who, at, then) for who, at in ordered for other, then in paid if who == other and abs(then - at) <= 60
    ]
    alone: list[tuple[str, int, int | None]] = [(who, at, None) for who, at in ordered if not any(pair[:2] == (who, at) for pair in pairs)]
    assert sorted(found, key=str) == sorted(pairs + (alone if how == "left" else []), key=str)
    assert len(pairs) == 6 and alone == [("b", 10, None)]


# -- inside a pipeline, and what cannot work ----------------------------------------------------------------------------


def test_a_pipeline_declares_the_watermark(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
import strandline as sl
from pyspark.sql import functions as F

@sl.pipeline(source=sl.generator(events_per_batch=100, total=300, duplicates=0.2, rate=1), sink=sl.table("shop.minutes"),
             event_time="placed_at", allowed_lateness="1 minute", checkpoint=sl.checkpoint(every="0 s"))
def minutes(orders):
    once = sl.dedupe(orders, by="order_id", within="10 minutes")
    return sl.tumbling(once, time="placed_at", size="1 minute", by="customer").agg(F.count("*").alias("orders"))
""")
    sandbox.run("minutes")

    sent = list(generated_orders(sl.generator(total=300, duplicates=0.2, rate=1)))
    first = {order.order_id: order for order in reversed(sent)}.values()
    final = max(order.placed_at for order in sent) - timedelta(minutes=1)
    counts: dict[tuple[str, datetime], int] = defaultdict(int)
    for order in first:
        start = order.placed_at.replace(second=0, microsecond=0)
        if start + timedelta(minutes=1) <= final:
            counts[order.customer, start] += 1
    found = {(row["customer"], row["window_start"]): row["orders"] for row in table_rows(sandbox.project, "shop.minutes")}
    assert found == counts


def test_what_cannot_work_is_one_sentence(stream: Stream, spark_home: SparkSession) -> None:
    rows, other = stream.rows(), stream.rows("right")
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: sl.dedupe(rows, by="whom"), r"sl\.dedupe: 'whom' is not a column of its input \(who, at\)"),
        (lambda: sl.dedupe(rows, by="who", within="1 minute", forever=True), "exclude each other"),
        (lambda: sl.dedupe(rows, by="who", within="soon"), "'soon' is not a duration"),
        (lambda: sl.tumbling(rows, time="at", size="0 s"), r"sl\.tumbling: size is '0 s'; it is at least 1 ms"),
        (lambda: sl.sliding(rows, time="at", size="10 s", slide="30 s"), r"slide '30 s' is longer than size '10 s'"),
        (lambda: sl.sessions(rows, time="at", gap="10 s", by=[]), r"sl\.sessions: by= is empty"),
        (
            lambda: sl.tumbling(rows.withColumn("then", F.expr("at + interval 1 hour")), time="then", size="1 minute"),
            r"column 'then' has no watermark \(column 'at' has one\), so its state would be kept for ever; declare event_time='then'",
        ),
        (
            lambda: sl.join_streams(rows, other, on="who", left_time="at", right_time="at", within="1 minute"),
            "both sides have a column 'at'; rename one of them",
        ),
        (
            lambda: sl.join_streams(rows, other, on="who", left_time="at", right_time="at", within="1 minute", how="outer"),  # type: ignore[arg-type]
            r"how of sl\.join_streams is 'outer'; allowed: inner, left",
        ),
    ]
    for call, sentence in refused:
        with pytest.raises(DefinitionError, match=sentence):
            call()
