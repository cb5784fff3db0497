"""The words a pipeline file uses; all are re-exported by `strandline` itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from strandline.model.definition import (
    CheckpointPolicy,
    FileFormat,
    FilesSource,
    GeneratorSource,
    LatePolicy,
    Malformed,
    OnCancel,
    OutputMode,
    Pipeline,
    SinkMode,
    Source,
    TableSink,
    make_pipeline,
    strings,
)
from strandline.model.errors import DefinitionError
from strandline.model.times import parse_duration


def pipeline(
    *,
    source: Source | None = None,
    sources: Mapping[str, Source] | None = None,
    sink: TableSink | None = None,
    sinks: Mapping[str, TableSink] | None = None,
    name: str | None = None,
    event_time: str | Mapping[str, str] | None = None,
    allowed_lateness: str | timedelta = "10 s",
    late: LatePolicy = "drop",
    output_mode: OutputMode = "append",
    checkpoint: CheckpointPolicy | None = None,
) -> Callable[[Callable[..., Any]], Pipeline]:
    """Declare a pipeline around a PySpark function.

    The function receives one streaming DataFrame per source, by parameter name, and returns one DataFrame
    (with `sink`) or a dict of DataFrames with the keys of `sinks`.

    Args:
        source, sources: one source, or several by parameter name.
        sink, sinks: one table, or several by the name used in the returned dict.
        name: the pipeline's name; the function's name by default.
        event_time: event-time column, for all sources or by source.
        allowed_lateness: rows older than the newest event by more than this are *late*.
        late: what happens to late rows: counted and dropped, kept in ``<table>__late``, or kept with a ``_late`` column.
        output_mode: Spark's output mode; ``update`` goes with upsert tables.
        checkpoint: how often and how safely progress is recorded.
    """
    if (source is None) == (sources is None):
        raise DefinitionError("a pipeline needs either source=… or sources={…}")
    if (sink is None) == (sinks is None):
        raise DefinitionError("a pipeline needs either sink=… or sinks={…}")

    def declare(function: Callable[..., Any]) -> Pipeline:
        given_sources = source if source is not None else sources
        given_sinks = sink if sink is not None else sinks
        assert given_sources is not None and given_sinks is not None
        return make_pipeline(
            function,
            name=name,
            sources=given_sources,
            sinks=given_sinks,
            event_time=event_time,
            allowed_lateness=allowed_lateness,
            late=late,
            output_mode=output_mode,
            checkpoint=checkpoint or CheckpointPolicy(),
        )

    return declare


def files(
    path: str,
    *,
    schema: str,
    format: FileFormat = "json",
    malformed: Malformed = "stop",
    max_files_per_batch: int | None = None,
    options: Mapping[str, str] | None = None,
) -> FilesSource:
    """Read every new file of a directory (relative to the project folder) once.

    Args:
        schema: Spark DDL, such as ``"order_id string, amount double"``.
        format: ``json`` (one object per line), ``csv`` or ``parquet``.
        malformed: ``stop`` the run on a record that does not fit the schema, or keep it in ``<table>__quarantine``.
        max_files_per_batch: upper bound of files in one batch.
        options: further options of Spark's reader, such as ``{"header": "true"}``.
    """
    return FilesSource(path, schema, format, malformed, max_files_per_batch, dict(options or {}))


def generator(
    *,
    events_per_batch: int = 100,
    rate: float = 10.0,
    seed: int = 1,
    duplicates: float = 0.0,
    late: float = 0.0,
    late_by: str | timedelta = "1 hour",
    out_of_order: float = 0.0,
    total: int | None = None,
) -> GeneratorSource:
    """Make orders: the same ones on every run with the same arguments.

    Columns: ``seq, order_id, customer, amount, placed_at``.

    Args:
        events_per_batch: events in one batch.
        rate: events per second of event time.
        seed: another seed, other orders.
        duplicates, late, out_of_order: share of events (0 to 1) that repeat an earlier order, arrive `late_by` too
            late, or lag a few seconds.
        total: stop after so many events; without it the stream never ends.
    """
    return GeneratorSource(events_per_batch, rate, seed, duplicates, late, parse_duration(late_by), out_of_order, total)


def table(
    name: str,
    *,
    mode: SinkMode = "append",
    key: Sequence[str] | str | None = None,
    order_by: str | None = None,
    partition_by: Sequence[str] | str | None = None,
    sort_by: Sequence[str] | str | None = None,
    properties: Mapping[str, str] | None = None,
    format_version: int = 3,
    keep_snapshots: int | None = 500,
) -> TableSink:
    """Write to an Iceberg table, created on the first run.

    Args:
        name: ``namespace.table``.
        mode: ``append``, or ``upsert`` by `key`, where the row with the greater `order_by` wins.
        partition_by: columns or transforms such as ``days(placed_at)``, ``bucket(8, customer)``.
        sort_by: columns that sort the rows inside each file.
        properties: Iceberg table properties, set when the table is created.
        format_version: Iceberg format 3 (row lineage) or 2.
        keep_snapshots: expire older snapshots so that commits do not slow down as history grows (their evidence
            stays in the ledger); ``None`` keeps all.
    """
    return TableSink(
        name,
        mode,
        strings(key),
        order_by,
        strings(partition_by),
        strings(sort_by),
        dict(properties or {}),
        format_version,
        keep_snapshots,
    )


def checkpoint(
    *,
    every: str | timedelta = "10 s",
    min_pause: str | timedelta = "0 s",
    timeout: str | timedelta = "10 minutes",
    retain: int = 20,
    on_cancel: OnCancel = "keep",
) -> CheckpointPolicy:
    """How progress is recorded.

    Args:
        every: start a batch this often.
        min_pause: at least this much rest between two batches.
        timeout: a batch that takes longer fails the attempt.
        retain: completed batches kept in the checkpoint.
        on_cancel: what ``strandline stop --cancel`` does to the checkpoint.
    """
    return CheckpointPolicy(parse_duration(every), parse_duration(min_pause), parse_duration(timeout), retain, on_cancel)
