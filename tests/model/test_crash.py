"""Crash points: nothing without the switch, a real SIGKILL or SIGSTOP with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from strandline.model.crash import CrashPoint, reach

SCRIPT = """
from strandline.model.crash import CrashPoint, reach
for batch in range(3):
    reach(CrashPoint.STAGED, batch)
    print(batch, flush=True)
reach(CrashPoint.CLAIMING)
print("claimed", flush=True)
"""


def start(**armed: str) -> subprocess.Popen[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("STRANDLINE_")}
    return subprocess.Popen([sys.executable, "-c", SCRIPT], env={**variables, **armed}, stdout=subprocess.PIPE, text=True)


def run(**armed: str) -> tuple[int, list[str]]:
    process = start(**armed)
    out, _ = process.communicate(timeout=30)
    return process.returncode, out.split()


def test_the_process_is_killed_at_the_named_point_of_the_named_batch() -> None:
    assert run(STRANDLINE_TESTING="1", STRANDLINE_CRASH_AT="staged@1") == (-signal.SIGKILL, ["0"])


def test_without_a_batch_the_first_time_counts() -> None:
    assert run(STRANDLINE_TESTING="1", STRANDLINE_CRASH_AT="staged") == (-signal.SIGKILL, [])


def test_a_point_without_a_batch_can_be_armed() -> None:
    assert run(STRANDLINE_TESTING="1", STRANDLINE_CRASH_AT="claiming") == (-signal.SIGKILL, ["0", "1", "2"])


def test_nothing_happens_unless_testing_is_switched_on() -> None:
    assert run(STRANDLINE_CRASH_AT="staged") == (0, ["0", "1", "2", "claimed"])


def test_a_paused_process_freezes_once_and_goes_on_when_woken() -> None:
    process = start(STRANDLINE_TESTING="1", STRANDLINE_PAUSE_AT="staged")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)

    process.send_signal(signal.SIGCONT)

    out, _ = process.communicate(timeout=30)
    assert out.split() == ["0", "1", "2", "claimed"]


def test_other_points_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_TESTING", "1")
    monkeypatch.setenv("STRANDLINE_CRASH_AT", "staged@7")

    for point in CrashPoint:
        reach(point, 3)
    reach(CrashPoint.STAGED, 6)
    reach(CrashPoint.COMMITTED, 7)
