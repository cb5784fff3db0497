"""`sl.keyed`: a processor on a streaming DataFrame."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.model.errors import DefinitionError
from strandline.runtime.keyed.building import OperatorRecord, current_build
from strandline.runtime.keyed.hints import nondeterminism
from strandline.runtime.keyed.operator import OperatorSpec
from strandline.runtime.keyed.packing import (
    BLOB,
    BUCKET,
    KIND,
    PACKED,
    balanced_labels,
    bucket_column,
    pack_events,
    pack_for_all,
    unpack_rows,
    unpack_tagged,
)
from strandline.runtime.keyed.pickling import check_picklable, travel_with_their_code
from strandline.runtime.keyed.stores import Access, choose
from strandline.state.bucket import MAIN
from strandline.state.declarations import KeyedProcess
from strandline.state.layout import Epochs, Layout, layout_of, time_mode
from strandline.state.types import StructOf, parse_fields, parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS_PER_PARTITION = 4
"""A bucket's batch is one call, and its events are in memory together; more buckets mean smaller ones and more calls."""

Control = Mapping[str, tuple["DataFrame", str]]


@dataclass(frozen=True)
class KeyedOutputs:
    """The outputs of an operator with side outputs: `main`, and the others by name."""

    main: DataFrame
    sides: Mapping[str, DataFrame]
    produced: DataFrame
    """Rows of all outputs, packed: what the operator itself produces, once."""
    schemas: Mapping[str, StructOf]

    def name_of(self, frame: DataFrame) -> str | None:
        """Which output a frame is, if it is one of them, unchanged."""
        return next((name for name, own in {MAIN: self.main, **self.sides}.items() if own is frame), None)

    def together(self, tags: Mapping[str, str], tag_column: str) -> DataFrame:
        """Several outputs as one frame: a tag, and a struct per tag. The operator runs once for all of them."""
        columns = ", ".join(f"`{tag}` struct<{_ddl(self.schemas[name])}>" for name, tag in tags.items())
        chosen = self.produced.where(self.produced[KIND].isin(list(tags))).select(KIND, BLOB)
        return chosen.mapInArrow(unpack_tagged(dict(tags), dict(self.schemas), tag_column), f"`{tag_column}` string, {columns}")

    def __getitem__(self, name: str) -> DataFrame:
        try:
            return self.sides[name]
        except KeyError:
            known = ", ".join(f"'{side}'" for side in self.sides)
            raise DefinitionError(f"no side output '{name}' is declared; there are {known}") from None


def keyed_outputs(
    rows: DataFrame,
    by: str | Sequence[str],
    process: KeyedProcess,
    output: str,
    side_outputs: Mapping[str, str] | None = None,
    order_by: str | None = None,
    name: str | None = None,
    control: Control | None = None,
    initial: DataFrame | None = None,
    buckets: int | None = None,
    access: Access = "auto",
) -> KeyedOutputs:
    """Build the operator's part of the query."""
    names = [by] if isinstance(by, str) else list(by)
    called = name or re.sub(r"(?<!^)(?=[A-Z])", "_", type(process).__name__).lower()
    layout = layout_of(process)
    schemas = {MAIN: _fields(called, "output", output)}
    for side, ddl in (side_outputs or {}).items():
        schemas[side] = _fields(called, f"side output '{side}'", ddl)
    key_fields = _columns(rows, names, called)
    _check_columns(rows, [order_by] if order_by else [], called)
    if time_mode(layout) == "eventtime" and not _has_watermark(rows):
        raise DefinitionError(
            f"keyed operator '{called}' has event timers, but its input has no watermark, so they would never fire; declare event_time=… "
            "on the pipeline, or timers = 'processing'"
        )
    travel_with_their_code(type(process).__module__)
    check_picklable(process)
    build = current_build()
    if (hint := nondeterminism(process)) is not None:
        build.hints.append(hint)
    record = build.register(called, key_fields, isinstance(by, str), layout, _labels(rows, buckets))
    spec = OperatorSpec(
        called,
        process,
        Epochs(record.layouts),
        record.key,
        record.single_key,
        order_by,
        schemas,
        {each: (key, _struct(frame)) for each, (frame, key) in _checked_control(control, called).items()},
        choose(access),
        build.tell(called) if build.tell is not None else None,
        seeded=_seeded(initial, layout, names, called),
    )
    if called in build.saved:  # it was begun long ago: what it began with is in what it saved
        seed: DataFrame | None = build.saved[called](record)
    else:
        seed = None if initial is None else _packed(initial, names, record, called)
    produced = _produced(rows, names, record, spec, control or {}, seed)
    frames = {each: _unpacked(produced, each, _ddl(fields)) for each, fields in schemas.items()}
    main = frames.pop(MAIN)
    outputs = KeyedOutputs(main, frames, produced, schemas)
    build.outputs.append(outputs)
    return outputs


