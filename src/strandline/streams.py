"""What a transform may call on its streaming DataFrames: keyed state, and names for what Spark does natively."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, overload

from strandline.state.declarations import KeyedProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.runtime.keyed.frames import KeyedOutputs


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
