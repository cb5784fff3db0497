"""Where a strand comes from: kept in its checkpoint, so that every start, also one after a crash, knows what its tables owe it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.storage import Storage
from strandline.model.errors import CheckpointDamaged

FILE = "strandline-strand.json"
STRAND_VERSION = 2
"""1 had no `place`, and every strand went on with its parent's numbers."""


@dataclass(frozen=True)
class TableStart:
    """How a table enters the strand."""

    head: int | None
    """Its newest snapshot when this was decided: if it has moved since, somebody must decide again."""
    rollback_to: int | None = None
    """The snapshot to go back to; None leaves the table where it is."""


@dataclass(frozen=True)
class StrandOrigin:
    """A strand that goes on from a batch of another."""

    parent: str
    batch: int
    savepoint: str = ""
    claim: bool = False
    """The savepoint is this strand's own: it goes when the strand has a completed batch."""
    tables: Mapping[str, TableStart] = field(default_factory=dict)
    place: int | None = None
    """The batch of this strand that equals the parent's `batch`; None when it has the same number."""

    @property
    def begins_after(self) -> int:
        """The batch of this strand that it did not run on input of its own."""
        return self.batch if self.place is None else self.place

    def encode(self) -> bytes:
        """With the oldest version that says it all: an older strandline then reads it too."""
        told = asdict(self)
        if self.place is None:
            del told["place"]
        return json.dumps({"version": 1 if self.place is None else STRAND_VERSION, **told}, indent=1).encode()

    @classmethod
    def decode(cls, raw: bytes) -> StrandOrigin:
        told = json.loads(raw)
        if told.pop("version") > STRAND_VERSION:
            raise ValueError("it was written by a newer strandline")
        return cls(**{**told, "tables": {name: TableStart(**start) for name, start in told["tables"].items()}})


@dataclass(frozen=True)
class Restoration:
    """A checkpoint to be laid out in place of the present one."""

    origin: StrandOrigin
    lay_out: Callable[[Storage], None]
    """Writes its files."""


def strand_origin(checkpoint: Checkpoint) -> StrandOrigin | None:
    raw = checkpoint.storage.read(FILE)
    if raw is None:
        return None
    try:
        return StrandOrigin.decode(raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(
            f"{checkpoint.location}/{FILE} cannot be read: {error}", next_command="restore the file from a copy of the checkpoint"
        ) from error
