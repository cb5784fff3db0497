"""Checkpoints of new strands that no start ever took up: an attempt was killed, or failed, while it laid them out.

A checkpoint that counts, or ever did, is none of these: its strand is known to the ledger, or has batches of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.place import StrandPlace, current_checkpoint, strand_places
from strandline.checkpoints.storage import storage_at
from strandline.ledger import Ledger
from strandline.ledger.records import Attempt, AttemptStatus
from strandline.model.errors import CheckpointDamaged
from strandline.model.times import parse_instant, utc_now
from strandline.project.config import Project
from strandline.runtime.liveness import Liveness, liveness_of, process_is_gone
from strandline.runtime.strands import strand_origin

FORGOTTEN = timedelta(days=1)
"""An attempt on another machine that was declared lost cannot take its checkpoint up any more; after this long it does not write to it either."""


@dataclass(frozen=True)
class Unfinished:
    pipeline: str
    attempt: int
    location: str
    files: int
    bytes: int
    decision: str
    """``remove: …``, or ``keep: <why>``."""

    @property
    def removable(self) -> bool:
        return self.decision.startswith("remove")


def find_unfinished(project: Project, ledger: Ledger, pipeline: str | None = None) -> list[Unfinished]:
    found = []
    for place in strand_places(project):
        if pipeline is not None and place.pipeline != pipeline:
            continue
        decision = _decide(project, ledger, place)
        if decision is not None:
            files = storage_at(place.location).walk("")
            found.append(Unfinished(place.pipeline, place.attempt, place.location, len(files), sum(file.size for file in files), decision))
    return found


def remove_unfinished(project: Project, ledger: Ledger, found: Sequence[Unfinished]) -> list[Unfinished]:
    """Delete those that a second look still finds removable; returns them."""
    still = {again.location for again in find_unfinished(project, ledger) if again.removable}
    gone = [each for each in found if each.removable and each.location in still]
    for each in gone:
        storage_at(each.location).delete_all()
        ledger.events.add(each.pipeline, "unfinished-checkpoint-removed", each.location, each.attempt)
    return gone


def _decide(project: Project, ledger: Ledger, place: StrandPlace) -> str | None:
    """None when it is a checkpoint like any other."""
    checkpoint = Checkpoint(storage_at(place.location))
    attempt = ledger.attempts.get(place.pipeline, place.attempt)
    try:
        if current_checkpoint(project, place.pipeline).location == checkpoint.location or _was_taken_up(ledger, place, checkpoint, attempt):
            return None
    except CheckpointDamaged as damaged:
        return f"keep: {damaged.message}"
    if attempt is None or attempt.id != place.attempt_id:
        return f"keep: the ledger does not know attempt {place.attempt} with the id {place.attempt_id}"
    if _may_still_write(attempt):
        return f"keep: attempt {attempt.number} might still be at work on it"
    killed = attempt.status in (AttemptStatus.RUNNING, AttemptStatus.LOST)
    return f"remove: unfinished checkpoint of a {'killed' if killed else 'failed'} attempt"


def _was_taken_up(ledger: Ledger, place: StrandPlace, checkpoint: Checkpoint, attempt: Attempt | None) -> bool:
    """Did a start ever go on from it? Files of the strand before it were copied in: they prove nothing."""
    if attempt is not None and attempt.id == place.attempt_id and attempt.strand is not None:
        return True
    strand, origin = checkpoint.strand(), strand_origin(checkpoint)
    if strand is not None and (
        ledger.attempts.owner_of(strand) is not None
        or ledger.strands.get(place.pipeline, strand) is not None
        or ledger.batches.knows(place.pipeline, strand)
    ):
        return True
    begun = strand is not None or origin is not None  # both are written after the copies
    first = origin.begins_after + 1 if origin is not None else 0
    return begun and any(batch >= first for batch in checkpoint.planned())


def _may_still_write(attempt: Attempt) -> bool:
    if attempt.status is AttemptStatus.RUNNING:
        return liveness_of(attempt) is not Liveness.DEAD
    if attempt.status is AttemptStatus.LOST:
        return not process_is_gone(attempt.process) and utc_now() - parse_instant(attempt.heartbeat_at) < FORGOTTEN
    return False  # it recorded its own end after it had let go
