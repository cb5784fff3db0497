"""Where a strand comes from: kept in its checkpoint, so that every start, also one after a crash, knows what its tables owe it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.place import current_checkpoint
from strandline.checkpoints.storage import Storage
from strandline.model.definition import Pipeline
from strandline.model.errors import CheckpointDamaged
from strandline.project.config import Project
from strandline.tables.view import MAIN

FILE = "strandline-strand.json"
STRAND_VERSION = 2
"""2: place, kind, branch, publication."""

RESTORE, FORK, PUBLISH = "restore", "fork", "publish"

PUBLISHED_BY = "published"
"""The holder that a published branch's mark gets: no attempt has this id, so none may write there any more."""


@dataclass(frozen=True)
class TableStart:
    """How a table enters the strand."""

    head: int | None
    """Its newest snapshot, on the strand's branch, when this was decided: if it has moved since, somebody must decide again."""
    rollback_to: int | None = None
    """The snapshot to go to; None leaves the table where it is, and begins a new branch without rows."""


@dataclass(frozen=True)
class Published:
    """A branch whose content becomes main's."""

    branch: str
    pipeline: str
    """Who wrote it."""
    attempt: int
    attempt_id: str
    """The holder that its writer's mark gets, newer than any that wrote."""


@dataclass(frozen=True)
class StrandOrigin:
    """A strand that goes on from a batch of another, or of none: then at the sources' beginning, as batch -1."""

    parent: str
    batch: int
    savepoint: str = ""
    claim: bool = False
    """The savepoint is this strand's own: it goes when the strand has a completed batch."""
    tables: Mapping[str, TableStart] = field(default_factory=dict)
    how: str = RESTORE
    branch: str = MAIN
    """Where the strand writes."""
    publishes: Published | None = None
    """The branch that ends where this strand begins."""
    place: int | None = None
    """The batch of this strand that equals the parent's `batch`; None when it has the same number."""

    @property
    def begins_after(self) -> int:
        """The batch of this strand that it did not run on input of its own."""
        return self.batch if self.place is None else self.place

    def encode(self) -> bytes:
        return json.dumps({"version": STRAND_VERSION, **asdict(self)}, indent=1).encode()

    @classmethod
    def decode(cls, raw: bytes) -> StrandOrigin:
        told = json.loads(raw)
        if told.pop("version") > STRAND_VERSION:
            raise ValueError("it was written by a newer strandline")
        published = told.get("publishes")
        tables = {name: TableStart(**start) for name, start in told["tables"].items()}
        return cls(**{**told, "tables": tables, "publishes": Published(**published) if published else None})


@dataclass(frozen=True)
class Restoration:
    """A checkpoint to be laid out in place of the present one."""

    origin: StrandOrigin
    lay_out: Callable[[Storage], None]
    """Writes its files."""


def branch_of(pipeline: Pipeline, origin: StrandOrigin | None) -> str:
    """Where a pipeline writes: a fork's declaration says it, or the restore that its strand began with."""
    return pipeline.branch if pipeline.branch != MAIN or origin is None else origin.branch


def writes_to(project: Project, pipeline: str) -> str:
    """The branch that a pipeline's present strand writes to; asked without its code, which may be gone."""
    origin = strand_origin(current_checkpoint(project, pipeline))
    return origin.branch if origin is not None else MAIN


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
