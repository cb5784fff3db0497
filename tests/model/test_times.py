"""Instants and durations as people write and read them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.model.errors import DefinitionError
from strandline.model.times import from_millis, human_duration, parse_duration, rfc3339, utc_now


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500 ms", timedelta(milliseconds=500)),
        ("30 s", timedelta(seconds=30)),
        ("30s", timedelta(seconds=30)),
        ("1 second", timedelta(seconds=1)),
        ("10 minutes", timedelta(minutes=10)),
        ("5 min", timedelta(minutes=5)),
        ("1.5 h", timedelta(minutes=90)),
        ("2 Hours", timedelta(hours=2)),
        ("  7 days ", timedelta(days=7)),
        ("0 s", timedelta(0)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_durations_are_a_number_and_a_unit(text: str | timedelta, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "10", "10 parsecs", "-5 s", "5 s 3 ms", "s 5", "1e3 s", "9999999999999 days"])
def test_anything_else_is_refused_with_examples_of_what_is_allowed(text: str) -> None:
    with pytest.raises(DefinitionError, match=r"is not a duration; write a number and a unit such as '500 ms', '30 s'") as refused:
        parse_duration(text)

    assert f"'{text}'" in refused.value.message


@given(st.text(max_size=12))
def test_no_text_does_anything_else_than_parse_or_be_refused(text: str) -> None:
    try:
        assert parse_duration(text) >= timedelta(0)
    except DefinitionError as refused:
        assert refused.exit_code == 2


def test_instants_are_written_in_utc_with_milliseconds() -> None:
    assert rfc3339(datetime(2026, 1, 31, 12, 0, 0, 123456, timezone.utc)) == "2026-01-31T12:00:00.123Z"
    assert rfc3339(datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-31T10:00:00.000Z"


def test_a_naive_instant_is_taken_as_utc() -> None:
    assert rfc3339(datetime(2026, 1, 31, 12)) == "2026-01-31T12:00:00.000Z"


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 1, 1), timezones=st.just(timezone.utc)))
def test_written_instants_sort_as_time_does_and_read_back(instant: datetime) -> None:
    text = rfc3339(instant)

    assert datetime.fromisoformat(text.replace("Z", "+00:00")) == instant.replace(microsecond=instant.microsecond // 1000 * 1000)
    assert (rfc3339(instant - timedelta(hours=1)) < text) is True


def test_milliseconds_since_the_epoch_are_utc() -> None:
    assert from_millis(1_767_225_600_000) == datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert utc_now().tzinfo is timezone.utc


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(days=2), "2 d"),
        (timedelta(hours=1.5), "1.5 h"),
        (timedelta(minutes=10), "10 min"),
        (timedelta(seconds=30), "30 s"),
        (timedelta(milliseconds=250), "250 ms"),
        (timedelta(0), "0 ms"),
    ],
)
def test_durations_in_words(span: timedelta, words: str) -> None:
    assert human_duration(span) == words
