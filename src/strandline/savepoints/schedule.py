"""When the next scheduled savepoint is due, and which older ones it replaces. Pure questions; those that somebody asked for are not touched."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from strandline.ledger.records import SavepointRecord, SavepointState
from strandline.model.definition import SavepointPolicy
from strandline.model.times import parse_instant

BY_SCHEDULE = "schedule"
"""Who asked for a scheduled savepoint."""


def is_due(policy: SavepointPolicy, records: Sequence[SavepointRecord], now: datetime) -> bool:
    """Also after a failed one a whole period passes: a full disk must not be filled again and again.

    One that is dated in the future was taken before the clock was set back: it says nothing about how long ago that was.
    """
    begun = [parse_instant(record.begun_at) for record in records if record.requested_by == BY_SCHEDULE]
    newest = max((at for at in begun if at <= now), default=None)
    return newest is None or now - newest >= policy.every


def superseded(policy: SavepointPolicy, records: Sequence[SavepointRecord], now: datetime) -> list[SavepointRecord]:
    """Scheduled savepoints beyond the number or the age to keep, oldest first; the newest complete one always stays.

    Those dated in the future count as older than all others: whatever was taken since the clock was set back is newer.
    """
    complete = [record for record in records if record.requested_by == BY_SCHEDULE and record.state is SavepointState.COMPLETE]
    by_age = sorted(complete, key=lambda record: (parse_instant(record.begun_at) <= now, record.begun_at), reverse=True)
    gone = [
        record
        for place, record in enumerate(by_age)
        if place > 0 and (place >= policy.keep or (policy.keep_for is not None and now - parse_instant(record.begun_at) > policy.keep_for))
    ]
    return gone[::-1]
