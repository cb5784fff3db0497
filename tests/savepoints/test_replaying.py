"""Which batch can be run again, and what is laid out for it: read from checkpoints that Spark wrote, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.requirements import needed_by
from strandline.checkpoints.verification import Answer, verify
from strandline.model.errors import CheckpointVanished, NotFound
from strandline.model.offsets import ORIGIN
from strandline.model.savepoint import Savepoint, SavepointType
from strandline.project.config import Project
from strandline.runtime.strands import FILE as STRAND_FILE
from strandline.runtime.strands import StrandOrigin
from strandline.savepoints.archive import CHECKPOINT, archive_of
from strandline.savepoints.replaying import FROM_CHECKPOINT, FROM_NOTHING, find_batch, scratch_checkpoint, spans
from strandline.testing.projects import write_sandbox

WrittenBySpark = Callable[[str, Path], Checkpoint]

SAVED = "sp-20261116-091614-cee4"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_sandbox(tmp_path)


@pytest.fixture
def totals(project: Project, written_by_spark: WrittenBySpark) -> Checkpoint:
    """Keyed state after dedupe: batches 0–4 are complete, 5 is planned."""
    return written_by_spark("totals", Path(project.checkpoints) / "totals")


def save(project: Project, checkpoint: Checkpoint, batch: int, strand: str | None = None) -> None:
    """A savepoint as it is taken, of the checkpoint as it is now."""
    archive = archive_of(project, "totals", SAVED)
    files = [archive.keep(CHECKPOINT + f.path, f.kind.value, checkpoint.storage.read(f.path) or b"") for f in needed_by(checkpoint, batch)]
    archive.seal(
        Savepoint(
            id=SAVED,
            pipeline="totals",
            type=SavepointType.NATIVE,
            strand=strand or checkpoint.strand() or "",
            batch=batch,
            attempt=1,
            code="",
            created_at="2026-11-16T09:16:14Z",
            created_by="me",
            note="",
            positions=ORIGIN,
            watermark_ms=0,
            checkpoint="",
            definition={},
            operators=(),
            versions={},
            contracts={},
            tables=(),
            topics=(),
            files=tuple(files),
        )
    )


def forget(checkpoint: Checkpoint, *paths: str) -> None:
    for path in paths:
        checkpoint.storage.remove(path)


def test_the_scratch_checkpoint_holds_the_batch_as_planned_on_the_state_before_it(project: Project, totals: Checkpoint) -> None:
    recorded = find_batch(project, "totals", 3)

    with scratch_checkpoint(project, recorded) as scratch:
        assert (scratch.planned(), scratch.completed(), scratch.next_batch()) == ([1, 2, 3], [2], 3)
        assert verify(scratch, 2).answer is Answer.YES
        assert scratch.storage.read("offsets/3") == totals.storage.read("offsets/3")
        assert scratch.strand() not in (None, totals.strand()), "another identity: the original is not disturbed"
        for file in scratch.storage.walk("state"):
            assert totals.location.encode() + b"/state" not in (scratch.storage.read(file.path) or b""), file.path
    assert recorded.state.origin == FROM_CHECKPOINT
    assert sorted(path.name for path in Path(project.checkpoints).iterdir()) == ["totals"], "nothing stays behind"


def test_the_first_batch_begins_with_nothing(project: Project, totals: Checkpoint) -> None:
    recorded = find_batch(project, "totals", 0)

    with scratch_checkpoint(project, recorded) as scratch:
        assert (scratch.planned(), scratch.completed()) == ([0], [])
        assert {file.path.partition("/")[0] for file in scratch.storage.walk("")} == {"metadata", "offsets"}
    assert recorded.state.origin == FROM_NOTHING


def test_a_scratch_checkpoint_goes_also_when_the_replay_fails(project: Project, totals: Checkpoint) -> None:
    with pytest.raises(ZeroDivisionError), scratch_checkpoint(project, find_batch(project, "totals", 1)):
        raise ZeroDivisionError

    assert sorted(path.name for path in Path(project.checkpoints).iterdir()) == ["totals"]


def test_the_log_of_a_file_source_comes_along(project: Project, written_by_spark: WrittenBySpark) -> None:
    written_by_spark("numbers", Path(project.checkpoints) / "numbers")

    with scratch_checkpoint(project, find_batch(project, "numbers", 4)) as scratch:
        assert {"2.compact", "3", "4"} <= set(scratch.storage.names("sources/0"))


def test_a_batch_that_is_no_longer_kept_is_refused_with_those_that_are(project: Project, totals: Checkpoint) -> None:
    forget(totals, "offsets/0", "commits/0", "offsets/1", "commits/1")

    with pytest.raises(NotFound, match=r"batch 1 of 'totals' cannot be replayed: .* no longer keeps it; these can: 4$") as told:
        find_batch(project, "totals", 1)
    assert told.value.next_command == "strandline replay totals --batch 4"
    with pytest.raises(NotFound, match=r"the state before it, after batch 2, is not kept \(offsets/1: it is not there\)"):
        find_batch(project, "totals", 3)


def test_a_batch_that_is_only_planned_is_refused(project: Project, totals: Checkpoint) -> None:
    with pytest.raises(NotFound, match=r"it is not complete; the newest complete batch is 4; these can: 0–4"):
        find_batch(project, "totals", 5)


def test_a_pipeline_without_batches_is_told_so(project: Project) -> None:
    with pytest.raises(NotFound, match="pipeline 'totals' has completed no batch yet"):
        find_batch(project, "totals", 0)


def test_a_batch_of_another_strand_is_refused(project: Project, totals: Checkpoint) -> None:
    totals.storage.write(STRAND_FILE, StrandOrigin("the-old-one", 2).encode())

    with pytest.raises(
        NotFound, match=rf"it belongs to strand the-old-one, .* of strand {totals.strand()}, which goes on after batch 2; these can: 3–4"
    ):
        find_batch(project, "totals", 1)
    with pytest.raises(NotFound, match="belongs to strand the-old-one"):
        find_batch(project, "totals", 2)
    assert find_batch(project, "totals", 3).parent == "the-old-one"


def test_a_savepoint_serves_when_the_checkpoint_no_longer_keeps_the_batch_before(project: Project, totals: Checkpoint) -> None:
    save(project, totals, 2)
    forget(totals, "commits/2")

    recorded = find_batch(project, "totals", 3)

    assert recorded.state.origin == SAVED
    with scratch_checkpoint(project, recorded) as scratch:
        assert verify(scratch, 2).answer is Answer.YES
        assert scratch.next_batch() == 3
    with pytest.raises(NotFound, match="these can: 0–1, 3–4"):
        find_batch(project, "totals", 2)


def test_the_savepoint_that_a_strand_goes_on_from_serves_its_first_batch(project: Project, totals: Checkpoint) -> None:
    save(project, totals, 2, strand="the-old-one")
    totals.storage.write(STRAND_FILE, StrandOrigin("the-old-one", 2).encode())
    forget(totals, "commits/2")

    assert find_batch(project, "totals", 3).state.origin == SAVED


def test_a_savepoint_of_another_strand_or_a_damaged_one_does_not_serve(project: Project, totals: Checkpoint) -> None:
    save(project, totals, 2, strand="another")
    forget(totals, "commits/2")
    with pytest.raises(NotFound, match=r"the state before it, after batch 2, is not kept \(commits/2: it is not there"):
        find_batch(project, "totals", 3)

    totals.storage.write("commits/2", archive_of(project, "totals", SAVED).storage.read(f"{CHECKPOINT}commits/2") or b"")
    save(project, totals, 2)
    forget(totals, "commits/2")
    archive_of(project, "totals", SAVED).storage.write(f"{CHECKPOINT}offsets/2", b"v1")
    with pytest.raises(NotFound, match=rf"; savepoint {SAVED} is damaged: checkpoint/offsets/2: it has 2 bytes"):
        find_batch(project, "totals", 3)


def test_a_file_that_a_running_pipeline_retires_meanwhile_is_named(project: Project, totals: Checkpoint) -> None:
    recorded = find_batch(project, "totals", 3)
    forget(totals, "offsets/1")

    with pytest.raises(CheckpointVanished, match="checkpoint file offsets/1 of 'totals' is gone"), scratch_checkpoint(project, recorded):
        pass
    assert sorted(path.name for path in Path(project.checkpoints).iterdir()) == ["totals"]


def test_spans() -> None:
    assert [spans(numbers) for numbers in ([], [3], [0, 3, 4, 5], [1, 2, 4])] == ["", "3", "0, 3–5", "1–2, 4"]
