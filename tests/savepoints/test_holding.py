"""Whether a table provably holds what a strand brought to it; tables and ledger are written here by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.ledger import Ledger, open_ledger
from strandline.ledger.records import BatchRecord, StrandRecord
from strandline.model.offsets import Offsets
from strandline.model.positions import GeneratorPosition
from strandline.model.stamp import Holder, Stamp, StampKind, Witness, encode_mark, mark_key
from strandline.savepoints.holding import links_of, why_not
from strandline.tables.view import TableView

TABLE = "shop.orders"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Strand s1 brought rows to the table in batches 0 to 4, and none in batch 5; s2 goes on from its batch 3."""
    found = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    for batch in range(6):
        found.batches.inherit(BatchRecord("orders", "s1", batch, 1, "{}", "{}", "d", {TABLE: 10 if batch < 5 else 0}))
    found.strands.record(StrandRecord("orders", "s2", "restore", "s1", 3, "sp-1", 2, "2026-01-31T12:00:00.000Z"))
    found.batches.inherit(BatchRecord("orders", "s2", 3, 2, "{}", "{}", "d", {}))
    found.batches.inherit(BatchRecord("orders", "s2", 4, 2, "{}", "{}", "d", {TABLE: 7}))
    return found


def stamp(strand: str, batch: int, kind: StampKind = StampKind.BATCH) -> Stamp:
    end = Offsets.of({"orders": GeneratorPosition(batch * 10 + 10, 0)})
    attempt = 1 if strand == "s1" else 2
    return Stamp("orders", strand, Holder(attempt, "a"), batch, batch, end, end, end.digest, end.digest, "src:1", kind, rows=10)


def table(*stamps: Stamp, mark: Stamp | None = None, head: int | None = None) -> TableView:
    """Snapshots 1, 2, … on top of each other."""
    snapshots: list[dict[str, Any]] = [
        {
            "snapshot-id": number,
            **({"parent-snapshot-id": number - 1} if number > 1 else {}),
            "sequence-number": number,
            "timestamp-ms": number,
            "summary": {"operation": "append", **made.to_summary()},
        }
        for number, made in enumerate(stamps, 1)
    ]
    at = head if head is not None else len(stamps)
    properties = {} if mark is None else {mark_key("orders"): encode_mark(mark.witness)}
    refs = {"main": {"snapshot-id": at}} if stamps else {}
    return TableView(TABLE, {"snapshots": snapshots, "refs": refs, "properties": properties})


def s1(*batches: int) -> list[Stamp]:
    return [stamp("s1", batch) for batch in batches]


def test_a_strand_is_followed_to_where_it_comes_from(ledger: Ledger) -> None:
    assert links_of(ledger, "orders", "s1", 4) == (("s1", 4),)
    assert links_of(ledger, "orders", "s2", 4) == (("s2", 4), ("s1", 3))


def test_a_table_that_reaches_the_batch_holds_it(ledger: Ledger) -> None:
    assert why_not(table(*s1(0, 1, 2, 3, 4)), 5, "orders", [("s1", 4)], ledger) is None
    assert why_not(table(*s1(0, 1, 2, 3, 4)), 5, "orders", [("s1", 5)], ledger) is None, "batch 5 had no rows for it"
    assert why_not(table(*s1(0, 1, 2, 3, 4)), 3, "orders", [("s1", 2)], ledger) is None, "an older snapshot, for an older batch"


def test_a_table_that_lacks_a_batch_does_not(ledger: Ledger) -> None:
    assert why_not(table(*s1(0, 1, 2)), 3, "orders", [("s1", 4)], ledger) == "the ledger saw batch 3 enter it, and it is not there"
    assert why_not(table(), None, "orders", [("s1", 4)], ledger) == "the ledger saw batch 0 enter it, and it is not there"
    rolled_back = table(*s1(0, 1, 2, 3, 4), mark=stamp("s1", 4), head=2)
    assert why_not(rolled_back, 2, "orders", [("s1", 4)], ledger) == "it was rolled back without a boundary"


def test_a_table_that_is_ahead_or_elsewhere_does_not(ledger: Ledger) -> None:
    assert why_not(table(*s1(0, 1, 2, 3, 4)), 5, "orders", [("s1", 3)], ledger) == "it already holds batch 4 of strand s1"
    other = table(*s1(0, 1), stamp("s9", 7))
    told = why_not(other, 3, "orders", [("s1", 4)], ledger)
    assert told == "it was last written by strand s9 (batch 7), and strand s1 does not go on from there"


def test_a_table_that_has_not_entered_the_strand_yet_holds_what_the_parent_brought(ledger: Ledger) -> None:
    links = links_of(ledger, "orders", "s2", 3)

    assert why_not(table(*s1(0, 1, 2, 3)), 4, "orders", links, ledger) is None
    assert why_not(table(*s1(0, 1, 2)), 3, "orders", links, ledger) == "the ledger saw batch 3 enter it, and it is not there"
    later = links_of(ledger, "orders", "s2", 4)
    assert why_not(table(*s1(0, 1, 2, 3)), 4, "orders", later, ledger) == "the ledger saw batch 4 enter it, and it is not there"
    entered = table(*s1(0, 1, 2, 3), stamp("s2", 3, StampKind.BOUNDARY), stamp("s2", 4))
    assert why_not(entered, 6, "orders", later, ledger) is None


def test_stamps_that_expired_are_remembered_by_the_mark(ledger: Ledger) -> None:
    compacted = TableView(
        TABLE,
        {
            "snapshots": [
                {"snapshot-id": 9, "parent-snapshot-id": 8, "sequence-number": 9, "timestamp-ms": 9, "summary": {"operation": "replace"}}
            ],
            "refs": {"main": {"snapshot-id": 9}},
            "properties": {mark_key("orders"): encode_mark(Witness("s1", Holder(1, "a"), 4, "d"))},
        },
    )

    assert why_not(compacted, 9, "orders", [("s1", 5)], ledger) is None


def test_without_a_word_from_the_ledger_nothing_is_proven(tmp_path: Path) -> None:
    lost = open_ledger(f"sqlite:///{tmp_path}/new.db")

    assert why_not(table(*s1(0, 1, 2)), 3, "orders", [("s1", 2)], lost) is None, "the table itself reaches the batch"
    assert why_not(table(*s1(0, 1, 2)), 3, "orders", [("s1", 4)], lost) == "the ledger cannot tell whether its last batches had rows for it"
