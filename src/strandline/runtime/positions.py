"""Offsets of a strand by batch: from the checkpoint while it keeps them, from the ledger after that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from strandline.checkpoints.checkpoint import Checkpoint, PlannedBatch
from strandline.ledger import Ledger
from strandline.model.errors import CheckpointDamaged
from strandline.model.offsets import Offsets
from strandline.runtime.dataflow import SourceLine
from strandline.runtime.sources import SourceReader


class Positions:
    """Answers "where was every source after batch N?", and remembers the answers of this attempt."""

    def __init__(
        self,
        pipeline: str,
        strand: str,
        checkpoint: Checkpoint,
        ledger: Ledger,
        readers: Mapping[str, SourceReader],
        source_lines: Sequence[SourceLine],
        origin: Offsets,
    ) -> None:
        self.origin = origin
        """Where every source stood before the strand's first batch."""
        self._pipeline = pipeline
        self._strand = strand
        self._checkpoint = checkpoint
        self._ledger = ledger
        self._names = [line.name for line in source_lines]
        decoders = {line.index: readers[line.name.partition("#")[0]].positions(checkpoint.storage, line.index) for line in source_lines}
        self._decode = [decoders[line.index] for line in source_lines]
        self._known: dict[int, Offsets] = {-1: origin}

    def after(self, batch: int) -> Offsets | None:
        """Offsets at the end of a batch; None when neither checkpoint nor ledger remember it."""
        if batch not in self._known:
            plan = self._checkpoint.plan(batch)
            if plan is not None:
                self._known[batch] = self._offsets(plan)
            elif record := self._ledger.batches.get(self._pipeline, self._strand, batch):
                self._known[batch] = Offsets.from_json(json.loads(record.offsets_end))
        return self._known.get(batch)

    def planned(self, batch: int) -> tuple[Offsets, Offsets]:
        """(start, end) of a batch that Spark has just planned."""
        start, end = self.after(batch - 1), self.after(batch)
        if start is None or end is None:
            lost = batch if end is None else batch - 1
            raise CheckpointDamaged(
                f"checkpoint file {self._checkpoint.location}/offsets/{lost} is missing, so the range of batch {batch} is unknown",
                next_command="restore the file from a copy, or: strandline run PIPELINE --new-strand",
            )
        return start, end

    def forget_before(self, batch: int) -> None:
        """Old batches can be looked up again; memory stays flat however long an attempt runs."""
        for old in [b for b in self._known if -1 < b < batch]:
            del self._known[old]

    def _offsets(self, plan: PlannedBatch) -> Offsets:
        if len(plan.lines) != len(self._names):
            raise CheckpointDamaged(
                f"checkpoint {self._checkpoint.location} reads its sources in {len(plan.lines)} places, the pipeline in "
                f"{len(self._names)} ({', '.join(self._names)}); sources of a running strand cannot be added or removed",
                next_command=f"strandline run {self._pipeline} --new-strand",
            )
        try:
            values = {
                name: None if line is None else decode(line)
                for name, line, decode in zip(self._names, plan.lines, self._decode, strict=True)
            }
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(
                f"checkpoint file {self._checkpoint.location}/offsets/{plan.batch} does not fit the pipeline's sources "
                f"({', '.join(self._names)}): it is damaged, or a source changed its kind",
                next_command=f"restore the file from a copy, or: strandline run {self._pipeline} --new-strand",
            ) from error
        return Offsets.of(values)
