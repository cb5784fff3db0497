"""Keyed state on Spark: what a processor keeps, tells and refuses, from events to tables."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strandline as sl
from strandline.model.errors import DefinitionError, SourceProblem, TransformFailed
from strandline.model.positions import SnapshotPosition
from strandline.runtime.options import ForBatches
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import generated_orders, table_rows
from strandline.testing.fixtures import Sandbox
from strandline.testing.kafka import KafkaForTests

pytestmark = pytest.mark.engine

TOTALS = """
import strandline as sl

class Totals(sl.KeyedProcess):
    total = sl.reducing_state("double", lambda a, b: a + b)
    orders = sl.value_state("bigint", default=0)
    {more}
    def process(self, key, events, ctx):
        for event in events:
            {each}
            self.total.add(event.amount)
        self.orders.update(self.orders.get() + len(events))
        yield key, round(self.total.get(), 6), self.orders.get()

@sl.pipeline(source=sl.generator(events_per_batch=40, total={total}), sink=sl.table("shop.totals", mode="upsert", key="customer", order_by="orders"),
             output_mode="update", checkpoint=sl.checkpoint(every="0 s"))
def totals(orders):
    return sl.keyed(orders, by="customer", process=Totals(), output="customer string, total double, orders bigint")
"""


def totals(total: int = 120, more: str = "", each: str = "pass") -> str:
    return TOTALS.format(total=total, more=more, each=each)


def expected_totals(total: int) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for order in generated_orders(sl.generator(total=total)):
        sums[order.customer] += order.amount
    return {customer: round(amount, 6) for customer, amount in sums.items()}


def found_totals(sandbox: Sandbox) -> dict[str, float]:
    return {row["customer"]: row["total"] for row in table_rows(sandbox.project, "shop.totals")}


# -- from run to run --------------------------------------------------------------------------------------------------


def test_state_goes_on_from_batch_to_batch_and_from_run_to_run(sandbox: Sandbox) -> None:
    sandbox.pipelines(totals())

    first = sandbox.run("totals", ForBatches(2))
    sizes = sandbox.ledger.state_sizes.of_operator("totals", first.strand, "totals")
    sandbox.run("totals")

    assert found_totals(sandbox) == pytest.approx(expected_totals(120))
    assert [size.batch for size in sizes] == [1, 0]
    assert sizes[0].keys == sizes[0].entries["total"] == len(expected_totals(80))
    assert sizes[0].bytes > 0


def test_a_state_may_be_added_and_a_field_too(sandbox: Sandbox) -> None:
    sandbox.pipelines(totals(more='last = sl.value_state("struct<n: int>")', each="self.last.update((1,))"))
    sandbox.run("totals", ForBatches(1))

    wider = 'last = sl.value_state("struct<n: bigint, note: string>")\n    seen = sl.list_state("string")'
    check = "old = self.last.get(); assert old is None or old.n >= 1; self.last.update(((old.n if old else 0) + 2**40, 'x')); self.seen.add('y')"
    sandbox.pipelines(totals(more=wider, each=check))
    sandbox.run("totals")

    assert found_totals(sandbox) == pytest.approx(expected_totals(120))


def test_state_that_cannot_be_read_any_more_is_refused_before_the_run(sandbox: Sandbox) -> None:
    sandbox.pipelines(totals(more='last = sl.value_state("struct<n: int>")', each="self.last.update((1,))"))
    sandbox.run("totals", ForBatches(1))

    sandbox.pipelines(totals(more='last = sl.value_state("struct<n: string>")'))
    with pytest.raises(
        DefinitionError, match=r"the state of 'totals' cannot be read as it is declared now: field 'last\.n' changes from int to string"
    ):
        sandbox.run("totals")

    clocked = 'timers = "processing"\n    def on_timer(self, key, at, ctx): pass'
    sandbox.pipelines(totals(more=f'last = sl.value_state("struct<n: int>")\n    {clocked}'))
    with pytest.raises(DefinitionError, match="'totals' has processing timers now, its state was begun with no timers"):
        sandbox.run("totals")

    sandbox.pipelines(totals().replace("process=Totals(),", "process=Totals(), name='sums',"))
    with pytest.raises(
        DefinitionError, match="the checkpoint holds state of the keyed operator 'totals', which the pipeline no longer has"
    ):
        sandbox.run("totals")


# -- outputs, control data, initial state -------------------------------------------------------------------------------


def test_side_outputs_go_to_their_own_tables_and_the_operator_runs_once(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
import strandline as sl

class Watch(sl.KeyedProcess):
    count = sl.value_state("bigint", default=0)
    def process(self, key, events, ctx):
        for event in events:
            self.count.update(self.count.get() + 1)
            if self.count.get() == 5:
                ctx.emit("alerts", {"customer": key, "batch": ctx.batch})
        yield key, self.count.get()

@sl.pipeline(source=sl.generator(events_per_batch=50, total=150), checkpoint=sl.checkpoint(every="0 s"),
             sinks={"counts": sl.table("shop.counts"), "alerts": sl.table("shop.alerts")}, output_mode="append")
def watch(orders):
    out = sl.keyed(orders, by="customer", process=Watch(), output="customer string, orders bigint",
                   side_outputs={"alerts": "customer string, batch bigint"})
    return {"counts": out.main, "alerts": out["alerts"]}
""")
    sandbox.run("watch")

    orders: dict[str, int] = defaultdict(int)
    for order in generated_orders(sl.generator(total=150)):
        orders[order.customer] += 1
    alerts = [row["customer"] for row in table_rows(sandbox.project, "shop.alerts")]
    assert sorted(alerts) == sorted(customer for customer, count in orders.items() if count >= 5)
    newest: dict[str, int] = {}
    for row in table_rows(sandbox.project, "shop.counts"):
        newest[row["customer"]] = max(newest.get(row["customer"], 0), row["orders"])
    assert newest == orders, "an operator that ran twice would have counted twice"


