"""kill -9 at every step of filling a new strand with the state of a canonical savepoint."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import strandline as sl
from strandline.checkpoints.place import current_checkpoint
from strandline.project.config import CONFIG_NAME, Project, load_project
from strandline.testing import CrashPoint, assert_chain_unbroken, generated_orders, run_cli, table_rows
from strandline.testing.projects import write_sandbox

pytestmark = pytest.mark.process

TOTAL = 60
COUNTED = """
import strandline as sl

class Counted(sl.KeyedProcess):
    seen = sl.value_state("bigint", default=0)

    def process(self, key, events, ctx):
        for event in events:
            self.seen.update(self.seen.get() + 1)
            yield event.seq, key, self.seen.get()

@sl.pipeline(source=sl.generator(events_per_batch=10, total=60, seed=5), sink=sl.table("shop.counted"), checkpoint=sl.checkpoint(every="0 s"))
def counted(orders):
    return sl.keyed(orders, by="customer", process=Counted(), order_by="seq", output="seq bigint, customer string, seen bigint")
"""


def said(folder: Path, *arguments: str) -> str:
    finished = run_cli(folder, *arguments)
    assert finished.code == 0, finished.err
    return finished.out


def assert_counted(project: Project, events: int) -> None:
    """As if computed in one go, from the generator's own orders."""
    rows = {row["seq"]: (row["customer"], row["seen"]) for row in table_rows(project, "shop.counted")}
    assert len(table_rows(project, "shop.counted")) == events
    seen: Counter[str] = Counter()
    for order in list(generated_orders(sl.generator(events_per_batch=10, total=TOTAL, seed=5)))[:events]:
        seen[order.customer] += 1
        assert rows[order.seq] == (order.customer, seen[order.customer])


def test_a_strand_killed_while_it_is_filled_is_filled_by_the_next_start(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, COUNTED)
    said(tmp_path, "run", "counted", "--batches", "2")
    saved = json.loads(said(tmp_path, "savepoint", "create", "counted", "--type", "canonical", "--json"))
    said(tmp_path, "run", "counted", "--batches", "1")
    config = tmp_path / CONFIG_NAME
    config.write_text(config.read_text() + '        spark.sql.shuffle.partitions: "3"\n')
    project = load_project(tmp_path)
    restore = ("run", "counted", "--available-now", "--from-savepoint", saved["id"], "--tables", "rollback", "--yes")

    died = run_cli(tmp_path, *restore, crash_at=CrashPoint.SEED_BEGUN)
    assert died.killed, died.err
    assert "operator counted: " in died.err and "and 3 partitions" in died.err
    for point in (CrashPoint.SEED_LOADED, CrashPoint.SEED_POSITIONED):
        died = run_cli(tmp_path, "run", "counted", "--available-now", crash_at=point)
        assert died.killed, died.err
        assert_counted(project, 30)
        assert current_checkpoint(project, "counted").storage.names("strandline-seed"), "it counts as not filled"
    said(tmp_path, "run", "counted", "--batches", "1")
    assert_counted(project, 30)
    said(tmp_path, "run", "counted", "--available-now")

    assert_counted(project, TOTAL)
    assert_chain_unbroken(project, "shop.counted", "counted")
    assert not current_checkpoint(project, "counted").storage.names("strandline-seed")
    shown = said(tmp_path, "savepoint", "show", "counted", saved["id"])
    assert "canonical" in shown and "counted (" in shown
    assert "restorable: yes" in said(tmp_path, "savepoint", "verify", "counted", saved["id"])
    assert said(tmp_path, "checkpoint", "list", "counted")
