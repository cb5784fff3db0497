"""A table as its metadata file tells it; the files are written here by hand, as Iceberg writes them."""

from __future__ import annotations

from typing import Any

from strandline.model.fence import NEVER
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.positions import GeneratorPosition
from strandline.model.stamp import Holder, Stamp, StampKind, Witness, encode_mark, mark_key
from strandline.tables.view import Snapshot, TableView


def at(events: int) -> Offsets:
    return Offsets.of({"orders": GeneratorPosition(events, 0)}) if events else ORIGIN


def stamp(batch: int, *, attempt: int = 1, pipeline: str = "orders", kind: StampKind = StampKind.BATCH) -> Stamp:
    start, end = at(batch * 10), at(batch * 10 + 10)
    return Stamp(pipeline, "s1", Holder(attempt, "a"), batch, batch, start, end, start.digest, end.digest, "src:1", kind, rows=10)


def snapshot(id: int, parent: int | None, stamped: Stamp | None = None, operation: str = "append") -> dict[str, Any]:
    """One entry of ``snapshots`` in the metadata file."""
    raw: dict[str, Any] = {
        "snapshot-id": id,
        "sequence-number": id,
        "timestamp-ms": 1_767_225_600_000 + id,
        "manifest-list": f"file:/w/shop/orders/metadata/snap-{id}.avro",
        "schema-id": 0,
        "summary": {"operation": operation, "added-data-files": "2", "added-records": "10", **(stamped.to_summary() if stamped else {})},
    }
    return raw if parent is None else {**raw, "parent-snapshot-id": parent}


def view(*snapshots: dict[str, Any], main: int | None = None, properties: dict[str, str] | None = None, **refs: int) -> TableView:
    heads = {"main": main if main is not None else (snapshots[-1]["snapshot-id"] if snapshots else None), **refs}
    return TableView(
        "shop.orders",
        {
            "format-version": 3,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "file:/w/shop/orders",
            "last-sequence-number": 99,
            "current-schema-id": 1,
            "schemas": [
                {"type": "struct", "schema-id": 0, "fields": []},
                {
                    "type": "struct",
                    "schema-id": 1,
                    "fields": [
                        {"id": 1, "name": "seq", "required": False, "type": "long"},
                        {"id": 5, "name": "placed_at", "required": False, "type": "timestamptz"},
                    ],
                },
            ],
            "default-spec-id": 1,
            "partition-specs": [
                {"spec-id": 0, "fields": []},
                {
                    "spec-id": 1,
                    "fields": [
                        {"name": "placed_at_day", "transform": "day", "source-id": 5, "field-id": 1000},
                        {"name": "seq_bucket", "transform": "bucket[4]", "source-id": 1, "field-id": 1001},
                    ],
                },
            ],
            "properties": properties or {},
            "snapshots": list(snapshots),
            "refs": {name: {"snapshot-id": head, "type": "branch"} for name, head in heads.items() if head is not None},
        },
    )


# -- what the file says --------------------------------------------------------------------------------------


def test_the_facts_of_a_table() -> None:
    table = view(snapshot(1, None), properties={"comment": "ours"}, audit=1)

    assert (table.name, table.location, table.format_version) == ("shop.orders", "file:/w/shop/orders", 3)
    assert table.properties == {"comment": "ours"}
    assert table.partition_transforms == ["day(placed_at)", "bucket[4](seq)"]
    assert table.refs == {"main": 1, "audit": 1}


def test_a_table_without_snapshots() -> None:
    table = view()

    assert list(table.ancestors()) == []
    assert table.newest_stamp("orders") is None
    assert table.mark("orders") is None
    assert table.highest_attempt("orders") == 0


def test_a_snapshot_keeps_its_numbers_and_its_stamp() -> None:
    found = view(snapshot(8_123_456_789_012_345_678, 7, stamp(3))).snapshots[8_123_456_789_012_345_678]

    assert (found.parent_id, found.operation, found.timestamp_ms) == (7, "append", 1_767_225_600_000 + 8_123_456_789_012_345_678)
    assert found.count("added-data-files") == 2
    assert found.count("deleted-records") == 0
    assert found.stamp == stamp(3)


def test_a_snapshot_of_the_first_format_has_no_sequence_number_and_may_have_no_summary() -> None:
    old = Snapshot.parse({"snapshot-id": 1, "timestamp-ms": 5})

    assert (old.sequence_number, old.operation, old.summary, old.stamp, old.parent_id) == (0, "", {}, None, None)


# -- ancestry ------------------------------------------------------------------------------------------------


def test_ancestors_are_newest_first_and_only_of_their_branch() -> None:
    table = view(snapshot(1, None), snapshot(2, 1), snapshot(3, 2), snapshot(4, 2), main=3, audit=4)

    assert [s.id for s in table.ancestors()] == [3, 2, 1]
    assert [s.id for s in table.on("audit").ancestors()] == [4, 2, 1]
    assert list(table.on("no-such-branch").ancestors()) == []


