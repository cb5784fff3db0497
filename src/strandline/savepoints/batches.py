"""A batch that can be gone on from: completed, every file of it in order, and its positions known."""

from __future__ import annotations

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.verification import Answer, newest_restartable, verify
from strandline.ledger import Ledger
from strandline.ledger.records import BatchRecord
from strandline.model.errors import CheckpointDamaged, NotFound


def restartable(checkpoint: Checkpoint, ledger: Ledger, pipeline: str, batch: int | None, command: str) -> tuple[str, BatchRecord]:
    """Its strand, and what the ledger knows of it; the newest batch when none is named.

    Args:
        command: with a batch behind it, asks for another one.
    """
    strand, completed = checkpoint.strand(), checkpoint.completed()
    if strand is None or not completed:
        raise NotFound(f"pipeline '{pipeline}' has completed no batch yet", next_command=f"strandline run {pipeline}")
    wanted = completed[-1] if batch is None else batch
    if wanted not in completed:
        kept = f"batches {completed[0]}–{completed[-1]}" if len(completed) > 1 else f"batch {completed[0]}"
        raise NotFound(
            f"batch {wanted} is not a completed batch of the checkpoint of '{pipeline}'; it keeps {kept}",
            next_command=f"strandline checkpoint list {pipeline}",
        )
    found = verify(checkpoint, wanted)
    if found.answer is not Answer.YES:
        other = newest_restartable(checkpoint, before=wanted)
        raise CheckpointDamaged(
            f"a restart from batch {wanted} is not possible: {found.because}",
            next_command=f"{command} {other}" if other is not None else "restore the file from a copy",
        )
    known = ledger.batches.get(pipeline, strand, wanted)
    if known is None:
        raise NotFound(
            f"the ledger does not know batch {wanted} of strand {strand}, so its positions cannot be told",
            next_command=f"strandline checkpoint show {pipeline} {wanted}",
        )
    return strand, known
