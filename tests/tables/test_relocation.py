"""Iceberg's files for another place, without an engine: every path moves, every size is true, nothing else changes."""

from __future__ import annotations

import io
import json
from datetime import date
from pathlib import Path
from typing import Any

import fastavro
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.tables.manifests import AvroFile, NotIceberg, changed
from strandline.tables.relocation import (
    PATH_FIELD,
    Outside,
    Relocation,
    relocate_list,
    relocate_manifest,
    relocate_metadata,
    relocate_positions,
    relocate_vectors,
)

OLD, NEW = "file:/old/shop/t", "file:/a/much/longer/place/shop/t"
MOVE = Relocation(OLD, NEW)

BOUNDS = {
    "type": "array",
    "logicalType": "map",
    "items": {"type": "record", "name": "k", "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}]},
}
ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int", "field-id": 0},
        {
            "name": "data_file",
            "type": {
                "type": "record",
                "name": "r2",
                "fields": [
                    {"name": "content", "type": "int", "field-id": 134},
                    {"name": "file_path", "type": "string", "field-id": 100},
                    {"name": "file_format", "type": "string", "field-id": 101},
                    {
                        "name": "partition",
                        "type": {
                            "type": "record",
                            "name": "r102",
                            "fields": [{"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None}],
                        },
                    },
                    {"name": "file_size_in_bytes", "type": "long", "field-id": 104},
                    {"name": "lower_bounds", "type": ["null", BOUNDS], "default": None},
                    {"name": "upper_bounds", "type": ["null", {**BOUNDS, "items": "k"}], "default": None},
                    {"name": "split_offsets", "type": ["null", {"type": "array", "items": "long"}], "default": None},
                    {"name": "referenced_data_file", "type": ["null", "string"], "default": None, "field-id": 143},
                ],
            },
        },
    ],
}
LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string", "field-id": 500},
        {"name": "manifest_length", "type": "long", "field-id": 501},
        {"name": "added_rows", "type": "long"},
    ],
}


def avro(schema: dict[str, Any], records: list[dict[str, Any]], codec: str = "deflate") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec=codec, metadata={"format-version": "3", "partition-spec-id": "0"})
    return out.getvalue()


def entry(path: str, **facts: Any) -> dict[str, Any]:
    file = {"content": 0, "file_path": path, "file_format": "PARQUET", "partition": {"day": date(2026, 1, 31)}, "file_size_in_bytes": 10}
    return {"status": 1, "data_file": {**file, **facts}}


def read(raw: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(raw)))


def bound(path: str) -> list[dict[str, Any]]:
    return [{"key": PATH_FIELD, "value": path.encode()}, {"key": 7, "value": b"\x00"}]


# -- paths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["file:/old/shop/t/data/x", "file:///old/shop/t/data/x", "/old/shop/t/data/x"])
def test_a_path_moves_however_it_is_written(written: str) -> None:
    assert (MOVE.below(written), MOVE.moved(written)) == ("data/x", f"{NEW}/data/x")


@pytest.mark.parametrize("outside", ["file:/old/shop/t2/data/x", "s3://b/old/shop/t/x", "/old/shop/t"])
def test_a_path_of_another_folder_does_not_move(outside: str) -> None:
    with pytest.raises(Outside):
        MOVE.moved(outside)


def test_an_escaped_partition_value_stays_as_it_is() -> None:
    assert MOVE.moved(f"{OLD}/data/who=a%2Fb+c/f.parquet") == f"{NEW}/data/who=a%2Fb+c/f.parquet"


# -- Avro ----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**62)), max_size=20),
    st.sampled_from(["null", "deflate"]),
)
def test_a_file_that_is_not_changed_says_the_same(rows: list[tuple[str, int, int]], codec: str) -> None:
    raw = avro(LIST, [{"manifest_path": p, "manifest_length": n, "added_rows": a} for p, n, a in rows], codec)

    again = changed(raw, lambda record: record)

    assert read(again) == read(raw)
    assert fastavro.reader(io.BytesIO(again)).metadata == fastavro.reader(io.BytesIO(raw)).metadata


def test_a_damaged_or_foreign_file_is_told_apart() -> None:
    raw = avro(LIST, [{"manifest_path": "p", "manifest_length": 1, "added_rows": 1}])
    for wrong in (b"", b"PK\x03\x04", raw[:40], raw[:-3], raw[:-1] + b"!"):
        with pytest.raises(NotIceberg):
            AvroFile.decode(wrong)
    with pytest.raises(NotIceberg, match="bzip2"):
        AvroFile.decode(avro(LIST, [{"manifest_path": "p", "manifest_length": 1, "added_rows": 1}], "bzip2"))


def test_a_manifest_moves_data_files_and_keeps_everything_else() -> None:
    raw = avro(ENTRY, [entry(f"{OLD}/data/a.parquet", lower_bounds=bound("x"), split_offsets=[4])])

    (found,) = read(relocate_manifest(raw, MOVE, {}))

    assert found["data_file"].pop("file_path") == f"{NEW}/data/a.parquet"
    (before,) = read(raw)
    del before["data_file"]["file_path"]
    assert found == before


