"""Values of state as JSON: what has no form of its own there becomes text that says what it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any


def as_json(value: Any) -> Any:
    """Times in RFC 3339, decimals and odd floats as text, bytes in hexadecimal, rows as objects, maps without text keys as pairs."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat()
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if hasattr(value, "_asdict"):
        return {name: as_json(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: as_json(part) for key, part in value.items()}
        return [[as_json(key), as_json(part)] for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return value
