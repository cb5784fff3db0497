"""Canonical savepoints on Spark: restored into other partitions, other buckets and other code, as if the run had never been interrupted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from strandline.checkpoints.place import current_checkpoint
from strandline.ledger.records import SavepointState
from strandline.model.errors import DefinitionError, SavepointDamaged, UsageError
from strandline.model.savepoint import Savepoint, SavepointType
from strandline.runtime.keyed.inspecting import StateReader
from strandline.runtime.keyed.records import operator_records
from strandline.runtime.options import Allowances, ForBatches
from strandline.runtime.rehearsal import rehearse
from strandline.runtime.run import run_pipeline
from strandline.savepoints.archive import archive_of, find_archive
from strandline.savepoints.attending import savepoint_keeper
from strandline.savepoints.catalogue import examine, export
from strandline.savepoints.disposing import dispose
from strandline.savepoints.restoring import RestorePlan, plan_from_savepoint
from strandline.savepoints.session import SessionTags
from strandline.savepoints.table_plans import CONTINUE, ROLLBACK, Tables
from strandline.savepoints.taking import Taker, Wish
from strandline.state.reading import KeyState
from strandline.testing import assert_chain_unbroken, table_rows
from strandline.testing.fixtures import Sandbox

pytestmark = pytest.mark.engine

UTC = timezone.utc
BASE = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = "spark.sql.shuffle.partitions"

VISITS = """
import strandline as sl
from datetime import timedelta

class Visits(sl.KeyedProcess):
    seen = sl.value_state("{seen}", default={default})
    recent = sl.list_state("bigint")
    halves = sl.map_state("string", "bigint")
    last = sl.value_state("struct<n: bigint, at: timestamp>", ttl=sl.ttl("30 days"))

    def process(self, key, events, ctx):
        for event in events:
            {count}
            self.recent.update((self.recent.get() + [event.n])[-3:])
            half = "odd" if event.n % 2 else "even"
            self.halves.put(half, self.halves.get(half, 0) + 1)
            before = self.last.get()
            self.last.update((event.n, event.at))
            ctx.set_timer(event.at + timedelta(minutes=90))
            yield event.n, key, total, self.recent.get(), self.halves.get(half), before.n if before else None, "event"

    def on_timer(self, key, at, ctx):
        yield None, key, None, None, None, None, at.isoformat()

@sl.pipeline(source=sl.files("data", format="json", schema="n bigint, who string, at timestamp", max_files_per_batch=1),
             sink=sl.table("shop.visits"), event_time="at", allowed_lateness="0 seconds", checkpoint=sl.checkpoint(every="0 s"))
def visits(events):
    return sl.keyed(events, by="who", process=Visits(), order_by="n", buckets={buckets},
                    output="n bigint, who string, seen bigint, recent array<bigint>, half bigint, before bigint, what string")
