"""Python values to plain ones that msgpack can write, and back: one specialised function per type.

*Plain* is None, bool, int, float, str, bytes and lists of those: a date is its day, a timestamp its microsecond since 1970, a decimal
its text, a map a list of pairs, a struct a list by position. The functions run once per value and key, so the way of a value that is
right is short; only a value that is wrong pays for finding out where.
"""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import cache, partial
from typing import Any, NoReturn

import msgpack

from strandline.state.types import INTEGERS, ArrayOf, DecimalOf, MapOf, Primitive, StructOf, Type, bounds

Convert = Callable[[Any], Any]

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_NTZ = datetime(1970, 1, 1)
EPOCH_DAY = date(1970, 1, 1).toordinal()
MICROSECOND = timedelta(microseconds=1)


class WrongType(Exception):
    """A value does not fit its declared type. `path` leads to it from outside: ``items[3].price``."""

    def __init__(self, path: str, expected: str, got: Any, why: str = "") -> None:
        super().__init__(path, expected, got, why)
        self.path = path
        self.expected = expected
        self.got = got
        self.why = why

    def __str__(self) -> str:
        subject = "the value" if not self.path else f"element {self.path}" if self.path.startswith("[") else f"field '{self.path}'"
        return f"{subject} must be {self.expected}, but it is {_shown(self.got)}{self.why and f': {self.why}'}"

    def within(self, outer: str) -> WrongType:
        dot = "." if self.path and not self.path.startswith("[") else ""
        return WrongType(f"{outer}{dot}{self.path}", self.expected, self.got, self.why)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:59] + '…'}"


@dataclass(frozen=True)
class Codec:
    """Both ways for one type. None is None both ways; whether it is allowed is for what surrounds the value."""

    kind: Type
    to_plain: Convert
    """Checks and converts; raises `WrongType`."""
    from_plain: Convert
    is_plain: bool
    """`from_plain` changes nothing, so it need not be called."""
    exact: type | None = None
    """Values of this very Python class are plain as they are, within `limits`."""
    limits: range | None = None


@cache
def codec_of(kind: Type) -> Codec:
    if isinstance(kind, StructOf):
        return _struct(kind)
    if isinstance(kind, ArrayOf):
        return _array(kind)
    if isinstance(kind, MapOf):
        return _map(kind)
    if isinstance(kind, DecimalOf):
        return _decimal(kind)
    if kind.name in INTEGERS:
        return _integer(kind)
    return _PRIMITIVES[kind.name](kind)


@cache
def row_class(fields: StructOf) -> type[Any]:
    """The named tuple of a struct; a name that Python does not allow is ``_`` and its position."""
    return namedtuple("Row", fields.names, rename=True)


_PACKER = msgpack.Packer(
    use_bin_type=True, unicode_errors="surrogatepass"
)  # keeps its buffer: a new one for each call costs more than packing
pack: Callable[[Any], bytes] = _PACKER.pack
unpack: Callable[[bytes], Any] = partial(msgpack.unpackb, raw=False, strict_map_key=False, unicode_errors="surrogatepass")


def as_they_are(codecs: Sequence[Codec]) -> Callable[[Sequence[Any]], bool] | None:
    """A quick test whether all values by position are plain already; None when some type never is."""
    classes = tuple(codec.exact for codec in codecs)
    limits = [(at, codec.limits.start, codec.limits.stop) for at, codec in enumerate(codecs) if codec.limits is not None]
    if None in classes:
        return None

    def test(values: Sequence[Any]) -> bool:
        if tuple(map(type, values)) != classes:
            return False
        for at, start, stop in limits:  # noqa: SIM110 (a generator is slower)
            if not start <= values[at] < stop:
                return False
        return True

    return test


# -- without parts -------------------------------------------------------------------------------------------------


def _patient(kind: Type, accept: Convert) -> Convert:
    """For what is not exactly the expected class: null, subclasses, numpy's scalars. `accept` gives None for what it refuses."""

    def convert(value: Any) -> Any:
        if value is None:
            return None
        plain = accept(value)
        if plain is None and getattr(value, "ndim", None) == 0:
            plain = accept(_item(value))
        if plain is None:
            raise WrongType("", kind.ddl, value)
        return plain

    return convert


def _item(scalar: Any) -> Any:
    """What a scalar of numpy holds; None for a timedelta, which would pass as a number of nanoseconds."""
    kind = getattr(getattr(scalar, "dtype", None), "kind", "m")
    return None if kind == "m" else (scalar.astype("datetime64[us]") if kind == "M" else scalar).item()


def _same(value: Any) -> Any:
    return value


