"""What Spark writes of a batch: `offsets/N`, the plan, before it runs, and `commits/N` after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.checkpoints.unreadable import NotKnown, Unreadable

_NEVER_READ = "-"

StateIds = Mapping[int, tuple[tuple[str, ...], ...]]
"""By operator, then partition, then store: which state files the batch left behind."""


@dataclass(frozen=True)
class PlannedBatch:
    """One `offsets/N` file: what Spark decided to read, before it read it."""

    batch: int
    lines: tuple[str | None, ...]
    """Raw offset per source, in the order of the plan; None when a source was never read."""
    watermark_ms: int
    planned_ms: int | None = field(default=None, compare=False)
    """When Spark decided it: the batch's own clock."""


@dataclass(frozen=True)
class CompletedBatch:
    """One `commits/N` file."""

    batch: int
    next_watermark_ms: int
    state_ids: StateIds | None
    """None in format 1, which names no state files, and of a batch without state."""


def parse_plan(batch: int, raw: bytes) -> PlannedBatch:
    try:
        version, metadata, *lines = raw.decode("utf-8").split("\n")
        if version != "v1":
            raise NotKnown(f"its format '{version[:20]}' is not v1")
        told = json.loads(metadata)
        planned = told.get("batchTimestampMs")
        watermark = int(told.get("batchWatermarkMs", 0))
        return PlannedBatch(
            batch, tuple(None if line == _NEVER_READ else line for line in lines), watermark, None if planned is None else int(planned)
        )
    except NotKnown:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise Unreadable("it is truncated or not in Spark's format") from error


def parse_commit(batch: int, raw: bytes) -> CompletedBatch:
    """Both of Spark's versions: the second has the ids of the state files."""
    try:
        version, content = raw.decode("utf-8").split("\n", 1)
        if version not in ("v1", "v2"):
            raise NotKnown(f"its format '{version[:20]}' is neither v1 nor v2")
        told = json.loads(content)
        ids = told.get("stateUniqueIds")
        state_ids = None if ids is None else {int(operator): _partitions(parts) for operator, parts in sorted(ids.items())}
        return CompletedBatch(batch, int(told.get("nextBatchWatermarkMs", 0)), state_ids or None)
    except NotKnown:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise Unreadable("it is truncated or not in Spark's format") from error


def _partitions(parts: list[list[str]]) -> tuple[tuple[str, ...], ...]:
    if not all(isinstance(store, str) and store for stores in parts for store in stores):
        raise ValueError("an id of a state file is missing")
    return tuple(tuple(stores) for stores in parts)
