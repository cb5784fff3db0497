"""What a transform may call on its streaming DataFrames: keyed state, and names for what Spark does natively."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, overload

from strandline.state.declarations import KeyedProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.runtime.keyed.frames import KeyedOutputs
    from strandline.runtime.native import Windows


@overload
def keyed(
    rows: DataFrame,
    *,
    by: str | Sequence[str],
    process: KeyedProcess,
    output: str,
    side_outputs: None = None,
    order_by: str | None = None,
    name: str | None = None,
    control: Mapping[str, tuple[DataFrame, str]] | None = None,
    initial: DataFrame | None = None,
    buckets: int | None = None,
    access: Literal["auto", "pipelined", "plain"] = "auto",
) -> DataFrame: ...


@overload
def keyed(
    rows: DataFrame,
    *,
    by: str | Sequence[str],
    process: KeyedProcess,
    output: str,
    side_outputs: Mapping[str, str],
    order_by: str | None = None,
    name: str | None = None,
    control: Mapping[str, tuple[DataFrame, str]] | None = None,
    initial: DataFrame | None = None,
    buckets: int | None = None,
    access: Literal["auto", "pipelined", "plain"] = "auto",
) -> KeyedOutputs: ...


def keyed(
    rows: DataFrame,
    *,
    by: str | Sequence[str],
    process: KeyedProcess,
    output: str,
    side_outputs: Mapping[str, str] | None = None,
    order_by: str | None = None,
    name: str | None = None,
    control: Mapping[str, tuple[DataFrame, str]] | None = None,
    initial: DataFrame | None = None,
    buckets: int | None = None,
    access: Literal["auto", "pipelined", "plain"] = "auto",
) -> DataFrame | KeyedOutputs:
    """Run a processor with state per key over a streaming DataFrame.

    Args:
        rows: the events.
        by: the key: a column, or several.
        process: what to do with a key's events and timers.
        output: Spark DDL of the rows that `process` returns.
        side_outputs: DDL of further outputs by name, written with `ctx.emit`. The result then has `.main` and `["name"]`.
        order_by: a column by which a key's events come in order; without it the order is not defined.
        name: the operator's name, which its state is found by; the processor's class name by default. It must not change.
        control: control data by name: a streaming DataFrame and the column that identifies its rows. Every key sees its latest rows
            as ``ctx.control[name]``, from the batch in which they arrive; a row with a true column ``_deleted`` removes its key.
        initial: state to begin with: the key's columns, and a column for each state that is given. Read in the first batch only.
        buckets: how many parts the keys are divided into; fixed with the first batch.
        access: how state is asked for: ``pipelined`` (many requests at a time), ``plain`` (Spark's public API), or what fits.
    """
    from strandline.runtime.keyed.frames import keyed_outputs

    made = keyed_outputs(rows, by, process, output, side_outputs, order_by, name, control, initial, buckets, access)
    return made if side_outputs else made.main


def dedupe(rows: DataFrame, *, by: str | Sequence[str], within: str | timedelta | None = None, forever: bool = False) -> DataFrame:
    """The first row of every key; later ones are dropped.

    Args:
        rows: a stream with a watermark (`event_time=` in `sl.pipeline`).
        by: what makes two rows the same: a column, or several.
        within: drop a row if its event time is no more than this after that of the first one; it may be dropped for somewhat longer.
            Without it a row is dropped if key *and* event time are the same, as of a message that was sent twice.
        forever: remember every key, with state that only grows; needs no watermark.
    """
    from strandline.runtime.native import deduplicated

    return deduplicated(rows, by, within, forever)


def tumbling(rows: DataFrame, *, time: str, size: str | timedelta, by: str | Sequence[str] = ()) -> Windows:
    """Windows of one size, one after the other: ``sl.tumbling(orders, time="placed_at", size="1 minute", by="customer").agg(…)``.

    The result has the columns of `by`, then `window_start` and `window_end` (not included), then the aggregates.
    """
    from strandline.runtime.native import tumbling_windows

    return tumbling_windows(rows, time, size, by)


def sliding(rows: DataFrame, *, time: str, size: str | timedelta, slide: str | timedelta, by: str | Sequence[str] = ()) -> Windows:
    """Windows of one size that overlap: a new one begins after every `slide`. Columns as with `tumbling`."""
    from strandline.runtime.native import sliding_windows

    return sliding_windows(rows, time, size, slide, by)


def sessions(rows: DataFrame, *, time: str, gap: str | timedelta, by: str | Sequence[str]) -> Windows:
    """Windows per key that last until nothing comes for `gap`; they end `gap` after their last row. Columns as with `tumbling`."""
    from strandline.runtime.native import session_windows

    return session_windows(rows, time, gap, by)


def join_streams(
    left: DataFrame,
    right: DataFrame,
    *,
    on: str | Sequence[str],
    left_time: str,
    right_time: str,
    within: str | timedelta,
    how: Literal["inner", "left"] = "inner",
) -> DataFrame:
    """Rows of two streams with equal keys and event times at most `within` apart, whichever comes first.

    Both times need a watermark, and with the bound no row is kept longer than it can still find a partner. With ``how="left"`` a row of the left
    side that finds none comes out with nulls, once the watermark has passed its last chance. The result has the columns of `on`
    once, then the others of the left side, then those of the right.
    """
    from strandline.runtime.native import joined_streams

    return joined_streams(left, right, on, left_time, right_time, within, how)
