"""Values of every type: there and back, and what is refused with which sentence."""

from __future__ import annotations

import math
from collections import deque, namedtuple
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.state.codec import WrongType, codec_of, pack, row_class, unpack
from strandline.state.types import INTEGERS, ArrayOf, DecimalOf, MapOf, Primitive, StructOf, Type, bounds, parse_type

from .test_types import types

UTC = timezone.utc

# -- strategies, also for the neighbours -----------------------------------------------------------------------------

_PRIMITIVE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.integers(bounds(name).start, bounds(name).stop - 1) for name in INTEGERS},
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=8),
    "binary": st.binary(max_size=8),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
}


def values_of(kind: Type) -> st.SearchStrategy[Any]:
    """Values that are not null on the outside."""
    if isinstance(kind, Primitive):
        return _PRIMITIVE_VALUES[kind.name]
    if isinstance(kind, DecimalOf):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda whole: Decimal(f"{whole}E-{kind.scale}"))
    if isinstance(kind, ArrayOf):
        return st.lists(st.none() | values_of(kind.element), max_size=4)
    if isinstance(kind, MapOf):
        return st.dictionaries(values_of(kind.key), st.none() | values_of(kind.value), max_size=3)
    return st.tuples(*(st.none() | values_of(field.type) if field.nullable else values_of(field.type) for field in kind.fields))


def stored(kind: Type, value: Any) -> Any:
    """The value after it was written and read again."""
    codec = codec_of(kind)
    return codec.from_plain(unpack(pack(codec.to_plain(value))))


def wrong(ddl: str, value: Any) -> str:
    with pytest.raises(WrongType) as refused:
        codec_of(parse_type(ddl)).to_plain(value)
    return str(refused.value)


# -- there and back ------------------------------------------------------------------------------------------------


@given(st.data())
def test_every_value_comes_back(data: st.DataObject) -> None:
    kind = data.draw(types)
    value = data.draw(st.none() | values_of(kind))
    codec = codec_of(kind)
    plain = codec.to_plain(value)

    assert stored(kind, value) == value
    assert codec.to_plain(codec.from_plain(plain)) == plain, "what comes back can be put again"
    if codec.is_plain:
        assert codec.from_plain(plain) is plain


@pytest.mark.parametrize(
    ("ddl", "value", "plain"),
    [
        ("date", date(1970, 1, 2), 1),
        ("timestamp", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000_000),
        ("timestamp", datetime(1970, 1, 1, 0, 0, 1), 1_000_000),
        ("timestamp", datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        ("timestamp_ntz", datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
        ("decimal(10,2)", Decimal("1.5"), "1.50"),
        ("decimal(10,2)", Decimal("1.500"), "1.50"),
        ("decimal(10,2)", 3, "3.00"),
        ("decimal(3,0)", Decimal("-0"), "0"),
        ("double", 3, 3.0),
        ("float", 0.1, 0.10000000149011612),
        ("map<string, int>", {"a": 1, "b": None}, [["a", 1], ["b", None]]),
        ("struct<a: int, b: string>", (1, "x"), [1, "x"]),
        ("array<int>", deque([1, 2]), [1, 2]),
        ("array<struct<a: date>>", ((date(1970, 1, 1),), None), [[0], None]),
        ("binary", bytearray(b"x"), b"x"),
    ],
)
def test_the_plain_form(ddl: str, value: Any, plain: Any) -> None:
    found = codec_of(parse_type(ddl)).to_plain(value)

    assert found == plain
    assert type(found) is type(plain)


def test_values_come_back_as_promised() -> None:
    at = stored(parse_type("timestamp"), datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2))))
    naive = stored(parse_type("timestamp_ntz"), datetime(2024, 5, 1, 12))
    row = stored(parse_type("struct<amount: decimal(4,1), `odd name`: int>"), {"amount": 2})

    assert (at, at.tzinfo) == (datetime(2024, 5, 1, 10, tzinfo=UTC), UTC)
    assert (naive, naive.tzinfo) == (datetime(2024, 5, 1, 12), None)
    assert (row.amount, row._1, row._fields) == (Decimal("2.0"), None, ("amount", "_1"))
    assert math.isnan(stored(parse_type("double"), math.nan))
    assert stored(parse_type("string"), "\ud800") == "\ud800", "half of a surrogate pair is kept, Python's text may hold it"


def test_a_list_that_comes_back_is_its_readers_own() -> None:
    codec = codec_of(parse_type("array<bigint>"))
    plain = [1, 2]

    codec.from_plain(plain).append(3)

    assert plain == [1, 2]


def test_packing_goes_on_after_what_cannot_be_packed() -> None:
    with pytest.raises(OverflowError):
        pack([1, 2**64])

    assert unpack(pack([2**64 - 1, -(2**63), {1: b"x"}])) == [2**64 - 1, -(2**63), {1: b"x"}]


def test_one_class_per_struct() -> None:
    kind = parse_type("struct<a: int>")
    assert isinstance(kind, StructOf)

    assert row_class(kind) is row_class(StructOf(kind.fields)) is type(stored(kind, (1,)))


@pytest.mark.parametrize("ddl", ["tinyint", "bigint", "double", "float", "string", "binary", "boolean"])
def test_what_is_plain_already(ddl: str) -> None:
    assert codec_of(parse_type(ddl)).is_plain


# -- structs -------------------------------------------------------------------------------------------------------


@dataclass
class Point:
    x: int
    y: int | None = None


XY = namedtuple("XY", ["x", "y"])
YX = namedtuple("YX", ["y", "x"])


