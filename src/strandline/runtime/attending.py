"""Work that is done beside a running attempt, such as taking savepoints. The attempt knows only this much of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from strandline.ledger.records import Request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.runtime.starting import Started


class Attendant(Protocol):
    """Called on the watch's thread. All but `finish` return at once: the heartbeat must not wait."""

    def asked(self, request: Request) -> bool:
        """A request that the attempt does not know itself; True when the attendant will answer it."""
        ...

    def look(self, completed: int) -> None:
        """The newest batch whose checkpoint is complete, again and again."""
        ...

    def finish(self) -> None:
        """The query has ended: do what is still owed, and wait for what is under way."""
        ...


Hire: TypeAlias = "Callable[[SparkSession, Started], Attendant]"
