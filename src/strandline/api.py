"""The words a pipeline file uses; all are re-exported by `strandline` itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from strandline.model.definition import (
    CheckpointPolicy,
    FileFormat,
    FilesSource,
    GeneratorSource,
    LatePolicy,
    OnCancel,
    OutputMode,
    Pipeline,
    SavepointPolicy,
    Sink,
    SinkMode,
    SnapshotsSource,
    Source,
    TableSink,
    make_pipeline,
    strings,
)
from strandline.model.errors import DefinitionError
from strandline.model.kafka import (
    Delivery,
    Isolation,
    KafkaAccess,
    KafkaSource,
    Malformed,
    MessageFormat,
    Metadata,
    Partitioner,
    Registry,
    Setting,
    StartOffsets,
    StartWord,
    TopicSink,
)
from strandline.model.secrets import Secret
from strandline.model.times import parse_duration


def pipeline(
    *,
    source: Source | None = None,
    sources: Mapping[str, Source] | None = None,
    sink: Sink | None = None,
    sinks: Mapping[str, Sink] | None = None,
    name: str | None = None,
    event_time: str | Mapping[str, str] | None = None,
    allowed_lateness: str | timedelta = "10 s",
    late: LatePolicy = "drop",
    output_mode: OutputMode = "append",
    checkpoint: CheckpointPolicy | None = None,
    savepoint: SavepointPolicy | None = None,
) -> Callable[[Callable[..., Any]], Pipeline]:
    """Declare a pipeline around a PySpark function.

    The function receives one streaming DataFrame per source, by parameter name, and returns one DataFrame
    (with `sink`) or a dict of DataFrames with the keys of `sinks`.

    Args:
        source, sources: one source, or several by parameter name.
        sink, sinks: one table or topic, or several by the name used in the returned dict.
        name: the pipeline's name; the function's name by default.
        event_time: event-time column, for all sources or by source.
        allowed_lateness: rows older than the newest event by more than this are *late*.
        late: what happens to late rows: counted and dropped, kept in ``<table>__late``, or kept with a ``_late`` column.
        output_mode: Spark's output mode; ``update`` goes with upsert tables.
        checkpoint: how often and how safely progress is recorded.
        savepoint: savepoints on a schedule; none by default.
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
            savepoint=savepoint,
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


def snapshots(table: str) -> SnapshotsSource:
    """A small table as control data: the whole of its newest snapshot, whenever it changes.

    Every row has the further column ``_snapshot``; given to `sl.keyed` as control data, a new snapshot takes the place of the old one.

    Args:
        table: namespace and name, such as ``shop.rules``, in the project's catalog.
    """
    return SnapshotsSource(table)


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


