"""Types as people write them in Spark, and as they are written back."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.model.errors import DefinitionError
from strandline.state.types import (
    FLOATS,
    INTEGERS,
    PRIMITIVES,
    ArrayOf,
    DecimalOf,
    Field,
    MapOf,
    Primitive,
    StructOf,
    Type,
    bounds,
    parse_fields,
    parse_type,
)

# -- strategies, also for the neighbours -----------------------------------------------------------------------------


def defaults_of(kind: Type) -> st.SearchStrategy[Any]:
    """Null, or what a DEFAULT of this type may say."""
    if isinstance(kind, DecimalOf):
        digits = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
        return st.none() | digits.map(lambda whole: Decimal(f"{whole}E-{kind.scale}"))
    name = kind.name if isinstance(kind, Primitive) else ""
    if name in INTEGERS:
        return st.none() | st.integers(bounds(name).start, bounds(name).stop - 1)
    if name in FLOATS:
        return st.none() | st.floats(-FLOATS[name], FLOATS[name], width=32 if name == "float" else 64)
    return {"string": st.none() | st.text(max_size=6), "boolean": st.none() | st.booleans()}.get(name, st.none())


@st.composite
def struct_of(draw: st.DrawFn, inner: st.SearchStrategy[Type]) -> StructOf:
    names = draw(st.lists(st.text(min_size=1, max_size=5), max_size=4, unique_by=str.lower))
    kinds = [draw(inner) for _ in names]
    return StructOf(tuple(Field(name, kind, draw(st.booleans()), draw(defaults_of(kind))) for name, kind in zip(names, kinds, strict=True)))


decimals = st.integers(1, 38).flatmap(lambda precision: st.builds(DecimalOf, st.just(precision), st.integers(0, precision)))
scalars: st.SearchStrategy[Type] = st.sampled_from(PRIMITIVES).map(Primitive) | decimals
keys = scalars | struct_of(scalars)
types: st.SearchStrategy[Type] = st.recursive(
    scalars, lambda inner: inner.map(ArrayOf) | st.builds(MapOf, keys, inner) | struct_of(inner), max_leaves=5
)


# -- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "canonical"),
    [
        ("TinyInt", "tinyint"),
        ("byte", "tinyint"),
        ("short", "smallint"),
        ("integer", "int"),
        (" long ", "bigint"),
        ("real", "float"),
        ("varchar(20)", "string"),
        ("char( 3 )", "string"),
        ("timestamp_ltz", "timestamp"),
        ("TIMESTAMP_NTZ", "timestamp_ntz"),
        ("decimal", "decimal(10,0)"),
        ("dec(7)", "decimal(7,0)"),
        ("numeric( 10 , 2 )", "decimal(10,2)"),
        ("array<int>", "array<int>"),
        ("map<string,array<long>>", "map<string, array<bigint>>"),
        ("struct<at timestamp,amount:double>", "struct<at: timestamp, amount: double>"),
        ("struct<>", "struct<>"),
        ("struct<`a b`: int NOT NULL COMMENT 'it''s > fine', `c``d`: date comment \"x\">", "struct<`a b`: int NOT NULL, `c``d`: date>"),
        ("struct<struct: struct<array: array<map<date, binary>>>>", "struct<struct: struct<array: array<map<date, binary>>>>"),
    ],
)
def test_types_are_read_as_spark_reads_them(ddl: str, canonical: str) -> None:
    assert parse_type(ddl).ddl == canonical
    assert parse_type(canonical) == parse_type(ddl)


def test_fields_are_written_with_or_without_colon() -> None:
    fields = parse_fields("customer string, total: double NOT NULL")

    assert fields == StructOf((Field("customer", Primitive("string")), Field("total", Primitive("double"), nullable=False)))
    assert fields.fields_ddl == "customer string, total double NOT NULL"
    assert fields.names == ("customer", "total")


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("a int DEFAULT NULL", None),
        ("a int default -128", -128),
        ("a tinyint default -128", -128),
        ("a double DEFAULT 1", 1.0),
        ("a float DEFAULT 2.5e-1", 0.25),
        ("a decimal(5,2) DEFAULT .5", Decimal("0.50")),
        ("a boolean DEFAULT TRUE", True),
        ("a boolean NOT NULL DEFAULT false COMMENT 'x'", False),
        (r"a string DEFAULT 'it\'s\n''a\\b''' NOT NULL", "it's\n'a\\b'"),
    ],
)
def test_a_default_is_kept_as_a_value(ddl: str, value: Any) -> None:
    (field,) = parse_fields(ddl).fields

    assert (field.default, type(field.default)) == (value, type(value))
    assert parse_fields(field.ddl).fields == (field,)


@given(types)
def test_what_is_written_reads_back(kind: Type) -> None:
    assert parse_type(kind.ddl) == kind
    if isinstance(kind, StructOf) and kind.fields:
        assert parse_fields(kind.fields_ddl) == kind


# -- refusing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "sentence"),
    [
        ("", "'' is not a type: a type is expected at character 1, but there is the end"),
        ("struct<a: foo>", "unknown type 'foo' at character 11 of 'struct<a: foo>'; allowed: tinyint, smallint, int, bigint"),
        ("array<int", "'>' is expected at character 10, but there is the end"),
        ("int, string", "the end is expected at character 4, but there is ', string'"),
        ("map<int>", "',' is expected at character 8, but there is '>'"),
        ("struct<a int,>", "a field's name is expected at character 14, but there is '>'"),
        ("struct<1 int>", "a field's name is expected at character 8"),
        ("struct<a int NOT>", "NULL is expected at character 17"),
        ("struct<a int COMMENT x>", "a 'text' is expected at character 22"),
        ("struct<a int DEFAULT 5x>", "a 'text' is expected at character 22"),
        ("decimal(39,2)", "decimal(39,2) does not exist; a precision is 1 to 38"),
        ("decimal(3,4)", "decimal(3,4) does not exist"),
        ("decimal()", "a number is expected at character 9"),
        ("varchar", "'(' is expected at character 8"),
        ("struct<a: int, A: int>", "field 'A' is there twice"),
        ("map<array<int>, int>", "a map cannot have keys of array<int>"),
        ("map<struct<a: map<int, int>>, int>", "a map cannot have keys of struct<a: map<int, int>>"),
        ("struct<a: tinyint DEFAULT 128>", "DEFAULT 128 of field 'a' does not fit tinyint"),
        ("struct<a: double DEFAULT 1e999>", "of field 'a' does not fit double"),
        ("struct<a: int DEFAULT 'x'>", "DEFAULT 'x' of field 'a' does not fit int"),
        ("struct<a: decimal(3,2) DEFAULT 12.5>", "DEFAULT 12.5 of field 'a' does not fit decimal(3,2)"),
        ("array<" * 100, "a type that is nested at most 60 deep"),
    ],
)
def test_what_is_no_type_is_refused_with_its_place(ddl: str, sentence: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse_type(ddl)

    assert sentence in refused.value.message


@given(st.text("aint<>,:(1)`' ", max_size=20))
def test_no_text_does_anything_else_than_parse_or_be_refused(text: str) -> None:
    for parse in (parse_type, parse_fields):
        try:
            parsed = parse(text)
        except DefinitionError:
            continue
        assert parse_type(parsed.ddl) == parsed


def test_something_else_than_text_is_refused() -> None:
    with pytest.raises(DefinitionError, match="a type is written as text such as 'double', but it is type <class 'int'>"):
        parse_type(int)  # type: ignore[arg-type]
