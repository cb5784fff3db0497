"""Letting go of a savepoint, unless somebody still needs it."""

from __future__ import annotations

from strandline.ledger import Ledger
from strandline.ledger.records import SavepointState, StrandRecord
from strandline.model.errors import NotFound, Refused
from strandline.project.config import Project
from strandline.runtime.liveness import process_is_gone
from strandline.savepoints.archive import MANIFEST, archive_of
from strandline.savepoints.removing import Tagger, remove


def dispose(
    project: Project, pipeline: str, savepoint: str, ledger: Ledger, tagger: Tagger, *, by: str, even_if_needed: bool = False
) -> None:
    """Remove tags and bytes; the ledger keeps the record. May be repeated after a crash.

    Refused while a strand descends from it that has completed no batch of its own: that strand could not be restored again.
    """
    record = ledger.savepoints.get(savepoint)
    archive = archive_of(project, pipeline, savepoint)
    if (record is None or record.pipeline != pipeline) and archive.storage.read(MANIFEST) is None:
        raise NotFound(f"pipeline '{pipeline}' has no savepoint '{savepoint}'", next_command=f"strandline savepoint list {pipeline}")
    in_the_making = record is not None and record.state is SavepointState.CREATING and not process_is_gone(record.process)
    if in_the_making and not even_if_needed:
        raise Refused(
            f"savepoint {savepoint} is still being made, as far as can be told from here",
            next_command=f"strandline savepoint dispose {pipeline} {savepoint} --even-if-needed",
        )
    dependent = [strand.strand for strand in ledger.strands.descended_from(savepoint) if not _has_own_batch(ledger, strand)]
    if dependent and not even_if_needed:
        raise Refused(
            f"strand {dependent[0]} of '{pipeline}' began from savepoint {savepoint} and has completed no batch of its own yet",
            next_command=f"strandline savepoint dispose {pipeline} {savepoint} --even-if-needed",
        )
    remove(project, pipeline, savepoint, tagger)
    if record is not None and record.state is not SavepointState.DISPOSED:
        ledger.savepoints.dispose(savepoint, f"by {by}")
        ledger.events.add(pipeline, "savepoint-disposed", savepoint)


def _has_own_batch(ledger: Ledger, strand: StrandRecord) -> bool:
    """The first batch that the ledger knows is the one that the strand goes on from."""
    known = ledger.batches.span(strand.pipeline, strand.strand)
    return known is not None and known[1] > known[0]
