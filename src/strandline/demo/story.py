"""What ``strandline demo`` tells: a pipeline killed twice in the middle of a commit, a zombie refused, every row counted.

Nothing is staged for the camera: the pipeline runs in child processes, SIGKILL and SIGSTOP are real, and the final
count reads the table with another library than the one that wrote it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import textwrap
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from strandline.demo.narrator import say, step
from strandline.model.crash import CrashPoint
from strandline.model.definition import GeneratorSource
from strandline.model.errors import Failure
from strandline.project.config import load_project
from strandline.runtime.jars import ensure_jars
from strandline.runtime.java import ensure_java
from strandline.testing import generated_orders, run_cli, start_cli, table_rows
from strandline.testing.projects import write_sandbox

PIPELINE = '''
"""Orders with duplicates and late ones, each order once, into shop.orders; late rows are kept aside."""

import strandline as sl


@sl.pipeline(
    source=sl.generator(events_per_batch=500, total=6000, seed=42, duplicates=0.10, late=0.02, late_by="2 hours", out_of_order=0.2),
    sink=sl.table("shop.orders", partition_by=["days(placed_at)"]),
    event_time="placed_at",
    allowed_lateness="10 minutes",
    late="side_table",
    checkpoint=sl.checkpoint(every="0 s"),
)
def orders(events):
    return events.dropDuplicatesWithinWatermark(["order_id"])
'''
SOURCE = GeneratorSource(
    events_per_batch=500, total=6000, seed=42, duplicates=0.10, late=0.02, late_by=timedelta(hours=2), out_of_order=0.2
)


def tell(keep: Path | None) -> int:
    """Play the story; 0 when nothing was lost or doubled."""
    say("Strandline demo: 6,000 events, 10% duplicates, some two hours late; two kill -9, one zombie.\n")
    java = ensure_java(step)
    ensure_jars(java, step)
    folder = keep or Path(tempfile.mkdtemp(prefix="strandline-demo-"))
    if keep is not None and (keep / "strandline.yaml").exists():
        raise Failure(f"{keep} already holds a project", next_command="strandline demo --keep another-folder")
    write_sandbox(folder, PIPELINE)
    try:
        _crashes(folder)
        _zombie(folder)
        return _count(folder)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"\nThe project is in {folder}; go on there: strandline status")


def _crashes(folder: Path) -> None:
    for number, (point, batch, words) in enumerate(
        (
            (CrashPoint.COMMITTING, 2, "inside the table commit: files written, catalog not yet swapped"),
            (CrashPoint.COMMITTED, 5, "right after the table commit: the table moved, checkpoint and ledger do not know"),
        ),
        start=1,
    ):
        step(f"attempt {number} runs, and is killed with SIGKILL in batch {batch}, {words}")
        died = run_cli(folder, "run", "orders", "--available-now", crash_at=point, batch=batch)
        if not died.killed:
            raise Failure(f"attempt {number} was not killed as planned: {died.err}")


def _zombie(folder: Path) -> None:
    step("attempt 3 recovers, runs on, and freezes in batch 8 with its files staged (a long GC pause, a lost network)")
    zombie = start_cli(folder, "run", "orders", "--available-now", pause_at=CrashPoint.STAGED, batch=8)
    try:
        _wait_frozen(zombie)
        step("attempt 4 takes over: a boundary in the table fences everyone before it; it runs to the end of the stream")
        taken = run_cli(folder, "run", "orders", "--available-now", "--take-over")
        if taken.code != 0:
            raise Failure(f"attempt 4 failed: {taken.err}")
        step("attempt 3 wakes up and tries to commit its batch 8")
        zombie.send_signal(signal.SIGCONT)
        _, err = zombie.communicate(timeout=90)
        refusal = next((line for line in err.splitlines() if line.startswith("error:")), err)
        say(textwrap.fill(f"refused, exit code {zombie.returncode}: {refusal}", 110, initial_indent="    ", subsequent_indent="    "))
        if zombie.returncode == 0:
            raise Failure("the zombie was not refused")
    finally:
        zombie.kill()


def _wait_frozen(process: subprocess.Popen[str]) -> None:
    """Ask ps, not /proc, so that the story also runs on a Mac."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(process.pid)], capture_output=True, text=True).stdout.strip()
        if state.startswith("T"):
            return
        time.sleep(0.2)
    raise Failure("attempt 3 did not reach batch 8")


def _count(folder: Path) -> int:
    say("")
    print(run_cli(folder, "history", "shop.orders").out)
    project = load_project(folder)
    found = Counter(row["order_id"] for row in table_rows(project, "shop.orders", ["order_id"]))
    late = Counter(row["order_id"] for row in table_rows(project, "shop.orders__late", ["order_id"]))
    sent = {order.order_id for order in generated_orders(SOURCE)}
    lost = sent - found.keys() - late.keys()
    doubled = sum(count - 1 for count in found.values())
    print("An independent count (the generator computed in plain Python, the table read by PyIceberg):")
    print(f"  events sent {SOURCE.total}, distinct orders expected {len(sent)}")
    print(f"  found {len(found.keys() & sent)} in shop.orders and {len(late.keys() - found.keys())} more among the late rows")
    print(f"  lost {len(lost)}, doubled {doubled}")
    staged = run_cli(folder, "cleanup").out
    print(f"\nFiles that the killed attempts left behind, listed by `strandline cleanup`:\n{textwrap.indent(staged, '  ')}")
    print("Try next: strandline init my-project, then follow docs/getting-started.md")
    return 0 if not lost and not doubled else 3
