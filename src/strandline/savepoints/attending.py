"""The one who takes savepoints beside a running attempt: on request, on schedule, and before it ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from strandline.ledger import Ledger
from strandline.ledger.records import Request
from strandline.ledger.requests import SAVEPOINT, STOP_WITH_SAVEPOINT
from strandline.model.errors import StrandlineError
from strandline.model.sizes import human_bytes
from strandline.model.times import utc_now
from strandline.project.config import Project
from strandline.runtime.reporting import Reporter
from strandline.runtime.strands import StrandOrigin, strand_origin
from strandline.savepoints.disposing import dispose
from strandline.savepoints.schedule import BY_SCHEDULE, is_due, superseded
from strandline.savepoints.taking import Taker, Wish
from strandline.tables.tags import JvmTags

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.runtime.attending import Hire
    from strandline.runtime.starting import Started


SCHEDULE_EVERY = 5.0
"""Seconds between two looks at the schedule, each of which asks the ledger."""

Work: TypeAlias = Callable[[], None]


def savepoint_keeper(project: Project, ledger: Ledger, reporter: Reporter) -> Hire:
    def hire(spark: SparkSession, started: Started) -> SavepointKeeper:
        tags = JvmTags(spark, project.profile.catalog.name)
        return SavepointKeeper(project, started, ledger, tags, reporter, strand_origin(started.checkpoint), spark)

    return hire


@dataclass
class SavepointKeeper:
    """One savepoint at a time, on a thread of its own: the stream goes on, and so does the heartbeat."""

    project: Project
    started: Started
    ledger: Ledger
    tags: JvmTags
    reporter: Reporter
    origin: StrandOrigin | None
    spark: SparkSession
    _owed: list[Request] = field(default_factory=list)
    _next_look: float = 0.0
    _busy: threading.Thread | None = None

    def asked(self, request: Request) -> bool:
        if request.kind not in (SAVEPOINT, STOP_WITH_SAVEPOINT):
            return False
        self._owed.append(request)
        return True

    def look(self, completed: int) -> None:
        if completed < 0 or (self._busy is not None and self._busy.is_alive()):
            return
        if self.origin is not None and self.origin.claim and completed > self.origin.begins_after:
            claimed, self.origin = self.origin, None
            self._begin(lambda: self._release(claimed.savepoint))
        elif hot := [request for request in self._owed if request.kind == SAVEPOINT]:
            self._owed.remove(hot[0])
            self._begin(lambda: self._serve(hot[0]))
        elif self.started.pipeline.savepoint is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + SCHEDULE_EVERY
            if is_due(self.started.pipeline.savepoint, self.ledger.savepoints.of_pipeline(self.started.pipeline.name), utc_now()):
                self._begin(self._take_scheduled)

    def finish(self) -> None:
        if self._busy is not None:
            self._busy.join()
        for request in self._owed:
            self._serve(request)
        self._owed = []

    def _begin(self, work: Work) -> None:
        self._busy = threading.Thread(target=work, name="strandline-savepoint", daemon=True)
        self._busy.start()

    def _serve(self, request: Request) -> None:
        def say(text: str) -> None:
            self.ledger.requests.report(request.id, text)

        try:
            saved = self._taker(say).take(Wish.decode(request.wish))
            answer = {"savepoint": saved.id}
            self.reporter.say(f"savepoint {saved.id} of batch {saved.batch} is complete ({human_bytes(saved.size)})")
        except StrandlineError as error:
            answer = {"error": error.message, "next_command": error.next_command}
            self.reporter.say(f"the savepoint failed: {error.message}")
        except Exception as error:  # noqa: BLE001 - a savepoint that fails must not end the stream
            answer = {"error": f"{type(error).__name__}: {error}", "next_command": "strandline doctor"}
            self.reporter.say(f"the savepoint failed: {error}")
        self.ledger.requests.answer(request.id, json.dumps(answer))

    def _taker(self, say: Callable[[str], None]) -> Taker:
        started = self.started
        return Taker(self.project, started.pipeline, self.ledger, self.tags, say, started.checkpoint, lambda: self.spark)

    def _take_scheduled(self) -> None:
        name, policy = self.started.pipeline.name, self.started.pipeline.savepoint
        assert policy is not None
        try:
            saved = self._taker(lambda text: None).take(Wish(BY_SCHEDULE))
            self.reporter.say(f"scheduled savepoint {saved.id} of batch {saved.batch} is complete ({human_bytes(saved.size)})")
            for old in superseded(policy, self.ledger.savepoints.of_pipeline(name), utc_now()):
                dispose(self.project, name, old.id, self.ledger, self.tags, by=BY_SCHEDULE)
        except Exception as error:  # noqa: BLE001 - a savepoint that fails must not end the stream
            self.reporter.say(f"the scheduled savepoint failed: {error}")

    def _release(self, savepoint: str) -> None:
        """The strand has a completed batch of its own, and the savepoint was given to it."""
        name = self.started.pipeline.name
        try:
            dispose(self.project, name, savepoint, self.ledger, self.tags, by=f"claim of attempt {self.started.attempt.number}")
            self.reporter.say(f"savepoint {savepoint} was claimed by this strand and is disposed of")
        except StrandlineError as error:
            self.reporter.say(f"savepoint {savepoint} could not be disposed of: {error.message}")
