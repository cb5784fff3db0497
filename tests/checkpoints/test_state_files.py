"""Files of a state store: those that Spark wrote, and what is left of them after an accident."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.state_files import (
    OperatorStore,
    StateVersion,
    TableFile,
    check_changelog,
    read_lineage,
    read_operator,
    read_snapshot,
    relocate_operator,
)
from strandline.checkpoints.unreadable import NotKnown, Truncated, Unreadable

from .test_checksums import END, block


@pytest.fixture
def totals(written_by_spark: Callable[[str, Path], Checkpoint], tmp_path: Path) -> Path:
    return Path(written_by_spark("totals", tmp_path / "totals").location)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def version_of(file: Path) -> StateVersion:
    number, id_ = file.stem.split("_")
    return StateVersion(int(number), id_)


def header(lineage: str, version: str = "v3") -> bytes:
    return b"".join(len(text).to_bytes(2, "big") + text.encode() for text in (version, lineage))


# -- changelogs --------------------------------------------------------------------------------------------------------


def test_a_changelog_names_every_version_since_the_snapshot_before_it(totals: Path) -> None:
    store = totals / "state/1/0"
    newest = only(store, "5_*.changelog")

    assert read_lineage(newest.read_bytes()) == (version_of(only(store, "3_*.zip")), version_of(only(store, "4_*.changelog")))
    assert read_lineage(only(store, "1_*.changelog").read_bytes()) == (), "the first has none before it"
    assert version_of(newest).name == newest.stem


def test_every_changelog_of_spark_proves_itself(totals: Path) -> None:
    files = list(totals.glob("state/*/*/*.changelog"))

    assert len(files) == 16
    for file in files:
        check_changelog(file.read_bytes())


def test_a_flipped_bit_in_a_changelog_is_found_by_itself_alone(totals: Path) -> None:
    whole = only(totals, "state/1/1/4_*.changelog").read_bytes()
    token = 8  # its lower half says how hard the writer tried, which changes nothing

    for at in [at for at in range(len(whole) - 21) if at != token]:
        with pytest.raises(Unreadable):
            check_changelog(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])


def test_a_header_that_goes_on_in_the_next_block() -> None:
    lineage = json.dumps([{"version": n, "checkpointUniqueId": f"id-{n}"} for n in (7, 8)])
    raw = header(lineage)
    stream = b"".join(block(raw[at : at + 20]) for at in range(0, len(raw), 20)) + block(b"the rest") + END

    assert read_lineage(stream) == (StateVersion(7, "id-7"), StateVersion(8, "id-8"))
    with pytest.raises(Truncated):
        read_lineage(stream[:60])
    assert read_lineage(block(raw) + b"LZ4Bl") == (StateVersion(7, "id-7"), StateVersion(8, "id-8")), "the rest is not needed"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (header("[]", "v9"), NotKnown),
        (header('[{"version": 1}]'), Unreadable),
        (header("{"), Unreadable),
        (b"\x00\x02\xff\xff\x00\x00", Unreadable),
        (b"\x00", Unreadable),
    ],
)
def test_a_header_that_makes_no_sense(content: bytes, error: type[Unreadable]) -> None:
    with pytest.raises(error):
        read_lineage(block(content) + END)


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_names_its_tables_with_their_sizes(totals: Path) -> None:
    store = totals / "state/1/0"
    snapshot = read_snapshot(only(store, "3_*.zip").read_bytes())

    (table,) = snapshot.files
    assert (store / table.path).stat().st_size == table.size
    assert snapshot.keys > 0


def rewritten(raw: bytes, metadata: str | None, *, drop: str = "") -> bytes:
    """The same zip with another inner metadata."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            if name != "metadata" and name != drop:
                new.writestr(name, old.read(name))
        if metadata is not None:
            new.writestr("metadata", metadata)
    return out.getvalue()


def test_log_files_are_named_too(totals: Path) -> None:
    raw = only(totals, "state/1/0/3_*.zip").read_bytes()
    told = {"sstFiles": [], "logFiles": [{"localFileName": "1.log", "dfsLogFileName": "1-x.log", "sizeBytes": 5}], "numKeys": 0}

    assert read_snapshot(rewritten(raw, f"v1\n{json.dumps(told)}")).files == (TableFile("logs/1-x.log", 5),)


def test_a_snapshot_that_is_not_whole(totals: Path) -> None:
    raw = only(totals, "state/1/0/3_*.zip").read_bytes()

    for broken in (b"", raw[: len(raw) // 2], raw[:-30], rewritten(raw, None), rewritten(raw, "v1\n{}"), rewritten(raw, "v1"), b"PK" + raw):
        with pytest.raises(Unreadable):
            read_snapshot(broken)
    with pytest.raises(NotKnown, match="version 'v2', not v1"):
        read_snapshot(rewritten(raw, 'v2\n{"sstFiles":[],"numKeys":0}'))
    with pytest.raises(Unreadable, match="does not hold a RocksDB"):
        read_snapshot(rewritten(raw, 'v1\n{"sstFiles":[],"numKeys":0}', drop="CURRENT"))


def test_a_flipped_byte_inside_a_member_is_found_by_the_zip_alone(totals: Path) -> None:
    raw = only(totals, "state/1/0/3_*.zip").read_bytes()
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        member = max(archive.infolist(), key=lambda info: info.compress_size)
        at = member.header_offset + 30 + len(member.filename) + member.compress_size // 2

    with pytest.raises(Unreadable):
        read_snapshot(raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :])


# -- the operator's metadata -------------------------------------------------------------------------------------------


def test_operators_say_what_they_are(totals: Path) -> None:
    keyed = read_operator((totals / "state/0/_metadata/v2/3").read_bytes())
    native = read_operator((totals / "state/1/_metadata/metadata").read_bytes())

    assert (keyed.id, keyed.name, keyed.variables) == (0, "transformWithStateInPySparkExec", ("strandline.totals",))
    assert native.stores == (OperatorStore("default", 2),)
    assert native.name == "dedupe"


@pytest.mark.parametrize("location", ["/a place/checkpoints/totals", "s3a://bucket/checkpoints/totals/"])
def test_metadata_for_another_place_differs_in_nothing_else(totals: Path, location: str) -> None:
    raw = (totals / "state/0/_metadata/v2/0").read_bytes()
    moved = relocate_operator(raw, location)

    (path,) = read_operator(moved).stores[0].schema_locations
    base = "file:/a place/checkpoints/totals" if location.startswith("/") else location.rstrip("/")
    assert path.startswith(f"{base}/state/0/_stateSchema/default/0_")
    assert relocate_operator(moved, str(totals)) == raw
    native = (totals / "state/1/_metadata/metadata").read_bytes()
    assert relocate_operator(native, location) == native


@pytest.mark.parametrize("raw", [b"", b"v2", b"v2\n{", b"v2\n[]", b'v2\n{"operatorInfo":{}}', b"\xff", b'v1\n{"stateStoreInfo":[1]}'])
def test_metadata_that_is_damaged(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        read_operator(raw)


def test_metadata_of_a_newer_kind_is_not_damaged() -> None:
    with pytest.raises(NotKnown):
        read_operator(b"v3\n{}")