def test_ancestors_end_at_the_first_expired_parent() -> None:
    """A tagged snapshot beyond the gap is still in the file, but no longer connected."""
    table = view(snapshot(1, None), snapshot(4, 3), snapshot(5, 4), main=5, tagged=1)

    assert [s.id for s in table.ancestors()] == [5, 4]


# -- witnesses -----------------------------------------------------------------------------------------------


def test_the_newest_stamp_is_found_below_compactions_and_foreign_snapshots() -> None:
    table = view(
        snapshot(1, None, stamp(0)),
        snapshot(2, 1, stamp(1)),
        snapshot(3, 2, stamp(9, pipeline="returns")),
        snapshot(4, 3, operation="replace"),
        snapshot(5, 4),
    )

    assert table.newest_stamp("orders") == stamp(1).witness
    assert table.newest_stamp("returns") == stamp(9, pipeline="returns").witness


def test_stamps_of_another_branch_do_not_count() -> None:
    table = view(snapshot(1, None, stamp(0)), snapshot(2, 1, stamp(1)), main=1, audit=2)

    assert table.newest_stamp("orders") == stamp(0).witness
    assert table.on("audit").newest_stamp("orders") == stamp(1).witness


def test_a_whole_history_without_a_stamp_is_told_from_one_whose_beginning_expired() -> None:
    whole = view(snapshot(1, None), snapshot(2, 1))
    expired = view(snapshot(2, 1), snapshot(3, 2))

    assert whole.newest_stamp("orders") is NEVER
    assert expired.newest_stamp("orders") is None


def test_the_mark_outlives_every_snapshot() -> None:
    table = view(snapshot(7, 6, operation="replace"), properties={mark_key("orders"): encode_mark(stamp(4).witness)})

    assert table.newest_stamp("orders") is None
    assert table.mark("orders") == stamp(4).witness
    assert table.mark("returns") is None


def test_each_branch_has_its_own_mark() -> None:
    table = view(
        snapshot(1, None),
        properties={
            mark_key("orders"): encode_mark(stamp(1).witness),
            mark_key("orders", "audit"): encode_mark(stamp(5, attempt=2).witness),
        },
    )

    assert table.mark("orders") == stamp(1).witness
    assert table.on("audit").mark("orders") == stamp(5, attempt=2).witness


def test_a_boundary_is_a_witness_too() -> None:
    boundary = stamp(1, attempt=2, kind=StampKind.BOUNDARY)
    table = view(snapshot(1, None, stamp(1)), snapshot(2, 1, boundary))

    assert table.newest_stamp("orders") == Witness("s1", Holder(2, "a"), 1, at(20).digest, at(20))


# -- the highest attempt -------------------------------------------------------------------------------------


def test_the_highest_attempt_looks_everywhere_so_that_no_number_is_given_twice() -> None:
    in_a_stamp = view(snapshot(1, None, stamp(0, attempt=5)), snapshot(2, 1, stamp(1, attempt=3)))
    in_the_mark = view(snapshot(1, None), properties={mark_key("orders"): encode_mark(stamp(1, attempt=6).witness)})
    on_a_branch = view(snapshot(1, None), snapshot(2, 1, stamp(1, attempt=8)), main=1, audit=2)
    in_the_mark_of_a_branch = view(snapshot(1, None), properties={mark_key("orders", "b"): encode_mark(stamp(1, attempt=9).witness)})

    tables = (in_a_stamp, in_the_mark, on_a_branch, in_the_mark_of_a_branch)
    assert [table.highest_attempt("orders") for table in tables] == [5, 6, 8, 9]


def test_the_highest_attempt_of_another_pipeline_does_not_count() -> None:
    table = view(
        snapshot(1, None, stamp(0, attempt=5, pipeline="orders-eu")),
        properties={mark_key("orders-eu"): encode_mark(stamp(0, attempt=7).witness)},
    )

    assert table.highest_attempt("orders") == 0
    assert table.highest_attempt("orders-eu") == 7


def test_since_a_batch_counts_the_pipelines_own_commits_and_what_stands_on_them() -> None:
    """A compaction right after the batch still belongs to the table after that batch; one after the next commit does not."""
    batches = [0, 1, None, 2, None, 3, None]
    snapshots = [
        snapshot(id, id - 1 or None, None if batch is None else stamp(batch), "replace" if batch is None else "append")
        for id, batch in enumerate(batches, 1)
    ]
    view = TableView("shop.orders", {"snapshots": snapshots, "refs": {"main": {"snapshot-id": 7}}})

    assert [s.id for s in view.since_batch("orders", [("s1", 1)])] == [7, 6, 5, 4]
    assert [s.id for s in view.since_batch("orders", [("s1", 3)])] == []
    assert [s.id for s in view.since_batch("orders", [("s1", -1)])] == [7, 6, 5, 4, 3, 2, 1]
    assert [s.id for s in view.since_batch("orders", [("s2", 5), ("s1", 2)])] == [7, 6], "it has not entered the new strand yet"
    assert [s.id for s in view.lineage(3)] == [3, 2, 1]