def kafka(
    topics: Sequence[str] | str | None = None,
    *,
    pattern: str | None = None,
    bootstrap: str | None = None,
    schema: str | None = None,
    format: MessageFormat = "json",
    start: StartWord | datetime | StartOffsets = "earliest",
    group: str | None = None,
    isolation: Isolation = "read_committed",
    malformed: Malformed = "stop",
    metadata: Sequence[Metadata] = (),
    registry: Registry | None = None,
    max_offsets_per_batch: int | None = None,
    security: Mapping[str, Setting] | None = None,
    give_up_after: str | timedelta = "2 minutes",
    options: Mapping[str, str] | None = None,
) -> KafkaSource:
    """Read Kafka topics.

    Args:
        topics, pattern: topic names, or a regular expression that they match as a whole.
        bootstrap: ``host:port``; without it the profile's ``kafka.bootstrap``, or the project's development broker.
        schema: columns of a JSON or Avro message, such as ``"order_id string not null, amount double"``. A column
            declared ``not null`` must be there.
        format: ``json``, ``avro`` (Confluent wire format, needs a schema registry), or ``string`` and ``bytes``, which
            give one column ``value``.
        start: where a new strand begins: ``earliest``, ``latest``, ``committed`` (the group's offsets), a moment, or
            offsets such as ``{"orders": {0: 120}}``. Afterwards the checkpoint rules.
        group: consumer group that is told how far complete checkpoints reach; ``strandline.<pipeline>.<source>`` by default.
        isolation: ``read_committed`` never shows records of open or aborted transactions.
        malformed: ``stop`` the run on a message that does not fit, or keep it in ``<table>__quarantine``.
        metadata: further columns: ``key`` gives ``kafka_key``, and so on for ``headers``, ``topic``, ``partition``, ``offset``,
            ``timestamp``.
        registry: the schema registry of Avro messages; without it the profile's ``kafka.registry``.
        max_offsets_per_batch: upper bound of offsets in one batch, over all partitions.
        security: TLS and SASL settings, such as ``{"security.protocol": "SASL_SSL", "sasl.password": secret(env="KAFKA_PASSWORD")}``.
        give_up_after: how long a cluster that went away is waited for before the run fails.
        options: further options of Spark's Kafka source, such as ``{"minPartitions": "8"}``.
    """
    return KafkaSource(
        topics=strings(topics),
        pattern=pattern,
        access=KafkaAccess(bootstrap, dict(security or {}), parse_duration(give_up_after)),
        schema=schema,
        format=format,
        start=start,
        group=group,
        isolation=isolation,
        malformed=malformed,
        metadata=tuple(metadata),
        registry=registry,
        max_offsets_per_batch=max_offsets_per_batch,
        options=dict(options or {}),
    )


def topic(
    name: str,
    *,
    key: str | None = None,
    value: str | None = None,
    headers: Sequence[str] | str | None = None,
    partition: str | None = None,
    partitioner: Partitioner = "murmur2_random",
    delivery: Delivery = "exactly_once",
    bootstrap: str | None = None,
    security: Mapping[str, Setting] | None = None,
    give_up_after: str | timedelta = "2 minutes",
) -> TopicSink:
    """Write to a Kafka topic: one transaction per batch, after the tables of the same batch.

    Args:
        name: the topic; it must exist.
        key: column whose text or bytes become the key; a row without one stops the run.
        value: column that is the message; without it the message is all columns as a JSON object.
        headers: columns that travel as headers, not in the message.
        partition: integer column that names the partition; without it `partitioner` decides by key.
        partitioner: ``murmur2_random`` puts keys where Java clients do; ``consistent_random`` (CRC-32) where librdkafka does.
        delivery: ``exactly_once``, or ``at_least_once`` through Spark's own parallel writer, where a replay sends rows again.
        bootstrap, security, give_up_after: as for `kafka`.
    """
    return TopicSink(
        name,
        KafkaAccess(bootstrap, dict(security or {}), parse_duration(give_up_after)),
        key,
        value,
        strings(headers),
        partition,
        partitioner,
        delivery,
    )


def registry(url: str, *, user: str | None = None, password: Secret | None = None) -> Registry:
    """A Confluent-compatible schema registry for Avro messages.

    Args:
        url: ``http(s)://host:port``, without credentials.
        user, password: basic authentication; the password only as `secret`.
    """
    return Registry(url, user, password)


def secret(*, env: str | None = None, file: str | None = None) -> Secret:
    """Where a secret is kept. It is read when it is used, and never shown or stored.

    Args:
        env: name of an environment variable.
        file: path of a file that holds nothing else.
    """
    return Secret(env, file)


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


def savepoint(*, every: str | timedelta, keep: int = 3, keep_for: str | timedelta | None = None) -> SavepointPolicy:
    """Savepoints on a schedule, taken by the running pipeline at the end of a batch.

    Args:
        every: take one this often, a minute or longer.
        keep: how many of them to keep. Older ones are disposed of when a new one is complete.
        keep_for: also dispose of those that are older than this. The newest one always stays.
    """
    return SavepointPolicy(parse_duration(every), keep, parse_duration(keep_for) if keep_for is not None else None)
