"""`strandline kafka …` as a user meets it, without a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.testing import run_cli
from strandline.testing.projects import write_sandbox


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_sandbox(tmp_path)
    return tmp_path


def test_outside_a_project(tmp_path: Path) -> None:
    for command in ("up", "down", "status"):
        finished = run_cli(tmp_path, "kafka", command)
        assert finished.code == 2
        assert "no strandline.yaml in" in finished.err
        assert finished.err.strip().splitlines()[-1].startswith("next: ")


def test_a_port_that_is_none(project: Path) -> None:
    for port in ("0", "65536", "kafka"):
        finished = run_cli(project, "kafka", "up", "--port", port)
        assert finished.code == 2
        assert "--port" in finished.err


def test_status_and_down_before_the_first_start(project: Path) -> None:
    shown = run_cli(project, "kafka", "status")
    folder = project / ".strandline" / "kafka"
    never: dict[str, object] = {"running": False, "pid": None, "bootstrap": None, "topics": None, "data_bytes": 0}
    never |= {"folder": str(folder), "log": str(folder / "broker.log")}

    assert shown.code == 0
    assert shown.out.splitlines()[1].split() == ["stopped", "-", "-", "-", "0.0", "MB", "-"]
    assert shown.out.strip().endswith("next: strandline kafka up")
    assert json.loads(run_cli(project, "kafka", "status", "--json").out) == {"version": 1, "broker": never}
    assert run_cli(project, "kafka", "down").out.strip() == "the broker was not running"
    assert json.loads(run_cli(project, "kafka", "down", "--json").out) == {"version": 1, "stopped": False, "broker": never}
    assert not folder.exists(), "looking makes nothing"


def test_help_names_every_command_and_option(project: Path) -> None:
    listing = run_cli(project, "kafka", "--help").out
    for command in ("up", "down", "status"):
        assert command in listing
        assert "--json" in run_cli(project, "kafka", command, "--help").out
    assert "--port" in run_cli(project, "kafka", "up", "--help").out