def _integer(kind: Primitive) -> Codec:
    limits = bounds(kind.name)
    start, stop = limits.start, limits.stop
    patient = _patient(kind, lambda v: int(v) if isinstance(v, int) and not isinstance(v, bool) and start <= v < stop else None)

    def to_plain(value: Any) -> Any:
        return value if type(value) is int and start <= value < stop else patient(value)

    return Codec(kind, to_plain, _same, True, int, limits)


def _exactly(cls: type, accept: Convert) -> Callable[[Primitive], Codec]:
    def codec(kind: Primitive) -> Codec:
        patient = _patient(kind, accept)

        def to_plain(value: Any) -> Any:
            return value if type(value) is cls else patient(value)

        return Codec(kind, to_plain, _same, True, cls)

    return codec


def _as_float(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    return None


def _float(kind: Primitive) -> Codec:
    """Rounded to the 32 bits that it has in Spark, so that a value is the same before and after it was stored."""
    single = struct.Struct("<f")

    def accept(value: Any) -> float | None:
        number = _as_float(value)
        try:
            return None if number is None else single.unpack(single.pack(number))[0]
        except OverflowError:
            return None

    return Codec(kind, _patient(kind, accept), _same, True)


def _as_days(value: Any) -> int | None:
    return value.toordinal() - EPOCH_DAY if isinstance(value, date) and not isinstance(value, datetime) else None


def _date(kind: Primitive) -> Codec:
    def from_plain(days: Any) -> Any:
        return None if days is None else date.fromordinal(days + EPOCH_DAY)

    return Codec(kind, _patient(kind, _as_days), from_plain, False)


def _bare(value: datetime) -> datetime:
    """Without what a subclass adds: pandas has nanoseconds and a moment that is none."""
    return datetime(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold
    )


def _as_micros(value: Any) -> int | None:
    try:
        at = _bare(value).astimezone(UTC) if value.utcoffset() is not None else _bare(value).replace(tzinfo=UTC)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    return (at - EPOCH) // MICROSECOND


def _moment(zone: timezone | None, accept: Convert) -> Callable[[Primitive], Codec]:
    epoch = datetime(1970, 1, 1, tzinfo=zone)

    def codec(kind: Primitive) -> Codec:
        patient = _patient(kind, accept)

        def to_plain(value: Any) -> Any:
            return (value - epoch) // MICROSECOND if type(value) is datetime and value.tzinfo is zone else patient(value)

        def from_plain(micros: Any) -> Any:
            return None if micros is None else epoch + MICROSECOND * micros

        return Codec(kind, to_plain, from_plain, False)

    return codec


def _decimal(kind: DecimalOf) -> Codec:
    fit = kind.fitter()

    def accept(value: Any) -> str | None:
        if not isinstance(value, int | Decimal) or isinstance(value, bool):
            return None
        try:
            return str(fit(Decimal(value)))
        except ArithmeticError:
            return None

    return Codec(kind, _patient(kind, accept), lambda text: None if text is None else Decimal(text), False)


_PRIMITIVES: Mapping[str, Callable[[Primitive], Codec]] = {
    "string": _exactly(str, lambda v: str.__str__(v) if isinstance(v, str) else None),
    "binary": _exactly(bytes, lambda v: bytes(v) if isinstance(v, bytes | bytearray | memoryview) else None),
    "boolean": _exactly(bool, lambda v: v if isinstance(v, bool) else None),
    "double": _exactly(float, _as_float),
    "float": _float,
    "date": _date,
    "timestamp": _moment(UTC, _as_micros),
    "timestamp_ntz": _moment(None, lambda v: _as_micros(v) if getattr(v, "tzinfo", v) is None else None),  # whose local time would it be?
}


# -- with parts ----------------------------------------------------------------------------------------------------


def _blame(parts: Iterable[tuple[str, Convert, Any]], otherwise: WrongType) -> NoReturn:
    """Do it again, part by part, to name the one that is wrong."""
    for where, convert, value in parts:
        try:
            convert(value)
        except WrongType as wrong:
            raise wrong.within(where) from None
    raise otherwise


def _array(kind: ArrayOf) -> Codec:
    element = codec_of(kind.element)
    convert, restore, every = element.to_plain, element.from_plain, _every(element)

    def to_plain(value: Any) -> Any:
        if type(value) is not list and type(value) is not tuple:
            if value is None:
                return None
            value = _as_list(kind, value)
        try:
            return every(value)
        except WrongType as wrong:
            _blame(((f"[{at}]", convert, item) for at, item in enumerate(value)), wrong)

    def copy(plain: Any) -> Any:
        """A list of its own, because its owner may change it."""
        return None if plain is None else plain[:]

    def from_plain(plain: Any) -> Any:
        return None if plain is None else [restore(item) for item in plain]

    return Codec(kind, to_plain, copy if element.is_plain else from_plain, False)


def _every(element: Codec) -> Callable[[Sequence[Any]], list[Any]]:
    """`to_plain` for each of many, without a call for those that are plain as they are."""
    convert, exact, limits = element.to_plain, element.exact, element.limits
    if exact is None:
        return lambda values: [convert(value) for value in values]
    if limits is None:
        return lambda values: [value if type(value) is exact else convert(value) for value in values]
    start, stop = limits.start, limits.stop
    return lambda values: [value if type(value) is int and start <= value < stop else convert(value) for value in values]


def _as_list(kind: ArrayOf, value: Any) -> list[Any]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(value)
    listed = value.tolist() if hasattr(value, "tolist") else None  # numpy's arrays
    if not isinstance(listed, list):
        raise WrongType("", kind.ddl, value)
    return listed


def _map(kind: MapOf) -> Codec:
    keys, values = codec_of(kind.key), codec_of(kind.value)
    convert_key, convert, restore_key, restore = _required(keys), values.to_plain, keys.from_plain, values.from_plain

    def to_plain(value: Any) -> Any:
        if type(value) is not dict:
            if value is None:
                return None
            if not isinstance(value, Mapping):
                raise WrongType("", kind.ddl, value)
        try:
            return [[convert_key(key), convert(item)] for key, item in value.items()]
        except WrongType as wrong:
            both = (
                (f"[{key!r}]", convert, part)
                for key, item in value.items()
                for convert, part in ((convert_key, key), (values.to_plain, item))
            )
            _blame(both, wrong)

    def quick(plain: Any) -> Any:
        return None if plain is None else dict(plain)

    def from_plain(plain: Any) -> Any:
        return None if plain is None else {restore_key(key): restore(item) for key, item in plain}

    return Codec(kind, to_plain, quick if keys.is_plain and values.is_plain else from_plain, False)


def _required(codec: Codec) -> Convert:
    convert, ddl = codec.to_plain, codec.kind.ddl

    def to_plain(value: Any) -> Any:
        if value is None:
            raise WrongType("", f"{ddl} NOT NULL", None)
        return convert(value)

    return to_plain


def _struct(kind: StructOf) -> Codec:
    codecs = [codec_of(field.type) for field in kind.fields]
    converts = [codec.to_plain if field.nullable else _required(codec) for field, codec in zip(kind.fields, codecs, strict=True)]
    named = [(field.name, field.default, convert) for field, convert in zip(kind.fields, converts, strict=True)]
    names, size, cls = frozenset(kind.names), len(kind.fields), row_class(kind)
    new: Convert = partial(tuple.__new__, cls)
    quick = as_they_are(codecs)
    steps = [(codec.exact if codec.limits is None else None, convert) for codec, convert in zip(codecs, converts, strict=True)]

    def to_plain(value: Any) -> Any:
        if type(value) is tuple or type(value) is cls or type(value) is list:
            return by_position(value)
        if type(value) is dict:
            return by_name(value)
        if value is None:
            return None
        found = _by_name(value, cls._fields)
        if isinstance(found, dict):
            return by_name(found)
        if found is None:
            raise WrongType("", kind.ddl, value)
        return by_position(found)

    def by_position(value: Any) -> Any:
        if quick is not None and quick(value):
            return list(value)
        if len(value) != size:
            raise WrongType("", kind.ddl, value, f"it has {len(value)} values, not {size}")
        try:
            return [item if type(item) is exact else convert(item) for (exact, convert), item in zip(steps, value)]  # noqa: B905 (they are equally long)
        except WrongType as wrong:
            _blame(zip(kind.names, converts, value, strict=True), wrong)

    def by_name(value: dict[Any, Any]) -> Any:
        if not value.keys() <= names:
            unknown = next(name for name in value if name not in names)
            raise WrongType("", kind.ddl, value, f"it has a field '{unknown}' too many")
        try:
            return [convert(value.get(name, default)) for name, default, convert in named]
        except WrongType as wrong:
            _blame(((name, convert, value.get(name, default)) for name, default, convert in named), wrong)

    restores = [(at, codec.from_plain) for at, codec in enumerate(codecs) if not codec.is_plain]

    def from_plain(plain: Any) -> Any:
        if plain is None:
            return None
        if restores:
            plain = plain[:]
            for at, restore in restores:
                plain[at] = restore(plain[at])
        return new(plain)

    return Codec(kind, to_plain, from_plain, False)


def _by_name(value: Any, own: tuple[str, ...]) -> Any:
    """A dict, when the value has names; a sequence, when it has none or the struct's own; None when it is neither."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        theirs = getattr(value, "_fields", None) or getattr(value, "__fields__", None)  # named tuples, Spark's rows
        return value if theirs is None or tuple(theirs) == own else dict(zip(theirs, value, strict=True))
    if hasattr(value, "asDict"):
        return dict(value.asDict())
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return None