def test_outputs_that_were_changed_would_run_the_operator_twice_and_are_refused(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
import strandline as sl

class Both(sl.KeyedProcess):
    def process(self, key, events, ctx):
        ctx.emit("alerts", (key,))
        yield (key,)

@sl.pipeline(source=sl.generator(total=10), sinks={"all": sl.table("shop.all"), "alerts": sl.table("shop.alerts")})
def both(orders):
    out = sl.keyed(orders, by="customer", process=Both(), output="customer string", side_outputs={"alerts": "customer string"})
    return {"all": out.main, "alerts": out["alerts"].where("customer > 'c'")}
""")
    with pytest.raises(DefinitionError, match=r"pipeline 'both' would run a keyed operator more than once \(both\)"):
        sandbox.run("both")


def write(folder: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


RATED = """
import strandline as sl

class Rated(sl.KeyedProcess):
    def process(self, key, events, ctx):
        rules = ctx.control["rules"]
        extra = rules["extra"].value if "extra" in rules else 0
        yield from ((key, event.n * (rules["factor"].value if rules else -1) + extra) for event in events)

@sl.pipeline(sources={{"orders": sl.files("orders", format="json", schema="who string, n bigint"), "rules": {rules}}},
             sink=sl.table("shop.rated"), checkpoint=sl.checkpoint(every="0 s"))
def rated(orders, rules):
    return sl.keyed(orders, by="who", process=Rated(), output="who string, rate bigint", control={{"rules": (rules, "rule")}})
"""


def test_control_data_is_seen_by_every_key_from_the_batch_it_arrives_in(sandbox: Sandbox) -> None:
    orders, rules = sandbox.project.root / "orders", sandbox.project.root / "rules"
    write(orders, "1.json", [{"who": who, "n": n} for n, who in enumerate("abcdef")])
    write(rules, "1.json", [{"rule": "factor", "value": 2}, {"rule": "extra", "value": 100}])
    sandbox.pipelines(RATED.format(rules='sl.files("rules", format="json", schema="rule string, value bigint, _deleted boolean")'))
    sandbox.run("rated")
    assert sorted(row["rate"] for row in table_rows(sandbox.project, "shop.rated")) == [100, 102, 104, 106, 108, 110]

    write(rules, "2.json", [{"rule": "factor", "value": 3}, {"rule": "extra", "_deleted": True}])
    write(orders, "2.json", [{"who": who, "n": 1000} for who in "abcdef"])
    sandbox.run("rated")

    assert sorted(row["rate"] for row in table_rows(sandbox.project, "shop.rated"))[6:] == [3000] * 6
    assert sandbox.ledger.batches.get("rated", sandbox.ledger.attempts.latest("rated").strand, 1).offsets_end.count("rules") == 1  # type: ignore[union-attr, arg-type]


def test_a_table_as_control_data_is_one_snapshot_per_batch_and_its_id_is_in_the_stamp(sandbox: Sandbox) -> None:
    sandbox.sql("CREATE NAMESPACE {c}.shop")
    sandbox.sql("CREATE TABLE {c}.shop.rules (rule string, value bigint) USING iceberg")
    sandbox.sql("INSERT INTO {c}.shop.rules VALUES ('factor', 2), ('extra', 100)")
    orders = sandbox.project.root / "orders"
    write(orders, "1.json", [{"who": who, "n": n} for n, who in enumerate("abc")])
    sandbox.pipelines(RATED.format(rules='sl.snapshots("shop.rules")'))
    sandbox.run("rated")
    rules = next(EmbeddedCatalog(sandbox.project).load("shop.rules").ancestors())
    assert sorted(row["rate"] for row in table_rows(sandbox.project, "shop.rated")) == [100, 102, 104]
    stamp = next(EmbeddedCatalog(sandbox.project).load("shop.rated").ancestors()).stamp
    assert stamp is not None and stamp.end is not None
    assert dict(stamp.end.sources)["rules"] == SnapshotPosition(rules.sequence_number, rules.id)

    sandbox.sql("DELETE FROM {c}.shop.rules WHERE rule = 'extra'")
    sandbox.sql("UPDATE {c}.shop.rules SET value = 3")
    write(orders, "2.json", [{"who": who, "n": 1000} for who in "abc"])
    sandbox.run("rated")
    assert sorted(row["rate"] for row in table_rows(sandbox.project, "shop.rated"))[3:] == [3000] * 3

    sandbox.sql("DELETE FROM {c}.shop.rules")
    write(orders, "3.json", [{"who": "a", "n": 1}])
    sandbox.run("rated")
    assert min(row["rate"] for row in table_rows(sandbox.project, "shop.rated")) == -1


def test_a_batch_whose_control_snapshot_expired_cannot_run_again_and_says_so(sandbox: Sandbox) -> None:
    sandbox.sql("CREATE NAMESPACE {c}.shop")
    sandbox.sql("CREATE TABLE {c}.shop.rules (rule string, value bigint) USING iceberg")
    sandbox.sql("INSERT INTO {c}.shop.rules VALUES ('factor', 2)")
    write(sandbox.project.root / "orders", "1.json", [{"who": "a", "n": 1}])
    sandbox.pipelines(RATED.format(rules='sl.snapshots("shop.rules")'))
    sandbox.run("rated")
    (Path(sandbox.project.checkpoint_of("rated")) / "commits/0").unlink()
    sandbox.sql("INSERT INTO {c}.shop.rules VALUES ('extra', 100)")
    sandbox.sql("CALL {c}.system.expire_snapshots(table => 'shop.rules', older_than => TIMESTAMP '2999-01-01', retain_last => 1)")

    with pytest.raises(
        SourceProblem, match=r"snapshot \d+ of control table 'shop.rules' has expired, .* nothing of this batch entered"
    ) as told:
        sandbox.run("rated")

    assert told.value.next_command == "restore the table, or read its newest snapshot with: strandline run rated --new-strand"
    assert [row["rate"] for row in table_rows(sandbox.project, "shop.rated")] == [2]


def test_a_topic_as_control_data_is_read_from_its_beginning_and_its_offsets_are_in_the_stamp(
    sandbox: Sandbox, kafka: KafkaForTests
) -> None:
    topic = kafka.create_topic(kafka.topic("rules"))
    kafka.produce(topic, [json.dumps({"rule": "factor", "value": 2}), json.dumps({"rule": "extra", "value": 100})], partition=0)
    write(sandbox.project.root / "orders", "1.json", [{"who": who, "n": n} for n, who in enumerate("abc")])
    schema = "rule string, value bigint, _deleted boolean"
    sandbox.pipelines(RATED.format(rules=f'sl.kafka("{topic}", bootstrap="{kafka.bootstrap}", schema="{schema}", start="earliest")'))
    sandbox.run("rated")
    assert sorted(row["rate"] for row in table_rows(sandbox.project, "shop.rated")) == [100, 102, 104]

    kafka.produce(topic, [json.dumps({"rule": "factor", "value": 3}), json.dumps({"rule": "extra", "_deleted": True})], partition=0)
    write(sandbox.project.root / "orders", "2.json", [{"who": who, "n": 1000} for who in "abc"])
    sandbox.run("rated")

    assert sorted(row["rate"] for row in table_rows(sandbox.project, "shop.rated"))[3:] == [3000] * 3
    stamp = next(EmbeddedCatalog(sandbox.project).load("shop.rated").ancestors()).stamp
    assert stamp is not None and stamp.end is not None
    rules = dict(stamp.end.sources)["rules"]
    assert rules is not None and rules.human(None) == f"{topic}[0] 0–4"


def test_initial_state_is_there_before_the_first_event(spark_home: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "1.json", [{"who": "a", "n": 1}, {"who": "b", "n": 2}])
    initial = spark_home.createDataFrame([("a", 10, ["x"]), ("c", 30, ["y", "z"])], "who string, total bigint, names array<string>")

    rows = collected(
        sl.keyed(
            stream(spark_home, tmp_path / "in", "who string, n bigint"),
            by="who",
            process=Seeded(),
            output="who string, total bigint, names bigint",
            initial=initial,
        ),
        tmp_path / "checkpoint",
    )

    assert sorted(rows) == [("a", 11, 1), ("b", 2, 0)]
    with pytest.raises(DefinitionError, match="initial state of keyed operator 'seeded' has column 'sum', which is no state"):
        sl.keyed(
            stream(spark_home, tmp_path / "in", "who string, n bigint"),
            by="who",
            process=Seeded(),
            output="who string",
            initial=initial.withColumnRenamed("total", "sum"),
        )


class Seeded(sl.KeyedProcess):
    total = sl.value_state("bigint", default=0)
    names = sl.list_state("string")

    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> Iterable[Any]:
        self.total.update(self.total.get() + sum(event.n for event in events))
        yield key, self.total.get(), len(self.names)


def stream(spark: SparkSession, folder: Path, schema: str, files: int = 1) -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files).json(str(folder))


def collected(frame: DataFrame, checkpoint: Path, mode: str = "update") -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []

    def keep(batch: DataFrame, number: int) -> None:
        rows.extend(tuple(row) for row in batch.collect())

    query = frame.writeStream.foreachBatch(keep).outputMode(mode).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination()
    return rows


# -- timers ------------------------------------------------------------------------------------------------------------


class Sessions(sl.KeyedProcess):
    """A session ends ten seconds after its last event."""

    events = sl.value_state("struct<count: bigint, last: timestamp>")

    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> None:
        before = self.events.get()
        last = max(event.at for event in events)
        if before is not None:
            ctx.delete_timer(before.last + GAP)
            last = max(last, before.last)
        self.events.update(((before.count if before else 0) + len(events), last))
        ctx.set_timer(last + GAP)

    def on_timer(self, key: Any, at: datetime, ctx: sl.Context) -> Iterable[Any]:
        count = self.events.get().count
        self.events.clear()
        yield key, count, at


GAP = datetime(2024, 1, 1, 0, 0, 10) - datetime(2024, 1, 1)


def test_timers_fire_without_events_and_survive_a_restart(spark_home: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    first = [("a", 0), ("b", 1), ("a", 5)]
    write(folder, "1.json", [{"who": who, "at": f"2024-01-01T00:00:{second:02d}Z"} for who, second in first])

    def run() -> list[tuple[Any, ...]]:
        events = stream(spark_home, folder, "who string, at timestamp").withWatermark("at", "1 second")
        process = sl.keyed(events, by="who", process=Sessions(), output="who string, events bigint, ended timestamp")
        return collected(process.withColumn("ended", F.unix_timestamp("ended")), tmp_path / "checkpoint", "append")

    start = int(datetime(2024, 1, 1, tzinfo=timezone.utc).timestamp())
    assert run() == []
    write(folder, "2.json", [{"who": "c", "at": "2024-01-01T00:00:13Z"}])
    assert run() == [("b", 1, start + 11)], "b has been silent for ten seconds, a has not"
    write(folder, "3.json", [{"who": "c", "at": "2024-01-01T00:00:30Z"}])
    assert run() == [("a", 2, start + 15)]


def test_a_run_of_what_is_available_ends_although_the_processing_clock_goes_on(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
import strandline as sl
from datetime import timedelta

class Reminder(sl.KeyedProcess):
    timers = "processing"
    def process(self, key, events, ctx):
        ctx.set_timer(ctx.processing_time)
    def on_timer(self, key, at, ctx):
        ctx.set_timer(at + timedelta(hours=1))
        yield key, ctx.clock

@sl.pipeline(source=sl.generator(events_per_batch=20, total=40), sink=sl.table("shop.reminders"),
             checkpoint=sl.checkpoint(every="0 s"))
def reminders(orders):
    return sl.keyed(orders, by="customer", process=Reminder(), output="customer string, clock string")
""")
    summary = sandbox.run("reminders")

    assert summary.batches <= 3
    assert {row["clock"] for row in table_rows(sandbox.project, "shop.reminders")} == {"processing"}


