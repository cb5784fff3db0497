"""What a user declares: sources, sinks, checkpoint policy, and the pipeline that joins them.

Everything here is a frozen value, checked when it is made, so a wrong declaration is reported at import with
the allowed values and nothing has run yet.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

from strandline.model.choices import choice, share
from strandline.model.errors import DefinitionError
from strandline.model.kafka import KafkaSource, Malformed, TopicSink
from strandline.model.times import parse_duration
from strandline.model.until import Until

FileFormat = Literal["json", "csv", "parquet"]
LatePolicy = Literal["drop", "side_table", "label"]
SinkMode = Literal["append", "upsert"]
OutputMode = Literal["append", "update"]
OnCancel = Literal["keep", "delete"]

LATE_COLUMN = "_late"
"""Boolean column that the `label` policy adds to the source rows."""


@dataclass(frozen=True)
class FilesSource:
    """A directory of files; see `strandline.files`."""

    kind: ClassVar[str] = "files"
    path: str
    schema: str
    format: FileFormat = "json"
    malformed: Malformed = "stop"
    max_files_per_batch: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        choice("files(format=…)", self.format, FileFormat)
        choice("files(malformed=…)", self.malformed, Malformed)
        if self.max_files_per_batch is not None and self.max_files_per_batch < 1:
            raise DefinitionError(f"files(max_files_per_batch=…) is {self.max_files_per_batch}; it must be at least 1")
        if self.format == "parquet" and self.malformed == "quarantine":
            raise DefinitionError(
                "files(format='parquet', malformed='quarantine') is not possible: a Parquet file is readable or it is not, "
                "single records cannot be malformed; use malformed='stop'"
            )


@dataclass(frozen=True)
class GeneratorSource:
    """A deterministic stream of orders; see `strandline.generator`."""

    kind: ClassVar[str] = "generator"
    SCHEMA: ClassVar[str] = "seq bigint, order_id string, customer string, amount double, placed_at timestamp"
    DUPLICATE_REACH: ClassVar[int] = 50
    """A duplicate repeats one of the 50 events before it: near enough for dedupe state to still know it."""
    JITTER_MS: ClassVar[int] = 5_000
    """Out-of-order events lag up to 5 s: disorder that the default 10 s of lateness absorbs."""
    CUSTOMERS: ClassVar[int] = 20

    events_per_batch: int = 100
    rate: float = 10.0
    seed: int = 1
    duplicates: float = 0.0
    late: float = 0.0
    late_by: timedelta = timedelta(hours=1)
    out_of_order: float = 0.0
    total: int | None = None
    start_ms: int = 1_767_225_600_000
    """2026-01-01T00:00:00Z: a fixed clock keeps every run of the generator the same."""

    def __post_init__(self) -> None:
        for name in ("duplicates", "late", "out_of_order"):
            share(f"generator({name}=…)", getattr(self, name))
        if self.events_per_batch < 1 or self.rate <= 0:
            raise DefinitionError("generator(events_per_batch=…, rate=…) must both be positive")


@dataclass(frozen=True)
class SnapshotsSource:
    """A small table: the whole of its newest snapshot, whenever it changes."""

    kind: ClassVar[str] = "snapshots"
    table: str

    def __post_init__(self) -> None:
        if "." not in self.table:
            raise DefinitionError(f"snapshots('{self.table}') needs namespace and name, such as 'shop.rules'")


Source = FilesSource | GeneratorSource | KafkaSource | SnapshotsSource


@dataclass(frozen=True)
class TableSink:
    """An Iceberg table; see `strandline.table`."""

    name: str
    mode: SinkMode = "append"
    key: tuple[str, ...] = ()
    order_by: str | None = None
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    format_version: int = 3
    keep_snapshots: int | None = 500

    def __post_init__(self) -> None:
        choice("table(mode=…)", self.mode, SinkMode)
        if not re.fullmatch(r"[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)+", self.name):
            raise DefinitionError(f"table name '{self.name}' must be namespace.table, such as shop.orders")
        if self.mode == "upsert" and (not self.key or not self.order_by):
            raise DefinitionError(
                f"table('{self.name}', mode='upsert') needs key=[…] and order_by='column', which decides which version of a row is newer"
            )
        if self.mode == "append" and (self.key or self.order_by):
            raise DefinitionError(f"table('{self.name}') has key or order_by, which only mode='upsert' uses")
        if self.format_version not in (2, 3):
            raise DefinitionError(f"table('{self.name}', format_version={self.format_version}); allowed: 2, 3")
        if self.keep_snapshots is not None and self.keep_snapshots < 10:
            raise DefinitionError(f"table('{self.name}', keep_snapshots={self.keep_snapshots}); keep at least 10, or None to keep all")
        for expression in self.partition_by:
            if not re.fullmatch(r"\w+|(years|months|days|hours)\(\w+\)|(bucket|truncate)\(\d+, ?\w+\)", expression):
                raise DefinitionError(
                    f"partition_by '{expression}' of table '{self.name}' is not a partition transform; allowed: column, "
                    "years(c), months(c), days(c), hours(c), bucket(N, c), truncate(N, c)"
                )


Sink = TableSink | TopicSink


@dataclass(frozen=True)
class CheckpointPolicy:
    """How the job recovers; see `strandline.checkpoint`."""

    every: timedelta = timedelta(seconds=10)
    min_pause: timedelta = timedelta(0)
    timeout: timedelta = timedelta(minutes=10)
    retain: int = 20
    on_cancel: OnCancel = "keep"

    def __post_init__(self) -> None:
        choice("checkpoint(on_cancel=…)", self.on_cancel, OnCancel)
        if self.retain < 2:
            raise DefinitionError(f"checkpoint(retain={self.retain}); a restart needs the last two batches, so at least 2")
        if self.timeout <= timedelta(0):
            raise DefinitionError("checkpoint(timeout=…) must be longer than zero")


@dataclass(frozen=True)
class SavepointPolicy:
    """Savepoints that nobody has to ask for; see `strandline.savepoint`."""

    every: timedelta
    keep: int = 3
    keep_for: timedelta | None = None

    def __post_init__(self) -> None:
        if self.every < timedelta(minutes=1):
            raise DefinitionError("savepoint(every=…) must be a minute or longer; a checkpoint is made with every batch")
        if self.keep < 1:
            raise DefinitionError(f"savepoint(keep={self.keep}); at least one is always kept")
        if self.keep_for is not None and self.keep_for <= timedelta(0):
            raise DefinitionError("savepoint(keep_for=…) must be longer than zero")


@dataclass(frozen=True)
class Pipeline:
    """A named, governed streaming job: sources → transform → tables and topics."""

    name: str
    transform: Callable[..., Any]
    sources: Mapping[str, Source]
    sinks: Mapping[str, Sink]
    event_time: Mapping[str, str]
    """Event-time column by source; empty when none is declared."""
    allowed_lateness: timedelta
    late: LatePolicy
    output_mode: OutputMode
    checkpoint: CheckpointPolicy
    savepoint: SavepointPolicy | None
    file: Path
    parent: str | None = None
    """The pipeline that this one is a fork of; the following fields are set for forks only."""
    branch: str = "main"
    """Where in its tables it writes."""
    until: Until | None = None
    withheld: frozenset[str] = frozenset()
    """Sinks whose rows go nowhere: the query stays the one that the state belongs to."""

    @property
    def single_output(self) -> bool:
        return SINGLE in self.sinks

    def tables(self) -> list[str]:
        return [sink.name for sink in self.sinks.values() if isinstance(sink, TableSink)]

    def outputs(self) -> list[str]:
        """Tables and topics, as ledger and messages name them."""
        return [sink.name for key, sink in self.sinks.items() if key not in self.withheld]

    @property
    def side_table_base(self) -> str | None:
        """Side tables (late rows, quarantine) are named after the first table the pipeline writes."""
        return next(iter(self.tables()), None)

    def writes(self, table: str) -> bool:
        """Is it one of this pipeline's tables, its side tables included?"""
        base = self.side_table_base
        return table in self.tables() or (base is not None and table.startswith(f"{base}__"))