"""
FIRST = {
    "seen": "bigint",
    "default": "0",
    "count": "total = self.seen.get() + 1; self.seen.update(total)",
    "buckets": 3,
}
SECOND = {
    "seen": "bigint",
    "default": "0",
    "count": "total = self.seen.get() + 1; self.seen.update(total); self.first.exists() or self.first.update((event.n, 'later'))",
    "buckets": 7,
}
ONE_MORE_STATE = '\n    first = sl.value_state("struct<n: bigint, how: string>")'


def code(**parts: Any) -> str:
    return VISITS.format(**parts)


def events_of(number: int) -> list[tuple[int, str, datetime]]:
    """An hour of twelve events; every customer is in every hour."""
    return [(n, f"w{n % 5}", BASE + timedelta(hours=number, minutes=5 * (n % 12))) for n in range(number * 12, number * 12 + 12)]


def add_file(shop: Sandbox, number: int) -> None:
    folder = shop.folder / "data"
    folder.mkdir(exist_ok=True)
    file = folder / f"{number:03d}.json"
    lines = [{"n": n, "who": who, "at": at.isoformat()} for n, who, at in events_of(number)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(file, (1_800_000_000 + number,) * 2)  # Spark takes the oldest first


def expected(files: int) -> list[tuple[Any, ...]]:
    """Computed in one go, without any engine."""
    rows: list[tuple[Any, ...]] = []
    per_key: dict[str, list[int]] = {}
    events = [event for number in range(files) for event in events_of(number)]
    for n, who, _ in events:
        before = per_key.setdefault(who, [])
        own = [*before, n]
        rows.append((n, who, len(own), own[-3:], sum(1 for m in own if m % 2 == n % 2), before[-1] if before else None, "event"))
        per_key[who] = own
    watermark = max(at for _, _, at in events)
    due = {(who, at + timedelta(minutes=90)) for _, who, at in events if at + timedelta(minutes=90) <= watermark}
    rows += [(None, who, None, None, None, None, at.isoformat()) for who, at in due]
    return sorted(rows, key=repr)


def found(shop: Sandbox) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table_rows(shop.project, "shop.visits")), key=repr)


def state_after(shop: Sandbox, batch: int | None = None, name: str = "visits") -> dict[Any, KeyState]:
    """Every key with all it holds, its timers and its touches."""
    checkpoint = current_checkpoint(shop.project, name)
    at = checkpoint.completed()[-1] if batch is None else batch
    reader = StateReader(shop.spark, checkpoint, operator_records(checkpoint), name)
    return {key.key: key for operator in reader.operators(at) for bucket in reader.buckets(operator, at) for key in bucket}


@pytest.fixture
def shop(sandbox: Sandbox) -> Iterator[Sandbox]:
    sandbox.pipelines(code(**FIRST))
    for number in range(3):
        add_file(sandbox, number)
    partitions = sandbox.spark.conf.get(PARTITIONS)
    yield sandbox
    sandbox.spark.conf.set(PARTITIONS, partitions or "2")


def take(shop: Sandbox, name: str = "visits", **wish: Any) -> Savepoint:
    with SessionTags(shop.project, "test", shop.heard.say, shop.spark) as tags:
        taker = Taker(shop.project, shop.pipeline(name), shop.ledger, tags, shop.heard.say, engine=tags.session)
        return taker.take(Wish("me@here", SavepointType.CANONICAL, **wish))


def restore(
    shop: Sandbox,
    savepoint: str,
    choice: Tables = ROLLBACK,
    name: str = "visits",
    dropped: tuple[str, ...] = (),
    **run: Any,
) -> RestorePlan:
    archive = find_archive(shop.project, name, savepoint)
    rehearsed = rehearse(shop.spark, shop.project, shop.pipeline(name))
    plan = plan_from_savepoint(shop.project, shop.pipeline(name), shop.ledger, archive, choice, dropped=dropped, code=rehearsed)
    shop.run(name, allow=Allowances(restoration=plan.restoration), **run)
    return plan.plan


def test_state_goes_into_other_partitions_buckets_and_fields_and_nothing_shows(shop: Sandbox) -> None:
    shop.run("visits")
    saved = take(shop)
    before = state_after(shop, saved.batch)
    add_file(shop, 3)
    shop.run("visits")
    shop.pipelines(code(**SECOND).replace("default=0)", "default=0)" + ONE_MORE_STATE))
    shop.spark.conf.set(PARTITIONS, "5")

    plan = restore(shop, saved.id, ROLLBACK)

    assert plan.state == ("operator visits: 5 keys in 7 buckets and 5 partitions; state 'first' begins empty",)
    after = state_after(shop, 0)
    assert {key: (state.timers, state.states) for key, state in after.items()} == {
        key: (state.timers, state.states) for key, state in before.items()
    }, "as it was after the saved batch: values, timers, and when each was touched"
    assert all(held.touched for state in after.values() for name, held in state.states.items() if name == "last")
    assert found(shop) == expected(4)
    checkpoint = current_checkpoint(shop.project, "visits")
    assert {row["numPartitions"] for row in shop.spark.read.format("state-metadata").load(checkpoint.location).collect()} == {5}
    assert not (Path(checkpoint.location) / "strandline-seed").exists()
    for number in (4, 5):
        add_file(shop, number)
    shop.run("visits", ForBatches(1))
    shop.run("visits")
    assert found(shop) == expected(6)
    assert_chain_unbroken(shop.project, "shop.visits", "visits")
    assert all(state.states["first"].value.how == "later" for state in state_after(shop).values())


def test_its_files_are_plain_parquet_in_the_declared_types(shop: Sandbox) -> None:
    shop.run("visits")

    saved = take(shop, note="before the rescale")

    archive = archive_of(shop.project, "visits", saved.id)
    (operator,) = saved.operators
    assert (saved.type, operator["name"], operator["keys"], operator["entries"]["halves"]) == (SavepointType.CANONICAL, "visits", 5, 10)
    assert archive.read() == saved
    assert examine(shop.project, archive).restorable
    parts = [file for file in saved.files if file.kind == "state"]
    rows = [row for file in parts for row in pq.read_table(f"{archive.location}/{file.path}").to_pylist()]
    ada = next(row for row in rows if row["key"] == {"who": "w1"})
    own = [n for number in range(3) for n, who, _ in events_of(number) if who == "w1"]
    assert (ada["states"]["seen"], ada["states"]["recent"]) == (len(own), own[-3:])
    assert {entry["key"]: entry["value"] for entry in ada["states"]["halves"]} == {
        "odd": sum(n % 2 for n in own),
        "even": sum(1 - n % 2 for n in own),
    }
    assert ada["states"]["last"]["value"]["n"] == own[-1]
    assert abs(ada["states"]["last"]["touched"] - datetime.now(UTC)) < timedelta(hours=1)
    assert not [file for file in saved.files if "/state/" in file.path and file.path.startswith("checkpoint/")], (
        "nothing of Spark's own state"
    )


def test_one_of_a_running_pipeline_equals_one_at_rest(shop: Sandbox) -> None:
    for number in range(3, 8):
        add_file(shop, number)
    ledger = shop.ledger
    attempts: list[int] = []
    taken: list[Savepoint] = []

    def hire(spark: Any, started: Any) -> Any:
        keeper = savepoint_keeper(shop.project, ledger, shop.heard)(spark, started)
        attempts.append(started.attempt.number)
        wish = Wish("me@here", SavepointType.CANONICAL, at=None)
        ledger.requests.ask("visits", started.attempt.number, "savepoint", "me@here", wish.encode())
        return keeper

    run_pipeline(shop.project, shop.pipeline("visits"), ForBatches(6), shop.heard, session=shop.spark, hire=[hire])
    (record,) = [r for r in shop.ledger.savepoints.of_pipeline("visits") if r.state is SavepointState.COMPLETE]
    taken.append(find_archive(shop.project, "visits", record.id).read())
    shop.run("visits")

    restore(shop, taken[0].id, ROLLBACK)

    assert state_after(shop, 0).keys() == {(f"w{n}",) for n in range(5)}
    assert found(shop) == expected(8)


def test_a_savepoint_of_a_strand_that_began_from_one_restores_again(shop: Sandbox) -> None:
    shop.run("visits")
    first = take(shop)
    add_file(shop, 3)
    shop.spark.conf.set(PARTITIONS, "3")
    restore(shop, first.id)
    second = take(shop)
    add_file(shop, 4)
    shop.run("visits")
    shop.spark.conf.set(PARTITIONS, "1")

    restore(shop, second.id)

    assert found(shop) == expected(5)
    assert_chain_unbroken(shop.project, "shop.visits", "visits")
    with SessionTags(shop.project, "test", shop.heard.say, shop.spark) as tags:
        dispose(shop.project, "visits", first.id, shop.ledger, tags, by="me@here")


def test_a_moved_one_is_continued_from_where_the_table_is(shop: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> None:
    shop.run("visits")
    saved = take(shop)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    export(archive_of(shop.project, "visits", saved.id), str(elsewhere))
    add_file(shop, 3)

    restore(shop, str(elsewhere), CONTINUE)

    assert found(shop) == expected(4)


def test_a_flipped_byte_is_found_before_anything_is_planned(shop: Sandbox) -> None:
    shop.run("visits")
    saved = take(shop)
    file = Path(archive_of(shop.project, "visits", saved.id).location) / next(f.path for f in saved.files if f.kind == "state")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    assert not examine(shop.project, archive_of(shop.project, "visits", saved.id)).restorable
    with pytest.raises(SavepointDamaged, match=r"state/visits/part-.*its content has changed"):
        restore(shop, saved.id)
    assert found(shop) == expected(3)


# -- other code ----------------------------------------------------------------------------------------------------------

RENAMED = code(**FIRST).replace("buckets=3", 'name="guests"')


def test_state_without_its_operator_is_refused_unless_it_is_let_go_by_name(shop: Sandbox) -> None:
    shop.run("visits")
    saved = take(shop)
    shop.pipelines(RENAMED)
    before = current_checkpoint(shop.project, "visits").location

    with pytest.raises(DefinitionError, match="holds state of the keyed operator 'visits', which the pipeline no longer has") as refused:
        restore(shop, saved.id)
    with pytest.raises(UsageError, match="--allow-dropped-state nobody: savepoint .* holds state of visits"):
        restore(shop, saved.id, dropped=("nobody",))
    assert refused.value.next_command.endswith("add --allow-dropped-state visits")
    assert current_checkpoint(shop.project, "visits").location == before, "nothing was begun"

    add_file(shop, 3)
    plan = restore(shop, saved.id, dropped=("visits",))

    assert plan.state == ("operator visits: the state of 5 keys is dropped", "operator guests: begins empty")
    counted = {row["n"]: row["seen"] for row in table_rows(shop.project, "shop.visits") if row["n"] is not None}
    assert sorted(counted) == list(range(48))
    assert [counted[n] for n in range(36, 41)] == [1] * 5, "it began to count anew"


def test_what_cannot_be_carried_over_is_refused_while_it_is_planned(shop: Sandbox) -> None:
    shop.run("visits")
    saved = take(shop)

    shop.pipelines(code(**FIRST).replace('by="who"', 'by="n"'))
    with pytest.raises(DefinitionError, match=r"is keyed by struct<n: bigint> now, its state by struct<who: string>"):
        restore(shop, saved.id)
    shop.pipelines(code(**FIRST).replace('list_state("bigint")', 'list_state("string")'))
    with pytest.raises(DefinitionError, match=r"the state of 'visits' cannot be read as it is declared now: field 'recent' changes from"):
        restore(shop, saved.id)
    assert found(shop) == expected(3)


ONLY_COUNTS = """
import strandline as sl

