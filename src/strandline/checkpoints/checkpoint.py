"""A Spark checkpoint folder: its identity, its planned and completed batches."""

from __future__ import annotations

import json
import uuid

from strandline.checkpoints.batch_files import CompletedBatch, PlannedBatch, parse_commit, parse_plan
from strandline.checkpoints.storage import Storage
from strandline.checkpoints.unreadable import Unreadable
from strandline.model.errors import CheckpointDamaged
from strandline.model.offsets import Offsets

__all__ = ["IDENTITY", "ORIGIN", "ORIGIN_VERSION", "Checkpoint", "CompletedBatch", "PlannedBatch"]

IDENTITY = "metadata"
"""Spark's query id."""
ORIGIN = "strandline-origin.json"
ORIGIN_VERSION = 1


class Checkpoint:
    """Reads what Spark wrote. A file that cannot be understood is an error with its name, never a guess."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @property
    def location(self) -> str:
        return self.storage.location

    def exists(self) -> bool:
        return self.storage.read(IDENTITY) is not None or bool(self.storage.names("offsets"))

    def strand(self) -> str | None:
        """Spark's query id: the identity of this checkpoint."""
        raw = self.storage.read(IDENTITY)
        if raw is None:
            return None
        try:
            return str(json.loads(raw)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(IDENTITY, "it names no query id") from error

    def give_identity(self) -> str:
        """Write a fresh identity before the first start, so that it is known before any batch runs."""
        strand = str(uuid.uuid4())
        self.storage.write(IDENTITY, json.dumps({"id": strand}, separators=(",", ":")).encode())
        return strand

    def origin(self) -> Offsets | None:
        """Where this strand began to read, if that was fixed beforehand; None when it is simply the sources' start."""
        raw = self.storage.read(ORIGIN)
        if raw is None:
            return None
        try:
            data = json.loads(raw)
            if data["version"] > ORIGIN_VERSION:
                raise self._damaged(ORIGIN, f"its version {data['version']} is newer than this strandline")
            return Offsets.from_json(data["sources"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(ORIGIN, "it is not what strandline wrote") from error

    def give_origin(self, origin: Offsets) -> None:
        """Fix where the strand begins, before its first batch: a second start must not look for 'latest' again."""
        self.storage.write(ORIGIN, json.dumps({"version": ORIGIN_VERSION, "sources": origin.to_json()}).encode())

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
            return parse_plan(batch, raw)
        except Unreadable as error:
            raise self._damaged(name, str(error)) from error

    def completion(self, batch: int) -> CompletedBatch | None:
        """What Spark wrote when a batch was done; None when it is not, or no longer in the checkpoint."""
        name = f"commits/{batch}"
        raw = self.storage.read(name)
        if raw is None:
            return None
        try:
            return parse_commit(batch, raw)
        except Unreadable as error:
            raise self._damaged(name, str(error)) from error

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