SINGLE = "output"
"""Name of the only output of a pipeline whose function returns one DataFrame."""


def is_pipeline_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z][\w-]*", text) is not None


def make_pipeline(
    function: Callable[..., Any],
    *,
    name: str | None,
    sources: Mapping[str, Source] | Source,
    sinks: Mapping[str, Sink] | Sink,
    event_time: str | Mapping[str, str] | None,
    allowed_lateness: str | timedelta,
    late: LatePolicy,
    output_mode: OutputMode,
    checkpoint: CheckpointPolicy,
    savepoint: SavepointPolicy | None = None,
) -> Pipeline:
    """Check a declaration against the function it decorates."""
    chosen = name or function.__name__
    where = f"pipeline '{chosen}'"
    if not is_pipeline_name(chosen):
        raise DefinitionError(f"{where}: a name starts with a letter and holds letters, digits, '_' and '-'")
    parameters = list(inspect.signature(function).parameters)
    if not isinstance(sources, Mapping):
        if len(parameters) != 1:
            raise DefinitionError(
                f"{where} has one source but its function takes {len(parameters)} parameters ({', '.join(parameters) or 'none'})"
            )
        sources = {parameters[0]: sources}
    if set(sources) != set(parameters):
        raise DefinitionError(
            f"{where}: sources are named {sorted(sources)} but the function takes {sorted(parameters)}; they must be the same names"
        )
    if not isinstance(sinks, Mapping):
        sinks = {SINGLE: sinks}
    if not sinks:
        raise DefinitionError(f"{where} has no sink")
    names = [sink.name for sink in sinks.values()]
    if len(set(names)) != len(names):
        raise DefinitionError(f"{where} writes the same output twice: {', '.join(names)}")
    choice(f"{where}: late", late, LatePolicy)
    choice(f"{where}: output_mode", output_mode, OutputMode)
    columns = dict.fromkeys(sources, event_time) if isinstance(event_time, str) else dict(event_time or {})
    if unknown := set(columns) - set(sources):
        raise DefinitionError(f"{where}: event_time names {sorted(unknown)}, which is no source; sources: {sorted(sources)}")
    if late != "drop" and not columns:
        raise DefinitionError(f"{where}: late='{late}' needs event_time, which decides what is late")
    wants_side_table = late == "side_table" or any(getattr(s, "malformed", "stop") == "quarantine" for s in sources.values())
    if wants_side_table and not any(isinstance(s, TableSink) for s in sinks.values()):
        raise DefinitionError(f"{where} keeps late or malformed rows in a side table, which is named after a table, and it writes none")
    if output_mode == "update" and any(isinstance(s, TableSink) and s.mode == "append" for s in sinks.values()):
        raise DefinitionError(f"{where}: output_mode='update' emits a row again when it changes; its tables need mode='upsert'")
    return Pipeline(
        name=chosen,
        transform=function,
        sources=dict(sources),
        sinks=dict(sinks),
        event_time=columns,
        allowed_lateness=parse_duration(allowed_lateness),
        late=late,
        output_mode=output_mode,
        checkpoint=checkpoint,
        savepoint=savepoint,
        file=Path(inspect.getsourcefile(function) or "unknown"),
    )


def strings(values: Sequence[str] | str | None) -> tuple[str, ...]:
    """``"id"`` and ``["id"]`` mean the same in a declaration."""
    return (values,) if isinstance(values, str) else tuple(values or ())
