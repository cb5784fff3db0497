"""Savepoints of every kind, restored in every way, by real processes: tables and state equal those of a run that was never interrupted.

One story per kind of savepoint and kind of source. What the tables must hold is computed here in plain Python from what was sent; state is
compared with that of a pipeline that reads everything in one go.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.ledger import ledger_of
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import assert_chain_unbroken, run_cli, start_cli, table_rows
from strandline.testing.projects import write_sandbox

pytestmark = pytest.mark.process

PER_FILE = 20
LATENESS = 60
BEGAN = 1_767_225_600
"""2026-01-01T00:00:00Z; events are a second apart."""

SOURCES = {
    "files": 'sl.files("data", schema="n bigint, who string, again boolean, at timestamp", max_files_per_batch=1)',
    "kafka": 'sl.kafka("{topic}", bootstrap="{bootstrap}", schema="n bigint, who string, again boolean, at timestamp", max_offsets_per_batch=25)',
}

KEYED = """
import strandline as sl
from pyspark.sql import functions as F

class Numbered(sl.KeyedProcess):
    seen = sl.value_state("bigint", default=0)
    last = sl.map_state("string", "bigint")

    def process(self, key, events, ctx):
        for event in events:
            self.seen.update(self.seen.get() + 1)
            self.last.put(str(event.n % 2), event.n)
            yield event.n, key, self.seen.get()

def numbered(events):
    return sl.keyed(events, by="who", process=Numbered(), output="n bigint, who string, seen bigint", order_by="n")
"""

# Every operator that keeps state, in one query: keyed, dedupe, aggregation, join.
ALL_STATE = """
@sl.pipeline(source={source}, event_time="at", allowed_lateness="60 s", checkpoint=sl.checkpoint(every="0 s"),
             sinks={{"numbered": sl.table("{name}.numbered"), "once": sl.table("{name}.once"), "counted": sl.table("{name}.counted"),
                    "paired": sl.table("{name}.paired")}})
def {name}(events):
    first = events.where("not again")
    left, right = first.selectExpr("n", "at"), first.selectExpr("n + 5 as m", "at as then")
    return {{
        "numbered": numbered(events),
        "once": sl.dedupe(events, by="n", forever=True).select("n"),
        "counted": sl.tumbling(events, time="at", size="10 seconds").agg(F.count("*").alias("events")),
        "paired": left.join(right, F.expr("n = m")).selectExpr("n", "m - 5 as partner"),
    }}
"""

KEYED_STATE = """
@sl.pipeline(source={source}, sink=sl.table("{name}.numbered"), checkpoint=sl.checkpoint(every="0 s"))
def {name}(events):
    return numbered(events)
