"""Rows in and out of Arrow: batches to named tuples, and checked rows to batches, column by column.

Arrow is imported when it is needed, so that declaring a processor does not load it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from functools import cache, lru_cache, partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from strandline.model.errors import DefinitionError
from strandline.state.codec import EPOCH, EPOCH_DAY, EPOCH_NTZ, MICROSECOND, WrongType, as_they_are, codec_of, row_class
from strandline.state.types import ArrayOf, DecimalOf, Field, MapOf, Primitive, StructOf, Type

if TYPE_CHECKING:
    import pyarrow as pa


# -- types -----------------------------------------------------------------------------------------------------------


@cache
def arrow_type(kind: Type) -> pa.DataType:
    """As Spark maps them, so that batches pass without a cast."""
    import pyarrow as pa

    if isinstance(kind, StructOf):
        return pa.struct([_arrow_field(field) for field in kind.fields])
    if isinstance(kind, ArrayOf):
        return pa.list_(pa.field("element", arrow_type(kind.element)))
    if isinstance(kind, MapOf):
        return pa.map_(pa.field("key", arrow_type(kind.key), nullable=False), pa.field("value", arrow_type(kind.value)))
    if isinstance(kind, DecimalOf):
        return pa.decimal128(kind.precision, kind.scale)
    return _primitives()[kind.name]


@cache
def _primitives() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }


def _arrow_field(field: Field) -> pa.Field:
    import pyarrow as pa

    return pa.field(field.name, arrow_type(field.type), nullable=field.nullable)


@cache
def arrow_schema(fields: StructOf) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([_arrow_field(field) for field in fields.fields])


@lru_cache(maxsize=256)
def from_arrow_schema(schema: pa.Schema) -> StructOf:
    """Any layout of a known type is fine: large strings, dictionaries, milliseconds."""
    return StructOf(tuple(Field(field.name, _type_of(field.type, field.name), field.nullable) for field in schema))


def _type_of(found: pa.DataType, column: str) -> Type:
    import pyarrow.types as t

    if t.is_dictionary(found):
        return _type_of(found.value_type, column)
    if t.is_struct(found):
        return StructOf(tuple(Field(field.name, _type_of(field.type, f"{column}.{field.name}"), field.nullable) for field in found))
    if t.is_map(found):
        return MapOf(_type_of(found.key_type, f"{column}.key"), _type_of(found.item_type, f"{column}.value"))
    if t.is_list(found) or t.is_large_list(found) or t.is_fixed_size_list(found):
        return ArrayOf(_type_of(found.value_type, f"{column}.element"))
    if t.is_decimal128(found):
        return DecimalOf(found.precision, found.scale)
    if t.is_timestamp(found):
        return Primitive("timestamp_ntz" if found.tz is None else "timestamp")
    if t.is_large_string(found):
        return Primitive("string")
    if t.is_large_binary(found) or t.is_fixed_size_binary(found):
        return Primitive("binary")
    for name, kind in _primitives().items():
        if kind == found:
            return Primitive(name)
    raise DefinitionError(f"column '{column}' is {found} in Arrow, which has no type of Spark here; cast it or leave it out")


# -- from Arrow ------------------------------------------------------------------------------------------------------


def rows_of(table: pa.Table | pa.RecordBatch) -> list[Any]:
    """Every row as a named tuple; what is nested is as `Codec.from_plain` gives it."""
    fields = from_arrow_schema(table.schema)
    columns = [_column(column, field) for column, field in zip(table.columns, fields.fields, strict=True)]
    return _tuples(fields, columns, table.num_rows)


def _column(column: Any, field: Field) -> list[Any]:
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    try:
        lists = [_values(chunk, field.type) for chunk in chunks]
    except (OverflowError, ValueError) as wrong:
        raise WrongType(field.name, field.type.ddl, column.type, f"Python cannot hold a value of it ({wrong})") from wrong
    return lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))


def _tuples(fields: StructOf, columns: Sequence[Sequence[Any]], size: int) -> list[Any]:
    cls = row_class(fields)
    new: Callable[[Any], Any] = partial(tuple.__new__, cls)
    return list(map(new, zip(*columns, strict=True) if columns else repeat((), size)))


def _values(array: pa.Array, kind: Type) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(kind, StructOf):
        columns = [_values(array.field(at), field.type) for at, field in enumerate(kind.fields)]
        return _with_nulls(array, _tuples(kind, columns, len(array)))
    if isinstance(kind, MapOf):
        keys, values = _flat(array, array.keys, kind.key), _flat(array, array.items, kind.value)
        return _with_nulls(array, [dict(zip(k, v, strict=True)) for k, v in zip(_cut(array, keys), _cut(array, values), strict=True)])
    if isinstance(kind, ArrayOf):
        if pa.types.is_fixed_size_list(array.type):
            array = array.cast(pa.list_(array.type.value_field))
        return _with_nulls(array, _cut(array, _flat(array, array.values, kind.element)))
    if isinstance(kind, DecimalOf):
        return list(array.to_pylist())
    return _scalars(array, kind.name)


def _flat(array: pa.Array, inner: pa.Array, kind: Type, values: Callable[[pa.Array, Type], list[Any]] | None = None) -> list[Any]:
    """The values inside of all lists, one after the other; of a slice only what is in it."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return (values or _values)(inner.slice(first, last - first), kind)


