"""Two pipelines side by side on Spark: their tables and all their state, whatever partitions and buckets hold it."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, nullcontext

import pytest

from strandline.evidence.pipeline_comparing import Manner, SideBySide, compare_state, compare_tables
from strandline.evidence.sides import outputs_of, side_of
from strandline.model.errors import NotFound
from strandline.runtime.options import ForBatches
from strandline.savepoints.archive import archive_of
from strandline.savepoints.session import SessionTags
from strandline.savepoints.taking import Taker, Wish
from strandline.testing.fixtures import Sandbox

pytestmark = pytest.mark.engine

PIPELINE = """
import strandline as sl
from datetime import timedelta

class Totals(sl.KeyedProcess):
    total = sl.value_state("bigint", default=0)
    recent = sl.list_state("bigint", ttl=sl.ttl("7 days"))
    by_day = sl.map_state("date", "bigint")
    timers = "processing"

    def process(self, key, events, ctx):
        for event in events:
            self.total.update(self.total.get() + event.n)
            self.recent.add(event.n)
            self.by_day.put(event.day, event.n)
        ctx.set_timer(ctx.processing_time + timedelta(days=1))
        yield key, self.total.get()

    def on_timer(self, key, at, ctx):
        return []

@sl.pipeline(source=sl.files("{data}", format="json", schema="n bigint, who string, day date", max_files_per_batch=1),
             sink=sl.table("shop.{name}", mode="upsert", key="who", order_by="total"), output_mode="update", checkpoint=sl.checkpoint(every="0 s"))
def {name}(events):
    once = sl.dedupe(events, by="n", forever=True)
    return sl.keyed(once, by="who", process={process}(), output="who string, total bigint", order_by="n", buckets={buckets})
"""


def declare(shop: Sandbox, name: str, process: str = "Totals", buckets: int = 8, data: str = "data") -> None:
    text = PIPELINE.format(name=name, process=process, buckets=buckets, data=data).replace("class Totals", f"class {process}")
    (shop.folder / "pipelines" / f"{name}.py").write_text(text)


def add_file(shop: Sandbox, number: int, data: str = "data") -> None:
    folder = shop.folder / data
    folder.mkdir(exist_ok=True)
    file = folder / f"{number:03d}.json"
    rows = [{"n": n, "who": f"w{n % 7}", "day": f"2026-01-{1 + n % 3:02d}"} for n in range(number * 20, number * 20 + 20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(file, (1_800_000_000 + number,) * 2)  # Spark takes the oldest first


def side_by_side(shop: Sandbox, left: str, right: str, *ignore: str) -> SideBySide:
    with ExitStack() as opened:
        sides = [opened.enter_context(side_of(shop.project, shop.ledger, asked)) for asked in (left, right)]
        found = SideBySide(sides[0], sides[1])
        if not any(side.is_savepoint for side in sides):
            outputs = [outputs_of(shop.project, shop.ledger, side) for side in sides]
            compare_tables(found, outputs[0], outputs[1], Manner(ignore=ignore))
        compare_state(found, lambda: nullcontext(shop.spark), Manner(ignore=ignore))
    return found


def test_pipelines_with_other_partitions_and_buckets_are_compared_by_key(sandbox: Sandbox) -> None:
    """The same code twice, then one of them reads a file more; a savepoint stands for a batch of its pipeline."""
    shop = sandbox
    declare(shop, "one")
    declare(shop, "other", process="Sums", buckets=3)
    for number in range(2):
        add_file(shop, number)
    shop.run("one")
    partitions = shop.spark.conf.get("spark.sql.shuffle.partitions")
    shop.spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        shop.run("other")
    finally:
        shop.spark.conf.set("spark.sql.shuffle.partitions", str(partitions))

    same = side_by_side(shop, "one", "other", "timers")

    assert same.same, same.as_json()
    assert (same.left.batch, same.right.batch) == (1, 1)
    (table,) = same.tables.values()
    assert (table.left, table.right, table.key, table.equal) == ("shop.one", "shop.other", ("who",), 7)
    assert {name: (found.key, found.equal) for name, found in same.operators.items()} == {
        "dedupe": (("key",), 40),
        "totals / sums": (("who",), 7),
    }
    by_the_clock = side_by_side(shop, "one", "other").operators["totals / sums"]
    assert (by_the_clock.same, by_the_clock.differing) == (False, 7), "their timers were set at other moments"

    with SessionTags(shop.project, "test", shop.heard.say, shop.spark) as tags:
        saved = Taker(shop.project, shop.pipeline("one"), shop.ledger, tags, shop.heard.say).take(Wish("me@here"))
    add_file(shop, 2)
    shop.run("one", ForBatches(1))

    differs = side_by_side(shop, "one", "other", "timers")
    assert (differs.same, differs.left.batch) == (False, 2)
    totals, seen = differs.operators["totals / sums"], differs.operators["dedupe"]
    assert (totals.equal, totals.only_left, totals.only_right, totals.differing) == (0, 0, 0, 7)
    assert (seen.equal, seen.only_left) == (40, 20)
    shown = next(example for example in totals.examples if example.key == {"who": "w0"})
    mine = [n for n in range(60) if n % 7 == 0]
    assert shown.left is not None and shown.right is not None
    assert (shown.left["total"], shown.left["recent"]) == (sum(mine), mine)
    assert shown.right["total"] == sum(n for n in mine if n < 40)
    assert dict(map(tuple, shown.left["by_day"])) == {f"2026-01-{1 + n % 3:02d}": n for n in mine}
    assert differs.tables["output"].differing == 7

    for earlier in (saved.id, archive_of(shop.project, "one", saved.id).location):
        back = side_by_side(shop, "one@1", earlier)
        assert back.same and set(back.operators) == {"totals", "dedupe"}, "timers and all"
        assert side_by_side(shop, earlier, "one").operators["totals"].differing == 7
    assert side_by_side(shop, "one@1", "other", "timers").same, "the table too, as it was then"
    with pytest.raises(NotFound, match="does not know batch 9 of strand"):
        side_by_side(shop, "one@9", "other")
