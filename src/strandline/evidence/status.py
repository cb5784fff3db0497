"""Which pipelines run, where, how far, and how the others ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from strandline.ledger import Ledger
from strandline.ledger.records import AttemptStatus
from strandline.runtime.liveness import Liveness, liveness_of

STATUS_VERSION = 1


@dataclass(frozen=True)
class PipelineStatus:
    pipeline: str
    state: str
    attempt: int
    strand: str | None
    host: str
    pid: int
    started_at: str
    heartbeat_at: str
    ended_at: str | None
    reason: str | None
    code: str
    tables: tuple[str, ...]
    progress: dict[str, Any]


def status_of_all(ledger: Ledger, only: str | None = None) -> list[PipelineStatus]:
    """The newest attempt of each pipeline; one whose process is gone is shown as dead, whatever it last said."""
    found = []
    for attempt in ledger.attempts.latest_of_all():
        if only is not None and attempt.pipeline != only:
            continue
        alive = liveness_of(attempt)
        state = attempt.status.value
        if attempt.status is AttemptStatus.RUNNING and alive is not Liveness.ALIVE:
            state = alive.value
        found.append(
            PipelineStatus(
                pipeline=attempt.pipeline,
                state=state,
                attempt=attempt.number,
                strand=attempt.strand,
                host=attempt.process.host,
                pid=attempt.process.pid,
                started_at=attempt.started_at,
                heartbeat_at=attempt.heartbeat_at,
                ended_at=attempt.ended_at,
                reason=attempt.reason,
                code=attempt.code,
                tables=attempt.tables,
                progress=json.loads(attempt.progress) if attempt.progress else {},
            )
        )
    return found
