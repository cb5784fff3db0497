"""Markers: a durable format in the metadata of a group offset."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.model.errors import DefinitionError, EnvironmentProblem, TrustViolation
from strandline.model.marker import MARKER_LIMIT, Marker, decode_marker, encode_marker
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.positions import GeneratorPosition
from strandline.model.stamp import Holder, Witness

END = Offsets.of({"clicks": GeneratorPosition(70, 1767225607000)})
BATCH = Marker("order_totals", "7d0e7e52", Holder(3, "a1b2c3d4e5f6"), 7, END.digest, 120, END)
VERSION_1 = (
    '{"attempt":3,"attempt_id":"a1b2c3d4e5f6","batch":7,"end":{"clicks":{"kind":"generator","offset":70,"timestamp":1767225607000}},'
    f'"end_sha256":"{END.digest}","pipeline":"order_totals","rows":120,"strand":"7d0e7e52","version":1}}'
)
"""What version 1 wrote stays readable."""


def test_a_marker_written_by_version_1_is_read_in_full() -> None:
    assert decode_marker("totals", 9, VERSION_1) == BATCH


def test_a_marker_is_written_as_version_1() -> None:
    assert encode_marker(BATCH) == VERSION_1
    assert BATCH.offset == 9


def test_a_claim_before_any_batch_has_an_offset_and_comes_back() -> None:
    claim = Marker.before_any("order_totals", "7d0e7e52", Holder(1, "x"))

    assert (claim.batch, claim.offset) == (-1, 1)
    assert decode_marker("totals", 1, encode_marker(claim)) == claim
    assert claim.witness == Witness("7d0e7e52", Holder(1, "x"), -1, ORIGIN.digest, ORIGIN)


def test_a_takeover_keeps_the_place_in_the_chain() -> None:
    taken = BATCH.taken_over("another", Holder(4, "new"))

    assert taken.witness == Witness("another", Holder(4, "new"), 7, END.digest, END)
    assert (taken.pipeline, taken.rows, taken.offset) == ("order_totals", 120, 9)


def test_keys_of_a_later_release_are_ignored() -> None:
    later = json.dumps({**json.loads(VERSION_1), "mood": "fine"})

    assert decode_marker("totals", 9, later) == BATCH


def test_a_later_version_asks_for_an_upgrade() -> None:
    with pytest.raises(EnvironmentProblem, match="topic 'totals' carries a marker of version 2") as raised:
        decode_marker("totals", 9, VERSION_1.replace('"version":1', '"version":2'))

    assert raised.value.next_command == "pip install --upgrade strandline"


@pytest.mark.parametrize("text", [None, "", "garbage", "{}", "[1]", "7", '"text"', '{"version":"1"}', VERSION_1.replace("7,", '"x",')])
def test_garbage_is_named_as_such(text: str | None) -> None:
    with pytest.raises(TrustViolation, match="the marker of topic 'totals' was changed by hand"):
        decode_marker("totals", 9, text)


def test_a_group_that_was_reset_is_noticed() -> None:
    with pytest.raises(TrustViolation, match="offset 0 beside batch 7"):
        decode_marker("totals", 0, VERSION_1)


def test_long_positions_are_left_out_and_their_digest_stays() -> None:
    long = Offsets.of({f"topic-{n:03d}": GeneratorPosition(n, 1_767_225_600_000) for n in range(100)})
    marker = Marker("p", "s", Holder(1, "x"), 0, long.digest, 5, long)

    text = encode_marker(marker)

    assert len(text) < MARKER_LIMIT
    back = decode_marker("totals", 2, text)
    assert (back.end, back.end_digest) == (None, long.digest)


def test_a_marker_that_a_broker_would_refuse_is_refused_here() -> None:
    with pytest.raises(DefinitionError, match="too long for a pipeline that writes to Kafka"):
        encode_marker(Marker("p" * 5000, "s", Holder(1, "x"), 0, END.digest))


names = st.text(min_size=1, max_size=30)


@given(names, names, st.integers(0, 10**9), names, st.integers(-1, 10**12), st.integers(0, 10**12))
def test_what_is_written_is_read(pipeline: str, strand: str, attempt: int, by: str, batch: int, rows: int) -> None:
    marker = Marker(pipeline, strand, Holder(attempt, by), batch, END.digest, rows, END)

    assert decode_marker("totals", marker.offset, encode_marker(marker)) == marker
