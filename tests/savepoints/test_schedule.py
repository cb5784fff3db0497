"""Scheduled savepoints: when one is due, and which older ones it replaces."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

import strandline as sl
from strandline.ledger.records import ProcessIdentity, SavepointRecord, SavepointState
from strandline.model.definition import SavepointPolicy
from strandline.model.errors import DefinitionError
from strandline.model.times import rfc3339
from strandline.savepoints.schedule import BY_SCHEDULE, is_due, superseded

NOW = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def taken(hours_ago: float, by: str = BY_SCHEDULE, state: SavepointState = SavepointState.COMPLETE) -> SavepointRecord:
    at = rfc3339(NOW - timedelta(hours=hours_ago))
    return SavepointRecord(f"sp-{hours_ago}", "orders", "native", state, "s", 1, "/sp", by, "", ProcessIdentity("h", 1, "x"), at)


def test_one_is_due_when_the_last_one_is_old_enough() -> None:
    policy = sl.savepoint(every="6 hours")

    assert is_due(policy, [], NOW)
    assert is_due(policy, [taken(6)], NOW)
    assert not is_due(policy, [taken(5.9), taken(20)], NOW)
    assert is_due(policy, [taken(1, by="ann@host")], NOW), "one that somebody asked for does not count"
    assert not is_due(policy, [taken(1, state=SavepointState.FAILED), taken(20)], NOW), "a failed one is not tried again at once"


def test_those_beyond_the_number_or_the_age_are_replaced_oldest_first() -> None:
    records = [taken(hours) for hours in (1, 7, 13, 19, 25)]

    def gone(policy: SavepointPolicy) -> list[str]:
        return [record.id for record in superseded(policy, records, NOW)]

    assert gone(sl.savepoint(every="6 hours", keep=3)) == ["sp-25", "sp-19"]
    assert gone(sl.savepoint(every="6 hours", keep=9)) == []
    assert gone(sl.savepoint(every="6 hours", keep=9, keep_for="10 hours")) == ["sp-25", "sp-19", "sp-13"]
    assert gone(sl.savepoint(every="6 hours", keep=1, keep_for="1 minute")) == ["sp-25", "sp-19", "sp-13", "sp-7"], "the newest stays"


def test_a_clock_that_was_set_back_stops_nothing() -> None:
    """A record of the future is neither waited for, nor does it push out what is taken now."""
    policy, ahead = sl.savepoint(every="6 hours", keep=1), taken(-1000)

    assert is_due(policy, [ahead], NOW)
    assert is_due(policy, [ahead, taken(7)], NOW)
    assert not is_due(policy, [ahead, taken(1)], NOW), "the one that was taken since counts"
    assert superseded(policy, [ahead, taken(0)], NOW) == [ahead]


def test_only_complete_scheduled_ones_are_replaced() -> None:
    mine, failed = taken(50, by="ann@host"), replace(taken(60), state=SavepointState.FAILED)

    assert superseded(sl.savepoint(every="1 hour", keep=1), [taken(1), mine, failed], NOW) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": "10 s"}, "must be a minute or longer"),
        ({"every": "1 hour", "keep": 0}, "at least one is always kept"),
        ({"every": "1 hour", "keep_for": "0 s"}, "must be longer than zero"),
        ({"every": "often"}, "often"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        sl.savepoint(**options)  # type: ignore[arg-type]
