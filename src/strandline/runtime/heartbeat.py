"""The heartbeat of an attempt: from the moment it is registered, through slow starts and long batches, to its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from strandline.ledger import Ledger
from strandline.ledger.records import Attempt
from strandline.model.errors import Fenced, StrandlineError
from strandline.runtime.liveness import BEAT, LEASE


class Heartbeat:
    """Beats on a thread of its own. `trouble` is set when this attempt must end: replaced, or unable to say it lives."""

    def __init__(self, ledger: Ledger, attempt: Attempt) -> None:
        self._ledger = ledger
        self._attempt = attempt
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strandline-heartbeat", daemon=True)
        self.facts: Callable[[], str] = lambda: "{}"
        self.trouble: StrandlineError | None = None

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stop.is_set() and self.trouble is None:
            try:
                alive = self._ledger.attempts.beat(self._attempt, self.facts())
                last = time.monotonic()
            except StrandlineError as error:
                # Others believe us alive until the lease ends; only then is silence dangerous.
                if time.monotonic() - last > LEASE.total_seconds() / 2:
                    self.trouble = error
            else:
                if not alive and not self._stop.is_set():
                    self.trouble = Fenced(
                        f"attempt {self._attempt.number} of '{self._attempt.pipeline}' was replaced by a newer one",
                        next_command="strandline status",
                    )
            self._stop.wait(BEAT.total_seconds())
