"""kill -9 at every step of forking and publishing: the same command again finishes it, and readers never see half of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import CrashPoint, assert_chain_unbroken, run_cli, table_rows
from strandline.testing.projects import write_sandbox

from .shop import PIPELINES, TOTAL

pytestmark = pytest.mark.process


def rows(project: object, ref: str) -> dict[str, int]:
    return {name: len(table_rows(project, f"shop.{name}{ref}", ["seq"])) for name in ("even", "odd")}  # type: ignore[arg-type]


def test_fork_and_publish_killed_at_every_step(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, PIPELINES)
    assert run_cli(tmp_path, "run", "split", "--batches", "3").code == 0
    fork = ("fork", "split", "--from", "1", "--as", "trial", "--into", "branch:trial", "--available-now")

    for point in (CrashPoint.STRAND_BUILT, CrashPoint.STRAND_PLACED, CrashPoint.CLAIMING, CrashPoint.CLAIMED):
        died = run_cli(tmp_path, *fork, crash_at=point)
        assert died.killed, died.err
        assert rows(project, "") == {"even": 30, "odd": 30}, "main is never touched"
    finished = run_cli(tmp_path, *fork)
    assert finished.code == 0, finished.err
    assert rows(project, "@trial") == {"even": TOTAL // 2, "odd": TOTAL // 2}

    refused = run_cli(tmp_path, "publish", "trial", "--yes")
    assert (refused.code, "branch and main hold other rows" in refused.err) == (3, True), refused.err
    publish = ("publish", "trial", "--accept", "different", "--yes")
    for point in (CrashPoint.STRAND_BUILT, CrashPoint.STRAND_PLACED, CrashPoint.CLAIMING):
        died = run_cli(tmp_path, *publish, crash_at=point)
        assert died.killed, died.err
        assert rows(project, "") == {"even": 30, "odd": 30}
    died = run_cli(tmp_path, *publish, crash_at=CrashPoint.CLAIMED)
    assert died.killed, died.err
    assert rows(project, "") == {"even": TOTAL // 2, "odd": 30}, "each table goes at once, one after the other"
    finished = run_cli(tmp_path, *publish)
    assert finished.code == 0, finished.err
    assert run_cli(tmp_path, "run", "split", "--available-now").code == 0

    for name in ("even", "odd"):
        seen = sorted(row["seq"] for row in table_rows(project, f"shop.{name}", ["seq"]))
        assert seen == list(range(0 if name == "even" else 1, TOTAL, 2))
        assert_chain_unbroken(project, f"shop.{name}", "split")
        assert "trial" not in EmbeddedCatalog(project).load(f"shop.{name}").refs
    assert not list((tmp_path / "forks").iterdir())
