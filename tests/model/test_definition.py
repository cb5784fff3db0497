"""Declarations are checked when they are made: what is wrong is said with what would be right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.model.definition import SINGLE, CheckpointPolicy
from strandline.model.errors import DefinitionError

ORDERS = sl.generator()
USERS = sl.files("data/users", schema="name string")
TABLE = sl.table("shop.orders")


def one(orders: Any) -> Any:
    return orders


def two(orders: Any, users: Any) -> Any:
    return orders, users


def declare(function: Callable[..., Any] = one, **arguments: Any) -> sl.Pipeline:
    return sl.pipeline(**{"source": ORDERS, "sink": TABLE, **arguments})(function)


# -- what is right -------------------------------------------------------------------------------------------


def test_a_pipeline_takes_its_name_file_and_source_name_from_its_function() -> None:
    pipeline = declare()

    assert pipeline.name == "one"
    assert pipeline.file == Path(__file__)
    assert pipeline.sources == {"orders": ORDERS}
    assert pipeline.sinks == {SINGLE: TABLE}
    assert pipeline.single_output
    assert pipeline.tables() == ["shop.orders"]
    assert pipeline.allowed_lateness == timedelta(seconds=10)
    assert pipeline.checkpoint == CheckpointPolicy()


def test_several_sources_and_sinks_go_by_name() -> None:
    pipeline = sl.pipeline(
        sources={"users": USERS, "orders": ORDERS},
        sinks={"all": TABLE, "vip": sl.table("shop.vip")},
        event_time={"orders": "placed_at"},
        name="shop-feed",
    )(two)

    assert pipeline.name == "shop-feed"
    assert not pipeline.single_output
    assert pipeline.tables() == ["shop.orders", "shop.vip"]
    assert pipeline.side_table_base == "shop.orders"
    assert pipeline.event_time == {"orders": "placed_at"}


def test_one_event_time_goes_for_all_sources() -> None:
    pipeline = sl.pipeline(sources={"users": USERS, "orders": ORDERS}, sink=TABLE, event_time="at")(two)

    assert pipeline.event_time == {"users": "at", "orders": "at"}


def test_one_column_needs_no_list() -> None:
    table = sl.table("shop.totals", mode="upsert", key="customer", order_by="seq", partition_by="days(placed_at)", sort_by="amount")

    assert (table.key, table.partition_by, table.sort_by) == (("customer",), ("days(placed_at)",), ("amount",))
    assert table == sl.table(
        "shop.totals", mode="upsert", key=["customer"], order_by="seq", partition_by=["days(placed_at)"], sort_by=["amount"]
    )


@pytest.mark.parametrize(
    "transform", ["c", "years(c)", "months(c)", "days(c)", "hours(c)", "bucket(8, c)", "bucket(8,c)", "truncate(4, c)"]
)
def test_every_partition_transform_of_iceberg_can_be_declared(transform: str) -> None:
    assert sl.table("shop.orders", partition_by=transform).partition_by == (transform,)


def test_durations_can_be_words_or_timedeltas() -> None:
    assert sl.checkpoint(every="30 s", min_pause=timedelta(seconds=1), timeout="2 minutes") == CheckpointPolicy(
        every=timedelta(seconds=30), min_pause=timedelta(seconds=1), timeout=timedelta(minutes=2)
    )
    assert sl.generator(late_by="2 hours").late_by == timedelta(hours=2)


def test_declarations_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        TABLE.name = "shop.other"  # type: ignore[misc]


# -- what is wrong -------------------------------------------------------------------------------------------


def wrong(make: Callable[[], object]) -> str:
    with pytest.raises(DefinitionError) as refused:
        make()
    assert refused.value.exit_code == 2
    assert refused.value.next_command
    return refused.value.message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sl.files("d", schema="a int", format="xml"), "files(format=…) is 'xml'; allowed: json, csv, parquet"),  # type: ignore[arg-type]
        (
            lambda: sl.files("d", schema="a int", malformed="skip"),  # type: ignore[arg-type]
            "files(malformed=…) is 'skip'; allowed: stop, quarantine",
        ),
        (lambda: sl.files("d", schema="a int", max_files_per_batch=0), "files(max_files_per_batch=…) is 0; it must be at least 1"),
        (
            lambda: sl.files("d", schema="a int", format="parquet", malformed="quarantine"),
            "files(format='parquet', malformed='quarantine') is not possible: a Parquet file is readable or it is not, "
            "single records cannot be malformed; use malformed='stop'",
        ),
    ],
)
def test_a_wrong_files_source(make: Callable[[], object], message: str) -> None:
    assert wrong(make) == message


@pytest.mark.parametrize("name", ["duplicates", "late", "out_of_order"])
@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_of_the_generator_is_between_0_and_1(name: str, share: float) -> None:
    assert wrong(lambda: sl.generator(**{name: share})) == f"generator({name}=…) is {share}; it is a share between 0 and 1"  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"events_per_batch": 0}, {"rate": 0.0}, {"rate": -1.0}])
def test_a_generator_makes_something(arguments: dict[str, Any]) -> None:
    assert wrong(lambda: sl.generator(**arguments)) == "generator(events_per_batch=…, rate=…) must both be positive"


def test_a_generator_with_a_wrong_duration() -> None:
    assert "'a while' is not a duration" in wrong(lambda: sl.generator(late_by="a while"))


@pytest.mark.parametrize("name", ["orders", "", "shop.", ".orders", "shop.or ders", "shop.1orders", "shop;drop.orders", "shop.`x`"])
def test_a_table_name_has_a_namespace(name: str) -> None:
    assert wrong(lambda: sl.table(name)) == f"table name '{name}' must be namespace.table, such as shop.orders"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sl.table("shop.t", mode="merge"), "table(mode=…) is 'merge'; allowed: append, upsert"),  # type: ignore[arg-type]
        (lambda: sl.table("shop.t", mode="upsert", order_by="seq"), "needs key=[…] and order_by='column'"),
        (lambda: sl.table("shop.t", mode="upsert", key="id"), "needs key=[…] and order_by='column'"),
        (lambda: sl.table("shop.t", key="id"), "table('shop.t') has key or order_by, which only mode='upsert' uses"),
        (lambda: sl.table("shop.t", order_by="seq"), "table('shop.t') has key or order_by, which only mode='upsert' uses"),
        (lambda: sl.table("shop.t", format_version=1), "table('shop.t', format_version=1); allowed: 2, 3"),
        (lambda: sl.table("shop.t", keep_snapshots=3), "table('shop.t', keep_snapshots=3); keep at least 10, or None to keep all"),
        (
            lambda: sl.table("shop.t", partition_by="weeks(placed_at)"),
            "partition_by 'weeks(placed_at)' of table 'shop.t' is not a partition transform; allowed: column, years(c), months(c), "
            "days(c), hours(c), bucket(N, c), truncate(N, c)",
        ),
    ],
)
def test_a_wrong_table(make: Callable[[], object], message: str) -> None:
    assert message in wrong(make)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sl.checkpoint(on_cancel="burn"), "checkpoint(on_cancel=…) is 'burn'; allowed: keep, delete"),  # type: ignore[arg-type]
        (lambda: sl.checkpoint(retain=1), "checkpoint(retain=1); a restart needs the last two batches, so at least 2"),
        (lambda: sl.checkpoint(timeout="0 s"), "checkpoint(timeout=…) must be longer than zero"),
        (lambda: sl.checkpoint(every="often"), "'often' is not a duration; write a number and a unit such as '500 ms'"),
    ],
)
def test_a_wrong_checkpoint_policy(make: Callable[[], object], message: str) -> None:
    assert message in wrong(make)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sl.pipeline(sink=TABLE), "a pipeline needs either source=… or sources={…}"),
        (lambda: sl.pipeline(source=ORDERS, sources={"orders": ORDERS}, sink=TABLE), "a pipeline needs either source=… or sources={…}"),
        (lambda: sl.pipeline(source=ORDERS), "a pipeline needs either sink=… or sinks={…}"),
        (lambda: sl.pipeline(source=ORDERS, sink=TABLE, sinks={"a": TABLE}), "a pipeline needs either sink=… or sinks={…}"),
        (lambda: declare(name="9 lives"), "pipeline '9 lives': a name starts with a letter and holds letters, digits, '_' and '-'"),
        (lambda: declare(lambda orders: orders), "pipeline '<lambda>': a name starts with a letter"),
        (lambda: declare(two), "pipeline 'two' has one source but its function takes 2 parameters (orders, users)"),
        (lambda: declare(lambda: None, name="p"), "pipeline 'p' has one source but its function takes 0 parameters (none)"),
        (
            lambda: declare(two, source=None, sources={"orders": ORDERS, "user": USERS}),
            "pipeline 'two': sources are named ['orders', 'user'] but the function takes ['orders', 'users']; they must be the same names",
        ),
        (lambda: declare(sink=None, sinks={}), "pipeline 'one' has no sink"),
        (
            lambda: declare(sink=None, sinks={"a": TABLE, "b": sl.table("shop.orders")}),
            "pipeline 'one' writes the same output twice: shop.orders, shop.orders",
        ),
        (lambda: declare(late="ignore"), "pipeline 'one': late is 'ignore'; allowed: drop, side_table, label"),
        (lambda: declare(output_mode="complete"), "pipeline 'one': output_mode is 'complete'; allowed: append, update"),
        (
            lambda: declare(event_time={"clicks": "at"}),
            "pipeline 'one': event_time names ['clicks'], which is no source; sources: ['orders']",
        ),
        (
            lambda: declare(output_mode="update"),
            "pipeline 'one': output_mode='update' emits a row again when it changes; its tables need mode='upsert'",
        ),
        (lambda: declare(allowed_lateness="a bit"), "'a bit' is not a duration"),
    ],
)
def test_a_wrong_pipeline(make: Callable[[], object], message: str) -> None:
    assert message in wrong(make)
