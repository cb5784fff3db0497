"""Noticing that a Kafka cluster is away, saying so within seconds, and waiting for it as long as was declared.

Spark itself says nothing for half a minute and then fails. A thread of our own asks every few seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType

from strandline.messaging.cluster import Cluster
from strandline.messaging.connection import KafkaConnection
from strandline.model.errors import ClusterUnreachable
from strandline.model.times import human_duration

STEADY = 30.0
"""Seconds without trouble after which an outage is over, also for a pipeline that has nothing to do."""

ASK_EVERY = 3.0
"""Seconds between two questions to a cluster that answers; one that does not is asked every second."""


class Outage:
    """Watches the clusters of one attempt. `given_up` turns into an error when one stays away too long."""

    def __init__(self, connections: Sequence[KafkaConnection], pipeline: str, say: Callable[[str], None]) -> None:
        self._pipeline = pipeline
        self._clusters = [Cluster(connection) for connection in connections]
        self._patience = min((connection.give_up_after for connection in connections), default=timedelta(0))
        self._say = say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strandline-clusters", daemon=True)
        self._since: float | None = None
        """When the outage began. It ends with a complete batch, or when the cluster was there for a while: one that comes
        and goes is given up too."""
        self._why: str | None = None
        self._back = 0.0

    def __enter__(self) -> Outage:
        if self._clusters:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._clusters:
            self._thread.join()
        for cluster in self._clusters:
            cluster.close()

    def _run(self) -> None:
        while not self._stop.wait(1.0 if self._why else ASK_EVERY):
            reasons = [why for cluster in self._clusters if (why := cluster.why_unreachable()) is not None]
            if not reasons:
                self.answered()
            elif self._why is None:
                self._begin(reasons[0])

    def answered(self) -> None:
        """Every cluster is there; whether for good, time will tell."""
        if self._why is not None:
            self._why, self._back = None, time.monotonic()
            self._say("the Kafka cluster answers again")
        elif self._since is not None and time.monotonic() - self._back > STEADY:
            self._since = None

    def _begin(self, why: str) -> None:
        self._since = self._since or time.monotonic()
        self._why = why
        self._say(f"{why}; waiting up to {human_duration(self._patience)} for it")

    @property
    def is_on(self) -> bool:
        """A cluster is away right now."""
        return self._why is not None

    def lost(self, error: ClusterUnreachable) -> None:
        """The query failed for want of a cluster: an outage has begun, if it was not noticed before."""
        if self._why is None:
            self._begin(error.message)

    def is_over(self) -> bool:
        """True when every cluster answers again; raises when the wait was too long."""
        if failure := self.given_up():
            raise failure
        return self._why is None

    def recovered(self) -> None:
        """A batch was completed: whatever was away is back."""
        if self._why is None:
            self._since = None

    def given_up(self) -> ClusterUnreachable | None:
        since, why = self._since, self._why
        if since is None or why is None or time.monotonic() - since < self._patience.total_seconds():
            return None
        return ClusterUnreachable(
            f"{why}; gave up after {human_duration(self._patience)}, nothing is lost or doubled",
            next_command=f"bring the cluster back, then: strandline run {self._pipeline}",
        )
