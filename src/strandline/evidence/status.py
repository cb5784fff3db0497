"""Which pipelines run, where, how far, and how the others ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from strandline.ledger import Ledger
from strandline.ledger.records import Attempt, AttemptStatus, StateSize
from strandline.runtime.liveness import Liveness, liveness_of

STATUS_VERSION = 1

GROWING = 10
"""Batches in a row in which a state without a ttl must have grown before anyone is told."""

MissingTtl = Callable[[str], Mapping[str, Collection[str]]]
"""By pipeline: the states without a ttl of each keyed operator."""


@dataclass(frozen=True)
class OperatorSize:
    """The state of a keyed operator after the last batch that the ledger knows."""

    operator: str
    batch: int
    keys: int
    bytes: int
    entries: dict[str, int]


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
    states: tuple[OperatorSize, ...] = ()
    warnings: tuple[str, ...] = ()


def status_of_all(ledger: Ledger, only: str | None = None, missing_ttl: MissingTtl = lambda pipeline: {}) -> list[PipelineStatus]:
    """The newest attempt of each pipeline; one whose process is gone is shown as dead, whatever it last said."""
    found = []
    for attempt in ledger.attempts.latest_of_all():
        if only is not None and attempt.pipeline != only:
            continue
        alive = liveness_of(attempt)
        state = attempt.status.value
        if attempt.status is AttemptStatus.RUNNING and alive is not Liveness.ALIVE:
            state = alive.value
        sizes = _state_sizes(ledger, attempt)
        immortal = missing_ttl(attempt.pipeline) if sizes else {}
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
                states=tuple(OperatorSize(now.operator, now.batch, now.keys, now.bytes, now.entries) for now, *_ in sizes),
                warnings=tuple(told for history in sizes for told in growth_warnings(history, immortal.get(history[0].operator, ()))),
            )
        )
    return found


def _state_sizes(ledger: Ledger, attempt: Attempt) -> list[list[StateSize]]:
    """The recorded sizes of each keyed operator, newest first."""
    if attempt.strand is None:
        return []
    pipeline, strand = attempt.pipeline, attempt.strand
    return [ledger.state_sizes.of_operator(pipeline, strand, operator) for operator in ledger.state_sizes.operators(pipeline, strand)]


def growth_warnings(history: list[StateSize], immortal: Collection[str]) -> list[str]:
    """States that nothing ever ends and that grew in every one of the last batches; `history` is newest first."""
    found = []
    for name in sorted(immortal):
        run = [history[0].entries.get(name, 0)]
        for size in history[1:]:
            before = size.entries.get(name, 0)
            if before >= run[-1]:
                break
            run.append(before)
        if len(run) >= GROWING:
            found.append(
                f"state '{name}' of '{history[0].operator}' has no ttl and grew from {run[-1]} to {run[0]} entries in the last {len(run)} "
                "batches; declare ttl=… or clear it"
            )
    return found
