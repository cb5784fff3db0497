"""Can it be restarted from this batch? A checkpoint that Spark wrote, damaged in every way that a disk or a person knows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.needed import FileKind, Problem
from strandline.checkpoints.requirements import needed_by
from strandline.checkpoints.storage import ArrowStorage, LocalStorage, StoredFile
from strandline.checkpoints.verification import RECORD_VERSION, Answer, Verification, look_over, newest_restartable, verify
from strandline.runtime.keyed.building import OperatorRecord
from strandline.state.declarations import Context, KeyedProcess, value_state
from strandline.state.layout import layout_of
from strandline.state.types import parse_fields

WrittenBySpark = Callable[[str, Path], Checkpoint]


@pytest.fixture
def totals(written_by_spark: WrittenBySpark, tmp_path: Path) -> Checkpoint:
    return written_by_spark("totals", tmp_path / "totals")


@pytest.fixture
def folder(totals: Checkpoint) -> Path:
    return Path(totals.location)


def problems(found: Verification) -> list[tuple[str, Problem | None]]:
    return [(file.path, file.problem) for file in found.troubles]


def flip(file: Path, at: int | None = None) -> None:
    whole = file.read_bytes()
    at = len(whole) // 2 if at is None else at
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])


def without_checksums(folder: Path) -> None:
    """As on a store that Hadoop's local checksums are not on, and with Spark's own switched off."""
    for file in folder.rglob("*.crc"):
        file.unlink()


# -- yes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", ["totals", "pairs", "numbers"])
def test_what_spark_wrote_can_be_restarted_from(written_by_spark: WrittenBySpark, tmp_path: Path, pipeline: str) -> None:
    checkpoint = written_by_spark(pipeline, tmp_path / pipeline)

    for batch in checkpoint.completed():
        found = verify(checkpoint, batch)
        assert (found.answer, found.because) == (Answer.YES, "")
        assert found.checked >= len(found.files) - 3, "all but metadata, our record and the rewritten metadata of the operator"
        assert found.bytes == sum((Path(checkpoint.location) / file.path).stat().st_size for file in found.files)
    assert newest_restartable(checkpoint) == checkpoint.completed()[-1]


def test_without_checksums_beside_them_files_still_prove_what_they_can(totals: Checkpoint, folder: Path) -> None:
    without_checksums(folder)

    found = verify(totals, 4)

    assert found.answer is Answer.YES
    assert found.checked == sum(file.kind in (FileKind.CHANGELOG, FileKind.SNAPSHOT) for file in found.files)


def test_a_copy_is_looked_over_for_what_is_missing_or_has_another_size(totals: Checkpoint, folder: Path) -> None:
    without_checksums(folder)
    assert look_over(totals, 4).answer is Answer.YES
    changelog, table = next(folder.glob("state/1/0/4_*.changelog")), next(folder.glob("state/1/0/SSTs/*.sst"))
    flip(changelog, changelog.stat().st_size - 40)
    assert look_over(totals, 4).answer is Answer.YES, "its content was compared while it was copied"

    changelog.unlink()
    table.write_bytes(table.read_bytes()[:-1])

    assert {problem for _, problem in problems(look_over(totals, 4))} == {Problem.MISSING, Problem.OTHER_SIZE}


def test_another_way_to_the_storage_gives_the_same_answer(totals: Checkpoint, folder: Path) -> None:
    other = Checkpoint(ArrowStorage(folder.as_uri()))

    assert verify(other, 4) == verify(totals, 4)
    flip(next(folder.glob("state/1/0/4_*.changelog")))
    assert problems(verify(other, 4)) == problems(verify(totals, 4)) != []


# -- no ----------------------------------------------------------------------------------------------------------------


def test_every_flipped_byte_is_found_where_a_checksum_lies_beside(totals: Checkpoint, folder: Path) -> None:
    for file in needed_by(totals, 4):
        path = folder / file.path
        whole = path.read_bytes()
        if not (path.with_name(f".{path.name}.crc")).exists():
            continue
        flip(path)
        found = verify(totals, 4)
        assert (found.answer, [trouble.path for trouble in found.troubles]) == (Answer.NO, [file.path])
        assert file.path in found.because
        path.write_bytes(whole)


@pytest.mark.parametrize("pattern", ["state/1/0/4_*.changelog", "state/1/0/5_*.changelog"])
def test_a_changelog_proves_itself(totals: Checkpoint, folder: Path, pattern: str) -> None:
    without_checksums(folder)
    (file,) = folder.glob(pattern)
    flip(file, file.stat().st_size - 40)

    assert problems(verify(totals, 4)) == [(str(file.relative_to(folder)), Problem.UNREADABLE)]


def test_a_table_of_another_size(totals: Checkpoint, folder: Path) -> None:
    without_checksums(folder)
    (file,) = folder.glob("state/1/0/SSTs/*.sst")
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-1])

    found = verify(totals, 4)

    assert problems(found) == [(str(file.relative_to(folder)), Problem.OTHER_SIZE)]
    assert found.because.endswith(f"it has {size - 1} bytes instead of {size}")


@pytest.mark.parametrize(
    "name", ["metadata", "offsets/4", "offsets/3", "commits/4", "state/0/_metadata/v2/3", "state/1/_metadata/metadata"]
)
@pytest.mark.parametrize("content", [b"", b"v1", b"{", b"\xff\xfe", b"v1\nnull", b"null", b"{}"])
def test_torn_and_foreign_content_is_a_no_and_never_a_crash(totals: Checkpoint, folder: Path, name: str, content: bytes) -> None:
    without_checksums(folder)
    (folder / name).write_bytes(content)

    found = verify(totals, 4)

    assert found.answer is Answer.NO
    assert name in dict(problems(found))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "not whole JSON"),
        (b'{"name": "totals"}', "it has no version"),
        (b'{"name": "totals", "version": 2}', "its version 2 is newer than this strandline, which reads 1"),
        (b'{"version": 1}', "it has no 'name'"),
    ],
)
def test_our_own_record_must_be_one_that_we_can_read(totals: Checkpoint, folder: Path, content: bytes, says: str) -> None:
    (folder / "strandline-state/totals.json").write_bytes(content)

    assert says in verify(totals, 4).because


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[]", "it has no 'version'"),
        (b'{"version": 9, "sources": {}}', "newer"),
        (b'{"version": 1, "sources": 5}', "not what strandline wrote"),
    ],
)
def test_our_origin_too(totals: Checkpoint, folder: Path, content: bytes, says: str) -> None:
    (folder / "strandline-origin.json").write_bytes(content)
    assert says in verify(totals, 4).because

    (folder / "strandline-origin.json").write_text(json.dumps({"version": 1, "sources": {"orders": None}}))
    assert verify(totals, 4).answer is Answer.YES


def test_the_known_version_of_records_is_the_one_that_is_written() -> None:
    class Count(KeyedProcess):
        count = value_state("bigint")

        def process(self, key: object, events: list[object], ctx: Context) -> None: ...

    record = OperatorRecord("count", (0,), parse_fields("customer string"), True, (layout_of(Count()),))

    assert record.as_json()["version"] == RECORD_VERSION


def test_a_source_log_that_is_torn(written_by_spark: WrittenBySpark, tmp_path: Path) -> None:
    numbers = written_by_spark("numbers", tmp_path / "numbers")
    without_checksums(tmp_path / "numbers")
    log = tmp_path / "numbers/sources/0/3"
    log.write_bytes(log.read_bytes()[:-5])

    assert problems(verify(numbers, 4)) == [("sources/0/3", Problem.UNREADABLE)]
    assert newest_restartable(numbers) == 2


# -- which batch instead -----------------------------------------------------------------------------------------------


def test_the_newest_that_is_whole_is_named(totals: Checkpoint, folder: Path) -> None:
    next(folder.glob("state/1/0/4_*.changelog")).unlink()
    assert [verify(totals, batch).answer.value for batch in totals.completed()] == ["yes", "yes", "yes", "no", "no"]
    assert newest_restartable(totals) == 2
    assert newest_restartable(totals, before=2) == 1

    (folder / "metadata").unlink()
    assert newest_restartable(totals) is None


def test_the_oldest_batch_cannot_be_restarted_from_once_the_plan_before_it_is_retired(totals: Checkpoint, folder: Path) -> None:
    (folder / "offsets/0").unlink()
    (folder / "commits/0").unlink()

    assert problems(verify(totals, 1)) == [("offsets/0", Problem.MISSING)]
    assert verify(totals, 2).answer is Answer.YES, "the completion of the batch before is not needed"


def test_the_plan_that_spark_made_already_must_be_whole_too(totals: Checkpoint, folder: Path) -> None:
    """A start would go on with it. A batch before the newest has no such plan, and a copy can do without."""
    (folder / "offsets/5").write_text("v1")
    (folder / "offsets/.5.crc").unlink()

    assert problems(verify(totals, 4)) == [("offsets/5", Problem.UNREADABLE)]
    assert verify(totals, 3).answer is Answer.YES
    assert "offsets/5" not in {file.path for file in needed_by(totals, 4)}


# -- unknown -----------------------------------------------------------------------------------------------------------


def test_what_only_spark_reads_is_neither_yes_nor_no(totals: Checkpoint, folder: Path) -> None:
    without_checksums(folder)
    (file,) = folder.glob("state/1/0/5_*.changelog")
    file.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))

    found = verify(totals, 4)
    assert (found.answer, "it can only be read with Spark" in found.because) == (Answer.UNKNOWN, True)
    assert newest_restartable(totals) == 3

    (folder / "offsets/3").unlink()
    assert verify(totals, 4).answer is Answer.NO, "a damage outweighs it"
    assert "offsets/3" in verify(totals, 4).because


# -- while Spark runs --------------------------------------------------------------------------------------------------


class Moving(LocalStorage):
    """Another process works on the folder: something happens after the first listing."""

    def __init__(self, location: str, happens: Callable[[], None]) -> None:
        super().__init__(location)
        self._happens = happens
        self.walks = 0

    def walk(self, folder: str) -> list[StoredFile]:
        found = super().walk(folder)
        self.walks += 1
        if self.walks == 1:
            self._happens()
        return found


def test_a_file_that_moves_during_the_look_is_looked_at_again(totals: Checkpoint, folder: Path) -> None:
    """Spark uploads a snapshot and retires the changelogs before it."""
    (snapshot,) = folder.glob("state/1/1/3_*.zip")
    aside = snapshot.with_suffix(".aside")
    snapshot.rename(aside)
    storage = Moving(str(folder), lambda: os.replace(aside, snapshot))

    found = verify(Checkpoint(storage), 4)

    assert (found.answer, storage.walks) == (Answer.YES, 2)


def test_a_batch_that_is_retired_during_the_look_is_a_no_and_not_a_crash(totals: Checkpoint, folder: Path) -> None:
    def retire() -> None:
        for name in ("offsets/0", "commits/0", "offsets/1", "commits/1"):
            (folder / name).unlink()
        next(folder.glob("state/1/0/1_*.changelog")).unlink()
        next(folder.glob("state/0/0/1_*.zip")).unlink()

    found = verify(Checkpoint(Moving(str(folder), retire)), 1)

    assert found.answer is Answer.NO
    assert found.because.startswith("commits/1: it is not there")
