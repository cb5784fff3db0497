"""Stamps and marks: durable formats, so what one release wrote every later one reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.model.errors import TableUnavailable
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.positions import FilesPosition, GeneratorPosition
from strandline.model.stamp import (
    OFFSETS_INLINE_LIMIT,
    Holder,
    Stamp,
    StampKind,
    Witness,
    decode_mark,
    encode_mark,
    mark_key,
)

FIXTURES = Path(__file__).parent.parent / "fixtures"

BATCH = Stamp(
    pipeline="order_totals",
    strand="7d0e7e52-3f0c-4f0e-9f65-3f5f2f6f5a11",
    holder=Holder(3, "a1b2c3d4e5f6"),
    batch=7,
    batch_first=5,
    start=Offsets.of({"orders": FilesPosition(4, 9, "9f86d081884c7d659a2feaa0c55ad015"), "clicks": GeneratorPosition(40, 1767225604000)}),
    end=Offsets.of({"orders": FilesPosition(6, 14, "60303ae22b998861bce3b28f33eec1be"), "clicks": GeneratorPosition(70, 1767225607000)}),
    start_digest="2f51a6d6c0ed6542728524e93bd9db602daf957351986979a1743c3c83037e60",
    end_digest="df9b6bb9556801234f918a54ece6b438832e79361e6e7f761c891de5c7092e96",
    code="git:0123456789ab+src:ba9876543210",
    rows=120,
    late=4,
    corrected=2,
    replayed=120,
    savepoint="sp-1",
    extra={"note": "kept"},
)
"""What `stamp-v1.json` tells."""


def fixture(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    return content


def long_offsets(events: int) -> Offsets:
    """More sources than a summary should carry."""
    return Offsets.of({f"topic-{n:03d}": GeneratorPosition(events + n, 1_767_225_600_000) for n in range(100)})


# -- what version 1 wrote stays readable ---------------------------------------------------------------------


def test_a_stamp_written_by_version_1_is_read_in_full() -> None:
    assert Stamp.from_summary(fixture("stamp-v1.json")) == BATCH


def test_a_boundary_written_by_version_1_is_read_in_full() -> None:
    boundary = Stamp.from_summary(fixture("stamp-v1-boundary.json"))

    assert boundary is not None
    assert (boundary.kind, boundary.batch, boundary.holder) == (StampKind.BOUNDARY, -1, Holder(4, "0f0e0d0c0b0a"))
    assert boundary.start == boundary.end == ORIGIN
    assert boundary.extra == {"reason": "new-strand", "parent": "7d0e7e52-3f0c-4f0e-9f65-3f5f2f6f5a11"}
    assert boundary.rows == 0


def test_a_stamp_with_only_digests_written_by_version_1_is_read_as_far_as_it_tells() -> None:
    stamp = Stamp.from_summary(fixture("stamp-v1-digest-only.json"))

    assert stamp is not None
    assert (stamp.start, stamp.end) == (None, None)
    assert (stamp.start_digest, stamp.end_digest) == (BATCH.start_digest, BATCH.end_digest)


def test_a_mark_written_by_version_1_is_read_in_full() -> None:
    text = (FIXTURES / "mark-v1.json").read_text(encoding="utf-8")

    assert decode_mark(text) == BATCH.witness


def test_version_1_is_still_what_is_written() -> None:
    """A change of the written form needs a new version, and a fixture of it beside the old ones."""
    assert BATCH.to_summary() == {key: value for key, value in fixture("stamp-v1.json").items() if key.startswith("strandline.")}
    assert json.loads(encode_mark(BATCH.witness)) == fixture("mark-v1.json")


# -- round trips ---------------------------------------------------------------------------------------------

words = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF), min_size=1, max_size=12)
counts = st.integers(0, 2**62)
positions = st.builds(GeneratorPosition, counts, counts) | st.builds(FilesPosition, st.integers(-1, 10**6), counts, words)
offsets = st.dictionaries(words, positions, max_size=3).map(Offsets.of)
extras = st.dictionaries(words.map(lambda word: f"x-{word}"), words, max_size=2)
holders = st.builds(Holder, st.integers(1, 10**6), words)


@st.composite
def stamps(draw: st.DrawFn) -> Stamp:
    start, end = draw(offsets), draw(offsets)
    return Stamp(
        pipeline=draw(words),
        strand=draw(words),
        holder=draw(holders),
        batch=draw(st.integers(-1, 10**9)),
        batch_first=draw(st.integers(-1, 10**9)),
        start=start,
        end=end,
        start_digest=start.digest,
        end_digest=end.digest,
        code=draw(words | st.just("")),
        kind=draw(st.sampled_from(StampKind)),
        rows=draw(counts),
        late=draw(counts),
        corrected=draw(counts),
        replayed=draw(counts),
        savepoint=draw(words | st.just("")),
        extra=draw(extras),
    )


@given(stamps())
def test_a_stamp_survives_the_summary_of_a_snapshot(stamp: Stamp) -> None:
    summary = stamp.to_summary()

    assert all(key.startswith("strandline.") and isinstance(value, str) and value for key, value in summary.items())
    assert Stamp.from_summary({"operation": "append", "added-records": "5", **summary}) == stamp


@given(stamps())
def test_a_mark_survives_the_table_property(stamp: Stamp) -> None:
    assert decode_mark(encode_mark(stamp.witness)) == stamp.witness


@given(stamps())
def test_mark_and_stamp_of_one_commit_are_the_same_witness(stamp: Stamp) -> None:
    """The fence compares them: a claim must not look moved because it was read from the one and judged by the other."""
    from_summary = Stamp.from_summary(stamp.to_summary())

    assert from_summary is not None
    assert from_summary.witness == decode_mark(encode_mark(stamp.witness))


# -- long offsets --------------------------------------------------------------------------------------------


def test_long_offsets_leave_only_their_digest_in_the_table() -> None:
    start, end = long_offsets(0), long_offsets(50)
    stamp = Stamp("p", "s", Holder(1, "a"), 0, 0, start, end, start.digest, end.digest, "src:1")

    summary = stamp.to_summary()
    mark = encode_mark(stamp.witness)

    assert sum(map(len, summary.values())) < OFFSETS_INLINE_LIMIT
    assert len(mark) < OFFSETS_INLINE_LIMIT
    read = Stamp.from_summary(summary)
    assert read is not None
    assert (read.start, read.end, read.start_digest, read.end_digest) == (None, None, start.digest, end.digest)
    assert decode_mark(mark) == read.witness == Witness("s", Holder(1, "a"), 0, end.digest, None)


def test_a_long_end_does_not_hide_a_start_at_the_origin() -> None:
    end = long_offsets(50)
    stamp = Stamp("p", "s", Holder(1, "a"), 0, 0, ORIGIN, end, ORIGIN.digest, end.digest, "src:1")

    read = Stamp.from_summary(stamp.to_summary())

    assert read is not None
    assert (read.start, read.end) == (ORIGIN, None)


@pytest.mark.parametrize("length", [OFFSETS_INLINE_LIMIT, OFFSETS_INLINE_LIMIT + 1])
def test_the_limit_is_exact(length: int) -> None:
    empty = len(Offsets.of({"": GeneratorPosition(1, 1)}).canonical())
    end = Offsets.of({"o" * (length - empty): GeneratorPosition(1, 1)})
    assert len(end.canonical()) == length

    stamp = Stamp("p", "s", Holder(1, "a"), 0, 0, ORIGIN, end, ORIGIN.digest, end.digest, "src:1")
    mark, read = decode_mark(encode_mark(stamp.witness)), Stamp.from_summary(stamp.to_summary())

    assert mark is not None
    assert read is not None
    assert mark.end == read.end == (end if length == OFFSETS_INLINE_LIMIT else None)


# -- what is not ours ----------------------------------------------------------------------------------------


def test_a_snapshot_of_someone_else_carries_no_stamp() -> None:
    assert Stamp.from_summary({"operation": "append", "spark.app.id": "local-1"}) is None
    assert decode_mark(None) is None


def test_a_stamp_of_a_newer_version_is_refused_with_what_to_do() -> None:
    summary = {**BATCH.to_summary(), "strandline.version": "2"}

    with pytest.raises(TableUnavailable, match=r"stamp of version 2.*this one reads up to 1") as refused:
        Stamp.from_summary(summary)

    assert refused.value.next_command == "pip install --upgrade strandline"


def test_a_mark_of_a_newer_version_is_refused_with_what_to_do() -> None:
    newer = json.dumps({**json.loads(encode_mark(BATCH.witness)), "version": 2})

    with pytest.raises(TableUnavailable, match=r"mark of version 2.*this one reads up to 1"):
        decode_mark(newer)


def test_each_pipeline_and_branch_has_a_mark_of_its_own() -> None:
    assert mark_key("orders") == "strandline.mark.orders"
    assert mark_key("orders", "audit") == "strandline.mark.orders@audit"
    assert len({mark_key("orders"), mark_key("orders", "audit"), mark_key("users"), mark_key("orders-audit")}) == 4


def test_a_later_witness_has_a_higher_rank() -> None:
    def rank(attempt: int, batch: int) -> tuple[int, int]:
        return Witness("s", Holder(attempt, "a"), batch, "d").rank

    assert rank(1, 4) < rank(1, 5) < rank(2, -1) < rank(2, 0)
