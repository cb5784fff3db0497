"""What Spark does natively and fast, under names that keep its state bounded: deduplication, windows, joins of two streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from strandline.model.choices import choice
from strandline.model.errors import DefinitionError
from strandline.model.times import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["inner", "left"]

_DELAY = "spark.watermarkDelayMs"
"""Spark's mark on a column that has a watermark: how far the watermark stays behind, and so also how long duplicates are remembered."""

_WINDOW = "__window"


@dataclass(frozen=True)
class Windows:
    """Rows by window and key, ready to be aggregated."""

    rows: DataFrame
    by: tuple[str, ...]
    window: Column

    def agg(self, *aggregates: Column) -> DataFrame:
        """One row per key and window: the key's columns, `window_start`, `window_end`, and the aggregates."""
        from pyspark.sql import functions as F

        grouped = self.rows.groupBy(*(_quoted(name) for name in self.by), self.window.alias(_WINDOW)).agg(*aggregates)
        made = [name for name in grouped.columns if name not in (*self.by, _WINDOW)]
        return grouped.select(
            *(_quoted(name) for name in self.by),
            F.col(f"{_WINDOW}.start").alias("window_start"),
            F.col(f"{_WINDOW}.end").alias("window_end"),
            *(_quoted(name) for name in made),
        )


def deduplicated(rows: DataFrame, by: str | Sequence[str], within: str | timedelta | None = None, forever: bool = False) -> DataFrame:
    """The first row of every key."""
    names = _names(by)
    _check_columns("sl.dedupe", rows, names)
    if forever:
        if within is not None:
            raise DefinitionError("sl.dedupe: within= and forever=True exclude each other")
        return rows.dropDuplicates(names)
    time = _event_time(rows)
    if time is None:
        raise DefinitionError(
            f"sl.dedupe needs a watermark, otherwise it would have to remember every key for ever, and no column of its input has one "
            f"({', '.join(rows.columns)}); declare event_time= in sl.pipeline, or write forever=True to keep every key"
        )
    if within is None:
        return rows.dropDuplicates([*names, *(name for name in [time] if name not in names)])
    span = _milliseconds("sl.dedupe", "within", within)
    if not rows.isStreaming:
        raise DefinitionError("sl.dedupe with within= works on a streaming DataFrame; a batch has no watermark that would pass")
    # Spark remembers a key for as long as the watermark's column says; the watermark itself keeps its own delay.
    first = _with_delay(rows, time, span).dropDuplicatesWithinWatermark(names)
    return _with_delay(first, time, int(rows.schema[time].metadata[_DELAY]))


def tumbling_windows(rows: DataFrame, time: str, size: str | timedelta, by: str | Sequence[str] = ()) -> Windows:
    """Windows of one size, one after the other."""
    from pyspark.sql import functions as F

    names = _checked("sl.tumbling", rows, time, by)
    return Windows(rows, names, F.window(_quoted(time), _interval("sl.tumbling", "size", size)))


def sliding_windows(rows: DataFrame, time: str, size: str | timedelta, slide: str | timedelta, by: str | Sequence[str] = ()) -> Windows:
    """Windows of one size, a new one after every `slide`."""
    from pyspark.sql import functions as F

    names = _checked("sl.sliding", rows, time, by)
    if _milliseconds("sl.sliding", "slide", slide) > _milliseconds("sl.sliding", "size", size):
        raise DefinitionError(f"sl.sliding: slide '{slide}' is longer than size '{size}', so rows between two windows would be in none")
    return Windows(rows, names, F.window(_quoted(time), _interval("sl.sliding", "size", size), _interval("sl.sliding", "slide", slide)))


def session_windows(rows: DataFrame, time: str, gap: str | timedelta, by: str | Sequence[str]) -> Windows:
    """Windows that last until nothing comes for `gap`."""
    from pyspark.sql import functions as F

    names = _checked("sl.sessions", rows, time, by)
    if not names:
        raise DefinitionError("sl.sessions: by= is empty; Spark has sessions per key only")
    return Windows(rows, names, F.session_window(_quoted(time), _interval("sl.sessions", "gap", gap)))


def joined_streams(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    left_time: str,
    right_time: str,
    within: str | timedelta,
    how: How = "inner",
) -> DataFrame:
    """Rows of two streams with equal keys and times that are at most `within` apart."""
    from pyspark.sql import functions as F

    choice("how of sl.join_streams", how, How)
    names = _checked("sl.join_streams, left", left, left_time, on)
    _checked("sl.join_streams, right", right, right_time, on)
    if not names:
        raise DefinitionError("sl.join_streams: on= is empty; rows are joined by at least one column")
    of_left, of_right = ([name for name in frame.columns if name not in names] for frame in (left, right))
    if twice := sorted(set(of_left) & set(of_right)):
        raise DefinitionError(f"sl.join_streams: both sides have a column '{twice[0]}'; rename one of them before the join")
    span = F.expr(f"interval {_interval('sl.join_streams', 'within', within)}")
    l_time, r_time = _of("l", left_time), _of("r", right_time)
    together = (r_time >= l_time - span) & (r_time <= l_time + span)
    for name in names:
        together = together & (_of("l", name) == _of("r", name))
    joined = left.alias("l").join(right.alias("r"), together, how)
    return joined.select(*(_of("l", name) for name in (*names, *of_left)), *(_of("r", name) for name in of_right))


# -- columns and durations -------------------------------------------------------------------------------------------


def _event_time(rows: DataFrame) -> str | None:
    """The column that has a watermark."""
    return next((field.name for field in rows.schema.fields if _DELAY in (field.metadata or {})), None)


def _with_delay(rows: DataFrame, time: str, delay: int) -> DataFrame:
    from pyspark.sql import functions as F

    own = {**rows.schema[time].metadata, _DELAY: delay}
    return rows.select(*(F.col(_quoted(c)).alias(c, metadata=own) if c == time else F.col(_quoted(c)) for c in rows.columns))


def _checked(call: str, rows: DataFrame, time: str, by: str | Sequence[str]) -> tuple[str, ...]:
    """The key's columns, after a look at what the time's column is."""
    names = _names(by)
    _check_columns(call, rows, [*names, time])
    if rows.isStreaming and _DELAY not in (rows.schema[time].metadata or {}):
        having = _event_time(rows)
        raise DefinitionError(
            f"{call}: column '{time}' has no watermark{f' (column {having!r} has one)' if having else ''}, so its state would be kept "
            f"for ever; declare event_time='{time}' in sl.pipeline, and leave the column as it is before this call"
        )
    return tuple(names)


def _names(by: str | Sequence[str]) -> list[str]:
    return [by] if isinstance(by, str) else list(by)


def _check_columns(call: str, rows: DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in rows.columns:
            raise DefinitionError(f"{call}: '{name}' is not a column of its input ({', '.join(rows.columns)})")


def _milliseconds(call: str, what: str, text: str | timedelta) -> int:
    found = int(parse_duration(text) / timedelta(milliseconds=1))
    if found < 1:
        raise DefinitionError(f"{call}: {what} is '{text}'; it is at least 1 ms")
    return found


def _interval(call: str, what: str, text: str | timedelta) -> str:
    """As Spark reads it."""
    return f"{_milliseconds(call, what, text)} milliseconds"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _of(side: str, name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(f"{side}.{_quoted(name)}")
