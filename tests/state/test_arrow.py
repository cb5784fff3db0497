"""Rows through Arrow: the types are Spark's, the values come back, and rows are checked on their way out."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.model.errors import DefinitionError
from strandline.state.arrow import arrow_schema, arrow_type, from_arrow_schema, row_converter, rows_of, table_of
from strandline.state.codec import WrongType
from strandline.state.types import Field, Primitive, StructOf, Type, parse_fields, parse_type

from .test_codec import values_of
from .test_types import types

UTC = timezone.utc
EVERY = (
    "a tinyint, b smallint, c int, d bigint, e float, f double, g decimal(10,2), h string, i binary, j boolean NOT NULL, k date, "
    "l timestamp, m timestamp_ntz, n array<struct<x: int NOT NULL, y: timestamp>>, o map<string, array<decimal(4,1)>>"
)
ROW = (
    *(1, 2, 3, 4, 0.5, 1.5, Decimal("1.50"), "é", b"x", True, date(2024, 2, 29)),
    *(datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(1960, 1, 1, 0, 0, 0, 1)),
    *([(1, datetime(1, 1, 1, tzinfo=UTC)), None], {"k": [Decimal("1.0"), None], "l": None}),
)
NULLS = (None,) * 9 + (False,) + (None,) * 5


def batch_of(fields: StructOf, rows: list[Any]) -> pa.RecordBatch:
    batch = table_of([row_converter(fields)(row) for row in rows], fields)
    batch.validate(full=True)
    return batch


# -- types -----------------------------------------------------------------------------------------------------------


def test_the_schema_is_the_one_that_spark_uses() -> None:
    from pyspark.sql import types as s
    from pyspark.sql.pandas.types import to_arrow_schema

    inner = s.StructType([s.StructField("x", s.IntegerType(), False), s.StructField("y", s.TimestampType())])
    plain: list[s.DataType] = [s.ByteType(), s.ShortType(), s.IntegerType(), s.LongType(), s.FloatType(), s.DoubleType()]
    plain += [s.DecimalType(10, 2), s.StringType(), s.BinaryType(), s.BooleanType(), s.DateType(), s.TimestampType(), s.TimestampNTZType()]
    plain += [s.ArrayType(inner), s.MapType(s.StringType(), s.ArrayType(s.DecimalType(4, 1)))]
    spark = s.StructType([s.StructField(name, kind, name != "j") for name, kind in zip("abcdefghijklmno", plain, strict=True)])

    assert arrow_schema(parse_fields(EVERY)).equals(to_arrow_schema(spark), check_metadata=True)


@given(types)
def test_types_come_back(kind: Type) -> None:
    """Without defaults, of which Arrow knows nothing."""
    (field,) = from_arrow_schema(pa.schema([("a", arrow_type(kind))])).fields

    assert arrow_type(field.type) == arrow_type(kind)
    if " DEFAULT " not in kind.ddl:
        assert field.type == kind


@pytest.mark.parametrize(
    ("found", "ddl"),
    [
        (pa.large_string(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.binary(4), "binary"),
        (pa.timestamp("ns", tz="Europe/Berlin"), "timestamp"),
        (pa.timestamp("ms"), "timestamp_ntz"),
        (pa.large_list(pa.int8()), "array<tinyint>"),
        (pa.list_(pa.int8(), 2), "array<tinyint>"),
    ],
)
def test_other_layouts_of_the_same_type_are_read(found: pa.DataType, ddl: str) -> None:
    assert from_arrow_schema(pa.schema([("a", found)])).fields[0].type == parse_type(ddl)


def test_a_type_that_spark_does_not_have_is_refused_by_column() -> None:
    with pytest.raises(DefinitionError, match=r"column 'a\.n' is uint64 in Arrow, which has no type of Spark here"):
        from_arrow_schema(pa.schema([("a", pa.struct([("n", pa.uint64())]))]))


# -- rows ------------------------------------------------------------------------------------------------------------


def test_every_type_goes_out_and_comes_back() -> None:
    fields = parse_fields(EVERY)
    first, second = rows_of(batch_of(fields, [ROW, NULLS]))

    assert (first, second) == (ROW, NULLS)
    assert (first.l.tzinfo, first.m.tzinfo) == (UTC, None)
    assert (first.n[0].x, first._fields) == (1, fields.names)


def test_rows_are_those_that_arrow_itself_would_give() -> None:
    fields = parse_fields("a bigint, h string, g decimal(10,2), k date, n array<int>, b boolean")
    batch = batch_of(fields, [(1, "x", Decimal("1.5"), date(2024, 1, 1), [1, None], True), (None,) * 6])

    assert [row._asdict() for row in rows_of(batch)] == batch.to_pylist()


@given(st.data())
def test_any_rows_come_back(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(types, min_size=1, max_size=3))
    fields = StructOf(tuple(Field(f"c{at}", kind) for at, kind in enumerate(kinds)))
    rows = data.draw(st.lists(st.tuples(*(st.none() | values_of(kind) for kind in kinds)), max_size=4))
    batch = batch_of(fields, rows)
    read = rows_of(batch)

    assert read == rows
    assert rows_of(batch.slice(1)) == rows[1:]
    assert rows_of(pa.Table.from_batches([batch, batch.slice(1)])) == rows + rows[1:]
    assert table_of(read, fields).equals(batch), "what was read can be written as it is"


def test_other_layouts_give_the_same_values() -> None:
    at = datetime(2024, 1, 1, 12, tzinfo=UTC)
    table = pa.table(
        {
            "text": pa.array(["a", None, "a"]).dictionary_encode(),
            "large": pa.array(["a", None, "b"], pa.large_string()),
            "ns": pa.array([at, None, at], pa.timestamp("ns", "Europe/Berlin")),
            "ms": pa.array([1, None, 3], pa.timestamp("ms")),
            "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
        }
    )

    assert rows_of(table) == [
        ("a", "a", at, datetime(1970, 1, 1, 0, 0, 0, 1000), [1, 2]),
        (None, None, None, None, None),
        ("a", "b", at, datetime(1970, 1, 1, 0, 0, 0, 3000), [3, 4]),
    ]
    assert rows_of(table)[0].ns.tzinfo is UTC


def test_no_rows_and_no_columns() -> None:
    assert rows_of(table_of([], parse_fields(EVERY))) == []
    assert table_of([], parse_fields(EVERY)).schema == arrow_schema(parse_fields(EVERY))
    assert rows_of(pa.table({"a": [1, 2]}).select([])) == [(), ()]


def test_a_moment_that_python_does_not_have_is_named() -> None:
    far = pa.table({"at": pa.array([2**62], pa.timestamp("us", "UTC"))})

    with pytest.raises(WrongType, match="field 'at' must be timestamp, .* Python cannot hold a value of it"):
        rows_of(far)


# -- what users return -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [("x", 1.5, None), ["x", 1.5, None], {"total": 1.5, "customer": "x"}])
def test_a_row_is_a_tuple_a_list_or_a_dict(row: Any) -> None:
    convert = row_converter(parse_fields("customer string, total double, at timestamp"))

    assert convert(row) == ("x", 1.5, None)


def test_a_tuple_that_fits_is_passed_on_as_it_is() -> None:
    row = ("x", 1.5, 3)

    assert row_converter(parse_fields("customer string, total double, n int"))(row) is row


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (("x", "abc", 1), "field 'total' must be double, but it is str 'abc'"),
        (("x", 1.5, 2**31), "field 'n' must be int, but it is int 2147483648"),
        (("x", 1.5), "it has 2 values, not 3"),
        ({"customer": "x", "sum": 1}, "it has a field 'sum' too many"),
        ((None, 1.5, 1), "field 'customer' must be string NOT NULL, but it is null"),
        (None, "the value must be struct<customer: string NOT NULL, total: double, n: int>, but it is null"),
        ("x", "but it is str 'x'"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_field(row: Any, sentence: str) -> None:
    with pytest.raises(WrongType) as refused:
        row_converter(parse_fields("customer string NOT NULL, total double, n int"))(row)

    assert sentence in str(refused.value)


def test_text_that_is_no_unicode_is_refused_by_column() -> None:
    with pytest.raises(WrongType, match="field 'a' must be text of Unicode"):
        batch_of(StructOf((Field("a", Primitive("string")),)), [("\ud800",)])


def test_a_time_in_another_zone_goes_out_as_the_same_moment() -> None:
    fields = parse_fields("at timestamp")
    (row,) = rows_of(batch_of(fields, [(datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),)]))

    assert row.at == datetime(2024, 1, 1, 12, tzinfo=UTC)