def _produced(
    rows: DataFrame, by: list[str], record: OperatorRecord, spec: OperatorSpec, control: Control, initial: DataFrame | None
) -> DataFrame:
    from strandline.runtime.keyed.processor import PRODUCED, KeyedProcessor

    packed = _packed(rows, by, record, spec.name)
    for each, (frame, _) in control.items():
        packed = packed.unionByName(frame.mapInArrow(pack_for_all(each, record.buckets), PACKED))
    grouped_initial = None if initial is None else initial.groupBy(BUCKET)
    mode = time_mode(spec.epochs.current)
    return packed.groupBy(BUCKET).transformWithState(
        KeyedProcessor(spec), PRODUCED, "append" if mode == "eventtime" else "update", mode, grouped_initial
    )


def _packed(rows: DataFrame, by: list[str], record: OperatorRecord, operator: str) -> DataFrame:
    return rows.withColumn(BUCKET, bucket_column(by, record.buckets)).mapInArrow(pack_events(by, operator), PACKED)


def _unpacked(produced: DataFrame, output: str, ddl: str) -> DataFrame:
    from pyspark.sql import functions as F

    return produced.where(F.col(KIND) == output).select(BLOB).mapInArrow(unpack_rows, ddl)


def _has_watermark(rows: DataFrame) -> bool:
    """Spark marks the column that a watermark was declared on."""
    return any("spark.watermarkDelayMs" in field.metadata for field in rows.schema.fields)


def _labels(rows: DataFrame, buckets: int | None) -> list[int]:
    partitions = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    if buckets is not None and buckets < 1:
        raise DefinitionError(f"buckets is {buckets}; it is at least 1")
    return balanced_labels(buckets or BUCKETS_PER_PARTITION * partitions, partitions if buckets is None else 1)


def _fields(operator: str, what: str, ddl: str) -> StructOf:
    try:
        return parse_fields(ddl)
    except DefinitionError as wrong:
        raise DefinitionError(f"{what} of keyed operator '{operator}': {wrong.message}") from wrong


def _ddl(fields: StructOf) -> str:
    """As Spark reads a schema; what it does not know, such as defaults, is left out."""
    return ", ".join(f"`{field.name}` {field.type.ddl}{'' if field.nullable else ' NOT NULL'}" for field in fields.fields)


def _struct(frame: DataFrame) -> StructOf:
    kind = parse_type(frame.schema.simpleString())
    assert isinstance(kind, StructOf)
    return kind


def _columns(rows: DataFrame, names: list[str], operator: str) -> StructOf:
    _check_columns(rows, names, operator)
    by_name = {field.name: field for field in _struct(rows.select(*(f"`{name}`" for name in names))).fields}
    return StructOf(tuple(by_name[name] for name in names))


def _check_columns(rows: DataFrame, names: Sequence[str], operator: str) -> None:
    for name in names:
        if name not in rows.columns:
            raise DefinitionError(f"keyed operator '{operator}': '{name}' is not a column of its input ({', '.join(rows.columns)})")


def _checked_control(control: Control | None, operator: str) -> Control:
    for each, (frame, key) in (control or {}).items():
        _check_columns(frame, [key], f"{operator}, control '{each}'")
    return control or {}


def _seeded(initial: DataFrame | None, layout: Layout, by: list[str], operator: str) -> tuple[str, ...]:
    if initial is None:
        return ()
    _check_columns(initial, by, f"{operator}, initial state")
    states = {state.name for state in layout.states}
    given = [column for column in initial.columns if column not in by]
    if unknown := sorted(set(given) - states):
        raise DefinitionError(
            f"initial state of keyed operator '{operator}' has column '{unknown[0]}', which is no state; states are {', '.join(sorted(states))}"
        )
    return tuple(given)
