"""Avro messages in Confluent's wire format: 0x00, the writer's schema id in four bytes, the Avro body.

The writer's schema may change with any message, so it cannot stand in the plan: workers look ids up in the registry
and keep what they found. A message that cannot be read, or does not fit the declared schema, gets a sentence in
`PROBLEM`; a registry that does not answer fails the batch instead, because that is no fault of the message.

Values are decoded without Avro's logical types (a timestamp is its number) and turned into whole Arrow columns:
no datetime object per value, and one conversion per field and batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from strandline.messaging.registry import RegistryConnection, SchemaRegistry, UnknownSchema, UnusableSchema
from strandline.model.errors import DefinitionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator, AccumulatorParam
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

PARSED = "__strandline_parsed"
"""Column with the message as a struct of the declared schema; null where there is a problem."""
PROBLEM = "__strandline_problem"
"""Column with one sentence about what is wrong with the message; null where nothing is."""
_DECODED = "__strandline_decoded"

HEADER = 5
"""Bytes before the Avro body."""

Ranges = dict[str, tuple[int, int]]
"""Lowest and highest schema id by topic."""
Convert = Callable[[Any], Any]


# -- evidence: which schemas a batch was written with --------------------------------------------------------


class _WidenRanges:
    """How Spark merges what its tasks saw (an `AccumulatorParam`); only successful tasks count."""

    def zero(self, value: Ranges) -> Ranges:
        return {}

    def addInPlace(self, one: Ranges, other: Ranges) -> Ranges:  # noqa: N802 - Spark's name
        merged = dict(one)  # never in place: `take` may hold the old one
        for topic, (low, high) in other.items():
            known = merged.get(topic, (low, high))
            merged[topic] = (min(low, known[0]), max(high, known[1]))
        return merged


class SchemaIds:
    """The writers' schema ids of each topic that successful tasks decoded since the last `take`."""

    def __init__(self, spark: SparkSession) -> None:
        widen = cast("AccumulatorParam[Ranges]", _WidenRanges())
        self.accumulator: Accumulator[Ranges] = spark.sparkContext.accumulator({}, widen)

    def take(self) -> Ranges:
        """To be called between batches: what running tasks report meanwhile may be lost."""
        taken, self.accumulator.value = self.accumulator.value, {}
        return taken


# -- the plan's side -----------------------------------------------------------------------------------------


def decode(
    frame: DataFrame, column: str, schema_ddl: str, registry: RegistryConnection, ids: SchemaIds, *, topic: str = "topic"
) -> DataFrame:
    """`frame` with the columns `PARSED` and `PROBLEM`, made from the binary `column`; `topic` names the column with the topic."""
    import pyarrow as pa
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    declared = cast(StructType, StructType.fromDDL(schema_ddl))
    _check_types(declared, "")
    declared_json, seen = declared.json(), ids.accumulator

    def decoded(values: pa.Array, topics: pa.Array) -> pa.Array:
        answer, ranges = decoder_for(registry, declared_json).decode(values, topics)
        seen.add(ranges)
        return answer

    # Spark reads the kind of function off its types, and could not resolve the names of a lazy import.
    decoded.__annotations__ = {"values": pa.Array, "topics": pa.Array, "return": pa.Array}
    # Nullable like every source's columns in Spark; what is declared not null is enforced by the decoder.
    result = StructType().add(PARSED, declared.toNullable()).add(PROBLEM, StringType())
    # Called non-deterministic so that Spark does not repeat it below every filter on one of its two columns.
    udf = F.arrow_udf(decoded, result).asNondeterministic()  # type: ignore[attr-defined]  # no stub in 4.1
    return frame.withColumn(_DECODED, udf(F.col(column), F.col(topic))).select("*", f"{_DECODED}.*").drop(_DECODED)