class Visits(sl.KeyedProcess):
    seen = sl.value_state("bigint", default=0, ttl=sl.ttl("30 days"))
    last = sl.value_state("struct<n: bigint, at: timestamp>")

    def process(self, key, events, ctx):
        for event in events:
            self.seen.update(self.seen.get() + 1)
            yield event.n, key, self.seen.get(), None, None, self.last.get().n, "event"

@sl.pipeline(source=sl.files("data", format="json", schema="n bigint, who string, at timestamp", max_files_per_batch=1),
             sink=sl.table("shop.visits"), event_time="at", allowed_lateness="0 seconds", checkpoint=sl.checkpoint(every="0 s"))
def visits(events):
    return sl.keyed(events, by="who", process=Visits(), order_by="n",
                    output="n bigint, who string, seen bigint, recent array<bigint>, half bigint, before bigint, what string")
"""


def test_ttl_and_clocks_may_change_and_timers_are_let_go_by_name(shop: Sandbox) -> None:
    shop.run("visits")
    saved = take(shop)
    timers = saved.operators[0]["timers"]["event"]
    shop.pipelines(ONLY_COUNTS)

    with pytest.raises(DefinitionError, match=rf"'visits' has {timers} timers on the event clock, which it does not use any more"):
        restore(shop, saved.id)
    add_file(shop, 3)
    plan = restore(shop, saved.id, dropped=("visits.timers",))

    (told,) = plan.state
    assert told.startswith("operator visits: 5 keys in ")
    assert "state 'seen' gains a ttl, counted from the savepoint; state 'last' loses its ttl; " in told
    assert told.endswith(f"state 'recent' is dropped; state 'halves' is dropped; {timers} timers on the event clock are dropped")
    rows = {row["n"]: (row["seen"], row["before"]) for row in table_rows(shop.project, "shop.visits") if row["n"] is not None}
    own = [n for number in range(4) for n, who, _ in events_of(number) if who == "w1"]
    old = [n for n in own if n < 36]
    assert [rows[n] for n in own if n >= 36] == [(len(old) + place, old[-1]) for place in range(1, len(own) - len(old) + 1)]


# -- what cannot be canonical --------------------------------------------------------------------------------------------

NATIVE = """
import strandline as sl

