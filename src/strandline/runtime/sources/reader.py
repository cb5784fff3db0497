"""The seam between the runtime and a kind of source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from strandline.checkpoints.storage import Storage
from strandline.model.errors import SourceProblem
from strandline.model.positions import Position
from strandline.model.until import Until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE_OPTION = "strandline.source"
"""Reader option that carries the source's name into Spark's plan, where offsets are numbered, not named."""


class SourceRows(NamedTuple):
    """A stream, taken apart into what fits its schema and what does not."""

    rows: DataFrame
    malformed: DataFrame | None = None
    """Rows of the quarantine table; None when malformed records stop the run."""


@dataclass(frozen=True)
class Lag:
    """What waits to be read."""

    count: int
    unit: str
    seconds: float | None = None
    """How long the oldest of it has been waiting; None when nothing waits or nobody knows."""

    def __str__(self) -> str:
        age = f" ({self.seconds:.1f} s)" if self.seconds is not None else ""
        return f"{self.count} {self.unit}{age}"


Facts = Mapping[str, Mapping[str, object]]
"""What a source proves about a batch, for stamp and ledger: kind of fact → topic → fact."""

Notice = Callable[[str, str], None]
"""Tells (kind of event, sentence): goes to the ledger and to whoever watches."""


class SourceReader(Protocol):
    name: str

    def check(self) -> None:
        """Before a start: raise `SourceProblem` if the source cannot be read at all."""
        ...

    def begin(self) -> Position | None:
        """Where a new strand starts reading; None when that is simply the start of the source."""
        ...

    def read(self, spark: SparkSession, origin: Position | None) -> SourceRows:
        """The stream, with `SOURCE_OPTION` set to the source's name; `origin` is where the strand began."""
        ...

    def positions(self, checkpoint: Storage, index: int) -> PositionReader:
        """How this source's lines of a checkpoint become positions; `index` is its number in the plan."""
        ...

    def prove(self, start: Position | None, end: Position | None) -> Facts:
        """After a batch was read, before it is committed: raise `DataLost` if not all of it was there to be read."""
        ...

    def exhausted(self, position: Position | None) -> bool:
        """True when an available-now run has nothing more to read after `position`."""
        ...

    def reached(self, position: Position | None) -> bool:
        """True when a bounded source has given all that lies before its end."""
        ...

    def lag(self, position: Position | None) -> Lag | None:
        """What is waiting; None when unknown."""
        ...


def moment_of(source: str, until: Until | None) -> datetime | None:
    """For sources that know time but no offsets."""
    if until is not None and until.moment is None:
        raise SourceProblem(
            f"source '{source}' has no offsets that could be named; let it end at a moment", next_command="--until 2026-01-31T00:00:00Z"
        )
    return until.moment if until is not None else None


class LocalReader:
    """What sources without a cluster behind them share."""

    def begin(self) -> Position | None:
        return None

    def prove(self, start: Position | None, end: Position | None) -> Facts:
        return {}


class PositionReader(Protocol):
    def __call__(self, line: str) -> Position: ...
