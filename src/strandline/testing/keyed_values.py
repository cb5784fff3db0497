"""What goes into the harness and comes out of it, checked and converted: rows, outputs and times."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from strandline.model.errors import DefinitionError
from strandline.model.times import to_millis
from strandline.state.codec import WrongType, codec_of
from strandline.state.types import parse_fields


class Shape:
    """The declared schema of an output."""

    def __init__(self, ddl: str) -> None:
        self._fields = parse_fields(ddl)
        self._codec = codec_of(self._fields)

    def fit(self, row: Any) -> tuple[Any, ...]:
        if row is None:
            raise WrongType("", self._fields.ddl, None, "it is a row of an output")
        return tuple(self._codec.from_plain(self._codec.to_plain(row)))


def shape_of(ddl: str | None) -> Shape | None:
    return None if ddl is None else Shape(ddl)


def rows_of(returned: Iterable[Any] | None) -> Iterable[Any]:
    """What was returned or yielded, row by row; a single row is refused, because a tuple of values looks like a tuple of rows."""
    if returned is None:
        return ()
    if isinstance(returned, (str, bytes, Mapping)) or hasattr(returned, "_fields") or not isinstance(returned, Iterable):
        raise DefinitionError(f"process and on_timer return a list of rows, or yield rows; this one returned {returned!r}")
    return returned


def as_dict(row: Any, what: str) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return dict(row)
    if hasattr(row, "_asdict"):
        return dict(row._asdict())
    raise ValueError(f"{what} of a batch is a dict or a named tuple, not {row!r}")


@functools.lru_cache(maxsize=256)
def _row_class(name: str, columns: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple(name, columns, rename=True)


def named_row(name: str, columns: tuple[str, ...], row: Mapping[str, Any]) -> Any:
    return _row_class(name, columns)(*(row.get(column) for column in columns))


def millis_of(at: datetime) -> int:
    """Milliseconds since 1970; a test may pass anything as a time, so what is none is refused in words."""
    if not isinstance(at, datetime):
        raise ValueError(f"a time is a datetime, not {at!r}")
    return to_millis(at)