def _check_types(declared: StructType, inside: str) -> None:
    """Types that no Avro value becomes are refused before a start, not row by row."""
    from pyspark.sql import types as t

    def check(kind: DataType, path: str) -> None:
        if isinstance(kind, t.StructType):
            _check_types(kind, f"{path}.")
        elif isinstance(kind, t.ArrayType):
            check(kind.elementType, path)
        elif isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
            check(kind.valueType, path)
        elif type(kind).__name__ not in _SCALARS:
            raise DefinitionError(f"kafka(format='avro'): column '{path}' is declared {kind.simpleString()}, which no Avro type can fill")

    for field in declared.fields:
        check(field.dataType, f"{inside}{field.name}")


# -- the worker's side ---------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def decoder_for(registry: RegistryConnection, declared_json: str) -> Decoder:
    """One per worker process: what it learned about schemas outlives the batch."""
    from pyspark.sql.types import StructType

    return Decoder(SchemaRegistry(registry, retries=registry.patience), StructType.fromJson(json.loads(declared_json)))


@dataclass(frozen=True)
class _Column:
    """One declared field, as far as one writer's schema has it."""

    name: str
    type: pa.DataType
    declared: str
    required: bool
    written: bool
    convert: Convert | None


@dataclass(frozen=True)
class _Plan:
    """How to read messages of one writer's schema; with a problem there is no way."""

    schema: Any
    columns: tuple[_Column, ...] = ()
    problem: str | None = None


