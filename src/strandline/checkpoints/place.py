"""Where a pipeline's checkpoint is.

Every strand has a folder of its own: a process that was declared lost may wake up, and writes into the folder it knows. The first strand
has the pipeline's name; later ones the number and id of the attempt that began them behind it. A small file beside them says which one counts, so
that a new strand takes its place in one step.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.storage import storage_at
from strandline.model.errors import CheckpointDamaged
from strandline.project.config import Project

PLACE_VERSION = 1


@dataclass(frozen=True)
class StrandPlace:
    """The folder of a later strand, as its name tells."""

    pipeline: str
    attempt: int
    attempt_id: str
    """Of the attempt that made it."""
    location: str


def current_checkpoint(project: Project, pipeline: str) -> Checkpoint:
    """The checkpoint that a start goes on from; it need not exist yet."""
    raw = storage_at(project.checkpoints).read(_pointer(pipeline))
    if raw is None:
        return Checkpoint(storage_at(project.checkpoint_of(pipeline)))
    try:
        told = json.loads(raw)
        folder = str(told["folder"])
        if told["version"] > PLACE_VERSION or not re.fullmatch(rf"{re.escape(pipeline)}(\.\d+-\w+)?", folder):
            raise ValueError(folder)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(
            f"{project.checkpoints}/{_pointer(pipeline)} does not say which checkpoint counts: {raw[:80]!r}",
            next_command="restore the file from a copy, or: strandline run PIPELINE --new-strand",
        ) from error
    return Checkpoint(storage_at(f"{project.checkpoints}/{folder}"))


def empty_place(project: Project, pipeline: str, attempt: int, attempt_id: str) -> Checkpoint:
    """A folder for a new strand that nobody else knows: numbers may be given twice when a ledger is lost, ids are not."""
    return Checkpoint(storage_at(f"{project.checkpoints}/{pipeline}.{attempt}-{attempt_id}"))


def strand_places(project: Project) -> list[StrandPlace]:
    """Every folder that an attempt has begun for a new strand, whatever became of it."""
    names = storage_at(project.checkpoints).names("")
    found = ((name, re.fullmatch(r"([A-Za-z][\w-]*)\.(\d+)-(\w+)", name)) for name in names)
    return [StrandPlace(parts[1], int(parts[2]), parts[3], f"{project.checkpoints}/{name}") for name, parts in found if parts is not None]


def make_current(project: Project, pipeline: str, checkpoint: Checkpoint) -> None:
    folder = checkpoint.location.rstrip("/").rpartition("/")[2]
    content = json.dumps({"version": PLACE_VERSION, "folder": folder})
    storage_at(project.checkpoints).write(_pointer(pipeline), content.encode())


def forget_place(project: Project, pipeline: str) -> None:
    """For a pipeline that is given up: its next strand is its first one again."""
    storage_at(project.checkpoints).remove(_pointer(pipeline))


def _pointer(pipeline: str) -> str:
    return f"{pipeline}.current.json"
