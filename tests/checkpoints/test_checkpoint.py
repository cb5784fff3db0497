"""Spark's checkpoint folder, written here by hand in Spark's own format, read without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from strandline.checkpoints.checkpoint import Checkpoint, PlannedBatch
from strandline.checkpoints.storage import LocalStorage
from strandline.model.errors import CheckpointDamaged

STRAND = "7d0e7e52-3f0c-4f0e-9f65-3f5f2f6f5a11"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "orders"


@pytest.fixture
def checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint(LocalStorage(str(folder)))


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    (file.parent / f".{file.name}.crc").write_bytes(b"crc\x00")  # Hadoop's local file system keeps one beside each file


def write_plan(folder: Path, batch: int, *lines: str, watermark: int = 0) -> None:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
    metadata = {"batchWatermarkMs": watermark, "batchTimestampMs": 1_767_225_600_000, "conf": conf}
    put(folder / "offsets" / str(batch), "\n".join(["v1", json.dumps(metadata), *lines]))


def write_commit(folder: Path, batch: int) -> None:
    put(folder / "commits" / str(batch), 'v1\n{"nextBatchWatermarkMs":0}')


def write_identity(folder: Path) -> None:
    put(folder / "metadata", json.dumps({"id": STRAND}))


# -- identity ------------------------------------------------------------------------------------------------


def test_the_strand_is_sparks_query_id(folder: Path, checkpoint: Checkpoint) -> None:
    write_identity(folder)

    assert checkpoint.strand() == STRAND
    assert checkpoint.location == str(folder)


def test_a_checkpoint_that_is_not_there_has_no_strand_and_no_batches(checkpoint: Checkpoint) -> None:
    assert checkpoint.strand() is None
    assert checkpoint.planned() == checkpoint.completed() == []
    assert checkpoint.plan(0) is None
    assert checkpoint.next_batch() == 0


def test_missing_metadata_is_told_by_the_absence_of_a_strand(folder: Path, checkpoint: Checkpoint) -> None:
    """Spark would give such a checkpoint a new identity without a word; who starts it must look first."""
    write_plan(folder, 0, '{"logOffset":0}')

    assert checkpoint.strand() is None
    assert checkpoint.planned() == [0]


def test_a_new_identity_is_written_as_spark_writes_it(folder: Path, checkpoint: Checkpoint) -> None:
    strand = checkpoint.give_identity()

    assert json.loads((folder / "metadata").read_text()) == {"id": strand}
    assert checkpoint.strand() == strand
    assert [path.name for path in folder.iterdir()] == ["metadata"]


@pytest.mark.parametrize("content", ["", "{", '{"name": "x"}', "[]", "5", "\x00\x00"])
def test_damaged_metadata_is_named(folder: Path, checkpoint: Checkpoint, content: str) -> None:
    put(folder / "metadata", content)

    with pytest.raises(CheckpointDamaged, match=r"orders/metadata is damaged: it names no query id"):
        checkpoint.strand()


# -- batches -------------------------------------------------------------------------------------------------


def test_planned_and_completed_batches_in_order(folder: Path, checkpoint: Checkpoint) -> None:
    for batch in (9, 10, 11):
        write_plan(folder, batch, '{"logOffset":0}')
    write_commit(folder, 9)
    write_commit(folder, 10)
    (folder / "offsets" / ".12.7f3a.tmp").write_text("half a file")

    assert checkpoint.planned() == [9, 10, 11]
    assert checkpoint.completed() == [9, 10]
    assert checkpoint.is_completed(10)
    assert not checkpoint.is_completed(11)


def test_the_next_batch_is_the_last_planned_one_until_it_completes(folder: Path, checkpoint: Checkpoint) -> None:
    write_plan(folder, 0, "5")
    assert checkpoint.next_batch() == 0

    write_commit(folder, 0)
    assert checkpoint.next_batch() == 1

    write_plan(folder, 1, "10")
    assert checkpoint.next_batch() == 1


def test_a_plan_holds_the_line_of_every_source_and_the_watermark(folder: Path, checkpoint: Checkpoint) -> None:
    write_plan(folder, 3, '{"logOffset":4}', "-", '{"offset":40,"timestamp":7}', watermark=1_767_225_590_000)

    assert checkpoint.plan(3) == PlannedBatch(3, ('{"logOffset":4}', None, '{"offset":40,"timestamp":7}'), 1_767_225_590_000)
    assert checkpoint.plan(4) is None


def test_rows_are_late_by_the_watermark_that_the_batch_before_was_planned_with(folder: Path, checkpoint: Checkpoint) -> None:
    write_plan(folder, 0, "5", watermark=0)
    write_plan(folder, 1, "10", watermark=1000)
    write_plan(folder, 2, "15", watermark=2000)

    assert [checkpoint.late_watermark_ms(batch) for batch in (0, 1, 2, 3)] == [0, 0, 1000, 2000]
    assert checkpoint.late_watermark_ms(9) == 0, "the batch before is no longer there"


@pytest.mark.parametrize(
    "content",
    [b"", b"v1", b"v1\n", b'v1\n{"batchWatermarkMs":', b"v1\n5\n-", b"v1\nnull\n-", b'v1\n{"batchWatermarkMs":null}\n-', b"\xff\xfe\n{}"],
)
def test_a_truncated_plan_is_damage_with_its_name_and_never_a_guess(folder: Path, checkpoint: Checkpoint, content: bytes) -> None:
    write_plan(folder, 3, "5")
    (folder / "offsets" / "3").write_bytes(content)

    with pytest.raises(CheckpointDamaged, match=r"orders/offsets/3 is damaged") as refused:
        checkpoint.plan(3)

    assert refused.value.exit_code == 3
    assert "strandline run PIPELINE --new-strand" in refused.value.next_command


def test_a_plan_in_an_unknown_format_is_refused(folder: Path, checkpoint: Checkpoint) -> None:
    put(folder / "offsets" / "0", 'v2\n{"batchWatermarkMs":0}\n5')

    with pytest.raises(CheckpointDamaged, match="its format 'v2' is not v1"):
        checkpoint.plan(0)


def test_what_spark_did_not_write_is_not_a_batch(folder: Path, checkpoint: Checkpoint) -> None:
    write_plan(folder, 0, "5")
    for name in ("0.bak", "notes.txt", "_temporary"):
        (folder / "offsets" / name).write_text("x")

    assert checkpoint.planned() == [0]


def test_a_copied_checkpoint_reads_the_same_elsewhere(folder: Path, tmp_path: Path, checkpoint: Checkpoint) -> None:
    write_identity(folder)
    write_plan(folder, 0, "5")
    write_commit(folder, 0)
    shutil.copytree(folder, tmp_path / "copy")

    copy = Checkpoint(LocalStorage(str(tmp_path / "copy")))

    assert (copy.strand(), copy.next_batch(), copy.plan(0)) == (checkpoint.strand(), 1, checkpoint.plan(0))