def test_a_manifest_of_deletes_tells_their_new_sizes_and_whom_they_are_about() -> None:
    vectors = entry(
        f"{OLD}/data/d.puffin", content=1, file_format="PUFFIN", referenced_data_file=f"{OLD}/data/a.parquet", split_offsets=[4]
    )
    whole = bound(f"{OLD}/data/a.parquet")
    positions = entry(f"{OLD}/data/p.parquet", content=1, lower_bounds=whole, upper_bounds=whole, split_offsets=[4])
    gone = {**entry(f"{OLD}/data/gone.parquet", content=1), "status": 2}

    found = [
        e["data_file"]
        for e in read(relocate_manifest(avro(ENTRY, [vectors, positions, gone]), MOVE, {"data/d.puffin": 77, "data/p.parquet": 88}))
    ]

    assert [file["file_size_in_bytes"] for file in found] == [77, 88, 10]
    assert (found[0]["referenced_data_file"], found[0]["split_offsets"]) == (f"{NEW}/data/a.parquet", [4])
    assert found[1]["lower_bounds"] == found[1]["upper_bounds"] == bound(f"{NEW}/data/a.parquet")
    assert found[1]["split_offsets"] is None


def test_bounds_that_are_cut_off_inside_the_location_go_so_that_no_delete_is_skipped() -> None:
    positions = entry(f"{OLD}/data/p.parquet", content=1, lower_bounds=bound(OLD[:9]), upper_bounds=bound(f"{OLD}/data/z"))

    (found,) = read(relocate_manifest(avro(ENTRY, [positions]), MOVE, {}))

    assert found["data_file"]["lower_bounds"] == found["data_file"]["upper_bounds"] == [{"key": 7, "value": b"\x00"}]


def test_a_list_tells_the_new_sizes_of_its_manifests() -> None:
    raw = avro(LIST, [{"manifest_path": f"{OLD}/metadata/m0.avro", "manifest_length": 10, "added_rows": 3}])

    assert read(relocate_list(raw, MOVE, {"metadata/m0.avro": 12})) == [
        {"manifest_path": f"{NEW}/metadata/m0.avro", "manifest_length": 12, "added_rows": 3}
    ]
    with pytest.raises(NotIceberg, match=r"metadata/m0.avro, which did not come along"):
        relocate_list(raw, MOVE, {})


# -- deletes and metadata ------------------------------------------------------------------------------------


def puffin(blob: bytes, path: str) -> bytes:
    footer = json.dumps(
        {"blobs": [{"offset": 4, "length": len(blob), "properties": {"referenced-data-file": path}}], "properties": {}}
    ).encode()
    return b"PFA1" + blob + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"


def test_deletion_vectors_stay_where_the_manifest_says_and_name_the_moved_file() -> None:
    moved = relocate_vectors(puffin(b"bits", f"{OLD}/data/a.parquet"), MOVE)

    size = int.from_bytes(moved[-12:-8], "little")
    footer = json.loads(moved[-12 - size : -12])
    (blob,) = footer["blobs"]
    assert moved[blob["offset"] : blob["offset"] + blob["length"]] == b"bits"
    assert blob["properties"]["referenced-data-file"] == f"{NEW}/data/a.parquet"
    assert moved[-12 - size - 4 : -12 - size] == moved[-4:] == b"PFA1"


@pytest.mark.parametrize("raw", [b"", b"PFA1", b"PAR1" * 9, puffin(b"", f"{OLD}/x")[:-8] + b"\x01\x00\x00\x00PFA1"])
def test_what_is_no_plain_puffin_file_is_refused(raw: bytes) -> None:
    with pytest.raises(NotIceberg):
        relocate_vectors(raw, MOVE)


def test_position_deletes_name_the_moved_files_with_the_same_columns(tmp_path: Path) -> None:
    schema = pyarrow.schema(
        [
            pyarrow.field("file_path", pyarrow.string(), nullable=False, metadata={"PARQUET:field_id": str(PATH_FIELD)}),
            pyarrow.field("pos", pyarrow.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
        ],
        metadata={"delete-type": "position"},
    )
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"file_path": [f"{OLD}/data/a", f"{OLD}/data/b"], "pos": [3, 1]}, schema), out)

    moved = pyarrow.parquet.read_table(io.BytesIO(relocate_positions(out.getvalue(), MOVE)))

    assert moved.to_pylist() == [{"file_path": f"{NEW}/data/a", "pos": 3}, {"file_path": f"{NEW}/data/b", "pos": 1}]
    assert [field.metadata[b"PARQUET:field_id"] for field in moved.schema] == [str(PATH_FIELD).encode(), b"2147483545"]
    assert moved.schema.metadata[b"delete-type"] == b"position"


def test_metadata_moves_with_its_lists_and_the_places_it_writes_to() -> None:
    metadata = {
        "location": OLD,
        "properties": {"write.data.path": f"{OLD}/data", "write.metadata.path": OLD, "owner": "me"},
        "snapshots": [{"snapshot-id": 1, "manifest-list": f"{OLD}/metadata/snap-1.avro"}],
        "table-uuid": "u",
    }

    moved = relocate_metadata(metadata, MOVE)

    assert OLD + "/" not in json.dumps(moved)
    assert moved == {
        "location": NEW,
        "properties": {"write.data.path": f"{NEW}/data", "write.metadata.path": NEW, "owner": "me"},
        "snapshots": [{"snapshot-id": 1, "manifest-list": f"{NEW}/metadata/snap-1.avro"}],
        "table-uuid": "u",
    }
