"""Is the process that holds a pipeline alive? Proof where there is one, a lease where there is none."""

from __future__ import annotations

import os
import socket
import subprocess
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path

from strandline.ledger.records import Attempt, AttemptStatus, ProcessIdentity
from strandline.model.times import utc_now

LEASE = timedelta(seconds=30)
"""A holder on another machine is believed alive this long after its last heartbeat: fifteen missed beats."""

BEAT = timedelta(seconds=2)


class Liveness(Enum):
    ENDED = "ended"  # it recorded its own end
    DEAD = "dead"  # its process is provably gone
    SILENT = "silent"  # no sign of life for longer than the lease; it may still wake up
    ALIVE = "alive"


def this_process() -> ProcessIdentity:
    return ProcessIdentity(socket.gethostname(), os.getpid(), _started(os.getpid()) or "unknown")


def liveness_of(attempt: Attempt) -> Liveness:
    if attempt.status is not AttemptStatus.RUNNING:
        return Liveness.ENDED
    if process_is_gone(attempt.process):
        return Liveness.DEAD
    age = utc_now() - datetime.fromisoformat(attempt.heartbeat_at.replace("Z", "+00:00"))
    return Liveness.SILENT if age > LEASE else Liveness.ALIVE


def process_is_gone(process: ProcessIdentity) -> bool:
    """Provably: it ran on this machine, and no process here is it. False when it ran elsewhere."""
    return process.host == socket.gethostname() and _started(process.pid) != process.started


def _started(pid: int) -> str | None:
    """When a process started, in words that no later process with its pid can repeat; None when there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        stat = Path(f"/proc/{pid}/stat").read_text()
        fields = stat.rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else f"{boot}:{fields[19]}"
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    answer = subprocess.run(["ps", "-p", str(pid), "-o", "lstart="], capture_output=True, text=True)
    return answer.stdout.strip() or None
