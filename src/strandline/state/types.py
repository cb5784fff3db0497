"""Spark's DDL types as values: what a state or a row may hold, read from text and written back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, Final, NoReturn, TypeAlias

from strandline.model.errors import DefinitionError

INTEGERS: Final[Mapping[str, int]] = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Bits of each integer type, narrow to wide."""

FLOATS: Final[Mapping[str, float]] = {"float": 3.4028234663852886e38, "double": 1.7976931348623157e308}
"""Largest finite value of each floating type."""

PRIMITIVES: Final = (*INTEGERS, *FLOATS, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")

_ALIASES: Final = {
    **{name: name for name in PRIMITIVES},
    **{"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float", "timestamp_ltz": "timestamp"},
}

_ALLOWED = f"{', '.join(PRIMITIVES)}, decimal(p,s), varchar(n), char(n), array<…>, map<…,…>, struct<…>"


def bounds(integer: str) -> range:
    """What an integer type can hold."""
    half: int = 2 ** (INTEGERS[integer] - 1)
    return range(-half, half)


@dataclass(frozen=True)
class Primitive:
    """A type without parts, by its canonical Spark name."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in PRIMITIVES:
            raise DefinitionError(f"unknown type '{self.name}'; allowed: {_ALLOWED}")

    @property
    def ddl(self) -> str:
        return self.name


@dataclass(frozen=True)
class DecimalOf:
    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= self.precision <= 38 or self.precision == 0:
            raise DefinitionError(f"{self.ddl} does not exist; a precision is 1 to 38, a scale 0 to the precision")

    @property
    def ddl(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    def fitter(self) -> Callable[[Decimal], Decimal]:
        """Brings a number to this scale, and never rounds: what does not fit is an ArithmeticError."""
        context = Context(prec=self.precision, traps=[Inexact, InvalidOperation, Overflow])
        unit, zero = Decimal((0, (1,), -self.scale)), Decimal((0, (0,), -self.scale))

        def fit(number: Decimal) -> Decimal:
            exact = number.quantize(unit, context=context)
            if exact.is_nan():
                raise InvalidOperation("NaN")
            return exact or zero

        return fit


@dataclass(frozen=True)
class ArrayOf:
    element: Type

    @property
    def ddl(self) -> str:
        return f"array<{self.element.ddl}>"


@dataclass(frozen=True)
class MapOf:
    key: Type
    value: Type

    def __post_init__(self) -> None:
        if not _hashable(self.key):
            raise DefinitionError(f"a map cannot have keys of {self.key.ddl}; a dict of Python needs keys without arrays and maps")

    @property
    def ddl(self) -> str:
        return f"map<{self.key.ddl}, {self.value.ddl}>"


@dataclass(frozen=True)
class Field:
    name: str
    type: Type
    nullable: bool = True
    default: Any = None
    """What a row gets that does not say: also a stored one, from before the field existed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "default", _fitting_default(self))

    @property
    def ddl(self) -> str:
        """``name type``, as at the top of a schema."""
        return f"{_quoted(self.name)} {self.type.ddl}{self._attributes}"

    @property
    def nested_ddl(self) -> str:
        """``name: type``, as inside of a struct."""
        return f"{_quoted(self.name)}: {self.type.ddl}{self._attributes}"

    @property
    def _attributes(self) -> str:
        default = "" if self.default is None else f" DEFAULT {_literal(self.default)}"
        return ("" if self.nullable else " NOT NULL") + default


@dataclass(frozen=True)
class StructOf:
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for field in self.fields:
            if field.name.lower() in seen:
                raise DefinitionError(f"field '{field.name}' is there twice; names must differ in more than upper and lower case")
            seen.add(field.name.lower())

    @property
    def ddl(self) -> str:
        return f"struct<{', '.join(field.nested_ddl for field in self.fields)}>"

    @property
    def fields_ddl(self) -> str:
        """What `parse_fields` and Spark's own schemas read: ``customer string, total double``."""
        return ", ".join(field.ddl for field in self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


Type: TypeAlias = Primitive | DecimalOf | ArrayOf | MapOf | StructOf


def parse_type(ddl: str) -> Type:
    """``struct<at: timestamp, amount: double>`` → a value; anything that is not a type is a DefinitionError."""
    parser = _Parser(ddl)
    parsed = parser.type()
    parser.end()
    return parsed


def parse_fields(ddl: str) -> StructOf:
    """``customer string, total double`` → the fields of a row."""
    parser = _Parser(ddl)
    fields = parser.fields()
    parser.end()
    return StructOf(fields)


def _hashable(key: Type) -> bool:
    if isinstance(key, StructOf):
        return all(_hashable(field.type) for field in key.fields)
    return not isinstance(key, ArrayOf | MapOf)


def _fitting_default(field: Field) -> Any:
    value, kind = field.default, field.type
    name = kind.name if isinstance(kind, Primitive) else ""
    if value is None or (name, type(value)) in (("boolean", bool), ("string", str)):
        return value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        try:
            if name in INTEGERS and isinstance(value, int) and value in bounds(name):
                return value
            if name in FLOATS and abs(float(value)) <= FLOATS[name]:
                return float(value)
            if isinstance(kind, DecimalOf) and not isinstance(value, float):
                return kind.fitter()(Decimal(value))
        except ArithmeticError:
            pass
    raise DefinitionError(
        f"DEFAULT {_literal(value)} of field '{field.name}' does not fit {kind.ddl}; a default is null, a number, 'text', true or false of the field's type"
    )


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return f"{value:f}" if isinstance(value, Decimal) else str(value).lower()


_TEXT = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\""
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w)"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0"}
_DEEPEST = 60


