"""Several processes, one pipeline: double starts, zombies, stale claims, signals, stops."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.evidence.history import Kind, history_of
from strandline.ledger import ledger_of
from strandline.ledger.records import Attempt, AttemptStatus
from strandline.project.config import Project
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import CrashPoint, assert_chain_unbroken, assert_rows_once, run_cli, start_cli, table_rows
from strandline.testing.projects import write_sandbox

from . import shop

pytestmark = pytest.mark.process

ENDLESS = """
import time
import strandline as sl

@sl.pipeline(source=sl.generator(events_per_batch=10), sink=sl.table("shop.endless"), checkpoint=sl.checkpoint(every="200 ms"))
def endless(orders):
    return orders
"""


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.1)


def is_frozen(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def attempt_of(project: Project, pipeline: str, number: int) -> Attempt:
    found = ledger_of(project).attempts.get(pipeline, number)
    assert found is not None
    return found


@pytest.mark.parametrize("point", [CrashPoint.STAGED, CrashPoint.COMMITTING], ids=lambda point: point.value)
@pytest.mark.parametrize("pipeline", ["plain", "totals"])
def test_a_zombie_that_wakes_up_after_a_takeover_cannot_commit(tmp_path: Path, pipeline: str, point: CrashPoint) -> None:
    project = write_sandbox(tmp_path, shop.PIPELINES)
    zombie = start_cli(tmp_path, "run", pipeline, "--batches", "5", pause_at=point, batch=2)
    try:
        wait_for(lambda: is_frozen(zombie))

        refused = run_cli(tmp_path, "run", pipeline, "--batches", "3")
        taken = run_cli(tmp_path, "run", pipeline, "--available-now", "--take-over")
        zombie.send_signal(signal.SIGCONT)
        _, zombie_err = zombie.communicate(timeout=90)
    finally:
        zombie.kill()

    assert refused.code == 4
    assert f"pid {zombie.pid}" in refused.err
    assert taken.code == 0, taken.err
    assert "boundary (takeover)" in taken.err
    assert zombie.returncode == 4, zombie_err
    assert "attempt 2" in zombie_err or "replaced by a newer one" in zombie_err
    if pipeline == "plain":
        assert_rows_once(project, "shop.plain", "seq", range(shop.TOTAL))
    else:
        assert {r["customer"]: r["orders"] for r in table_rows(project, "shop.totals")} == shop.orders_per_customer()
    assert_chain_unbroken(project, f"shop.{pipeline}", pipeline)
    entries = history_of(f"shop.{pipeline}", EmbeddedCatalog(project).load(f"shop.{pipeline}"), None)
    assert [e.kind for e in entries].count(Kind.BOUNDARY) == 1


def test_a_takeover_killed_while_claiming_is_repeated_by_the_next_start(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, shop.PIPELINES)
    zombie = start_cli(tmp_path, "run", "plain", "--batches", "5", pause_at=CrashPoint.STAGED, batch=2)
    try:
        wait_for(lambda: is_frozen(zombie))
        died = run_cli(tmp_path, "run", "plain", "--available-now", "--take-over", crash_at=CrashPoint.CLAIMING)
        finished = run_cli(tmp_path, "run", "plain", "--available-now")
        zombie.send_signal(signal.SIGCONT)
        zombie.communicate(timeout=90)
    finally:
        zombie.kill()

    assert died.killed
    assert finished.code == 0, finished.err
    assert zombie.returncode == 4
    assert_rows_once(project, "shop.plain", "seq", range(shop.TOTAL))


def test_stop_from_another_process_ends_after_the_current_batch_and_a_second_start_is_refused(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, ENDLESS)
    running = start_cli(tmp_path, "run", "endless")
    try:
        wait_for(lambda: bool(table_rows(project, "shop.endless", ["seq"])))
        second = run_cli(tmp_path, "run", "endless")
        shown = run_cli(tmp_path, "status", "--json")
        stopped = run_cli(tmp_path, "stop", "endless")
        running.communicate(timeout=60)
    finally:
        running.kill()

    assert second.code == 4
    assert "already running: attempt 1" in second.err
    assert '"state": "running"' in shown.out
    assert stopped.code == 0, stopped.err
    assert running.returncode == 0
    assert attempt_of(project, "endless", 1).status is AttemptStatus.STOPPED
    rows = table_rows(project, "shop.endless", ["seq"])
    assert_rows_once(project, "shop.endless", "seq", range(len(rows)))
    assert len(rows) % 10 == 0, "a batch was cut in half"


def test_ctrl_c_ends_after_the_batch_and_twice_ends_at_once(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, ENDLESS)
    for interrupts, code in ((1, 0), (2, 130)):
        running = start_cli(tmp_path, "run", "endless")
        before = len(table_rows(project, "shop.endless", ["seq"]))
        try:
            wait_for(lambda before=before: len(table_rows(project, "shop.endless", ["seq"])) > before)  # type: ignore[misc]
            for _ in range(interrupts):
                os.kill(running.pid, signal.SIGINT)
                time.sleep(0.02)
            _, err = running.communicate(timeout=60)
        finally:
            running.kill()
        assert running.returncode == code or (interrupts == 2 and running.returncode == 0), err
        assert "Traceback" not in err
    finished = run_cli(tmp_path, "run", "endless", "--batches", "2")
    assert finished.code == 0, finished.err
    rows = table_rows(project, "shop.endless", ["seq"])
    assert_rows_once(project, "shop.endless", "seq", range(len(rows)))


def test_cancel_deletes_the_checkpoint_when_the_policy_says_so_and_the_table_remembers(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, ENDLESS.replace('every="200 ms"', 'every="200 ms", on_cancel="delete"'))
    running = start_cli(tmp_path, "run", "endless")
    try:
        wait_for(lambda: bool(table_rows(project, "shop.endless", ["seq"])))
        stopped = run_cli(tmp_path, "stop", "endless", "--cancel")
        running.communicate(timeout=60)
    finally:
        running.kill()
    again = run_cli(tmp_path, "run", "endless", "--batches", "1")

    assert stopped.code == 0, stopped.err
    assert not Path(project.checkpoint_of("endless"), "offsets").exists()
    assert again.code == 3
    assert "is gone" in again.err
    assert "--new-strand" in again.err
