"""kill -9 while keyed state is being updated, and at the points around its commit: state and rows are those of an undisturbed run."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

import strandline as sl
from strandline.testing import CrashPoint, assert_chain_unbroken, generated_orders, run_cli, start_cli, table_rows
from strandline.testing.projects import write_sandbox

pytestmark = pytest.mark.process

TOTAL, PER_BATCH = 300, 50

PIPELINE = f"""
import os, time
from pathlib import Path
import strandline as sl

class Count(sl.KeyedProcess):
    \"\"\"Numbers the orders of each customer; a timer tells how many there were, twice.\"\"\"
    seen = sl.list_state("bigint")
    said = sl.value_state("bigint", default=0)

    def process(self, key, events, ctx):
        for event in events:
            if event.seq == 130 and not Path("reached").exists():
                Path("reached").touch()
                time.sleep(120)
            self.seen.add(event.seq)
            yield key, event.seq, len(self.seen), 0
        if not ctx.timers():
            ctx.set_timer(events[-1].placed_at)

    def on_timer(self, key, at, ctx):
        self.said.update(self.said.get() + 1)
        yield key, -1, len(self.seen), self.said.get()

@sl.pipeline(source=sl.generator(events_per_batch={PER_BATCH}, total={TOTAL}), sink=sl.table("shop.counted"), event_time="placed_at",
             allowed_lateness="1 s", checkpoint=sl.checkpoint(every="0 s"))
def counted(orders):
    return sl.keyed(orders, by="customer", process=Count(), order_by="seq", output="customer string, seq bigint, nth bigint, said bigint")
"""


def expected() -> dict[int, tuple[str, int]]:
    """Every order with its number among the orders of its customer."""
    counts: Counter[str] = Counter()
    found = {}
    for number, order in enumerate(generated_orders(sl.generator(total=TOTAL))):
        counts[order.customer] += 1
        found[number] = (order.customer, counts[order.customer])
    return found


def test_killed_in_the_middle_of_state_updates_and_around_the_commit(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, PIPELINE)

    running = start_cli(tmp_path, "run", "counted", "--available-now")
    deadline = time.monotonic() + 120
    while not (tmp_path / "reached").exists():
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    for point, batch in [(CrashPoint.STAGED, 5), (CrashPoint.COMMITTED, 6), (CrashPoint.BATCH_RETURNING, 8)]:
        died = run_cli(tmp_path, "run", "counted", "--available-now", crash_at=point, batch=batch)
        assert died.killed, died.err
    finished = run_cli(tmp_path, "run", "counted", "--available-now")

    assert finished.code == 0, finished.err
    rows = table_rows(project, "shop.counted")
    orders = {row["seq"]: (row["customer"], row["nth"]) for row in rows if row["seq"] >= 0}
    assert orders == expected()
    assert sum(1 for row in rows if row["seq"] >= 0) == TOTAL, "no row is doubled"
    fired: dict[str, list[int]] = {}
    for row in rows:
        if row["seq"] < 0:
            fired.setdefault(row["customer"], []).append(row["said"])
    assert fired, "timers fired"
    assert all(sorted(said) == list(range(1, len(said) + 1)) for said in fired.values()), "each firing was counted once"
    assert_chain_unbroken(project, "shop.counted", "counted")