class Decoder:
    """Messages to Arrow columns of one declared schema."""

    def __init__(self, registry: SchemaRegistry, declared: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_type

        self._registry = registry
        self._declared = declared
        self._type = to_arrow_type(declared.toNullable())
        self._plans: dict[int, _Plan] = {}

    def decode(self, values: pa.Array, topics: pa.Array) -> tuple[pa.StructArray, Ranges]:
        """A struct of `PARSED` and `PROBLEM` per message, and the schema ids of those without a problem."""
        import pyarrow as pa

        messages: list[bytes | None] = values.to_pylist()
        problems: list[str | None] = [None] * len(messages)
        groups = _by_schema(messages, problems)
        order: list[int] = []
        pieces: list[pa.StructArray] = []
        for schema_id, rows in groups.items():
            plan = self._plan(schema_id)
            if plan.problem is not None:
                for row in rows:
                    problems[row] = plan.problem
                continue
            good, records = _read(messages, rows, schema_id, plan.schema, problems)
            arrays = [_column(column, records, good, problems) for column in plan.columns]
            pieces.append(pa.StructArray.from_arrays(arrays, fields=list(self._type)))
            order += good
        parsed = self._arranged(pieces, order, problems)
        fields = [pa.field(PARSED, self._type), pa.field(PROBLEM, pa.string())]
        answer = pa.StructArray.from_arrays([parsed, pa.array(problems, pa.string())], fields=fields)
        return answer, _ranges(groups, topics, problems)

    def _arranged(self, pieces: list[pa.StructArray], order: list[int], problems: list[str | None]) -> pa.StructArray:
        """Pieces are in the order of schemas; back to the order of messages, with null where there is a problem."""
        import pyarrow as pa

        if not pieces:
            return pa.nulls(len(problems), self._type)
        if len(pieces) == 1 and len(order) == len(problems) and not any(problems):
            return pieces[0]
        places: list[int | None] = [None] * len(problems)
        for place, row in enumerate(order):
            if problems[row] is None:
                places[row] = place
        return pa.concat_arrays(pieces).take(pa.array(places, pa.int64()))

    def _plan(self, schema_id: int) -> _Plan:
        if (known := self._plans.get(schema_id)) is not None:
            return known
        if schema_id >= 2**31:  # registries count in Java's int, and answer larger ones with a server error
            return _Plan(None, problem=f"schema id {schema_id} is not known to the registry")
        try:
            schema = self._registry.schema(schema_id)
        except UnknownSchema as error:
            return _Plan(None, problem=str(error))  # not kept: it may be registered in a moment
        except UnusableSchema as error:
            return _Plan(None, problem=f"schema {schema_id} cannot be used: {error}")
        self._plans[schema_id] = self._planned(schema_id, schema)
        return self._plans[schema_id]

    def _planned(self, schema_id: int, schema: Any) -> _Plan:
        if not isinstance(schema, dict) or schema["type"] != "record":
            return _Plan(None, problem=f"schema {schema_id} is {_described(schema)}, not a record")
        fields = {item["name"]: item["type"] for item in schema["fields"]}
        named: Mapping[str, Any] = schema["__named_schemas"]
        columns: list[_Column] = []
        for field, arrow in zip(self._declared.fields, self._type, strict=True):
            written = field.name in fields
            if not written and not field.nullable:
                return _Plan(None, problem=f"field '{field.name}' is declared not null and missing in schema {schema_id}")
            convert = _converter(fields[field.name], field.dataType, field.name, named) if written else None
            columns.append(_Column(field.name, arrow.type, field.dataType.simpleString(), not field.nullable, written, convert))
        return _Plan(_without_logical_types(schema), tuple(columns))


def _by_schema(messages: list[bytes | None], problems: list[str | None]) -> dict[int, list[int]]:
    """Rows by schema id; whatever is not the wire format gets its problem here."""
    groups: dict[int, list[int]] = {}
    for row, message in enumerate(messages):
        if message is None:
            problems[row] = "the message has no value"
        elif len(message) < HEADER:
            problems[row] = f"the message has {len(message)} bytes, too few for Confluent's wire format"
        elif message[0]:
            problems[row] = f"the message starts with 0x{message[0]:02x}; Confluent's wire format starts with 0x00"
        else:
            groups.setdefault(int.from_bytes(message[1:HEADER], "big"), []).append(row)
    return groups


def _read(
    messages: list[bytes | None], rows: list[int], schema_id: int, schema: Any, problems: list[str | None]
) -> tuple[list[int], list[dict[str, Any]]]:
    """Rows that hold exactly one record of the schema, and those records."""
    from fastavro import schemaless_reader

    good: list[int] = []
    records: list[dict[str, Any]] = []
    for row in rows:
        message = cast(bytes, messages[row])
        body = BytesIO(message)
        body.seek(HEADER)
        try:
            record = schemaless_reader(body, schema, None)
        except Exception as error:  # noqa: BLE001 - whatever damaged bytes cause is a problem of this message alone
            problems[row] = f"the message cannot be decoded with schema {schema_id}: {_DAMAGE.get(type(error), type(error).__name__)}"
            continue
        if left := len(message) - body.tell():
            problems[row] = f"the message cannot be decoded with schema {schema_id}: {left} bytes are left over"
            continue
        good.append(row)
        records.append(cast("dict[str, Any]", record))
    return good, records


_DAMAGE: Mapping[type[BaseException], str] = {
    EOFError: "it ends too early",
    UnicodeDecodeError: "a text in it is not UTF-8",
    IndexError: "the number of a union's branch or of an enum's symbol is out of range",
}
"""In our words: fastavro's hold addresses of objects, and pieces of the message."""


def _column(column: _Column, records: list[dict[str, Any]], rows: list[int], problems: list[str | None]) -> pa.Array:
    """One field of all records; a value that does not fit becomes null and the problem of its row."""
    import pyarrow as pa

    if not column.written:
        return pa.nulls(len(records), column.type)
    name, convert = column.name, column.convert
    found = [record[name] for record in records]
    try:
        array = pa.array(found if convert is None else [None if v is None else convert(v) for v in found], column.type)
    except _MISFITS:  # at least one does not fit: take them one by one
        array = pa.array(list(_fitting(column, found, rows, problems)), column.type)
    if column.required and array.null_count:
        for row, value in zip(rows, found, strict=True):
            if value is None:
                problems[row] = problems[row] or f"field '{name}' is declared not null and the message holds null"
    return array


def _fitting(column: _Column, found: list[Any], rows: list[int], problems: list[str | None]) -> Iterator[Any]:
    import pyarrow as pa

    for row, value in zip(rows, found, strict=True):
        fitting = None
        if value is not None and problems[row] is None:
            try:
                fitting = column.convert(value) if column.convert else value
                pa.array([fitting], column.type)
            except Misfit as error:
                fitting, problems[row] = None, str(error)
            except _MISFITS:
                fitting, problems[row] = None, f"field '{column.name}' holds a value that does not fit {column.declared}"
        yield fitting


def _ranges(groups: Mapping[int, list[int]], topics: pa.Array, problems: list[str | None]) -> Ranges:
    names: list[str] = topics.to_pylist()
    ranges: Ranges = {}
    for schema_id, rows in groups.items():
        for topic in {names[row] for row in rows if problems[row] is None}:
            low, high = ranges.get(topic, (schema_id, schema_id))
            ranges[topic] = (min(low, schema_id), max(high, schema_id))
    return ranges


# -- from a writer's type to a declared type -----------------------------------------------------------------


class Misfit(ValueError):
    """A value whose written type cannot become the declared one; says which field."""


_MISFITS = (ValueError, TypeError, ArithmeticError)
"""What conversions raise: ours, and Arrow's, whose errors are all one of these."""

_SCALARS: Mapping[str, tuple[str, ...]] = {
    "StringType": ("string", "enum", "bytes"),
    "BinaryType": ("bytes", "fixed", "string"),
    "BooleanType": ("boolean",),
    "ByteType": ("int", "long"),
    "ShortType": ("int", "long"),
    "IntegerType": ("int", "long"),
    "LongType": ("int", "long"),
    "FloatType": ("float", "int", "long"),
    "DoubleType": ("float", "double", "int", "long"),
    "DecimalType": ("int", "long"),
    "DateType": (),
    "TimestampType": (),
    "TimestampNTZType": (),
}
"""Written types that fill a declared one: Avro's own promotions, and integers of any width as long as the value fits.
Narrowing a double and guessing the unit of a plain number are not among them. Logical types come on top, below."""

_FROM_WHOLE: Mapping[str, Convert] = {"FloatType": float, "DoubleType": float, "DecimalType": Decimal}

_PYTHON: Mapping[str, type] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
    "array": list,
    "map": dict,
    "record": dict,
}


