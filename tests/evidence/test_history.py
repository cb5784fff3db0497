"""The history of a table: from the table while it holds it, from the ledger when it expired."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.evidence.history import HISTORY_VERSION, Kind, history_json, history_of
from strandline.ledger import Ledger, open_ledger
from strandline.ledger.records import CommitRecord
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.positions import FilesPosition, GeneratorPosition
from strandline.model.stamp import Holder, Stamp, StampKind
from strandline.tables.view import TableView

TABLE = "shop.orders"


def at(events: int) -> Offsets:
    return Offsets.of({"orders": GeneratorPosition(events, 0)}) if events else ORIGIN


def stamp(batch: int, *, first: int | None = None, kind: StampKind = StampKind.BATCH, inline: bool = True) -> Stamp:
    since = batch if first is None else first
    start, end = at(since * 10), at(batch * 10 + 10)
    if kind is StampKind.BOUNDARY:
        start = end
    return Stamp(
        "orders",
        "s1",
        Holder(1, "a"),
        batch,
        since,
        start if inline else None,
        end if inline else None,
        start.digest,
        end.digest,
        "src:1",
        kind,
        rows=0 if kind is StampKind.BOUNDARY else 10,
        late=2,
    )


def snapshot(id: int, stamped: Stamp | None, operation: str = "append", **summary: str) -> dict[str, Any]:
    return {
        "snapshot-id": id,
        "parent-snapshot-id": id - 1,
        "sequence-number": id,
        "timestamp-ms": 1_767_225_600_000 + 1000 * id,
        "summary": {"operation": operation, "added-data-files": "3", "added-records": "7", **(stamped.to_summary() if stamped else {})}
        | summary,
    }


def view(*snapshots: dict[str, Any]) -> TableView:
    return TableView(TABLE, {"snapshots": list(snapshots), "refs": {"main": {"snapshot-id": snapshots[-1]["snapshot-id"]}}})


def record(id: int, batch: int, kind: str = "batch") -> CommitRecord:
    """What the ledger keeps of the commit that made snapshot `id`."""
    return CommitRecord(
        table=TABLE,
        snapshot_id=id,
        parent_id=id - 1,
        sequence_number=id,
        committed_at="2026-01-01T00:00:01.000Z",
        kind=kind,
        pipeline="orders",
        strand="s1",
        attempt=1,
        attempt_id="a",
        batch_first=batch,
        batch=batch,
        offsets_start=at(batch * 10).canonical(),
        offsets_end=at(batch * 10 + 10).canonical(),
        end_digest=at(batch * 10 + 10).digest,
        rows=10,
        late=2,
        corrected=0,
        replayed=0,
        files=3,
        manifests=1,
        code="src:1",
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    yield opened
    opened.close()


def test_every_snapshot_is_explained_newest_first() -> None:
    table = view(
        snapshot(1, stamp(0)),
        snapshot(2, None, operation="replace"),
        snapshot(3, stamp(2, first=1)),
        snapshot(4, None),
        snapshot(5, stamp(2, kind=StampKind.BOUNDARY)),
    )

    entries = history_of(TABLE, table, None)

    assert [(e.snapshot_id, e.kind, e.batch_first, e.batch, e.offsets, e.rows) for e in entries] == [
        (5, Kind.BOUNDARY, 2, 2, "events at 30", 0),
        (4, Kind.FOREIGN, None, None, "", 7),
        (3, Kind.BATCH, 1, 2, "events 10–30", 10),
        (2, Kind.MAINTENANCE, None, None, "", 0),
        (1, Kind.BATCH, 0, 0, "events 0–10", 10),
    ]
    assert not any(entry.expired for entry in entries)


def test_a_batch_tells_who_made_it_from_what_and_when() -> None:
    (entry,) = history_of(TABLE, view(snapshot(1, stamp(3))), None)

    assert (entry.pipeline, entry.strand, entry.attempt, entry.code) == ("orders", "s1", 1, "src:1")
    assert (entry.committed_at, entry.files, entry.late) == ("2026-01-01T00:00:01.000Z", 3, 2)
    assert entry.offsets_start == {"orders": {"kind": "generator", "offset": 30, "timestamp": 0}}
    assert entry.offsets_end == {"orders": {"kind": "generator", "offset": 40, "timestamp": 0}}


def test_corrected_rows_are_counted_by_the_merge_that_corrected_them() -> None:
    (entry,) = history_of(TABLE, view(snapshot(1, stamp(0), "overwrite", **{"spark.merge-into.num-target-rows-updated": "4"})), None)

    assert entry.corrected == 4


def test_expired_snapshots_are_told_by_the_ledger(ledger: Ledger) -> None:
    for number in range(1, 4):
        ledger.commits.record_commit(record(number, number - 1))
    table = view(snapshot(3, stamp(2)), snapshot(4, None, operation="replace"))

    entries = history_of(TABLE, table, ledger)

    assert [(e.snapshot_id, e.kind, e.batch, e.expired) for e in entries] == [
        (4, Kind.MAINTENANCE, None, False),
        (3, Kind.BATCH, 2, False),
        (2, Kind.BATCH, 1, True),
        (1, Kind.BATCH, 0, True),
    ]
    assert [e.offsets for e in entries] == ["", "events 20–30", "events 10–20", "events 0–10"]


def test_an_expired_entry_tells_the_same_as_it_did_before_it_expired(ledger: Ledger) -> None:
    ledger.commits.record_commit(record(1, 0))

    (live,) = history_of(TABLE, view(snapshot(1, stamp(0))), ledger)
    (expired,) = history_of(TABLE, None, ledger)

    assert {**vars(expired), "expired": False} == vars(live)
    assert expired.expired


def test_offsets_too_long_for_the_table_are_told_by_the_ledger(ledger: Ledger) -> None:
    ledger.commits.record_commit(record(2, 1))
    table = view(snapshot(2, stamp(1, inline=False)))

    assert [e.offsets for e in history_of(TABLE, table, ledger)] == ["events 10–20"]
    assert [e.offsets for e in history_of(TABLE, table, None)] == [""], "the digest alone tells no range"


def test_a_table_that_was_dropped_still_has_its_history(ledger: Ledger) -> None:
    ledger.commits.record_commit(record(1, 0))
    ledger.commits.record_commit(record(2, 1))

    assert [e.batch for e in history_of(TABLE, None, ledger)] == [1, 0]
    assert history_of("shop.never", None, ledger) == []


def test_snapshots_that_were_left_by_a_rollback_are_not_called_expired(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        ledger.commits.record_commit(record(number, number - 1))
    boundary = replace(stamp(1), kind=StampKind.BOUNDARY, savepoint="sp-1", extra={"reason": "restore", "parent": "s0"})
    back = {**snapshot(4, boundary), "parent-snapshot-id": 2}

    entries = history_of(TABLE, view(snapshot(2, stamp(1)), snapshot(3, stamp(2)), back), ledger)

    assert [(entry.snapshot_id, entry.label) for entry in entries] == [
        (4, "boundary (sp-1)"),
        (3, "batch (left)"),
        (2, "batch"),
        (1, "batch (expired)"),
    ]


def test_several_sources_are_told_by_name() -> None:
    start = Offsets.of({"orders": FilesPosition(0, 2, "a"), "clicks": GeneratorPosition(5, 0)})
    end = Offsets.of({"orders": FilesPosition(3, 5, "b"), "clicks": GeneratorPosition(9, 0)})
    several = Stamp("shop", "s1", Holder(1, "a"), 1, 1, start, end, start.digest, end.digest, "src:1")

    (entry,) = history_of(TABLE, view(snapshot(1, several)), None)

    assert entry.offsets == "clicks events 5–9, orders files 3–5"


def test_the_json_form_is_versioned_and_keeps_every_field() -> None:
    entries = history_of(TABLE, view(snapshot(1, stamp(0)), snapshot(2, None)), None)

    document = json.loads(json.dumps(history_json(TABLE, entries)))

    assert (document["version"], document["table"]) == (HISTORY_VERSION, TABLE) == (1, TABLE)
    assert [sorted(entry) for entry in document["snapshots"]] == [
        [
            "attempt",
            "batch",
            "batch_first",
            "branch",
            "code",
            "committed_at",
            "corrected",
            "expired",
            "files",
            "gaps",
            "kind",
            "late",
            "left",
            "offsets_end",
            "offsets_start",
            "parent",
            "pipeline",
            "reason",
            "rows",
            "savepoint",
            "schemas",
            "sequence_number",
            "snapshot_id",
            "strand",
            "topics",
        ]
    ] * 2
    assert [entry["kind"] for entry in document["snapshots"]] == ["foreign", "batch"]
