"""A Spark checkpoint folder: its identity, its planned and completed batches."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from strandline.checkpoints.storage import Storage
from strandline.model.errors import CheckpointDamaged
from strandline.model.offsets import Offsets

_NEVER_READ = "-"
_ORIGIN = "strandline-origin.json"
ORIGIN_VERSION = 1


@dataclass(frozen=True)
class PlannedBatch:
    """One `offsets/N` file: what Spark decided to read, before it read it."""

    batch: int
    lines: tuple[str | None, ...]
    """Raw offset per source, in the order of the plan; None when a source was never read."""
    watermark_ms: int


class Checkpoint:
    """Reads what Spark wrote. A file that cannot be understood is an error with its name, never a guess."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @property
    def location(self) -> str:
        return self.storage.location

    def exists(self) -> bool:
        return self.storage.read("metadata") is not None or bool(self.storage.names("offsets"))

    def strand(self) -> str | None:
        """Spark's query id: the identity of this checkpoint."""
        raw = self.storage.read("metadata")
        if raw is None:
            return None
        try:
            return str(json.loads(raw)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged("metadata", "it names no query id") from error

    def give_identity(self) -> str:
        """Write a fresh identity before the first start, so that it is known before any batch runs."""
        strand = str(uuid.uuid4())
        self.storage.write("metadata", json.dumps({"id": strand}, separators=(",", ":")).encode())
        return strand

    def origin(self) -> Offsets | None:
        """Where this strand began to read, if that was fixed beforehand; None when it is simply the sources' start."""
        raw = self.storage.read(_ORIGIN)
        if raw is None:
            return None
        try:
            data = json.loads(raw)
            if data["version"] > ORIGIN_VERSION:
                raise self._damaged(_ORIGIN, f"its version {data['version']} is newer than this strandline")
            return Offsets.from_json(data["sources"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(_ORIGIN, "it is not what strandline wrote") from error

    def give_origin(self, origin: Offsets) -> None:
        """Fix where the strand begins, before its first batch: a second start must not look for 'latest' again."""
        self.storage.write(_ORIGIN, json.dumps({"version": ORIGIN_VERSION, "sources": origin.to_json()}).encode())

    def planned(self) -> list[int]:
        return self._batches("offsets")

    def completed(self) -> list[int]:
        return self._batches("commits")

    def _batches(self, folder: str) -> list[int]:
        return sorted(int(name) for name in self.storage.names(folder) if name.isdigit())

    def plan(self, batch: int) -> PlannedBatch | None:
        """The plan of a batch; None when it is not (or no longer) in the checkpoint."""
        name = f"offsets/{batch}"
        raw = self.storage.read(name)
        if raw is None:
            return None
        try:
            version, metadata, *lines = raw.decode("utf-8").split("\n")
            if version != "v1":
                raise self._damaged(name, f"its format '{version[:20]}' is not v1")
            watermark = int(json.loads(metadata).get("batchWatermarkMs", 0))
        except (ValueError, TypeError, AttributeError) as error:
            raise self._damaged(name, "it is truncated or not in Spark's format") from error
        return PlannedBatch(batch, tuple(None if line == _NEVER_READ else line for line in lines), watermark)

    def is_completed(self, batch: int) -> bool:
        return self.storage.read(f"commits/{batch}") is not None

    def late_watermark_ms(self, batch: int) -> int:
        """Spark calls a row of batch N late when it is not newer than the watermark that batch N-1 was planned with."""
        before = self.plan(batch - 1) if batch > 0 else None
        return before.watermark_ms if before else 0

    def next_batch(self) -> int:
        """The batch that a start would run: the last planned one again if it never completed, else the one after."""
        planned = self.planned()
        if not planned:
            return 0
        return planned[-1] + 1 if self.is_completed(planned[-1]) else planned[-1]

    def _damaged(self, name: str, why: str) -> CheckpointDamaged:
        return CheckpointDamaged(
            f"checkpoint file {self.location}/{name} is damaged: {why}; starting from it could lose or double rows",
            next_command="restore the file from a copy, or: strandline run PIPELINE --new-strand",
        )
