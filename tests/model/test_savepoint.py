"""The manifest of a savepoint: what is written is what is read, and nothing else passes for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.model.errors import SavepointDamaged
from strandline.model.offsets import Offsets
from strandline.model.positions import GeneratorPosition
from strandline.model.savepoint import SAVEPOINT_VERSION, SavedFile, SavedTable, SavedTopic, Savepoint, SavepointType, is_savepoint_id

SAVED = Savepoint(
    id="sp-20260131-120000-00ff",
    pipeline="orders",
    type=SavepointType.NATIVE,
    strand="strand-1",
    batch=7,
    attempt=2,
    code="src:ba9876543210",
    created_at="2026-01-31T12:00:00.000Z",
    created_by="ann@host-b",
    note="before the upgrade",
    positions=Offsets.of({"orders": GeneratorPosition(80, 0)}),
    watermark_ms=1_767_225_600_000,
    checkpoint="/shop/checkpoints/orders",
    definition={"outputs": ["shop.orders"], "late": "drop"},
    operators=({"name": "totals"},),
    versions={"spark": "4.1.3"},
    contracts={},
    tables=(SavedTable("shop.orders", "uuid-1", 42, 43, 0),),
    topics=(SavedTopic("kafka:out", "topic-id", 6),),
    files=(SavedFile("checkpoint/metadata", "identity", 45, "e" * 64), SavedFile("checkpoint/offsets/7", "plan", 9, "f" * 64)),
)


def test_what_is_written_is_what_is_read() -> None:
    assert Savepoint.decode(SAVED.encode(), "savepoint.json") == SAVED
    assert (SAVED.size, SAVED.tag) == (54, "strandline-savepoint-sp-20260131-120000-00ff")


@pytest.mark.parametrize("word", ["orders", "ann@host-b", "strand-1", "e" * 64, "42", "drop", "4.1.3"])
def test_no_word_of_it_can_be_changed_unseen(word: str) -> None:
    changed = SAVED.encode().replace(word.encode(), word[::-1].encode() if word[::-1] != word else b"d" * len(word), 1)

    with pytest.raises(SavepointDamaged, match="its content is not what its digest says"):
        Savepoint.decode(changed, "savepoint.json")


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"7", b"not json", SAVED.encode()[:-40]])
def test_what_is_no_manifest_is_damaged(raw: bytes) -> None:
    with pytest.raises(SavepointDamaged, match=r"savepoint\.json is damaged"):
        Savepoint.decode(raw, "savepoint.json")


def test_a_manifest_from_the_future_says_so() -> None:
    future = json.dumps({**json.loads(SAVED.encode()), "version": SAVEPOINT_VERSION + 1}).encode()

    with pytest.raises(SavepointDamaged, match=f"has version {SAVEPOINT_VERSION + 1}, written by a newer strandline") as told:
        Savepoint.decode(future, "savepoint.json")
    assert told.value.next_command == "pip install --upgrade strandline"


def test_a_manifest_of_version_1_is_read() -> None:
    """It knew no branches: its tables' main is meant."""
    raw = (Path(__file__).parent.parent / "fixtures" / "savepoint-v1.json").read_bytes()

    assert Savepoint.decode(raw, "savepoint.json") == SAVED


def test_ids_are_safe_as_names_of_folders_and_tags() -> None:
    assert is_savepoint_id(SAVED.id)
    assert not any(map(is_savepoint_id, ["", "..", "a/b", "/tmp/x", "A-B-C", "sp", "s3://x/y"]))