"""


class Story:
    """A project, what was sent to it, and what must come of that."""

    def __init__(self, folder: Path, kind: str, source: str, kafka: Any) -> None:
        self.folder, self.kind, self.kafka, self.parts = folder, kind, kafka, 0
        self.topic = kafka.create_topic(kafka.topic("events"), partitions=1) if kafka else ""
        (folder / "data").mkdir()
        told = SOURCES[source].format(topic=self.topic, bootstrap=kafka.bootstrap if kafka else "")
        body = ALL_STATE if kind == "native" else KEYED_STATE
        self.project = write_sandbox(folder, KEYED + "".join(body.format(source=told, name=name) for name in ("shop", "twin")))

    def send(self) -> None:
        """Twenty events; the last repeats the first of those before."""
        first = self.parts * PER_FILE
        events = [{"n": n, "again": False} for n in range(first, first + PER_FILE)]
        events.append({"n": max(0, first - PER_FILE), "again": True})
        lines = [json.dumps({**e, "who": f"w{e['n'] % 3}", "at": _moment(e["n"])}) for e in events]
        if self.kafka:
            self.kafka.produce(self.topic, lines, partition=0)
        else:
            file = self.folder / "data" / f"{self.parts:03d}.json"
            unseen = file.with_name(f".{file.name}")
            unseen.write_text("\n".join(lines) + "\n")
            os.utime(unseen, (BEGAN + self.parts,) * 2)  # Spark takes the oldest first
            unseen.rename(file)
        self.parts += 1

    def cli(self, *arguments: str) -> str:
        finished = run_cli(self.folder, *arguments)
        assert finished.code == 0, f"{arguments}: {finished.err}"
        return finished.out

    def savepoint(self) -> str:
        told = self.cli("savepoint", "create", "shop", "--type", self.kind, "--json")
        return str(json.loads(told)["id"])

    def rows(self, table: str, ref: str = "") -> list[dict[str, Any]]:
        return table_rows(self.project, f"shop.{table}{ref}")

    def assert_complete(self, ref: str = "", parts: int | None = None) -> None:
        """As computed from what was sent, in one go."""
        parts = self.parts if parts is None else parts
        numbers = [n for part in range(parts) for n in (*range(part * PER_FILE, (part + 1) * PER_FILE), max(0, (part - 1) * PER_FILE))]
        assert sorted(row["n"] for row in self.rows("numbered", ref)) == sorted(numbers)
        for who in ("w0", "w1", "w2"):
            seen = sorted(row["seen"] for row in self.rows("numbered", ref) if row["who"] == who)
            assert seen == list(range(1, len(seen) + 1)), f"{who} was counted twice or forgotten"
        if self.kind != "native":
            return
        everything = range(parts * PER_FILE)
        assert sorted(row["n"] for row in self.rows("once", ref)) == list(everything)
        assert sorted((row["n"], row["partner"]) for row in self.rows("paired", ref)) == [(n, n - 5) for n in everything if n >= 5]
        closed = (max(numbers) - LATENESS) // 10
        windows = Counter(n // 10 for n in numbers)
        found = {int(row["window_start"].timestamp() - BEGAN) // 10: row["events"] for row in self.rows("counted", ref)}
        assert found == {window: count for window, count in windows.items() if window < closed}


def _moment(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BEGAN + second))


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.2)


@pytest.mark.parametrize("source", ["files", "kafka"])
@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_taken_hot_and_at_rest_and_restored_in_every_way(kind: str, source: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    story = Story(tmp_path, kind, source, request.getfixturevalue("kafka") if source == "kafka" else None)
    for _ in range(4):
        story.send()
    running = start_cli(tmp_path, "run", "shop")
    try:
        wait_for(lambda: len(story.rows("numbered")) == 84)
        hot = story.savepoint()
        story.send()
        wait_for(lambda: len(story.rows("numbered")) == 105)
        story.cli("stop", "shop")
    finally:
        running.kill()
        running.communicate()
    cold = story.savepoint()
    story.send()
    # Files: branch and fork from the one that was taken hot, rollback and continue from the one at rest. Kafka: the other way round.
    for_branches, for_main = (hot, cold) if source == "files" else (cold, hot)

    story.cli("fork", "shop", "--from", for_branches, "--as", "trial", "--into", "branch:trial", "--available-now")
    story.assert_complete("@trial")
    story.cli("run", "shop", "--from-savepoint", for_main, "--tables", "rollback", "--yes", "--available-now")
    story.assert_complete()
    once_more = story.savepoint()
    story.send()
    story.cli("run", "shop", "--from-savepoint", once_more, "--tables", "continue", "--yes", "--available-now")
    story.assert_complete()
    story.cli("run", "shop", "--from-savepoint", for_branches, "--tables", "branch:again", "--yes", "--available-now")
    story.assert_complete("@again")
    story.assert_complete()
    story.assert_complete("@trial", parts=6)

    story.cli("run", "twin", "--available-now")
    story.cli("compare", "shop", "twin", "--state")
    strands = ledger_of(story.project).strands.of_pipeline("shop")
    assert [strand.kind for strand in strands] == ["restore", "restore", "restore"]
    assert [strand.savepoint for strand in strands][::2] == [for_main, for_branches]
    view = EmbeddedCatalog(story.project).load("shop.numbered")
    for ref in ("main", "again"):
        mark = view.on(ref).mark("shop")
        assert mark is not None and mark.holder.attempt >= 4, "no earlier attempt can commit any more"
    assert_chain_unbroken(story.project, "shop.numbered", "shop")
