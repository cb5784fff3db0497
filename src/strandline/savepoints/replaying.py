"""What running one batch again needs: its recorded plan, and the state before it.

A checkpoint that holds exactly that has a batch which is planned and not completed: Spark runs it, as after a crash. The state before it
comes from the pipeline's checkpoint, or from a savepoint of the batch before when the checkpoint no longer keeps it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from strandline.checkpoints.checkpoint import ORIGIN, Checkpoint
from strandline.checkpoints.copying import CheckpointFiles, files_of
from strandline.checkpoints.needed import FileKind, Look, NeededFile
from strandline.checkpoints.place import current_checkpoint
from strandline.checkpoints.requirements import needed_by
from strandline.checkpoints.source_needs import source_needs
from strandline.checkpoints.storage import storage_at
from strandline.checkpoints.verification import Answer, verify
from strandline.model.errors import CheckpointVanished, NotFound, StrandlineError
from strandline.model.savepoint import SavepointType
from strandline.project.config import Project
from strandline.runtime.strands import StrandOrigin, strand_origin
from strandline.savepoints.archive import Archive, archive_of

FROM_NOTHING = "empty"
FROM_CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class StateBefore:
    """The files of the batch before, wherever they come from."""

    origin: str
    """`FROM_CHECKPOINT`, the id of a savepoint, or `FROM_NOTHING` before the first batch."""
    files: CheckpointFiles = field(default_factory=CheckpointFiles)


@dataclass(frozen=True)
class RecordedBatch:
    """A completed batch that can be run again."""

    pipeline: str
    strand: str
    parent: str | None
    """The strand that this one goes on from, if it does."""
    batch: int
    state: StateBefore
    plan: CheckpointFiles
    """What it read: its offsets, and what the sources keep of them."""


@dataclass(frozen=True)
class _Strand:
    """The strand that counts now, as its checkpoint shows it."""

    checkpoint: Checkpoint
    pipeline: str
    id: str
    origin: StrandOrigin | None
    completed: Sequence[int]

    @property
    def first(self) -> int:
        """The first batch that this strand ran itself."""
        return self.origin.begins_after + 1 if self.origin is not None else 0

    def owns(self, batch: int, strand: str) -> bool:
        """Is a batch of that strand one that this strand stands on?"""
        same = self.origin is not None and self.origin.place is None  # else its state was decoded, and has other versions
        inherited = self.origin is not None and same and (strand, batch) == (self.origin.parent, self.origin.batch)
        return inherited or (strand == self.id and batch >= self.first)


def find_batch(project: Project, pipeline: str, batch: int) -> RecordedBatch:
    """The batch with all that it needs, checked; or which batches can be run again instead."""
    strand = _current(project, pipeline)
    if batch not in strand.completed or batch < strand.first:
        raise _refused(project, strand, batch, _why_not_there(strand, batch))
    state, why = _state_before(project, strand, batch)
    if state is None:
        raise _refused(project, strand, batch, why)
    plan = _plan(strand, batch)
    return RecordedBatch(pipeline, strand.id, strand.origin.parent if strand.origin else None, batch, state, plan)


@contextmanager
def scratch_checkpoint(project: Project, recorded: RecordedBatch) -> Iterator[Checkpoint]:
    """A checkpoint of its own identity that holds the batch as planned and not completed; gone when the block is left.

    It lies beside the real ones, where Spark's workers can write state, and under a name that nobody takes for one of them.
    """
    folder = storage_at(f"{project.checkpoints}/{recorded.pipeline}.replay-{secrets.token_hex(6)}")
    scratch = Checkpoint(storage_at(f"{folder.location}/checkpoint"))
    try:
        for files in (recorded.state.files, recorded.plan):
            files.lay_out(scratch.storage)
        scratch.give_identity()  # two queries with one id in an application would stop each other
        yield scratch
    finally:
        folder.delete_all()


# -- where the state before comes from -----------------------------------------------------------------------------------


def _current(project: Project, pipeline: str) -> _Strand:
    checkpoint = current_checkpoint(project, pipeline)
    strand, completed = checkpoint.strand(), checkpoint.completed()
    if strand is None or not completed:
        raise NotFound(f"pipeline '{pipeline}' has completed no batch yet", next_command=f"strandline run {pipeline}")
    return _Strand(checkpoint, pipeline, strand, strand_origin(checkpoint), completed)


def _savepoints(project: Project, strand: _Strand) -> dict[int, list[Archive]]:
    """Savepoints by batch, of this strand and of the batch that it goes on from. Their folders are asked, not the ledger: one that was
    brought here serves as well."""
    found: dict[int, list[Archive]] = {}
    for name in storage_at(project.savepoints_of(strand.pipeline)).names(""):
        try:
            archive = archive_of(project, strand.pipeline, name)
            saved = archive.read()
        except StrandlineError:
            continue  # it cannot serve; `savepoint verify` says why
        if saved.type is SavepointType.NATIVE and strand.owns(saved.batch, saved.strand):
            found.setdefault(saved.batch, []).append(archive)
    return found


def _state_before(project: Project, strand: _Strand, batch: int) -> tuple[StateBefore | None, str]:
    """None, and why, when there is none."""
    if batch == 0:
        return StateBefore(FROM_NOTHING), ""
    before = batch - 1
    found = verify(strand.checkpoint, before)
    if found.answer is Answer.YES:
        return _from_checkpoint(strand, before), ""
    damaged = ""
    for archive in _savepoints(project, strand).get(before, ()):
        manifest = archive.read()
        damages = archive.damages(manifest.files)
        if not damages:
            return _from_savepoint(archive), ""
        damaged = f"; savepoint {manifest.id} is damaged: {damages[0].path}: {damages[0].what}"
    return None, f"the state before it, after batch {before}, is not kept ({found.because}){damaged}"


def _from_checkpoint(strand: _Strand, batch: int) -> StateBefore:
    return StateBefore(FROM_CHECKPOINT, _files(strand, needed_by(strand.checkpoint, batch)).anonymous())


def _from_savepoint(archive: Archive) -> StateBefore:
    saved = archive.read()
    return StateBefore(saved.id, archive.checkpoint_files(saved).anonymous())


def _plan(strand: _Strand, batch: int) -> CheckpointFiles:
    """The offsets of the batch, and what the sources keep of their own up to there."""
    look = Look(strand.checkpoint)
    plan = strand.checkpoint.plan(batch)
    if plan is None:
        raise _vanished(strand, f"offsets/{batch}")
    needed = [look.need(f"offsets/{batch}", FileKind.PLAN, "what the batch read"), *source_needs(look, plan)]
    if ORIGIN in look:
        needed.append(look.need(ORIGIN, FileKind.OURS, "where the strand began"))
    return _files(strand, needed)


def _files(strand: _Strand, needed: Iterable[NeededFile]) -> CheckpointFiles:
    """A running pipeline may retire a file between the look and the copy."""
    return files_of(strand.checkpoint, needed, lambda path: _vanished(strand, path))


def _vanished(strand: _Strand, path: str) -> CheckpointVanished:
    return CheckpointVanished(
        f"checkpoint file {path} of '{strand.pipeline}' is gone: the pipeline runs and no longer keeps that batch",
        next_command=f"strandline replay {strand.pipeline} with a newer batch; strandline checkpoint list {strand.pipeline} shows them",
    )


# -- when a batch cannot be run again ------------------------------------------------------------------------------------


def _why_not_there(strand: _Strand, batch: int) -> str:
    if batch < strand.first:
        assert strand.origin is not None
        return (
            f"it belongs to strand {strand.origin.parent}, and the checkpoint that counts now is of strand {strand.id}, which goes on after "
            f"batch {strand.origin.batch}"
        )
    if batch > strand.completed[-1]:
        return f"it is not complete; the newest complete batch is {strand.completed[-1]}"
    return f"the checkpoint of strand {strand.id} no longer keeps it"


def _refused(project: Project, strand: _Strand, batch: int, why: str) -> NotFound:
    others = _replayable(strand, _savepoints(project, strand))
    instead = f"these can: {spans(others)}" if others else "none of the batches that it keeps can"
    following = f"strandline replay {strand.pipeline} --batch {others[-1]}" if others else f"strandline checkpoint list {strand.pipeline}"
    return NotFound(f"batch {batch} of '{strand.pipeline}' cannot be replayed: {why}; {instead}", next_command=following)


def _replayable(strand: _Strand, saved: Collection[int]) -> list[int]:
    """Batches whose files are there; whether each file is whole is only checked for the one that is asked for."""
    look = Look(strand.checkpoint)

    def has_state(batch: int) -> bool:
        return batch == 0 or batch - 1 in saved or all(file.problem is None for file in needed_by(strand.checkpoint, batch - 1, look))

    own = [batch for batch in strand.completed if batch >= strand.first and f"offsets/{batch}" in look]
    return [batch for batch in own if has_state(batch)]


def spans(numbers: Sequence[int]) -> str:
    """``0, 3–5`` for 0, 3, 4, 5."""
    if not numbers:
        return ""
    breaks = [place for place, (one, other) in enumerate(pairwise(numbers), 1) if other != one + 1]
    runs = [numbers[start:end] for start, end in pairwise([0, *breaks, len(numbers)])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