@sl.pipeline(source=sl.files("data", format="json", schema="n bigint, who string, at timestamp", max_files_per_batch=1),
             sink=sl.table("shop.once"), checkpoint=sl.checkpoint(every="0 s"))
def once(events):
    return sl.dedupe(events, by="n", forever=True)

@sl.pipeline(source=sl.files("data", format="json", schema="n bigint, who string, at timestamp", max_files_per_batch=1),
             sink=sl.table("shop.plain"), checkpoint=sl.checkpoint(every="0 s"))
def plain(events):
    return events
"""


def test_state_of_sparks_own_operators_is_refused_before_anything_is_begun(shop: Sandbox) -> None:
    shop.pipelines(NATIVE)
    shop.run("once")

    with pytest.raises(UsageError, match="keeps state in 'dedupe', an operator of Spark's own") as refused:
        take(shop, "once")

    assert "strandline fork once --from start --as NAME --into branch:B" in refused.value.next_command
    assert shop.ledger.savepoints.of_pipeline("once") == []


def test_a_pipeline_without_state_keeps_its_positions(shop: Sandbox) -> None:
    shop.pipelines(NATIVE)
    shop.run("plain", ForBatches(2))
    saved = take(shop, "plain")
    shop.run("plain")

    restore(shop, saved.id, name="plain")
    add_file(shop, 3)
    shop.run("plain")

    assert sorted(row["n"] for row in table_rows(shop.project, "shop.plain")) == list(range(48))


# -- native ones ---------------------------------------------------------------------------------------------------------


def test_a_native_savepoint_says_early_that_it_cannot_change_operators(shop: Sandbox) -> None:
    shop.run("visits")
    with SessionTags(shop.project, "test", shop.heard.say, shop.spark) as tags:
        saved = Taker(shop.project, shop.pipeline("visits"), shop.ledger, tags, shop.heard.say).take(Wish("me@here"))
    shop.pipelines(RENAMED)

    with pytest.raises(UsageError, match="is native, and its state goes on as a whole or not at all"):
        restore(shop, saved.id, dropped=("visits",))
    with pytest.raises(DefinitionError, match="is native and holds state of the keyed operator 'visits'") as refused:
        restore(shop, saved.id)
    assert "strandline savepoint create visits --type canonical" in refused.value.next_command


# -- what operators keep beside keys -------------------------------------------------------------------------------------

PRICED = """
import strandline as sl
from datetime import timedelta

