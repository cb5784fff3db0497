"""A table as it was at a snapshot: its metadata as if nothing had happened since, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from strandline.model.errors import TableUnavailable
from strandline.model.offsets import ORIGIN
from strandline.model.stamp import Holder, Stamp, decode_mark, encode_mark, mark_key
from strandline.tables.extract import cut, files_of
from strandline.tables.view import TableView

TAG = "strandline-savepoint-sp-1"
LOCATION = "file:/wh/shop/t"


def stamp(batch: int, pipeline: str = "orders") -> Stamp:
    return Stamp(pipeline, "s", Holder(1, "a"), batch, batch, ORIGIN, ORIGIN, ORIGIN.digest, ORIGIN.digest, "src:1", rows=1)


def snapshot(id: int, parent: int | None, stamped: Stamp | None) -> dict[str, Any]:
    summary = {"operation": "append", **(stamped.to_summary() if stamped is not None else {})}
    parents = {} if parent is None else {"parent-snapshot-id": parent}
    return {
        "snapshot-id": id,
        "sequence-number": id,
        "timestamp-ms": id,
        "summary": summary,
        "manifest-list": f"{LOCATION}/m/{id}",
        **parents,
    }


def metadata(snapshots: Sequence[dict[str, Any]], **refs: int) -> dict[str, Any]:
    """Batches up to the newest snapshot, and the mark of batch 9."""
    named = {name.replace("_", "-"): {"snapshot-id": at, "type": "branch" if name == "main" else "tag"} for name, at in refs.items()}
    return {
        "format-version": 3,
        "table-uuid": "u",
        "location": LOCATION,
        "properties": {
            mark_key("orders"): encode_mark(replace(stamp(9).witness, snapshot_id=9)),
            mark_key("orders", "gone"): encode_mark(stamp(9).witness),
            mark_key("other"): encode_mark(stamp(7, "other").witness),
        },
        "current-snapshot-id": refs.get("main"),
        "snapshots": list(snapshots),
        "refs": named,
        "snapshot-log": [{"timestamp-ms": raw["timestamp-ms"], "snapshot-id": raw["snapshot-id"]} for raw in snapshots],
        "metadata-log": [{"timestamp-ms": 1, "metadata-file": f"{LOCATION}/metadata/0.json"}],
        "statistics": [{"snapshot-id": 1}],
    }


def cut_at(raw: dict[str, Any], at: int | None) -> dict[str, Any]:
    return cut(TableView("shop.t", raw), raw, at, "orders", TAG)


CHAIN = [snapshot(1, None, stamp(0)), snapshot(2, 1, stamp(1)), snapshot(3, 2, None), snapshot(4, 3, stamp(2))]


def test_what_came_later_is_as_if_it_had_not_happened() -> None:
    raw = metadata(CHAIN, main=4, mine=2, later=4, strandline_savepoint_sp_0=1, strandline_savepoint_sp_1=3)

    found = cut_at(raw, 3)

    view = TableView("shop.t", found)
    assert view.refs == {"main": 3, "mine": 2, TAG: 3}, "tags of other savepoints mean nothing elsewhere"
    assert [one["snapshot-id"] for one in found["snapshots"]] == [1, 2, 3]
    assert [entry["snapshot-id"] for entry in found["snapshot-log"]] == [1, 2, 3]
    assert (found["current-snapshot-id"], found["metadata-log"], "statistics" in found) == (3, [], False)
    mark = view.mark("orders")
    assert mark is not None and (mark.batch, mark.snapshot_id) == (1, 2), "a later mark would look like a rollback"
    assert mark_key("orders", "gone") not in view.properties
    assert view.mark("other") == decode_mark(raw["properties"][mark_key("other")])


def test_at_mains_head_the_mark_stays() -> None:
    """It may reach further than any stamp that is left."""
    raw = metadata(CHAIN, main=4)
    assert TableView("shop.t", cut_at(raw, 4)).mark("orders") == TableView("shop.t", raw).mark("orders")


def test_a_table_that_was_empty_is_empty() -> None:
    found = cut_at(metadata(CHAIN, main=4, mine=2), None)

    view = TableView("shop.t", found)
    assert (view.refs, view.snapshots, found["current-snapshot-id"], view.mark("orders")) == ({}, {}, None, None)
    assert files_of("shop.t", found, lambda path: None) == {}


def test_a_table_that_forgot_how_far_it_was_written_is_refused() -> None:
    raw = metadata([snapshot(3, 2, None), snapshot(4, 3, stamp(2))], main=4)
    with pytest.raises(TableUnavailable, match="no longer tells how far it was written at snapshot 3"):
        cut_at(raw, 3)


def test_files_elsewhere_or_gone_are_refused() -> None:
    raw = cut_at(metadata(CHAIN, main=4), 4)
    with pytest.raises(TableUnavailable, match="its file m/1 is missing"):
        files_of("shop.t", raw, lambda path: None)
    with pytest.raises(TableUnavailable, match="its file m/1: it is no Avro file"):
        files_of("shop.t", raw, lambda path: b"none")
    with pytest.raises(TableUnavailable, match="outside of its own folder, so it cannot be exported: /elsewhere/data"):
        files_of("shop.t", {**raw, "properties": {"write.data.path": "/elsewhere/data"}}, lambda path: None)
    with pytest.raises(TableUnavailable, match="encrypted"):
        files_of("shop.t", {**raw, "snapshots": [{**raw["snapshots"][0], "key-id": "k"}]}, lambda path: None)
