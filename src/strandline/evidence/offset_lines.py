"""Offset lines of a plan in human words, where neither ledger nor pipeline is there to say whose they are."""

from __future__ import annotations

import json
from collections.abc import Sequence

from strandline.model.positions import GeneratorPosition, KafkaPosition, Position

Lines = Sequence[str | None]


def human_lines(lines: Lines, before: Lines | None) -> str:
    """What was read since the plan before; a source that the plan reads twice has two lines and is told once."""
    since = before if before is not None and len(before) == len(lines) else [None] * len(lines)
    return ", ".join(dict.fromkeys(_human(line, earlier) for line, earlier in zip(lines, since, strict=True)))


def _human(line: str | None, earlier: str | None) -> str:
    if line is None:
        return "nothing read"
    position, since = _position(line), _position(earlier) if earlier is not None else None
    if position is not None:
        return position.human(since)
    try:
        return f"log entry {json.loads(line)['logOffset']}"
    except (ValueError, KeyError, TypeError):
        return line


def _position(line: str) -> Position | None:
    """The generator's and Kafka's lines say what they are; others need their source to be read."""
    try:
        told = json.loads(line)
        if isinstance(told, dict) and set(told) == {"offset", "timestamp"}:
            return GeneratorPosition.from_json(told)
        return KafkaPosition.of({topic: {int(n): int(at) for n, at in parts.items()} for topic, parts in told.items()})
    except (ValueError, TypeError, AttributeError):
        return None
