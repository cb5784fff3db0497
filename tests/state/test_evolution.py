"""What was stored under an older type is read under a newer one, or refused by name."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.state.codec import codec_of, row_class
from strandline.state.evolution import Incompatible, describe, upgrade
from strandline.state.types import ArrayOf, DecimalOf, Field, MapOf, Primitive, StructOf, Type, parse_type

from .test_codec import values_of
from .test_types import defaults_of, types

INTEGERS = ["tinyint", "smallint", "int", "bigint"]


def carried(old: str, new: str, value: Any) -> Any:
    """A value that was stored as `old`, read as `new`."""
    before, after = parse_type(old), parse_type(new)
    plain, change = codec_of(before).to_plain(value), upgrade(before, after)
    return codec_of(after).from_plain(plain if change is None else change(plain))


# -- what may change -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        ("int", "double", 3, 3.0),
        ("bigint", "decimal(21,2)", -5, Decimal("-5.00")),
        ("tinyint", "decimal(3,0)", 100, Decimal("100")),
        ("decimal(5,2)", "decimal(9,4)", Decimal("123.45"), Decimal("123.4500")),
        ("array<int>", "array<double>", [1, None], [1.0, None]),
        ("map<int, int>", "map<bigint, double>", {1: 2, 3: None}, {1: 2.0, 3: None}),
        ("struct<a: int, b: string>", "struct<b: string, a: int>", (1, "x"), ("x", 1)),
        ("struct<a: int, b: string>", "struct<B: string>", (1, "x"), ("x",)),
        ("struct<a: int>", "struct<n: string, a: double, d: int NOT NULL DEFAULT 7>", (1,), (None, 1.0, 7)),
        ("struct<s: struct<a: int>>", "struct<s: struct<a: double, b: boolean DEFAULT true>>", ((1,),), ((1.0, True),)),
        ("struct<s: struct<a: int>>", "struct<s: struct<a: double, b: boolean DEFAULT true>>", (None,), (None,)),
    ],
)
def test_values_are_carried_over(old: str, new: str, value: Any, expected: Any) -> None:
    found, after = carried(old, new, value), parse_type(new)
    row = row_class(after) if isinstance(after, StructOf) else None

    assert (found, type(found) in (type(expected), row)) == (expected, True)
    assert carried(old, new, None) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int", "int"),
        ("tinyint", "bigint"),
        ("float", "double"),
        ("decimal(5,2)", "decimal(6,2)"),
        ("array<short>", "array<int>"),
        ("map<int, int>", "map<bigint, bigint>"),
        ("struct<a: int NOT NULL, b: date>", "struct<A: bigint, b: date DEFAULT NULL>"),
    ],
)
def test_what_is_written_the_same_needs_nothing(old: str, new: str) -> None:
    assert upgrade(parse_type(old), parse_type(new)) is None


def test_the_changes_in_words() -> None:
    old = parse_type("struct<n: int, x: string, a: struct<zip: int NOT NULL>, m: map<int, float>>")
    new = parse_type("struct<m: map<bigint, double>, n: bigint, note: string, level: int DEFAULT 3, a: struct<zip: int>>")

    assert describe(old, new) == [
        "widens 'm.key' from int to bigint",
        "widens 'm.value' from float to double",
        "widens 'n' from int to bigint",
        "adds field 'note' (null for what is stored)",
        "adds field 'level' (3 for what is stored)",
        "allows null in 'a.zip'",
        "drops field 'x'",
        "reorders the fields",
    ]
    assert describe(parse_type("int"), parse_type("bigint")) == ["widens the value from int to bigint"]
    assert describe(old, old) == []


# -- what may not --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("string", "int", "the value changes from string to int"),
        ("struct<address: struct<zip: string>>", "struct<address: struct<zip: int>>", "field 'address.zip' changes from string to int"),
        ("bigint", "int", "the value changes from bigint to int"),
        ("double", "float", "the value changes from double to float"),
        ("int", "float", "the value changes from int to float"),
        ("int", "string", "the value changes from int to string"),
        ("date", "timestamp", "the value changes from date to timestamp"),
        ("timestamp", "timestamp_ntz", "the value changes from timestamp to timestamp_ntz"),
        ("bigint", "decimal(20,2)", "the value changes from bigint to decimal(20,2)"),
        ("decimal(5,2)", "decimal(5,3)", "the value changes from decimal(5,2) to decimal(5,3)"),
        ("decimal(5,2)", "decimal(9,1)", "the value changes from decimal(5,2) to decimal(9,1)"),
        ("decimal(5,2)", "double", "the value changes from decimal(5,2) to double"),
        ("array<int>", "int", "the value changes from array<int> to int"),
        ("array<string>", "array<int>", "field 'element' changes from string to int"),
        ("struct<m: map<int, string>>", "struct<m: map<double, string>>", "field 'm.key' changes from int to double"),
        ("map<string, int>", "map<string, date>", "field 'value' changes from int to date"),
        ("struct<a: int>", "struct<a: int NOT NULL>", "field 'a' becomes NOT NULL, but what is stored may be null"),
        ("struct<a: int>", "struct<a: int, b: int NOT NULL>", "field 'b' is added as NOT NULL without a DEFAULT"),
    ],
)
def test_a_change_that_loses_something_is_refused_by_name(old: str, new: str, sentence: str) -> None:
    for attempt in (upgrade, describe):
        with pytest.raises(Incompatible) as refused:
            attempt(parse_type(old), parse_type(new))
        assert str(refused.value).startswith(sentence)


# -- any legal change ------------------------------------------------------------------------------------------------


@st.composite
def later(draw: st.DrawFn, kind: Type) -> Type:
    """A type that `kind` may become."""
    if isinstance(kind, Primitive) and kind.name in INTEGERS:
        wider: list[Type] = [Primitive(name) for name in (*INTEGERS[INTEGERS.index(kind.name) :], "double")]
        return draw(st.sampled_from([*wider, DecimalOf(25, 4)]))
    if isinstance(kind, DecimalOf):
        scale = draw(st.integers(kind.scale, kind.scale + 38 - kind.precision))
        return DecimalOf(kind.precision - kind.scale + scale, scale)
    if kind == Primitive("float"):
        return draw(st.sampled_from([kind, Primitive("double")]))
    if isinstance(kind, ArrayOf):
        return ArrayOf(draw(later(kind.element)))
    if isinstance(kind, MapOf):
        return MapOf(kind.key, draw(later(kind.value)))
    if isinstance(kind, StructOf):
        kept = [Field(f.name, draw(later(f.type)), f.nullable or draw(st.booleans())) for f in kind.fields if draw(st.integers(0, 4))]
        added = draw(types)
        name = "brand new" + "".join(kind.names)
        default = draw(defaults_of(added))
        return StructOf(tuple(draw(st.permutations([*kept, Field(name, added, default is None or draw(st.booleans()), default)]))))
    return kind


@given(st.data())
def test_a_carried_value_is_one_of_the_new_type(data: st.DataObject) -> None:
    old = data.draw(types)
    new = data.draw(later(old))
    value = data.draw(values_of(old))
    plain, change = codec_of(old).to_plain(value), upgrade(old, new)
    upgraded = plain if change is None else change(plain)
    read = codec_of(new).from_plain(upgraded)

    assert codec_of(new).to_plain(read) == upgraded
    assert_same(old, new, codec_of(old).from_plain(plain), read)
    assert (describe(old, new) == []) <= (change is None)


def assert_same(old: Type, new: Type, before: Any, after: Any) -> None:
    """Nothing that both types have has changed."""
    if before is None:
        assert after is None
    elif isinstance(old, StructOf) and isinstance(new, StructOf):
        there = {field.name.lower(): (field.type, item) for field, item in zip(new.fields, after, strict=True)}
        for field, item in zip(old.fields, before, strict=True):
            if field.name.lower() in there:
                assert_same(field.type, there[field.name.lower()][0], item, there[field.name.lower()][1])
    elif isinstance(old, ArrayOf) and isinstance(new, ArrayOf):
        for one, other in zip(before, after, strict=True):
            assert_same(old.element, new.element, one, other)
    elif isinstance(old, MapOf) and isinstance(new, MapOf):
        assert before.keys() == after.keys()
        for key in before:
            assert_same(old.value, new.value, before[key], after[key])
    else:
        assert before == after or float(before) == after


@given(st.data())
def test_any_two_types_are_carried_or_refused(data: st.DataObject) -> None:
    old, new = data.draw(types), data.draw(types)
    try:
        change = upgrade(old, new)
    except Incompatible as refused:
        assert str(refused)
        return
    plain = codec_of(old).to_plain(data.draw(values_of(old)))
    upgraded = plain if change is None else change(plain)
    assert codec_of(new).to_plain(codec_of(new).from_plain(upgraded)) == upgraded


def test_a_carried_value_is_not_the_stored_one() -> None:
    """The stored list stays as it was, so that it can be carried again."""
    old, new = parse_type("struct<at: timestamp>"), parse_type("struct<at: timestamp, n: int>")
    plain = codec_of(old).to_plain((datetime(2024, 1, 1, tzinfo=timezone.utc),))
    change = upgrade(old, new)
    assert change is not None

    assert change(plain) == [plain[0], None]
    assert len(plain) == 1
