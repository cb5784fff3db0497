"""Rows of one state after a batch, and what became different between two batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import TYPE_CHECKING, Any

from strandline.evidence.plain import as_json
from strandline.evidence.states import TIMERS, StateSource, Target
from strandline.model.errors import UsageError
from strandline.model.times import from_millis, parse_instant, rfc3339
from strandline.state.codec import WrongType, codec_of
from strandline.state.reading import Held, KeyChange, KeyState
from strandline.state.types import INTEGERS, DecimalOf, Primitive, StructOf, Type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.runtime.keyed.inspecting import StateReader, StoredOperator

_JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
"""Spark's own would cut off microseconds and leave out nulls, so that different rows looked alike."""


@dataclass(frozen=True)
class ShownState:
    """Some rows of one state, and how many there are."""

    operator: str
    state: str
    kind: str
    type: str
    batch: int
    total: int
    """Entries of the state: values, elements, map entries, timers or rows; with a key those of the key alone."""
    keys: int | None
    """Keys of the operator; None of Spark's own."""
    rows: tuple[dict[str, Any], ...]


# -- show --------------------------------------------------------------------------------------------------------------


def state_rows(source: StateSource, reader: StateReader, target: Target, batch: int, limit: int, key: str | None) -> ShownState:
    """At most `limit` rows, one per key (one per timer, or one per row of Spark's)."""
    if target.is_native:
        return _native_rows(reader, target.operator, batch, limit, key)
    return _keyed_rows(source, reader, target, batch, limit, key)


def _keyed_rows(source: StateSource, reader: StateReader, target: Target, batch: int, limit: int, key: str | None) -> ShownState:
    operator = target.operator
    sizes = reader.sizes(operator, batch)
    now = source.processing_time(batch)
    wanted = None if key is None else parse_key(source.pipeline, operator.keys.fields, key)
    rows: list[dict[str, Any]] = []
    total = 0 if target.state is None or wanted is not None else sizes.entries[target.state.name]
    for bucket in reader.buckets(operator, batch, now, wanted):
        found = bucket.find(wanted) if wanted is not None else None
        for each in bucket if wanted is None else [found] if found is not None else []:
            made = _rows_of(target, operator.keys.names, each)
            if wanted is not None or target.state is None:
                total += len(each.timers) if target.state is None else len(each.states[target.name].elements) if made else 0
            rows.extend(made[: limit - len(rows)])
            if len(rows) >= limit and target.state is not None:
                break  # how many there are is known without reading on; of timers it is not
        if len(rows) >= limit and target.state is not None:
            break
    kind = TIMERS if target.state is None else target.state.kind
    ddl = "timestamp" if target.state is None else target.state.type.ddl
    return ShownState(operator.name, target.name, kind, ddl, batch, total, sizes.keys, tuple(sorted(rows, key=lambda row: str(row["key"]))))


def _rows_of(target: Target, names: Sequence[str], found: KeyState) -> list[dict[str, Any]]:
    key = key_json(names, found.key)
    if target.state is None:
        return [{"key": key, "clock": clock, "at": rfc3339(from_millis(at))} for clock, at in found.timers]
    held = found.states.get(target.state.name)
    return [{"key": key, **_held_json(held)}] if held is not None else []


def _held_json(held: Held) -> dict[str, Any]:
    """A value with its touch; or its elements or entries, each with its own."""
    mortal = held.layout.ttl is not None

    def mark(touched: int | None, expired: bool) -> dict[str, Any]:
        return {"touched": rfc3339(from_millis(touched or 0)), "expired": expired} if mortal else {}

    if held.layout.kind == "list":
        return {"elements": [{"value": as_json(e.value), **mark(e.touched, e.expired)} for e in held.elements]}
    if held.layout.kind == "map":
        return {"entries": [{"key": as_json(e.map_key), "value": as_json(e.value), **mark(e.touched, e.expired)} for e in held.elements]}
    only = held.elements[0]
    return {"value": as_json(only.value), **mark(only.touched, only.expired)}


def key_json(names: Sequence[str], columns: Sequence[Any]) -> dict[str, Any]:
    return {name: as_json(value) for name, value in zip(names, columns, strict=True)}


def _native_rows(reader: StateReader, operator: StoredOperator, batch: int, limit: int, key: str | None) -> ShownState:
    rows = reader.rows(operator, batch)
    kind = rows.schema["value"].dataType.simpleString()
    if key is not None:
        rows = _with_key(operator, rows, key)
    total = reader.ask(operator, batch, rows.count)
    found = reader.ask(operator, batch, lambda: _texts(rows).limit(limit).collect())
    shown = tuple(
        {"key": json.loads(row["k"]), "value": json.loads(row["v"]), **({"side": row["side"]} if operator.is_join else {})} for row in found
    )
    return ShownState(operator.name, operator.name, "rows", kind, batch, total, None, shown)


