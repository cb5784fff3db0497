"""A batch run again on Spark: its rows are those that its snapshots brought, or it is said which ones differ. Nothing else changes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from strandline.evidence.comparing import Comparison
from strandline.evidence.replaying import Replay, replay
from strandline.model.errors import DefinitionError, NotFound, SourceProblem, UsageError
from strandline.runtime.options import ForBatches
from strandline.savepoints.session import SessionTags
from strandline.savepoints.taking import Taker, Wish
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.jvm import JvmTable
from strandline.tables.rows import rows_of
from strandline.testing import table_rows
from strandline.testing.fixtures import Sandbox

pytestmark = pytest.mark.engine

COUNTED = """
import strandline as sl
from pyspark.sql import functions as F

class Counted(sl.KeyedProcess):
    seen = sl.value_state("bigint", default=0)

    def process(self, key, events, ctx):
        for event in events:
            self.seen.update(self.seen.get() + 1)
            yield event.n, key, self.seen.get()

@sl.pipeline(source=sl.files("data", format="json", schema="n bigint, who string", max_files_per_batch=1),
             sink=sl.table("shop.counted"), checkpoint=sl.checkpoint(every="0 s"))
def counted(events):
    once = sl.dedupe(events, by="n", forever=True)
    rows = sl.keyed(once, by="who", process=Counted(), output="n bigint, who string, seen bigint", order_by="n")
    return rows.withColumn("at", F.current_timestamp())
"""

BEST = """
import strandline as sl
from pyspark.sql import functions as F

@sl.pipeline(source=sl.files("data", format="json", schema="n bigint, who string, at timestamp", max_files_per_batch=1),
             sinks={"windows": sl.table("shop.windows", mode="upsert", key=["who", "day"], order_by="total"),
                    "newest": sl.table("shop.newest", mode="upsert", key="who", order_by="n")},
             event_time="at", allowed_lateness="1 day", late="side_table", output_mode="update", checkpoint=sl.checkpoint(every="0 s"))
def best(events):
    days = sl.tumbling(events, by="who", time="at", size="1 day").agg(F.sum("n").alias("total"))
    windows = days.select("who", F.col("window_start").alias("day"), "total")
    return {"windows": windows, "newest": events.where("n % 3 != 0").select("who", "n")}