class Priced(sl.KeyedProcess):
    timers = "processing"
    sums = sl.map_state("string", "bigint")

    def process(self, key, events, ctx):
        for event in events:
            rate = ctx.control["rates"][event.kind].rate
            self.sums.put(event.kind, self.sums.get(event.kind, 0) + rate)
            yield event.n, key, self.sums.get(event.kind)
        ctx.set_timer(ctx.processing_time + timedelta(seconds=2))

    def on_timer(self, key, at, ctx):
        yield -1, key, sum(self.sums.values())

@sl.pipeline(
    sources={{"events": sl.files("data", format="json", schema="n bigint, who string, kind string"),
             "rates": sl.files("rates", format="json", schema="kind string, rate bigint")}},
    sink=sl.table("shop.priced"), checkpoint=sl.checkpoint(every="0 s"))
def priced(events, rates):
    return sl.keyed(events, by="who", process=Priced(), order_by="n", output="n bigint, who string, total bigint",
                    control={{"rates": (rates, "kind")}}, buckets={buckets})
"""


def test_control_data_and_processing_timers_come_along(sandbox: Sandbox) -> None:
    def add(folder: str, name: str, *rows: dict[str, Any]) -> None:
        (sandbox.folder / folder).mkdir(exist_ok=True)
        (sandbox.folder / folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    sandbox.pipelines(PRICED.format(buckets=2))
    add("rates", "1.json", {"kind": "a", "rate": 3}, {"kind": "b", "rate": 5})
    add("data", "1.json", *({"n": n, "who": f"w{n}", "kind": "ab"[n % 2]} for n in range(4)))
    sandbox.run("priced")
    saved = take(sandbox, "priced")
    assert (saved.operators[0]["control"], saved.operators[0]["timers"]) == (["rates"], {"event": 0, "processing": 4})
    sandbox.pipelines(PRICED.format(buckets=9))
    time.sleep(2.5)
    add("data", "2.json", {"n": 4, "who": "w0", "kind": "a"})

    restore(sandbox, saved.id, CONTINUE, name="priced")

    rows = [(row["n"], row["who"], row["total"]) for row in table_rows(sandbox.project, "shop.priced")]
    assert sorted(row for row in rows if row[0] >= 0) == [(0, "w0", 3), (1, "w1", 5), (2, "w2", 3), (3, "w3", 5), (4, "w0", 6)]
    assert sorted(row for row in rows if row[0] < 0) == [(-1, "w0", 6), (-1, "w1", 5), (-1, "w2", 3), (-1, "w3", 5)], "each was woken once"
