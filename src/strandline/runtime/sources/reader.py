"""The seam between the runtime and a kind of source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from strandline.checkpoints.storage import Storage
from strandline.model.offsets import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE_OPTION = "strandline.source"
"""Reader option that carries the source's name into Spark's plan, where offsets are numbered, not named."""

CORRUPT_COLUMN = "_corrupt_record"
FILE_COLUMN = "__strandline_file"


class SourceReader(Protocol):
    name: str
    quarantines: bool
    """True when the frame carries `CORRUPT_COLUMN` and `FILE_COLUMN`, whose rows go to the quarantine table."""

    def check(self) -> None:
        """Before a start: raise `SourceProblem` if the source cannot be read at all."""
        ...

    def read(self, spark: SparkSession) -> DataFrame:
        """The stream, with `SOURCE_OPTION` set to the source's name."""
        ...

    def positions(self, checkpoint: Storage, index: int) -> PositionReader:
        """How this source's lines of a checkpoint become positions; `index` is its number in the plan."""
        ...

    def exhausted(self, position: Position | None) -> bool:
        """True when an available-now run has nothing more to read after `position`."""
        ...

    def lag(self, position: Position | None) -> str | None:
        """What is waiting, in words; None when unknown."""
        ...


class PositionReader(Protocol):
    def __call__(self, line: str) -> Position: ...
