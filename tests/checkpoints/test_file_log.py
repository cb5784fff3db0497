"""The file source's log, written here by hand in Spark's own format: single entries, compactions, damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.checkpoints.file_log import FileLog, logged_paths, relocate_log
from strandline.checkpoints.storage import LocalStorage
from strandline.model.errors import CheckpointDamaged
from strandline.model.positions import FilesPosition

Entry = tuple[int, str]
"""(log entry, file name)"""


def write(folder: Path, name: str, *entries: Entry) -> None:
    records = [json.dumps({"path": f"file:///data/{file}", "timestamp": 1_767_225_600_000, "batchId": log}) for log, file in entries]
    target = folder / "sources" / "0" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(["v1", *records]))


def log_of(folder: Path) -> FileLog:
    return FileLog(LocalStorage(str(folder)), 0)


def entry(log: int) -> Entry:
    return (log, f"orders-{log:03d}.jsonl")


@pytest.fixture
def singles(tmp_path: Path) -> Path:
    """Entries 0 to 11, each in its own file, as before any compaction was cleaned up."""
    folder = tmp_path / "singles"
    for log in range(12):
        write(folder, str(log), entry(log))
    return folder


def test_before_the_first_entry_nothing_was_read(tmp_path: Path) -> None:
    assert log_of(tmp_path).position(-1) == FilesPosition(-1, 0, "")


def test_a_position_counts_files_and_names_them_by_a_chain(tmp_path: Path) -> None:
    write(tmp_path, "0", (0, "a"), (0, "b"))
    write(tmp_path, "1", (1, "c"))

    first, second = log_of(tmp_path).position(0), log_of(tmp_path).position(1)

    assert (first.log, first.files) == (0, 2)
    assert (second.log, second.files) == (1, 3)
    assert len({first.chain, second.chain, ""}) == 3


def test_the_chain_is_a_durable_value(tmp_path: Path) -> None:
    """It is compared with stamps of earlier releases."""
    write(tmp_path, "0", (0, "a"), (0, "b"))

    assert log_of(tmp_path).position(0).chain == "e099286e03c1a91400c47354ef6f1144"


def test_the_order_in_which_spark_listed_the_files_does_not_matter(tmp_path: Path) -> None:
    write(tmp_path / "one", "0", (0, "a"), (0, "b"))
    write(tmp_path / "two", "0", (0, "b"), (0, "a"))

    assert log_of(tmp_path / "one").position(0) == log_of(tmp_path / "two").position(0)


def test_other_files_in_the_same_number_are_another_position(tmp_path: Path) -> None:
    write(tmp_path / "one", "0", (0, "a"))
    write(tmp_path / "two", "0", (0, "b"))

    one, two = log_of(tmp_path / "one").position(0), log_of(tmp_path / "two").position(0)

    assert (one.log, one.files) == (two.log, two.files)
    assert one != two


def test_asking_step_by_step_or_at_once_gives_the_same(singles: Path) -> None:
    stepwise = log_of(singles)

    positions = [stepwise.position(log) for log in range(12)]

    assert log_of(singles).position(11) == positions[11]
    assert stepwise.position(3) == positions[3], "what was computed is remembered"


def test_a_compaction_file_stands_for_its_own_entry(singles: Path, tmp_path: Path) -> None:
    """Spark writes entry 9 as ``9.compact`` with all entries so far, never as ``9``."""
    expected = log_of(singles).position(11)
    folder = tmp_path / "compacted"
    for log in (*range(9), 10, 11):
        write(folder, str(log), entry(log))
    write(folder, "9.compact", *(entry(log) for log in range(10)))

    assert log_of(folder).position(11) == expected


def test_entries_that_were_cleaned_up_after_a_compaction_are_found_in_it(singles: Path, tmp_path: Path) -> None:
    expected = [log_of(singles).position(log) for log in range(12)]
    folder = tmp_path / "cleaned"
    write(folder, "9.compact", *(entry(log) for log in range(10)))
    write(folder, "10", entry(10))
    write(folder, "11", entry(11))

    log = log_of(folder)

    assert [log.position(number) for number in range(12)] == expected


def test_the_nearest_later_compaction_is_enough(singles: Path, tmp_path: Path) -> None:
    expected = log_of(singles).position(5)
    folder = tmp_path / "later"
    write(folder, "19.compact", *(entry(log) for log in range(20)))
    write(folder, "29.compact", *(entry(log) for log in range(30)))

    assert log_of(folder).position(5) == expected


def test_a_long_log_is_read_in_any_order(tmp_path: Path) -> None:
    """Memory stays flat however long an attempt runs; what was forgotten is computed again."""
    write(tmp_path, "2999.compact", *(entry(log) for log in range(3000)))
    log = log_of(tmp_path)

    early, late = log.position(10), log.position(2999)

    assert (late.log, late.files) == (2999, 3000)
    assert log.position(10) == early
    assert log.position(2999) == late


def test_a_lost_entry_is_damage_with_its_number(singles: Path) -> None:
    (singles / "sources" / "0" / "4").unlink()

    with pytest.raises(CheckpointDamaged, match=r"sources/0 has lost log entry 4: the files already read are unknown"):
        log_of(singles).position(8)


def test_an_older_compaction_does_not_stand_for_a_lost_entry(tmp_path: Path) -> None:
    write(tmp_path, "9.compact", *(entry(log) for log in range(10)))

    with pytest.raises(CheckpointDamaged, match="has lost log entry 10"):
        log_of(tmp_path).position(10)


@pytest.mark.parametrize(
    "content", [b"", b'v1\n{"path":"file:///data/a","times', b"v2\n{}", b'v1\n{"path":"a"}', b"v1\n[]", b"\xff\xfe", b"v1\nnull"]
)
@pytest.mark.parametrize("name", ["4", "4.compact"])
def test_a_torn_file_is_damage_with_its_name(singles: Path, content: bytes, name: str) -> None:
    folder = singles / "sources" / "0"
    (folder / "4").unlink()
    (folder / name).write_bytes(content)

    with pytest.raises(CheckpointDamaged, match=rf"sources/0/{name} is damaged: it is not in Spark's format"):
        log_of(singles).position(8)


def test_each_source_has_a_log_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "0", (0, "a"))

    with pytest.raises(CheckpointDamaged, match=r"sources/1 has lost log entry 0"):
        FileLog(LocalStorage(str(tmp_path)), 1).position(0)


def test_the_files_of_some_entries_are_named(singles: Path) -> None:
    assert log_of(singles).files(2, 4) == ["file:///data/orders-003.jsonl", "file:///data/orders-004.jsonl"]
    assert log_of(singles).files(4, 4) == []


def test_the_files_of_the_newest_entry_are_known_with_its_position(singles: Path) -> None:
    log = log_of(singles)
    log.position(6)
    (singles / "sources" / "0" / "6").unlink()

    assert log.files(5, 6) == ["file:///data/orders-006.jsonl"]


def test_a_moved_log_names_the_same_entries_elsewhere(tmp_path: Path) -> None:
    """Single and compacted: the position counts the same files, and its chain tells that they lie elsewhere."""
    write(tmp_path, "9.compact", *map(entry, range(10)))
    write(tmp_path, "10", entry(10))
    before = log_of(tmp_path).position(10)

    for name in ("9.compact", "10"):
        file = tmp_path / "sources" / "0" / name
        file.write_bytes(relocate_log(file.read_bytes(), lambda path: path.replace("///data/", "///new/")))

    after = log_of(tmp_path).position(10)
    assert logged_paths((tmp_path / "sources/0/10").read_bytes()) == ["file:///new/orders-010.jsonl"]
    assert (after.log, after.files) == (before.log, before.files) == (10, 11)
    assert after.chain != before.chain
