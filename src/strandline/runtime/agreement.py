"""Before the first batch: do table, checkpoint and ledger tell the same story?

Pure questions over what was read. Every disagreement is a refusal with its reason; none is repaired silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.model.errors import ChainBroken, CheckpointDamaged
from strandline.model.fence import is_rolled_back, latest
from strandline.model.offsets import Offsets
from strandline.model.stamp import Witness


@dataclass(frozen=True)
class CheckpointFacts:
    location: str
    strand: str | None
    last_planned: int | None
    next_batch: int


@dataclass(frozen=True)
class TableFacts:
    """What is known of one table (or output topic) of the pipeline."""

    name: str
    mark: Witness | None
    newest: Witness | None
    ledger_batch: int | None
    """Newest batch of this strand that the ledger saw enter the table."""
    rows_since: Mapping[int, int | None]
    """For each batch between the table's last one and the next to run: rows the ledger says it got, None when the
    ledger has no word on it. Empty when the ledger is younger than the strand and cannot know."""
    kind: str = "table"
    """What messages call it: a table, or an output topic."""


def check_identity(facts: CheckpointFacts, pipeline: str, owner: str | None) -> None:
    """A checkpoint must know who it is, and be ours."""
    if facts.strand is None and facts.last_planned is not None:
        raise CheckpointDamaged(
            f"checkpoint {facts.location} has planned batches up to {facts.last_planned} but its 'metadata' file is missing; Spark would "
            "give it a new identity and every row since its last commit could enter the table twice",
            next_command=f"restore {facts.location}/metadata from a copy, or: strandline run {pipeline} --new-strand",
        )
    if owner is not None and owner != pipeline:
        raise ChainBroken(
            f"checkpoint {facts.location} (strand {facts.strand}) belongs to pipeline '{owner}', not to '{pipeline}'",
            next_command=f"strandline history {owner}",
        )


def check_table(facts: TableFacts, checkpoint: CheckpointFacts, pipeline: str, at_witness: Offsets | None) -> None:
    """One table against the checkpoint; `at_witness` is the checkpoint's own position after the table's last batch."""
    seen = latest(facts.mark, facts.newest)
    where = f"{facts.kind} '{facts.name}'"
    history = f"strandline history {facts.name}"
    restart = f"strandline run {pipeline} --new-strand"
    if is_rolled_back(facts.mark, facts.newest):
        assert facts.mark is not None and facts.newest is not None
        raise ChainBroken(
            f"{where} was rolled back from batch {facts.mark.batch} to batch {facts.newest.batch} without a boundary; going on would leave "
            "a hole in it",
            next_command=history,
        )
    if seen is None:
        _check_unwitnessed(facts, checkpoint, pipeline)
        return
    if checkpoint.last_planned is None and seen.strand != checkpoint.strand:
        raise ChainBroken(
            f"{where} holds batches up to {seen.batch} of strand {seen.strand}, but the checkpoint {checkpoint.location} is gone; a new one "
            "would read the source from the start and double every row",
            next_command=f"restore the checkpoint from a copy, or accept reading everything again: {restart}",
        )
    if seen.strand != checkpoint.strand:
        raise ChainBroken(
            f"{where} was written by strand {seen.strand}, the checkpoint {checkpoint.location} is strand {checkpoint.strand}: it is another "
            "job's memory",
            next_command=f"{history}, or: {restart}",
        )
    last = -1 if checkpoint.last_planned is None else checkpoint.last_planned
    if seen.batch > last:
        raise ChainBroken(
            f"the checkpoint {checkpoint.location} is older than {where}: it ends at batch {last}, the {facts.kind} already holds batch {seen.batch}; "
            "going on would double the rows in between",
            next_command=f"put the newest checkpoint back, or see: {history}",
        )
    if at_witness is not None and at_witness.digest != seen.end_digest:
        raise ChainBroken(
            f"batch {seen.batch} of {where} ends elsewhere than in the checkpoint {checkpoint.location} (same batch, other offsets): this "
            "checkpoint is a copy that went its own way",
            next_command=history,
        )
    if facts.ledger_batch is not None and facts.ledger_batch > seen.batch:
        raise ChainBroken(
            f"the ledger saw batch {facts.ledger_batch} enter {where}, but the {facts.kind} only holds batch {seen.batch}: a commit was lost or undone",
            next_command=history,
        )
    for batch, rows in sorted(facts.rows_since.items()):
        if rows is None:
            raise ChainBroken(
                f"the checkpoint {checkpoint.location} has completed batch {batch}, of which the ledger knows nothing and {where} holds "
                "nothing: it ran elsewhere, or while the pipeline wrote to another table",
                next_command=f"{history}, or accept that its rows are missing: strandline run {pipeline} --start-table {facts.name}",
            )
        if rows > 0:
            raise ChainBroken(
                f"batch {batch} brought {rows} rows to {where} according to the ledger, but it ends at batch {seen.batch}",
                next_command=history,
            )


def _check_unwitnessed(facts: TableFacts, checkpoint: CheckpointFacts, pipeline: str) -> None:
    """No stamp, no mark: a table gets its mark when it is made, or at the pipeline's first start. Later, rows are missing."""
    if checkpoint.next_batch == 0:
        return
    start_here = f"strandline run {pipeline} --start-table {facts.name}"
    if facts.ledger_batch is not None:
        raise ChainBroken(
            f"the ledger saw batch {facts.ledger_batch} enter {facts.kind} '{facts.name}', but it holds nothing of '{pipeline}': it was "
            "dropped, or its history was removed",
            next_command=f"restore it, or let it begin at the checkpoint's position: {start_here}",
        )
    raise ChainBroken(
        f"{facts.kind} '{facts.name}' holds nothing of '{pipeline}', but the checkpoint is already at batch {checkpoint.next_batch}: the rows "
        "before that would be missing from it",
        next_command=f"let it begin at the checkpoint's position: {start_here}",
    )