def _texts(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    side = [F.col("side")] if "side" in rows.columns else []
    return rows.select(F.to_json("key", _JSON).alias("k"), F.to_json("value", _JSON).alias("v"), *side)


def _with_key(operator: StoredOperator, rows: DataFrame, key: str) -> DataFrame:
    from pyspark.sql import functions as F

    names = rows.select("key.*").columns
    values = [key] if len(names) == 1 else _json_list(key, names)
    for name, value in zip(names, values, strict=True):
        rows = rows.where(F.col(f"key.`{name}`").cast("string") == str(value))
    return rows


# -- keys as they are typed --------------------------------------------------------------------------------------------


def parse_key(pipeline: str, fields: StructOf, text: str) -> tuple[Any, ...]:
    """``c-001`` for a key of one column, ``["DE", 7]`` for a key of several."""
    names = [field.name for field in fields.fields]
    given = [text] if len(names) == 1 else _json_list(text, names)
    columns = []
    for each, value in zip(fields.fields, given, strict=True):
        try:
            columns.append(_typed(each.type, value))
        except (ValueError, TypeError, InvalidOperation, WrongType) as wrong:
            raise UsageError(
                f"--key {text!r} does not fit the key ({fields.fields_ddl}): {value!r} is not {each.type.ddl}",
                next_command=f"strandline state list {pipeline}",
            ) from wrong
    return tuple(columns)


def _json_list(text: str, names: Sequence[str]) -> list[Any]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or len(values) != len(names):
        raise UsageError(
            f"--key {text!r} is not a key of {len(names)} columns ({', '.join(names)}); write them as a JSON list",
            next_command=f"write --key '{json.dumps([f'<{name}>' for name in names])}'",
        )
    return values


def _typed(kind: Type, value: Any) -> Any:
    """A value of the type from the text that someone typed; JSON's own values are taken as they are."""
    if isinstance(value, str) and isinstance(kind, Primitive | DecimalOf):
        value = _from_text(kind)(value)
    elif isinstance(value, str):
        value = json.loads(value)
    codec = codec_of(kind)
    plain = codec.to_plain(value)
    if plain is None:
        raise ValueError("null")
    return codec.from_plain(plain)


def _from_text(kind: Primitive | DecimalOf) -> Callable[[str], Any]:
    if isinstance(kind, DecimalOf):
        return Decimal
    if kind.name in INTEGERS:
        return int
    readers: Mapping[str, Callable[[str], Any]] = {
        "float": float,
        "double": float,
        "boolean": lambda text: {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else text,
        "date": date.fromisoformat,
        "timestamp": _moment,
        "timestamp_ntz": _moment,
        "binary": bytes.fromhex,
    }
    return readers.get(kind.name, str)


def _moment(text: str) -> datetime:
    return parse_instant(text)


# -- diff --------------------------------------------------------------------------------------------------------------


@dataclass
class OperatorDiff:
    """What became different in one operator: how many keys, and the first of them."""

    id: int
    operator: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    changes: list[dict[str, Any]] = field(default_factory=list)


def state_diff(reader: StateReader, operators: Sequence[StoredOperator], before: int, after: int, limit: int) -> list[OperatorDiff]:
    """Operator by operator."""
    return [
        _keyed_diff(reader, operator, before, after, limit)
        if operator.record is not None
        else _native_diff(reader, operator, before, after, limit)
        for operator in operators
    ]


def _keyed_diff(reader: StateReader, operator: StoredOperator, before: int, after: int, limit: int) -> OperatorDiff:
    diff = OperatorDiff(operator.id, operator.name)
    for change in reader.differences(operator, before, after):
        setattr(diff, change.kind, getattr(diff, change.kind) + 1)
        if len(diff.changes) < limit:
            diff.changes.append(_change_json(operator.keys.names, change))
    return diff


def _change_json(names: Sequence[str], change: KeyChange) -> dict[str, Any]:
    """Old and new of each state that is not the same; None is empty."""
    moments = [_contents(found) for found in (change.before, change.after)]
    different = [name for name in {**moments[0], **moments[1]} if repr(moments[0].get(name)) != repr(moments[1].get(name))]
    return {
        "key": key_json(names, change.key),
        "change": change.kind,
        "states": {name: {"before": moments[0].get(name), "after": moments[1].get(name)} for name in different},
    }


def _contents(found: KeyState | None) -> dict[str, Any]:
    if found is None:
        return {}
    contents = {name: as_json(held.value) for name, held in found.states.items()}
    timers = [{"clock": clock, "at": rfc3339(from_millis(at))} for clock, at in found.timers]
    return contents | ({TIMERS: timers} if timers else {})


def _native_diff(reader: StateReader, operator: StoredOperator, before: int, after: int, limit: int) -> OperatorDiff:
    old, new = (rows_by_key(reader, operator, batch) for batch in (before, after))
    both = (
        old.withColumnRenamed("rows", "old").join(new.withColumnRenamed("rows", "new"), ["k", "s"], "full_outer").where("not (old <=> new)")
    )
    kinds = "case when old is null then 'added' when new is null then 'removed' else 'changed' end as change"
    marked = both.selectExpr("*", kinds)
    diff = OperatorDiff(operator.id, operator.name)
    for row in reader.ask(operator, after, lambda: marked.groupBy("change").count().collect()):
        setattr(diff, row["change"], row["count"])
    for row in islice(reader.ask(operator, after, lambda: marked.orderBy("k").limit(limit).collect()), limit):
        state = {moment: parse_rows(row[name]) for moment, name in (("before", "old"), ("after", "new"))}
        diff.changes.append({"key": json.loads(row["k"]), "change": row["change"], "states": {row["s"] or operator.name: state}})
    return diff


def rows_by_key(reader: StateReader, operator: StoredOperator, batch: int) -> DataFrame:
    """Of one of Spark's operators: a key as JSON, the side of a join or nothing, and the key's rows as JSON, in order."""
    from pyspark.sql import functions as F

    rows = _texts(reader.rows(operator, batch))
    side = F.col("side") if operator.is_join else F.lit("")
    return rows.groupBy("k", side.alias("s")).agg(F.sort_array(F.collect_list("v")).alias("rows"))


def parse_rows(texts: Sequence[str] | None) -> Any:
    """Most operators have one row per key."""
    rows = [json.loads(text) for text in texts] if texts is not None else None
    return rows[0] if rows is not None and len(rows) == 1 else rows