# -- what cannot work ----------------------------------------------------------------------------------------------------


def test_an_error_in_user_code_names_key_event_and_line(sandbox: Sandbox) -> None:
    sandbox.pipelines(totals(each="1 / (event.seq - 7)"))

    with pytest.raises(
        TransformFailed,
        match=r"Totals of 'totals' failed for key '.+', event .*seq=7.* at .*\.py:\d+ \(1 / \(event.seq - 7\)\): ZeroDivisionError: division by zero",
    ):
        sandbox.run("totals")


def test_a_value_of_the_wrong_type_names_the_state(sandbox: Sandbox) -> None:
    sandbox.pipelines(totals(more='last = sl.value_state("bigint")', each="self.last.update(event.customer)"))

    with pytest.raises(TransformFailed, match=r"field 'last' must be bigint, but it is str"):
        sandbox.run("totals")


def test_a_row_that_does_not_fit_its_schema_is_refused(sandbox: Sandbox) -> None:
    sandbox.pipelines(totals().replace("yield key, round", "yield key, 'about ' + str").replace("total.get(), 6)", "total.get())"))

    with pytest.raises(TransformFailed, match=r"Totals of 'totals' made a row that does not fit its output: field 'total' must be double"):
        sandbox.run("totals")


def test_an_event_without_a_key_is_named(sandbox: Sandbox) -> None:
    sandbox.pipelines(
        totals().replace('orders, by="customer"', 'orders.selectExpr("nullif(customer, customer) as customer", "amount"), by="customer"')
    )

    with pytest.raises(SourceProblem, match=r"'totals' got an event whose key 'customer' is null: \{.*'amount'"):
        sandbox.run("totals")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('by="customer"', 'by="client"'), "'client' is not a column of its input"),
        (('output="customer string, total double, orders bigint"', 'output="customer strin"'), "output of keyed operator 'totals'"),
        (("process=Totals()", "process=Totals(), order_by='when'"), "'when' is not a column of its input"),
        (('"double", lambda', '"dubble", lambda'), "state 'total' of Totals"),
        (("lambda a, b: a + b)", "lambda a, b: a + b, ttl=sl.ttl('0 s'))"), "keeps nothing"),
        (("def process", "def on_timer(self, key, at, ctx): pass\n    def process"), "has event timers, but its input has no watermark"),
        (("def process", "timers = 'both'\n    def process"), "declares timers = 'both', but has no method on_timer"),
        (("def process", "def __init__(self): import threading; self.lock = threading.Lock()\n    def process"), "its attribute 'lock'"),
    ],
)
def test_a_wrong_declaration_is_one_sentence(sandbox: Sandbox, change: tuple[str, str], sentence: str) -> None:
    sandbox.pipelines(totals().replace(*change))

    with pytest.raises(Exception, match=sentence) as refused:
        sandbox.run("totals")
    assert isinstance(refused.value, (DefinitionError, TransformFailed))


def test_a_clock_in_user_code_gets_a_hint(sandbox: Sandbox) -> None:
    sandbox.pipelines(totals(total=40, each="import datetime; datetime.datetime.now()"))

    sandbox.run("totals")

    assert any("calls datetime.datetime.now() in line" in said for said in sandbox.heard.said)
