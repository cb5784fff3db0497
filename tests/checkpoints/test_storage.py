"""Bytes at a location: a folder on this machine and one behind pyarrow behave the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.checkpoints.storage import ArrowStorage, LocalStorage, Storage, storage_at
from strandline.model.times import utc_now

Locate = Callable[[Path], str]


@pytest.fixture(params=["local", "arrow"])
def locate(request: pytest.FixtureRequest) -> Locate:
    ways: dict[str, Locate] = {"local": str, "arrow": Path.as_uri}
    return ways[request.param]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def storage(locate: Locate, folder: Path) -> Storage:
    return storage_at(locate(folder))


def test_the_location_decides_how_it_is_reached(folder: Path) -> None:
    assert isinstance(storage_at(str(folder)), LocalStorage)
    assert isinstance(storage_at(folder.as_uri()), ArrowStorage)
    assert storage_at(folder.as_uri()).location == folder.as_uri()


def test_what_was_written_is_read(storage: Storage, folder: Path) -> None:
    storage.write("metadata", b'{"id":"x"}')
    storage.write("sources/0/7", b"\x00\xff")

    assert storage.read("metadata") == b'{"id":"x"}'
    assert storage.read("sources/0/7") == b"\x00\xff"
    assert (folder / "sources" / "0" / "7").read_bytes() == b"\x00\xff"


def test_writing_again_replaces(storage: Storage) -> None:
    storage.write("metadata", b"a long first version")
    storage.write("metadata", b"second")

    assert storage.read("metadata") == b"second"
    assert storage.names("") == ["metadata"], "nothing temporary is left"


def test_what_is_not_there_is_none_and_not_an_error(storage: Storage, folder: Path) -> None:
    assert storage.read("metadata") is None
    assert storage.names("offsets") == []

    folder.mkdir()
    (folder / "offsets").write_text("a file where a folder should be")
    assert storage.read("offsets/0") is None
    assert storage.names("offsets") == []


def test_names_are_sorted_and_leave_hidden_files_out(storage: Storage, folder: Path) -> None:
    for name in ("10", "9", ".9.crc", "9.compact", "_metadata"):
        storage.write(f"sources/0/{name}", b"x")
    (folder / "sources" / "0" / "sub").mkdir()

    assert storage.names("sources/0") == ["10", "9", "9.compact", "_metadata", "sub"]


def test_a_walk_finds_every_file_below_hidden_ones_too(storage: Storage, folder: Path) -> None:
    for path in ("metadata", "state/0/1/2.zip", "state/0/1/.2.zip.crc", "state/0/_metadata/metadata"):
        storage.write(path, b"x" * len(path))
    (folder / "state" / "empty").mkdir()

    found = storage.walk("")

    assert [file.path for file in found] == ["metadata", "state/0/1/.2.zip.crc", "state/0/1/2.zip", "state/0/_metadata/metadata"]
    assert all(file.size == len(file.path) for file in found)
    assert all(file.modified is not None and abs((utc_now() - file.modified).total_seconds()) < 60 for file in found)
    assert storage.walk("state/0/1") == found[1:3]
    assert storage.walk("nowhere") == storage.walk("metadata/0") == []


def test_what_vanishes_during_a_walk_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(str(folder))
    storage.write("a", b"1")
    storage.write("b", b"2")
    real = os.stat

    def stat(path: str, **options: bool) -> os.stat_result:
        if str(path).endswith("/a"):
            raise FileNotFoundError(path)
        return real(path, **options)

    monkeypatch.setattr("strandline.checkpoints.storage.os.stat", stat)

    assert [file.path for file in storage.walk("")] == ["b"]


def test_the_start_of_a_file(storage: Storage) -> None:
    storage.write("a", b"0123456789")

    assert storage.read_start("a", 4) == b"0123"
    assert storage.read_start("a", 40) == b"0123456789"
    assert storage.read_start("b", 4) is None
    assert storage.read_start("a/b", 4) is None


def test_one_file_is_removed_if_it_is_there(storage: Storage) -> None:
    storage.write("a", b"1")
    storage.write("b", b"2")

    storage.remove("a")
    storage.remove("a")

    assert storage.names("") == ["b"]


def test_the_whole_folder_is_deleted_and_deleting_nothing_is_fine(storage: Storage, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "neighbour").write_text("stays")
    storage.write("offsets/0", b"plan")

    storage.delete_all()
    storage.delete_all()

    assert not folder.exists()
    assert (tmp_path / "neighbour").read_text() == "stays"


@pytest.mark.parametrize("name", ["with space", "a#b", "50%", "ünïcode"])
def test_folder_names_need_no_escaping_on_this_machine(tmp_path: Path, name: str) -> None:
    storage = storage_at(str(tmp_path / name))

    storage.write("metadata", b"x")

    assert storage.read("metadata") == b"x"
    assert (tmp_path / name / "metadata").exists()


def test_a_reader_never_sees_half_a_file_on_this_machine(tmp_path: Path) -> None:
    """The old content stays whole until the new one is: it is put in place by renaming."""
    storage = LocalStorage(str(tmp_path))
    storage.write("metadata", b"old")
    before = (tmp_path / "metadata").stat().st_ino

    with (tmp_path / "metadata").open("rb") as reader:
        storage.write("metadata", b"new")
        assert reader.read() == b"old"

    assert (tmp_path / "metadata").stat().st_ino != before