class FakeRow:
    def asDict(self) -> dict[str, Any]:  # noqa: N802 (as Spark names it)
        return {"y": 2, "x": 1}


@pytest.mark.parametrize(
    "value",
    [(1, 2), [1, 2], {"y": 2, "x": 1}, Point(1, 2), FakeRow(), XY(1, 2), YX(2, 1)],
    ids=["tuple", "list", "dict", "dataclass", "asDict", "named tuple", "named tuple in another order"],
)
def test_a_struct_is_given_by_position_or_by_name(value: Any) -> None:
    assert codec_of(parse_type("struct<x: int, y: int>")).to_plain(value) == [1, 2]


def test_a_row_of_spark_goes_by_its_names() -> None:
    from pyspark.sql import Row

    codec = codec_of(parse_type("struct<x: int, y: int>"))

    assert codec.to_plain(Row(y=2, x=1)) == [1, 2]
    assert codec.to_plain(Row(*cast("Any", (1, 2)))) == [1, 2], "without names by position"


def test_a_missing_field_is_null_or_its_default() -> None:
    codec = codec_of(parse_type("struct<x: int, y: int DEFAULT 7, z: string NOT NULL DEFAULT '-'>"))

    assert codec.to_plain({}) == [None, 7, "-"]
    assert codec.to_plain({"y": None}) == [None, None, "-"], "null that is said is null"


# -- numpy and subclasses --------------------------------------------------------------------------------------------


class Colour(str, Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("ddl", "value", "plain"),
    [
        ("int", np.int64(5), 5),
        ("double", np.float64(1.5), 1.5),
        ("double", np.float32(1.5), 1.5),
        ("double", np.int8(2), 2.0),
        ("boolean", np.bool_(True), True),
        ("string", np.str_("a"), "a"),
        ("timestamp", np.datetime64("1970-01-01T00:00:01", "ns"), 1_000_000),
        ("timestamp", pd.Timestamp("1970-01-01T00:00:01Z"), 1_000_000),
        ("array<bigint>", np.array([1, 2]), [1, 2]),
        ("string", Colour.RED, "red"),
        ("tinyint", Level.HIGH, 3),
    ],
)
def test_scalars_of_others_are_accepted_as_their_plain_kin(ddl: str, value: Any, plain: Any) -> None:
    found = codec_of(parse_type(ddl)).to_plain(value)

    assert (found, type(found)) == (plain, type(plain))


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("tinyint", 128),
        ("bigint", 2**63),
        ("int", True),
        ("int", 1.0),
        ("int", np.datetime64(5, "us")),
        ("bigint", np.timedelta64(5, "ns")),
        ("timestamp", np.datetime64("NaT")),
        ("double", True),
        ("double", "1"),
        ("double", 10**400),
        ("float", 1e300),
        ("boolean", 1),
        ("string", b"a"),
        ("binary", "a"),
        ("date", datetime(2024, 1, 1)),
        ("timestamp", date(2024, 1, 1)),
        ("timestamp", 5),
        ("timestamp", pd.NaT),
        ("timestamp", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=UTC)),
        ("decimal(3,1)", Decimal("1.25")),
        ("decimal(3,1)", Decimal("100")),
        ("decimal(3,1)", Decimal("NaN")),
        ("decimal(3,1)", Decimal("Infinity")),
        ("decimal(3,1)", 1.5),
        ("array<int>", "12"),
        ("array<int>", {1, 2}),
        ("map<int, int>", [(1, 2)]),
        ("struct<a: int>", 1),
        ("struct<a: int>", Point),
    ],
)
def test_what_does_not_fit_is_refused(ddl: str, value: Any) -> None:
    assert wrong(ddl, value).startswith(f"the value must be {ddl}, but it is {type(value).__name__} ")


@pytest.mark.parametrize(
    ("ddl", "value", "sentence"),
    [
        ("struct<amount: double>", ("abc",), "field 'amount' must be double, but it is str 'abc'"),
        ("struct<amount: double>", {"amount": "abc"}, "field 'amount' must be double, but it is str 'abc'"),
        ("struct<a: int NOT NULL>", {}, "field 'a' must be int NOT NULL, but it is null"),
        ("struct<a: int>", {"b": 1}, "the value must be struct<a: int>, but it is dict {'b': 1}: it has a field 'b' too many"),
        ("struct<a: int>", (1, 2), "the value must be struct<a: int>, but it is tuple (1, 2): it has 2 values, not 1"),
        ("array<int>", [1, None, "x"], "element [2] must be int, but it is str 'x'"),
        ("array<tinyint>", [1, 300], "element [1] must be tinyint, but it is int 300"),
        ("map<string, int>", {None: 1}, "element [None] must be string NOT NULL, but it is null"),
        ("struct<m: map<string, array<struct<p: int>>>>", ({"k": [(1,), ("x",)]},), "field 'm['k'][1].p' must be int, but it is str 'x'"),
        ("int", "x" * 100, f"the value must be int, but it is str '{'x' * 58}…"),
    ],
)
def test_the_sentence_leads_to_the_part_that_is_wrong(ddl: str, value: Any, sentence: str) -> None:
    assert wrong(ddl, value) == sentence


@given(st.data())
def test_any_value_is_taken_or_refused_with_a_sentence(data: st.DataObject) -> None:
    kind, other = data.draw(types), data.draw(types)
    value = data.draw(values_of(other))
    try:
        plain = codec_of(kind).to_plain(value)
    except WrongType as refused:
        assert " must be " in str(refused)
    else:
        assert unpack(pack(plain)) == plain