def _cut(array: pa.Array, flat: list[Any]) -> list[list[Any]]:
    offsets = array.offsets.to_pylist()
    base = offsets[0]
    return [flat[start - base : stop - base] for start, stop in zip(offsets, offsets[1:])]  # noqa: B905, RUF007 (pairs of neighbours)


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if array.null_count:
        for at, valid in enumerate(array.is_valid().to_pylist()):
            if not valid:
                values[at] = None
    return values


def plain_of(array: pa.Array, kind: Type) -> list[Any]:
    """Values as `Codec.to_plain` gives them, without a detour over Python's own."""
    import pyarrow as pa

    if isinstance(kind, StructOf):
        columns = [plain_of(array.field(at), field.type) for at, field in enumerate(kind.fields)]
        return _with_nulls(array, list(map(list, zip(*columns, strict=True) if columns else repeat((), len(array)))))
    if isinstance(kind, MapOf):
        keys, values = (_flat(array, inner, each, plain_of) for inner, each in ((array.keys, kind.key), (array.items, kind.value)))
        pairs = zip(_cut(array, keys), _cut(array, values), strict=True)
        return _with_nulls(array, [[[key, value] for key, value in zip(k, v, strict=True)] for k, v in pairs])
    if isinstance(kind, ArrayOf):
        return _with_nulls(array, _cut(array, _flat(array, array.values, kind.element, plain_of)))
    if isinstance(kind, DecimalOf):
        return [None if number is None else str(number) for number in array.to_pylist()]
    if kind.name in ("timestamp", "timestamp_ntz"):
        return list(array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64()).to_pylist())
    return list((array.view(pa.int32()) if kind.name == "date" else array).to_pylist())


def _scalars(array: pa.Array, name: str) -> list[Any]:
    import pyarrow as pa

    if name in ("timestamp", "timestamp_ntz"):
        micros = array if array.type.unit == "us" else array.cast(pa.timestamp("us", array.type.tz), safe=False)
        values, epoch = micros.view(pa.int64()).to_pylist(), EPOCH if name == "timestamp" else EPOCH_NTZ
        if array.null_count:
            return [None if value is None else epoch + MICROSECOND * value for value in values]
        return [epoch + MICROSECOND * value for value in values]
    if name == "date":
        return [None if day is None else date.fromordinal(day + EPOCH_DAY) for day in array.view(pa.int32()).to_pylist()]
    return list(array.to_pylist())


# -- to Arrow --------------------------------------------------------------------------------------------------------


def row_converter(fields: StructOf) -> Callable[[Any], tuple[Any, ...]]:
    """Checks a user's row (by position or by name) and makes it a tuple of plain values for `table_of`; raises `WrongType`."""
    to_plain = codec_of(fields).to_plain
    quick = as_they_are([codec_of(field.type) for field in fields.fields])

    def convert(row: Any) -> tuple[Any, ...]:
        if quick is not None and type(row) is tuple and quick(row):
            return row
        plain = to_plain(row)
        if plain is None:
            raise WrongType("", fields.ddl, None)
        return tuple(plain)

    return convert


def table_of(rows: Sequence[Sequence[Any]], fields: StructOf) -> pa.RecordBatch:
    """A batch of rows that were checked: their values are plain, or what `rows_of` gives."""
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) if rows else [()] * len(fields.fields)
    arrays = []
    for values, field in zip(columns, fields.fields, strict=True):
        try:
            arrays.append(_array(values, field.type))
        except UnicodeEncodeError as wrong:
            raise WrongType(field.name, "text of Unicode", wrong.object, "half of a surrogate pair") from wrong
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(fields))


def _array(values: Sequence[Any], kind: Type) -> pa.Array:
    import pyarrow as pa

    wanted = arrow_type(kind)
    if isinstance(kind, StructOf | ArrayOf | MapOf) and values.count(None) == len(values):
        return pa.nulls(len(values), wanted)
    if isinstance(kind, StructOf):
        nothing = (None,) * len(kind.fields)
        columns = list(zip(*(nothing if value is None else value for value in values), strict=True)) or [()] * len(kind.fields)
        children = [_array(column, field.type) for column, field in zip(columns, kind.fields, strict=True)]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
    if isinstance(kind, MapOf):
        maps = [value.items() if isinstance(value, dict) else value for value in values]
        pairs = [pair for entries in maps if entries is not None for pair in entries]
        keys, items = _array([key for key, _ in pairs], kind.key), _array([item for _, item in pairs], kind.value)
        return pa.MapArray.from_arrays(_offsets(maps), keys, items, type=wanted)
    if isinstance(kind, ArrayOf):
        flat = [item for items in values if items is not None for item in items]
        return pa.ListArray.from_arrays(_offsets(values), _array(flat, kind.element), type=wanted)
    if isinstance(kind, DecimalOf):
        return pa.array([None if value is None else Decimal(value) for value in values], wanted)
    return pa.array(values, wanted)


def _offsets(lists: Sequence[Any]) -> pa.Array:
    """Where each list starts among all their elements; null for a list that is null."""
    import pyarrow as pa

    at = 0
    offsets: list[int | None] = []
    for items in lists:
        offsets.append(None if items is None else at)
        at += 0 if items is None else len(items)
    return pa.array([*offsets, at], pa.int32())
