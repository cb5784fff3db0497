"""Which files a restart needs, from checkpoints that Spark wrote and from logs written here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.needed import FileKind, NeededFile, Problem
from strandline.checkpoints.requirements import needed_by
from strandline.checkpoints.state_needs import OUR_RECORDS, OUR_VARIABLES
from strandline.checkpoints.storage import ArrowStorage, LocalStorage
from strandline.runtime.keyed.records import FOLDER
from strandline.runtime.keyed.stores import variable_of

WrittenBySpark = Callable[[str, Path], Checkpoint]


@pytest.fixture
def totals(written_by_spark: WrittenBySpark, tmp_path: Path) -> Checkpoint:
    return written_by_spark("totals", tmp_path / "totals")


def paths(files: tuple[NeededFile, ...], kind: FileKind | None = None) -> list[str]:
    return [file.path for file in files if kind in (None, file.kind)]


def troubles(files: tuple[NeededFile, ...]) -> list[tuple[str, Problem]]:
    return [(file.path, file.problem) for file in files if file.problem is not None]


def short(path: str) -> str:
    """Without ids, which differ each time the fixture is made."""
    folder, _, name = path.rpartition("/")
    stem, dot, ending = name.partition(".")
    return f"{folder}/{stem.split('_')[0].split('-')[0]}{dot}{ending}"


# -- batches and state -------------------------------------------------------------------------------------------------


def test_a_batch_needs_two_plans_one_completion_and_the_state_since_the_last_snapshot(totals: Checkpoint) -> None:
    files = needed_by(totals, 4)

    assert troubles(files) == []
    assert paths(files, FileKind.IDENTITY) + paths(files, FileKind.PLAN) + paths(files, FileKind.COMPLETION) == [
        *("metadata", "offsets/3", "offsets/4", "commits/4")
    ]
    assert paths(files, FileKind.OPERATOR) == ["state/0/_metadata/v2/3", "state/1/_metadata/metadata"]
    assert [short(path) for path in paths(files, FileKind.SCHEMA)] == ["state/0/_stateSchema/default/0", "state/1/0/_metadata/schema"]
    assert paths(files, FileKind.OURS) == ["strandline-state/totals.json"]
    assert [short(path) for path in paths(files) if path.startswith("state/1/1/")] == [
        *("state/1/1/3.zip", "state/1/1/4.changelog", "state/1/1/5.changelog", "state/1/1/SSTs/000008.sst")
    ]
    assert [file.path for file in files] == sorted({file.path for file in files})


def test_a_batch_with_a_snapshot_needs_no_changelog_and_the_first_ones_no_snapshot(totals: Checkpoint) -> None:
    assert paths(needed_by(totals, 2), FileKind.CHANGELOG) == []
    first = [short(file.path) for file in needed_by(totals, 1) if file.place is not None and file.place.operator == 1]
    assert first == ["state/1/0/1.changelog", "state/1/0/2.changelog", "state/1/1/1.changelog", "state/1/1/2.changelog"]
    assert paths(needed_by(totals, 0), FileKind.PLAN) == ["offsets/0"], "there is no plan before the first"
    assert paths(needed_by(totals, 1), FileKind.OPERATOR)[0] == "state/0/_metadata/v2/0"


def test_files_say_whose_they_are_and_why(totals: Checkpoint) -> None:
    files = [file for file in needed_by(totals, 4) if file.place is not None]

    assert {(file.place.operator, file.place.operator_name) for file in files if file.place} == {(0, "totals"), (1, "dedupe")}
    assert {file.why for file in files if file.path.startswith("state/1/1/")} == {"state version 5 of dedupe, partition 1"}
    assert all(file.expected == file.size for file in files if file.kind is FileKind.TABLE)


def test_a_join_has_four_stores_a_partition(written_by_spark: WrittenBySpark, tmp_path: Path) -> None:
    files = needed_by(written_by_spark("pairs", tmp_path / "pairs"), 1)

    assert troubles(files) == []
    assert len({file.place for file in files if file.place is not None}) == 8
    assert len(paths(files, FileKind.CHANGELOG)) == 16
    assert len(paths(files, FileKind.SCHEMA)) == 4


def test_another_way_to_the_storage_finds_the_same(totals: Checkpoint) -> None:
    other = Checkpoint(ArrowStorage(Path(totals.location).as_uri()))

    assert needed_by(other, 4) == needed_by(totals, 4)


def test_the_names_of_ours_are_those_that_the_runtime_writes() -> None:
    assert OUR_RECORDS == FOLDER
    assert variable_of("totals") == f"{OUR_VARIABLES}totals"


# -- what is missing ---------------------------------------------------------------------------------------------------


def remove(checkpoint: Checkpoint, pattern: str) -> str:
    (file,) = Path(checkpoint.location).glob(pattern)
    file.unlink()
    return str(file.relative_to(checkpoint.location))


@pytest.mark.parametrize(
    "pattern",
    [
        *("metadata", "offsets/4", "offsets/3", "commits/4", "strandline-state/totals.json"),
        *("state/1/_metadata/metadata", "state/0/_stateSchema/default/0_*", "state/1/0/_metadata/schema"),
        *("state/1/0/3_*.zip", "state/1/0/4_*.changelog", "state/1/0/5_*.changelog", "state/1/0/SSTs/000008-*.sst"),
    ],
)
def test_what_is_missing_is_among_them_and_said_to_be(totals: Checkpoint, pattern: str) -> None:
    gone = remove(totals, pattern)

    assert troubles(needed_by(totals, 4)) == [(gone, Problem.MISSING)]


def test_a_snapshot_is_not_missed_where_changelogs_lead_to_the_same_state(totals: Checkpoint) -> None:
    """As Spark does, which uploads a snapshot after the changelog of the same version."""
    remove(totals, "state/0/0/1_*.zip")
    files = needed_by(totals, 1)

    assert troubles(files) == []
    assert [short(path) for path in paths(files) if path.startswith("state/0/0/")] == ["state/0/0/1.changelog", "state/0/0/2.changelog"]


def test_state_is_found_by_its_id_when_the_operator_forgot_its_stores(written_by_spark: WrittenBySpark, tmp_path: Path) -> None:
    pairs = written_by_spark("pairs", tmp_path / "pairs")
    before = paths(needed_by(pairs, 1), FileKind.CHANGELOG)
    gone = remove(pairs, "state/0/_metadata/metadata")

    files = needed_by(pairs, 1)

    assert (gone, Problem.MISSING) in troubles(files)
    assert paths(files, FileKind.CHANGELOG) == before


def test_metadata_that_a_changed_schema_was_written_with_is_missed(totals: Checkpoint) -> None:
    schemas = Path(totals.location) / "state/0/_stateSchema/default"
    (schemas / "4_00000000-0000-0000-0000-000000000000").write_bytes(b"\x00\x02v3")

    assert troubles(needed_by(totals, 4)) == [("state/0/_metadata/v2/4", Problem.MISSING)]
    assert troubles(needed_by(totals, 3)) == [], "it came later"


def test_a_checkpoint_that_was_copied_by_hand_points_elsewhere(totals: Checkpoint, tmp_path: Path) -> None:
    shutil.copytree(totals.location, tmp_path / "copy")

    assert troubles(needed_by(Checkpoint(LocalStorage(str(tmp_path / "copy"))), 4)) == [("state/0/_metadata/v2/3", Problem.ELSEWHERE)]


def test_a_link_to_the_checkpoint_is_the_checkpoint(totals: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(totals.location)

    assert troubles(needed_by(Checkpoint(LocalStorage(str(tmp_path / "link"))), 4)) == []


def test_a_damaged_changelog_ends_the_way_back_and_is_named(totals: Checkpoint) -> None:
    (file,) = Path(totals.location).glob("state/1/0/5_*.changelog")
    file.write_bytes(b"LZ4Block" + bytes(40))

    assert troubles(needed_by(totals, 4)) == [(str(file.relative_to(totals.location)), Problem.UNREADABLE)]


def test_a_changelog_of_another_codec_is_not_known(totals: Checkpoint) -> None:
    (file,) = Path(totals.location).glob("state/1/0/5_*.changelog")
    file.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))

    assert troubles(needed_by(totals, 4)) == [(str(file.relative_to(totals.location)), Problem.NOT_KNOWN)]


# -- format 1 ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def format_one(totals: Checkpoint) -> Checkpoint:
    """The same files under the names that format 1 gives them."""
    folder = Path(totals.location)
    for file in folder.glob("state/*/*/*_*.*"):
        number, _, rest = file.name.partition("_")
        file.rename(file.with_name(f"{number}.{rest.partition('.')[2]}"))
    for commit in folder.glob("commits/[0-9]*"):
        commit.write_text('v1\n{"nextBatchWatermarkMs":0}')
    return totals


def test_without_ids_the_newest_snapshot_and_the_changelogs_after_it(format_one: Checkpoint) -> None:
    files = needed_by(format_one, 4)

    assert troubles(files) == []
    assert [path.removeprefix("state/1/0/") for path in paths(files) if path.startswith("state/1/0/")][:3] == [
        "3.zip",
        "4.changelog",
        "5.changelog",
    ]
    assert len(paths(files, FileKind.TABLE)) == len(paths(files, FileKind.SNAPSHOT)) + 2, "the keyed stores have two tables each"

    remove(format_one, "state/1/0/4.changelog")
    assert troubles(needed_by(format_one, 4)) == [("state/1/0/4.changelog", Problem.MISSING)]


def test_state_on_the_heap_is_not_known(format_one: Checkpoint) -> None:
    for file in Path(format_one.location).glob("state/1/*/*.*"):
        file.unlink()
    for partition in (0, 1):
        (Path(format_one.location) / f"state/1/{partition}/5.delta").write_bytes(b"x")

    assert troubles(needed_by(format_one, 4)) == [(f"state/1/{partition}/5.delta", Problem.NOT_KNOWN) for partition in (0, 1)]


# -- sources -----------------------------------------------------------------------------------------------------------


def checkpoint_with(folder: Path, lines: list[str], logs: dict[int, list[str]]) -> Checkpoint:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"x"}')
    (folder / "offsets/0").write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *lines]))
    (folder / "commits/0").write_text("v1\n{}")
    for number, names in logs.items():
        for name in names:
            file = folder / f"sources/{number}/{name}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"v1\n{json.dumps({'path': 'file:///a', 'timestamp': 1, 'batchId': 0})}")
    return Checkpoint(LocalStorage(str(folder)))


def logs_of(checkpoint: Checkpoint) -> list[str]:
    return [path.removeprefix("sources/") for path in paths(needed_by(checkpoint, 0), FileKind.SOURCE_LOG)]


def entry(number: int) -> str:
    return json.dumps({"logOffset": number})


def test_the_log_of_a_file_source_from_its_newest_compaction(written_by_spark: WrittenBySpark, tmp_path: Path) -> None:
    numbers = written_by_spark("numbers", tmp_path / "numbers")

    assert paths(needed_by(numbers, 4), FileKind.SOURCE_LOG) == ["sources/0/2.compact", "sources/0/3", "sources/0/4"]
    assert paths(needed_by(numbers, 2), FileKind.SOURCE_LOG) == ["sources/0/2.compact"]
    assert paths(needed_by(numbers, 1), FileKind.SOURCE_LOG) == ["sources/0/0", "sources/0/1"]
    assert [file for file in needed_by(numbers, 4) if file.place or file.problem] == []


def test_entries_that_were_cleaned_up_are_in_a_later_compaction(tmp_path: Path) -> None:
    checkpoint = checkpoint_with(tmp_path, [entry(5)], {0: ["9.compact", "10"]})

    assert logs_of(checkpoint) == ["0/9.compact"]
    assert troubles(needed_by(checkpoint, 0)) == []


def test_lost_entries_are_missed(tmp_path: Path) -> None:
    assert troubles(needed_by(checkpoint_with(tmp_path / "a", [entry(2)], {0: ["0", "2"]}), 0)) == [("sources/0/1", Problem.MISSING)]
    whole = checkpoint_with(tmp_path / "b", ['{"offset":1,"timestamp":0}', entry(1)], {})
    assert troubles(needed_by(whole, 0)) == [("sources/1/0", Problem.MISSING), ("sources/1/1", Problem.MISSING)]


@pytest.mark.parametrize(
    ("lines", "logs", "needed"),
    [
        ([1, 3], {0: 4, 1: 4}, {0: 1, 1: 3}),  # two sources, a line each
        ([2, 2], {0: 3}, {0: 2}),  # one source, read twice
        ([1, 1, 3], {0: 1, 1: 3}, {0: 1, 1: 3}),  # the first read twice
        ([None, 2], {1: 5}, {1: 2}),  # the first source keeps nothing
        ([-1], {}, {}),  # nothing found yet
    ],
)
def test_each_source_has_its_own_log(tmp_path: Path, lines: list[int | None], logs: dict[int, int], needed: dict[int, int]) -> None:
    raw = ["-" if line is None else entry(line) for line in lines]
    checkpoint = checkpoint_with(tmp_path, raw, {source: [str(n) for n in range(last + 1)] for source, last in logs.items()})

    assert logs_of(checkpoint) == [f"{source}/{n}" for source, last in needed.items() for n in range(last + 1)]


def test_what_another_source_keeps_is_needed_whole(tmp_path: Path) -> None:
    """Kafka keeps where it began, under the name of a first entry."""
    checkpoint = checkpoint_with(tmp_path, ['{"orders":{"0":5}}', entry(0)], {1: ["0"]})
    (tmp_path / "sources/0").mkdir()
    (tmp_path / "sources/0/0").write_bytes(b'\x00v1\n{"orders":{"0":0}}')

    assert paths(needed_by(checkpoint, 0), FileKind.SOURCE) == ["sources/0/0"]
    assert logs_of(checkpoint) == ["1/0"]


def test_where_the_strand_began_is_needed_if_it_was_fixed(tmp_path: Path) -> None:
    checkpoint = checkpoint_with(tmp_path, ["-"], {})
    assert paths(needed_by(checkpoint, 0), FileKind.OURS) == []

    (tmp_path / "strandline-origin.json").write_text("{}")
    assert paths(needed_by(checkpoint, 0), FileKind.OURS) == ["strandline-origin.json"]