class _Parser:
    """Reads one text from left to right, and says where it could not go on."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise DefinitionError(f"a type is written as text such as 'double', but it is {type(text).__name__} {text!r}")
        self.text = text
        self.at = 0
        self.depth = 0

    def take(self, pattern: str) -> str:
        """What comes next, if it looks like that; otherwise nothing, and nothing is consumed."""
        found = re.compile(rf"\s*({pattern})", re.IGNORECASE | re.DOTALL).match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found.group(1)

    def word(self, word: str) -> bool:
        return bool(self.take(rf"{word}(?!\w)"))

    def fail(self, wanted: str) -> NoReturn:
        at = len(self.text) - len(self.text[self.at :].lstrip())
        here = f"'{self.text[at : at + 20]}'" if at < len(self.text) else "the end"
        raise DefinitionError(f"'{self.text}' is not a type: {wanted} is expected at character {at + 1}, but there is {here}")

    def expect(self, mark: str) -> None:
        if not self.take(re.escape(mark)):
            self.fail(f"'{mark}'")

    def end(self) -> None:
        if self.text[self.at :].strip():
            self.fail("the end")

    def type(self) -> Type:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.fail(f"a type that is nested at most {_DEEPEST} deep")
        try:
            return self._type()
        finally:
            self.depth -= 1

    def _type(self) -> Type:
        word = self.take(r"\w+")
        start, name = self.at - len(word), word.lower()
        if name in _ALIASES:
            return Primitive(_ALIASES[name])
        match name:
            case "":
                self.fail("a type")
            case "decimal" | "dec" | "numeric":
                sizes = self.sizes() if self.take(r"\(") else []
                return DecimalOf(*(sizes + [10, 0][len(sizes) :]))
            case "varchar" | "char":
                self.expect("(")
                self.sizes(1)
                return Primitive("string")
            case "array":
                self.expect("<")
                element = self.type()
                self.expect(">")
                return ArrayOf(element)
            case "map":
                self.expect("<")
                key = self.type()
                self.expect(",")
                value = self.type()
                self.expect(">")
                return MapOf(key, value)
            case "struct":
                return self.struct()
        raise DefinitionError(f"unknown type '{word}' at character {start + 1} of '{self.text}'; allowed: {_ALLOWED}")

    def sizes(self, most: int = 2) -> list[int]:
        """One or two numbers, after their opening parenthesis."""
        sizes: list[int] = []
        while len(sizes) < most:
            number = self.take(r"\d+")
            if not number:
                self.fail("a number")
            sizes.append(int(number))
            if not self.take(","):
                break
        self.expect(")")
        return sizes

    def struct(self) -> StructOf:
        self.expect("<")
        if self.take(">"):
            return StructOf(())
        fields = self.fields()
        self.expect(">")
        return StructOf(fields)

    def fields(self) -> tuple[Field, ...]:
        fields = [self.field()]
        while self.take(","):
            fields.append(self.field())
        return tuple(fields)

    def field(self) -> Field:
        quoted = self.take(r"`(?:[^`]|``)+`")
        name = quoted[1:-1].replace("``", "`") if quoted else self.take(r"(?!\d+\b)\w+")
        if not name:
            self.fail("a field's name")
        self.take(":")
        kind = self.type()
        nullable, default = True, None
        while True:
            if self.word("not"):
                if not self.word("null"):
                    self.fail("NULL")
                nullable = False
            elif self.word("comment"):
                self.string()
            elif self.word("default"):
                default = self.default()
            else:
                return Field(name, kind, nullable, default)

    def string(self) -> str:
        text = self.take(_TEXT)
        if not text:
            self.fail("a 'text'")
        quote, inner = text[0], text[1:-1]
        return re.sub(
            rf"\\(.)|{quote}{quote}", lambda found: _ESCAPES.get(found[1], found[1]) if found[1] else quote, inner, flags=re.DOTALL
        )

    def default(self) -> Any:
        for word, value in (("null", None), ("true", True), ("false", False)):
            if self.word(word):
                return value
        number = self.take(_NUMBER)
        if number:
            return int(number) if re.fullmatch(r"[+-]?\d+", number) else Decimal(number)
        return self.string()
