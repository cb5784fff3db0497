"""Savepoints that were begun and not finished: those whose makers are gone are settled, by the next one or by a clean-up."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from strandline.ledger import Ledger
from strandline.ledger.records import SavepointRecord, SavepointState
from strandline.model.savepoint import Savepoint
from strandline.project.config import Project
from strandline.runtime.liveness import process_is_gone
from strandline.savepoints.archive import MANIFEST, Archive
from strandline.savepoints.removing import Tagger, remove

COMPLETE = "complete: it was sealed before its maker ended"
REMOVE = "remove: unfinished savepoint of a maker that is gone"
KEEP = "keep: its maker might still be at work"


@dataclass(frozen=True)
class HalfMade:
    """A savepoint that the ledger believes in the making."""

    record: SavepointRecord
    decision: str
    """``complete: …``, ``remove: …`` or ``keep: …``."""

    @property
    def can_be_settled(self) -> bool:
        return self.decision != KEEP


def half_made(ledger: Ledger, pipeline: str | None = None) -> list[HalfMade]:
    records = ledger.savepoints.of_pipeline(pipeline)
    return [HalfMade(record, _decide(record)) for record in records if record.state is SavepointState.CREATING]


def _decide(record: SavepointRecord) -> str:
    if not process_is_gone(record.process):
        return KEEP
    return REMOVE if Archive(record.location).storage.read(MANIFEST) is None else COMPLETE


def settle(project: Project, ledger: Ledger, found: HalfMade, tagger: Tagger) -> None:
    """One that is sealed is complete, of another the tags and bytes go; its record stays. May be repeated after a crash."""
    record = found.record
    raw = Archive(record.location).storage.read(MANIFEST)
    if raw is None:
        undo(project, ledger, record, tagger, "its maker ended before it was complete")
    else:
        ledger.savepoints.complete(record.id, hashlib.sha256(raw).hexdigest(), Savepoint.decode(raw, record.location).size)


def undo(project: Project, ledger: Ledger, record: SavepointRecord, tagger: Tagger, reason: str) -> None:
    remove(project, record.pipeline, record.id, tagger)
    ledger.savepoints.fail(record.id, reason)
