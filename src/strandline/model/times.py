"""Instants and durations: UTC, RFC 3339, and words like ``30 s`` or ``10 minutes``."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from strandline.model.errors import DefinitionError

_UNITS = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
}


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def from_millis(millis: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=millis)


def to_millis(instant: datetime) -> int:
    """Milliseconds since 1970, what is smaller cut off; a naive instant is taken as UTC."""
    return ((instant if instant.tzinfo is not None else instant.replace(tzinfo=timezone.utc)) - _EPOCH) // timedelta(milliseconds=1)


def rfc3339(instant: datetime) -> str:
    """``2026-01-31T12:00:00.123Z``; a naive instant is taken as UTC (as databases return it)."""
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=timezone.utc)
    return instant.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_instant(text: str) -> datetime:
    """What `rfc3339` wrote."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def parse_duration(text: str | timedelta) -> timedelta:
    """``"30 s"``, ``"10 minutes"``, ``"1h"`` → timedelta; anything else is a DefinitionError."""
    if isinstance(text, timedelta):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", str(text).lower())
    unit = match.group(2) if match else ""
    scale = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
    try:
        if match is not None and scale is not None:
            return timedelta(seconds=float(match.group(1)) * scale)
    except OverflowError:
        pass
    raise DefinitionError(
        f"'{text}' is not a duration; write a number and a unit such as '500 ms', '30 s', '10 minutes', '2 hours' or '7 days'",
        next_command="strandline doctor",
    )


def human_duration(span: timedelta) -> str:
    seconds = span.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1000:.0f} ms"