def _converter(writer: Any, declared: DataType, path: str, named: Mapping[str, Any]) -> Convert | None:
    """Makes a decoded value (never None) into one that Arrow takes for `declared`; None when it already is."""
    from pyspark.sql import types as t

    if isinstance(writer, list):
        return _union_converter(writer, declared, path, named)
    node = _resolved(writer, named)
    kind = node["type"]
    if isinstance(declared, t.StructType) and kind == "record":
        return _struct_converter(node, declared, path, named)
    if isinstance(declared, t.ArrayType) and kind == "array":
        element = _converter(node["items"], declared.elementType, path, named)
        return None if element is None else lambda value: [None if v is None else element(v) for v in value]
    if isinstance(declared, t.MapType) and kind == "map":
        entry = _converter(node["values"], declared.valueType, path, named)
        return _pairs if entry is None else lambda value: [(k, None if v is None else entry(v)) for k, v in value.items()]
    if (logical := _logical_converter(node, type(declared).__name__)) is not None:
        return logical
    if kind in _SCALARS.get(type(declared).__name__, ()) and not (node.get("logicalType") == "decimal" and kind == "bytes"):
        return _FROM_WHOLE.get(type(declared).__name__) if kind in ("int", "long") else None
    return _refusing(f"field '{path}' is {_described(writer)} in the writer's schema and declared {declared.simpleString()}")


