"""Where a bounded fork ends: rows from there on are left out, and it stops when every source has reached it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from strandline.model.errors import StrandlineError, UsageError
from strandline.model.times import parse_instant, rfc3339


@dataclass(frozen=True)
class Until:
    """A moment, or offsets of Kafka partitions; what is there or later is not read."""

    moment: datetime | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """First offset that is left out, by topic and partition."""

    def __str__(self) -> str:
        if self.moment is not None:
            return rfc3339(self.moment)
        return json.dumps({topic: {str(n): at for n, at in parts.items()} for topic, parts in self.offsets.items()}, sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Until:
        try:
            if text.lstrip().startswith("{"):
                told = json.loads(text)
                return cls(offsets={str(topic): {int(n): int(at) for n, at in parts.items()} for topic, parts in told.items()})
            moment = parse_instant(text)
            aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
            return cls(moment=aware.replace(microsecond=aware.microsecond // 1000 * 1000))  # as it is written down
        except (ValueError, TypeError, AttributeError, StrandlineError) as error:
            raise UsageError(
                f"'{text}' says not where to end; it is a moment such as 2026-01-31T00:00:00Z, or offsets such as "
                '{"orders": {"0": 1200, "1": 1180}}',
                next_command="strandline fork --help",
            ) from error
