"""Real `strandline` processes, armed to die or freeze at a named point of the protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from strandline.model.crash import CrashPoint

TIMEOUT = 180.0
"""Seconds: ten times what a slow start of Spark takes here."""


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def killed(self) -> bool:
        return self.code == -9


def _environment(crash_at: CrashPoint | None, pause_at: CrashPoint | None, batch: int | None) -> dict[str, str]:
    variables = {**os.environ, "NO_COLOR": "1"}
    at = "" if batch is None else f"@{batch}"
    for variable, point in (("STRANDLINE_CRASH_AT", crash_at), ("STRANDLINE_PAUSE_AT", pause_at)):
        if point is not None:
            variables |= {"STRANDLINE_TESTING": "1", variable: point.value + at}
    return variables


def start_cli(
    project: Path, *arguments: str, crash_at: CrashPoint | None = None, pause_at: CrashPoint | None = None, batch: int | None = None
) -> subprocess.Popen[str]:
    """Start ``strandline …`` in a project folder and return at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "strandline.cli.main", *arguments],
        cwd=project,
        env=_environment(crash_at, pause_at, batch),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_cli(
    project: Path, *arguments: str, crash_at: CrashPoint | None = None, pause_at: CrashPoint | None = None, batch: int | None = None
) -> Finished:
    """Run ``strandline …`` to its end, or to its death."""
    process = start_cli(project, *arguments, crash_at=crash_at, pause_at=pause_at, batch=batch)
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"strandline {' '.join(arguments)} did not end within {TIMEOUT} s\n{out}\n{err}") from None
    return Finished(process.returncode, out, err)