def _logical_converter(node: Mapping[str, Any], declared: str) -> Convert | None:
    logical, kind = node.get("logicalType"), node["type"]
    if declared == "DecimalType" and logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal_converter(int(node.get("scale", 0)))
    if declared == "DateType" and logical == "date" and kind == "int":
        return _same
    if declared == "StringType" and logical == "uuid" and kind == "fixed":
        return lambda value: str(UUID(bytes=value))
    prefix = {"TimestampType": "timestamp-", "TimestampNTZType": "local-timestamp-"}.get(declared)
    if prefix is None or kind != "long" or not str(logical).startswith(prefix):
        return None
    return {"millis": _millis, "micros": _same, "nanos": _nanos}.get(str(logical).removeprefix(prefix))


def _same(value: Any) -> Any:
    return value


def _millis(value: int) -> int:
    return value * 1000


def _nanos(value: int) -> int:
    return value // 1000  # Spark keeps microseconds


def _pairs(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(value.items())


_EXACT = Context(prec=80)
"""Wide enough that moving the point never rounds."""


def _decimal_converter(scale: int) -> Convert:
    def convert(value: bytes) -> Decimal:
        whole = int.from_bytes(value, "big", signed=True)
        if whole.bit_length() > 127:  # 38 digits; also, damaged bytes may be a number of a million digits
            raise OverflowError
        return Decimal(whole).scaleb(-scale, _EXACT)

    return convert


def _refusing(text: str) -> Convert:
    def refuse(value: Any) -> Any:
        raise Misfit(text)

    return refuse


def _struct_converter(node: Mapping[str, Any], declared: StructType, path: str, named: Mapping[str, Any]) -> Convert | None:
    written = {item["name"]: item["type"] for item in node["fields"]}
    parts: list[tuple[str, Convert | None, bool]] = []
    for field in declared.fields:
        inner = f"{path}.{field.name}"
        if field.name in written:
            required = not field.nullable and isinstance(written[field.name], list)  # only a union can hold null
            parts.append((field.name, _converter(written[field.name], field.dataType, inner, named), required))
        elif not field.nullable:
            return _refusing(f"field '{inner}' is declared not null and missing in the writer's schema")
    if all(convert is None and not required for _, convert, required in parts):
        return None  # Arrow picks fields by name itself

    def convert_struct(value: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, convert, required in parts:
            item = value[name]
            if item is None and required:
                raise Misfit(f"field '{path}.{name}' is declared not null and the message holds null")
            made[name] = item if item is None or convert is None else convert(item)
        return made

    return convert_struct


def _union_converter(branches: list[Any], declared: DataType, path: str, named: Mapping[str, Any]) -> Convert | None:
    """A decoded value does not say which branch it came from; its Python type does, unless two branches share one."""
    kinds = [branch for branch in branches if _resolved(branch, named)["type"] != "null"]
    if len(kinds) == 1:
        return _converter(kinds[0], declared, path, named)
    table: dict[type, Convert | None] = {}
    for branch in kinds:
        python, convert = _PYTHON[_resolved(branch, named)["type"]], _converter(branch, declared, path, named)
        if python in table and table[python] is not convert:
            convert = _refusing(f"field '{path}' is {_described(branches)} in the writer's schema, whose branches cannot be told apart")
        table[python] = convert
    if all(convert is None for convert in table.values()):
        return None

    def convert_branch(value: Any) -> Any:
        convert = table[type(value)]
        return value if convert is None else convert(value)

    return convert_branch


def _resolved(writer: Any, named: Mapping[str, Any]) -> Mapping[str, Any]:
    """A type as a mapping, names replaced by what they name."""
    if isinstance(writer, Mapping):
        inner = writer["type"]
        return writer if isinstance(inner, str) and inner not in named else _resolved(inner, named)
    return _resolved(named[writer], named) if writer in named else {"type": writer}


def _described(writer: Any) -> str:
    """A type in a word or two, for sentences."""
    if isinstance(writer, list):
        return f"a union of {', '.join(_described(branch) for branch in writer)}"
    if isinstance(writer, Mapping):
        kind, logical = writer["type"], writer.get("logicalType")
        return f"{kind} ({logical})" if logical else _described(kind)
    return str(writer)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [_without_logical_types(item) for item in schema] if isinstance(schema, list) else schema
