"""kill -9 at every step of taking, restoring and disposing of a savepoint; a zombie that wakes up after a restore; savepoints of a running job."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.model.savepoint import TAG_PREFIX
from strandline.project.config import Project
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import CrashPoint, assert_chain_unbroken, run_cli, start_cli, table_rows
from strandline.testing.projects import write_sandbox

from .shop import PIPELINES, TOTAL

pytestmark = pytest.mark.process

ENDLESS = """
import strandline as sl

@sl.pipeline(source=sl.generator(events_per_batch=10), sink=sl.table("shop.endless"), checkpoint=sl.checkpoint(every="0.2 s"))
def endless(orders):
    return orders
"""


def said(folder: Path, *arguments: str) -> str:
    finished = run_cli(folder, *arguments)
    assert finished.code == 0, finished.err
    return finished.out


def create(folder: Path, pipeline: str) -> str:
    return str(json.loads(said(folder, "savepoint", "create", pipeline, "--json"))["id"])


def states(folder: Path, pipeline: str) -> dict[str, str]:
    lines = json.loads(said(folder, "savepoint", "list", pipeline, "--json"))["savepoints"]
    return {line["id"]: line["state"] for line in lines}


def tagged(project: Project, table: str) -> set[str]:
    refs = EmbeddedCatalog(project).load(table).refs
    return {name.removeprefix(TAG_PREFIX) for name in refs if name.startswith(TAG_PREFIX)}


def folders(project: Project, pipeline: str) -> set[str]:
    return {path.name for path in Path(project.savepoints_of(pipeline)).iterdir()}


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


def assert_split_once(project: Project, events: int) -> None:
    """Every event is in exactly one of the two tables, once: counted without the pipeline."""
    even, odd = (sorted(row["seq"] for row in table_rows(project, f"shop.{name}", ["seq"])) for name in ("even", "odd"))
    assert even == list(range(0, events, 2))
    assert odd == list(range(1, events, 2))
    for name in ("even", "odd"):
        assert_chain_unbroken(project, f"shop.{name}", "split")


def test_taking_and_disposing_killed_at_every_step(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, PIPELINES)
    said(tmp_path, "run", "split", "--batches", "2")

    for point in (CrashPoint.SAVEPOINT_BEGUN, CrashPoint.SAVEPOINT_TAGGED, CrashPoint.SAVEPOINT_COPIED, CrashPoint.SAVEPOINT_SEALED):
        died = run_cli(tmp_path, "savepoint", "create", "split", crash_at=point)
        assert died.killed, died.err
    last = create(tmp_path, "split")

    found = states(tmp_path, "split")
    complete = {name for name, state in found.items() if state == "complete"}
    assert sorted(found.values()) == ["complete", "complete", "failed", "failed", "failed"], "the sealed one is complete, others are undone"
    assert last in complete
    assert folders(project, "split") == tagged(project, "shop.even") == tagged(project, "shop.odd") == complete

    for point in (CrashPoint.SAVEPOINT_UNSEALED, CrashPoint.SAVEPOINT_UNTAGGED):
        died = run_cli(tmp_path, "savepoint", "dispose", "split", last, crash_at=point)
        assert died.killed, died.err
        assert run_cli(tmp_path, "run", "split", "--from-savepoint", last, "--tables", "rollback", "--yes").code == 2, (
            "it is no savepoint any more"
        )
    said(tmp_path, "savepoint", "dispose", "split", last)

    assert states(tmp_path, "split")[last] == "disposed"
    assert folders(project, "split") == tagged(project, "shop.even") == complete - {last}

    assert run_cli(tmp_path, "savepoint", "create", "split", crash_at=CrashPoint.SAVEPOINT_TAGGED).killed
    (left,) = tagged(project, "shop.even") - complete
    (shown,) = json.loads(said(tmp_path, "cleanup", "--json"))["savepoints"]
    assert (shown["id"], shown["decision"], shown["settled"]) == (left, "remove: unfinished savepoint of a maker that is gone", False)
    said(tmp_path, "cleanup", "--remove")
    assert states(tmp_path, "split")[left] == "failed"
    assert folders(project, "split") == tagged(project, "shop.even") == complete - {last}
    assert said(tmp_path, "cleanup").strip() == "nothing to clean up"
    assert_split_once(project, 40)


def test_a_restore_killed_at_every_step_is_finished_by_the_next_start(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, PIPELINES)
    said(tmp_path, "run", "split", "--batches", "2")
    saved = create(tmp_path, "split")
    said(tmp_path, "run", "split", "--batches", "3")
    restore = ("run", "split", "--available-now", "--from-savepoint", saved, "--tables", "rollback", "--yes")

    refused = run_cli(tmp_path, *restore[:-1])
    assert (refused.code, "the plan is only applied when it is confirmed" in refused.err) == (2, True), refused.err
    assert "30 rows of batches 2–4 leave it" in refused.err
    for point in (CrashPoint.STRAND_BUILT, CrashPoint.STRAND_PLACED):
        died = run_cli(tmp_path, *restore, crash_at=point)
        assert died.killed, died.err
        assert_split_once(project, 100)
    for point in (CrashPoint.CLAIMING, CrashPoint.CLAIMED):
        died = run_cli(tmp_path, "run", "split", "--available-now", crash_at=point)
        assert died.killed, died.err
    assert len(table_rows(project, "shop.even", ["seq"])) == 20, "one table has gone back"
    assert len(table_rows(project, "shop.odd", ["seq"])) == 50, "the other one has not yet"
    (leftover,) = json.loads(said(tmp_path, "cleanup", "--remove", "--json"))["checkpoints"]
    assert (leftover["decision"], leftover["removed"]) == ("remove: unfinished checkpoint of a killed attempt", True)
    assert not Path(leftover["location"]).exists(), "the first restore was killed before its checkpoint counted"
    said(tmp_path, "run", "split", "--available-now")

    assert_split_once(project, TOTAL)
    told = said(tmp_path, "history", "shop.even")
    assert told.count(f"boundary ({saved})") == 1
    assert told.count("batch (left)") == 3


def test_a_zombie_of_the_old_strand_wakes_up_after_the_restore_and_commits_nothing(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, PIPELINES)
    said(tmp_path, "run", "split", "--batches", "2")
    saved = create(tmp_path, "split")
    zombie = start_cli(tmp_path, "run", "split", "--available-now", pause_at=CrashPoint.BATCH_RETURNING, batch=4)
    try:
        wait_for(lambda: len(table_rows(project, "shop.odd", ["seq"])) == 50)
        time.sleep(1)
        said(tmp_path, "run", "split", "--batches", "1", "--take-over", "--from-savepoint", saved, "--tables", "rollback", "--yes")
        (before,) = Path(project.checkpoints).glob("split.3-*/commits")
        known = sorted(path.name for path in before.iterdir() if not path.name.startswith("."))
        os.kill(zombie.pid, signal.SIGCONT)
        _, err = zombie.communicate(timeout=90)
    finally:
        zombie.kill()
    assert zombie.returncode == 4, err
    assert sorted(path.name for path in before.iterdir() if not path.name.startswith(".")) == known, "it wrote into its own checkpoint only"
    said(tmp_path, "run", "split", "--available-now")

    assert_split_once(project, TOTAL)


def test_a_running_pipeline_takes_savepoints_and_one_more_before_it_ends(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, ENDLESS)
    running = start_cli(tmp_path, "run", "endless")
    try:
        wait_for(lambda: (Path(project.checkpoints) / "endless/commits/2").exists(), 120)
        hot = create(tmp_path, "endless")
        at = len(table_rows(project, "shop.endless", ["seq"]))
        wait_for(lambda: len(table_rows(project, "shop.endless", ["seq"])) > at)
        out = said(tmp_path, "stop", "endless", "--savepoint")
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 0, err
    last = out.split("savepoint ")[1].split()[0]
    assert {hot, last} == set(states(tmp_path, "endless"))

    def batch(savepoint: str) -> int:
        return int(json.loads(said(tmp_path, "savepoint", "show", "endless", savepoint, "--json"))["batch"])

    rows = len(table_rows(project, "shop.endless", ["seq"]))
    assert batch(hot) < batch(last) == rows // 10 - 1
    refused = run_cli(tmp_path, "run", "endless", "--batches", "1", "--from-savepoint", hot, "--tables", "continue", "--yes")
    assert (refused.code, "would be doubled" in refused.err) == (3, True), refused.err
    said(tmp_path, "run", "endless", "--batches", "2", "--from-savepoint", last, "--tables", "continue", "--yes")

    assert sorted(row["seq"] for row in table_rows(project, "shop.endless", ["seq"])) == list(range(rows + 20))
