"""Asking a running attempt for a savepoint, here or on another machine, and waiting for its answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta

from strandline.ledger import Ledger
from strandline.ledger.records import Attempt, AttemptStatus
from strandline.model.errors import Failure, Refused
from strandline.model.times import human_duration
from strandline.runtime.liveness import Liveness, liveness_of
from strandline.savepoints.taking import Wish

_LOOK_EVERY = 0.2


def running_attempt(ledger: Ledger, pipeline: str) -> Attempt | None:
    """The attempt that could answer; None when the pipeline rests."""
    attempt = ledger.attempts.latest(pipeline)
    return attempt if attempt is not None and liveness_of(attempt) in (Liveness.ALIVE, Liveness.SILENT) else None


def ask(ledger: Ledger, attempt: Attempt, kind: str, wish: Wish, patience: timedelta, say: Callable[[str], None]) -> str:
    """The id of the savepoint that the attempt took."""
    request = ledger.requests.ask(attempt.pipeline, attempt.number, kind, wish.by, wish.encode())
    deadline = time.monotonic() + patience.total_seconds()
    told = ""
    while time.monotonic() < deadline:
        now = ledger.requests.get(request)
        if now.progress and now.progress != told:
            told = now.progress
            say(told)
        if now.answer is not None:
            return _answered(now.answer)
        held = ledger.attempts.get(attempt.pipeline, attempt.number)
        if held is None or held.status is not AttemptStatus.RUNNING or liveness_of(held) is Liveness.DEAD:
            answer = ledger.requests.get(request).answer
            if answer is not None:
                return _answered(answer)
            raise Refused(
                f"attempt {attempt.number} of '{attempt.pipeline}' ended before it took the savepoint",
                next_command=f"strandline savepoint create {attempt.pipeline}",
            )
        time.sleep(_LOOK_EVERY)
    raise Failure(
        f"attempt {attempt.number} of '{attempt.pipeline}' has not taken the savepoint within {human_duration(patience)}; the request stays open",
        next_command=f"strandline savepoint list {attempt.pipeline}",
    )


def _answered(answer: str) -> str:
    told = json.loads(answer)
    if "error" in told:
        raise Failure(f"the savepoint failed: {told['error']}", next_command=told["next_command"])
    return str(told["savepoint"])
