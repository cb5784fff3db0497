"""What one ledger tells another: the strands of a savepoint, up to it and no further."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.ledger import Ledger, open_ledger
from strandline.ledger.records import BatchRecord, CommitRecord, StrandRecord
from strandline.model.continuity import TopicFacts
from strandline.model.errors import SavepointDamaged
from strandline.savepoints.holding import links_of
from strandline.savepoints.remembering import Remembered

WHEN = "2026-01-31T12:00:00.000Z"


def commit(table: str, snapshot: int, strand: str, batch: int, pipeline: str = "orders") -> CommitRecord:
    return CommitRecord(
        table, snapshot, None, snapshot, WHEN, "batch", pipeline, strand, 1, "a", batch, batch, "{}", "{}", "d", 5, 0, 0, 0, 1, 1, "src:1"
    )


@pytest.fixture
def here(tmp_path: Path) -> Ledger:
    """Strand "a" up to batch 9, "b" from its batch 4 on, and another pipeline's."""
    ledger = open_ledger(f"sqlite:///{tmp_path}/here.db")
    ledger.strands.record(StrandRecord("orders", "b", "restore", "a", 4, "sp-1", 2, WHEN))
    ledger.batches.bring(BatchRecord("orders", "a", n, 1, "{}", "{}", "d", {"t": n}, WHEN, {"gap": "x"}) for n in range(10))
    ledger.batches.bring(BatchRecord("orders", "b", n, 2, "{}", "{}", "d", {"t": n}, None) for n in range(4, 8))
    ledger.batches.bring([BatchRecord("other", "o", 0, 1, "{}", "{}", "d", {})])
    for n in range(10):
        ledger.commits.record_commit(commit("t", n, "a", n))
    ledger.commits.record_commit(commit("t", 100, "b", 6))
    ledger.commits.record_commit(commit("t", 101, "b", 7))
    ledger.commits.record_commit(commit("t", 102, "o", 0, "other"))
    ledger.topics.record("orders", "b", 2, {"in": TopicFacts("id-1", {0: (3, 7), 1: (0, 2)})})
    return ledger


def test_another_ledger_learns_the_strands_of_the_savepoint_up_to_it(here: Ledger, tmp_path: Path) -> None:
    links = links_of(here, "orders", "b", 6)
    there = open_ledger(f"sqlite:///{tmp_path}/there.db")

    known = Remembered.decode(Remembered.gather(here, "orders", links, {"t"}).encode(), "ledger.json")
    for _ in range(2):  # a killed import is repeated
        known.tell(there)

    assert links_of(there, "orders", "b", 6) == links == (("b", 6), ("a", 4))
    assert there.batches.between("orders", "a", -1, 99) == here.batches.between("orders", "a", -1, 5)
    assert there.batches.between("orders", "b", -1, 99) == here.batches.between("orders", "b", -1, 7)
    assert [(c.strand, c.batch) for c in there.commits.of_table("t")] == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 6)]
    assert there.topics.latest("orders", "b") == here.topics.latest("orders", "b")
    assert not there.batches.knows("other", "o")


@pytest.mark.parametrize(
    ("raw", "why"), [(b"{}", "cannot be read"), (b"nothing", "cannot be read"), (b'{"version": 9}', "newer strandline")]
)
def test_a_file_that_cannot_be_understood_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(SavepointDamaged, match=why):
        Remembered.decode(raw, "ledger.json")
