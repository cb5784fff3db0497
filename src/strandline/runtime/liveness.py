"""Is the process that holds a pipeline alive? Proof where there is one, a lease where there is none."""

from __future__ import annotations

import os
import socket
import subprocess
from datetime import timedelta
from enum import Enum
from pathlib import Path

from strandline.ledger.records import Attempt, AttemptStatus, ProcessIdentity
from strandline.model.times import parse_instant, utc_now

LEASE = timedelta(seconds=30)
"""A holder on another machine is believed alive this long after its last heartbeat: fifteen missed beats."""

BEAT = timedelta(seconds=2)


class Liveness(Enum):
    ENDED = "ended"  # it recorded its own end
    DEAD = "dead"  # its process is provably gone
    SILENT = "silent"  # no sign of life for longer than the lease; it may still wake up
    ALIVE = "alive"


def this_process() -> ProcessIdentity:
    return ProcessIdentity(socket.gethostname(), os.getpid(), started_at(os.getpid()) or "unknown")


def liveness_of(attempt: Attempt) -> Liveness:
    if attempt.status is not AttemptStatus.RUNNING:
        return Liveness.ENDED
    if process_is_gone(attempt.process):
        return Liveness.DEAD
    age = utc_now() - parse_instant(attempt.heartbeat_at)
    return Liveness.SILENT if age > LEASE else Liveness.ALIVE


def process_is_gone(process: ProcessIdentity) -> bool:
    """Provably: it ran in this very process table, and no process there is it. False when it ran anywhere else.

    A host name proves nothing (containers share them), so the running kernel and the pid namespace must match too.
    """
    place, _, _ = process.started.rpartition(":")
    if process.host != socket.gethostname() or not place or place != _place():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # someone else's process has this pid; whether it is the one we look for is not shown to us
    return started_at(process.pid) != process.started


def _place() -> str:
    """Names the process table that pids refer to: this boot of this kernel, this pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "no-proc"


def started_at(pid: int) -> str | None:
    """When a process started, in words that no later process with its pid can repeat; None when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else f"{_place()}:{fields[19]}"
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    answer = subprocess.run(["ps", "-p", str(pid), "-o", "lstart="], capture_output=True, text=True)
    return f"{_place()}:{answer.stdout.strip().replace(':', '.')}" if answer.stdout.strip() else None