"""


def add_file(shop: Sandbox, number: int, numbers: list[int] | None = None) -> None:
    """Ten events of one day; the last repeats the first of the file before, which state remembers."""
    folder = shop.folder / "data"
    folder.mkdir(exist_ok=True)
    chosen = numbers or [*range(number * 10, number * 10 + 10), max(0, number * 10 - 10)]
    file = folder / f"{number:03d}.json"
    file.write_text("".join(json.dumps({"n": n, "who": f"w{n % 4}", "at": f"2026-01-{1 + n // 10:02d}T10:00:00Z"}) + "\n" for n in chosen))
    os.utime(file, (1_800_000_000 + number,) * 2)  # Spark takes the oldest first


@pytest.fixture
def shop(sandbox: Sandbox) -> Sandbox:
    sandbox.pipelines(COUNTED)
    for number in range(4):
        add_file(sandbox, number)
    return sandbox


def again(shop: Sandbox, batch: int, *, into: str | None = None, pipeline: str = "counted") -> Replay:
    return replay(shop.project, shop.pipeline(pipeline), shop.ledger, batch, shop.heard, into=into, session=shop.spark)


def only(found: Replay) -> Comparison:
    (table,) = found.tables
    return table.comparison


def everything(shop: Sandbox) -> dict[str, object]:
    """What a replay must leave as it is: catalog, checkpoints, ledger."""
    catalog = EmbeddedCatalog(shop.project)
    ledger = shop.ledger
    files = {str(path): path.stat().st_mtime_ns for path in Path(shop.project.checkpoints).rglob("*")}
    return {
        "tables": {name: catalog.metadata_location(name) for name in catalog.tables()},
        "checkpoints": files,
        "attempt": ledger.attempts.latest("counted"),
        "batches": [ledger.batches.between("counted", ledger.attempts.latest("counted").strand or "", -1, 99)],  # type: ignore[union-attr]
    }


def test_keyed_state_after_dedupe_comes_out_the_same_and_nothing_is_touched(shop: Sandbox) -> None:
    """Also the clock: a batch has one, and it is recorded."""
    shop.run("counted")
    before = everything(shop)

    found = again(shop, 2)

    assert found.same
    assert (only(found).equal, only(found).left_rows, found.offsets, found.state) == (10, 10, "files 3–3", "checkpoint")
    assert found.code_then == found.code_now != ""
    assert everything(shop) == before
    first, newest = again(shop, 0), again(shop, 3)
    assert (first.same, only(first).equal, first.state, first.offsets) == (True, 10, "empty", "files 1–1")
    assert newest.same


def test_upserts_aggregations_and_late_rows_come_out_the_same(shop: Sandbox) -> None:
    shop.pipelines(BEST)
    add_file(shop, 2, [25, 26, 27, 7, 6, 21])
    add_file(shop, 3, [35, 36, 37, 1, 2, 25, 30])  # 1 and 2 are days late
    shop.run("best")
    assert {row["n"] for row in table_rows(shop.project, "shop.windows__late")} >= {1, 2}

    for batch in range(4):
        found = again(shop, batch, pipeline="best")
        assert found.same, (batch, found)
        assert [table.table for table in found.tables] == ["shop.windows", "shop.newest", "shop.windows__late"]
    assert [table.comparison.equal for table in found.tables[:2]] == [5, 2]


def test_rows_that_changed_code_makes_differently_are_shown(shop: Sandbox) -> None:
    shop.run("counted")
    shop.pipelines(COUNTED.replace("self.seen.get() + 1", "self.seen.get() + (2 if key == 'w1' else 1)"))

    found = again(shop, 2)

    assert not found.same
    assert found.code_then != found.code_now
    compared = only(found)
    assert (compared.equal, compared.only_left, compared.only_right) == (7, 3, 3)
    table_side = [example.left for example in compared.examples if example.left is not None]
    replay_side = [example.right for example in compared.examples if example.right is not None]
    assert {(row["n"], row["who"], row["seen"]) for row in table_side} == {(21, "w1", 6), (25, "w1", 7), (29, "w1", 8)}
    assert {(row["n"], row["who"], row["seen"]) for row in replay_side} == {(21, "w1", 7), (25, "w1", 9), (29, "w1", 11)}


def test_upserts_of_changed_code_differ_by_key(shop: Sandbox) -> None:
    """Also a key that the replay no longer writes: there the table before the batch is what it would have left."""
    shop.pipelines(BEST)
    shop.run("best")
    shop.pipelines(BEST.replace("n % 3 != 0", "n % 3 != 0 and who != 'w3'"))

    found = again(shop, 2, pipeline="best")

    windows, newest, _ = found.tables
    assert windows.comparison.same
    (different,) = newest.comparison.examples
    assert (newest.comparison.equal, newest.comparison.differing) == (3, 1)
    assert (different.key, different.left, different.right) == ({"who": "w3"}, {"who": "w3", "n": 23}, {"who": "w3", "n": 19})


def test_a_savepoint_is_the_state_before_when_the_checkpoint_has_lost_it(shop: Sandbox) -> None:
    for number in (2, 3):
        (shop.folder / "data" / f"{number:03d}.json").unlink()
    shop.run("counted")
    with SessionTags(shop.project, "test", shop.heard.say, shop.spark) as tags:
        saved = Taker(shop.project, shop.pipeline("counted"), shop.ledger, tags, shop.heard.say).take(Wish("me@here"))
    for number in (2, 3):
        add_file(shop, number)
    shop.run("counted")
    (Path(shop.project.checkpoints) / "counted" / "commits" / "1").unlink()

    found = again(shop, 2)

    assert (found.same, found.state, only(found).equal) == (True, saved.id, 10)
    with pytest.raises(NotFound, match=r"batch 1 of 'counted' cannot be replayed: .*; these can: 0, 2–3"):
        again(shop, 1)


def test_a_running_pipeline_goes_on_undisturbed(shop: Sandbox) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            shop.run("counted", ForBatches(6))
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            failures.append(error)

    running = threading.Thread(target=run)
    running.start()
    while len(shop.heard.batches) == 0 or shop.heard.batches[-1].result.batch < 3:
        assert running.is_alive(), failures
        running.join(0.2)

    found = again(shop, 1)
    for number in (4, 5):
        add_file(shop, number)
    running.join(120)

    assert found.same
    assert (failures, running.is_alive()) == ([], False)
    assert sorted(row["n"] for row in table_rows(shop.project, "shop.counted")) == list(range(60))
    attempt = shop.ledger.attempts.latest("counted")
    assert attempt is not None and attempt.number == 1
    assert again(shop, 5).same


def test_the_rows_can_be_put_on_a_branch(shop: Sandbox) -> None:
    shop.run("counted")
    shop.pipelines(COUNTED.replace("self.seen.get() + 1", "self.seen.get() + 2"))
    main = EmbeddedCatalog(shop.project).load("shop.counted").refs["main"]

    found = again(shop, 2, into="debug")
    first = again(shop, 0, into="first")

    assert (found.tables[0].branch, first.tables[0].branch) == ("debug", "first")
    view = EmbeddedCatalog(shop.project).load("shop.counted")
    assert view.refs["main"] == main
    assert view.snapshots[view.refs["debug"]].summary["strandline.replay"] == f"{found.strand}/2"
    assert view.snapshots[view.refs["debug"]].parent_id == view.snapshots[found.tables[0].snapshot or 0].parent_id
    on_branch = {row["n"]: row["seen"] for batch in rows_of(shop.project, "shop.counted@debug").batches() for row in batch.to_pylist()}
    assert sorted(on_branch) == list(range(30)), "the table before the batch, and the batch"
    assert (on_branch[16], on_branch[20]) == (5, 7), "batch 1 as it was, batch 2 as it is now"
    assert sorted(row["n"] for batch in rows_of(shop.project, "shop.counted@first").batches() for row in batch.to_pylist()) == list(
        range(10)
    )
    add_file(shop, 4)
    shop.run("counted")
    assert len(table_rows(shop.project, "shop.counted")) == 50, "the pipeline goes on as if there were no branch"


def test_upserts_can_be_put_on_a_branch(shop: Sandbox) -> None:
    shop.pipelines(BEST)
    shop.run("best")

    found = again(shop, 1, into="debug", pipeline="best")

    for table in found.tables[:2]:
        replayed = [row for batch in rows_of(shop.project, f"{table.table}@debug").batches() for row in batch.to_pylist()]
        real = [row for batch in rows_of(shop.project, f"{table.table}@{table.snapshot}").batches() for row in batch.to_pylist()]
        assert sorted(map(repr, replayed)) == sorted(map(repr, real))


def test_a_branch_is_never_main_nor_one_that_is_there(shop: Sandbox) -> None:
    shop.run("counted", ForBatches(2))
    JvmTable(shop.spark, shop.project.profile.catalog.name, "shop.counted").branch_off("debug")

    for branch, words in (
        ("main", "cannot be"),
        ("strandline-x", "cannot be"),
        ("7", "cannot be"),
        ("debug", "has a branch or tag 'debug' already"),
    ):
        with pytest.raises(UsageError, match=words):
            again(shop, 1, into=branch)


def test_a_branch_that_cannot_be_filled_is_not_left_behind(shop: Sandbox) -> None:
    """The comparison tells of other columns; a branch could not hold them."""
    shop.run("counted", ForBatches(2))
    shop.pipelines(COUNTED.replace('return rows.withColumn("at"', 'return rows.withColumn("when"'))

    compared = only(again(shop, 1))
    assert (compared.columns_only_left, compared.columns_only_right, compared.equal) == (("at",), ("when",), 10)
    with pytest.raises(DefinitionError, match="column 'when' is not in the table"):
        again(shop, 1, into="debug")
    assert set(EmbeddedCatalog(shop.project).load("shop.counted").refs) == {"main"}


def test_an_expired_snapshot_is_told_with_the_oldest_that_can_be_compared(shop: Sandbox) -> None:
    shop.run("counted")
    JvmTable(shop.spark, shop.project.profile.catalog.name, "shop.counted").expire_to(2)

    with pytest.raises(
        NotFound, match=r"no longer keeps the snapshot of batch 1: it has expired; the oldest that can be compared is batch 2"
    ) as told:
        again(shop, 1)
    assert told.value.next_command == "strandline replay counted --batch 2"
    assert again(shop, 2).same, "its parent has expired, its own rows are known"


def test_a_source_file_that_is_gone_is_named(shop: Sandbox) -> None:
    """Spark would pass over it and make a batch without its rows."""
    shop.run("counted", ForBatches(2))
    (shop.folder / "data" / "001.json").unlink()

    with pytest.raises(SourceProblem, match=r"source file .*001\.json cannot be read: it is gone"):
        again(shop, 1)
    assert sorted(path.name for path in Path(shop.project.checkpoints).iterdir()) == ["counted"]
