"""From the plain values of an older type to those of a newer one: what may change, and how it is carried over.

Fields are matched by name, whatever their case and order. A type may only become wider, so that nothing that was stored is lost in it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from strandline.state.codec import Convert, codec_of
from strandline.state.types import INTEGERS, ArrayOf, DecimalOf, Field, MapOf, Primitive, StructOf, Type, bounds


class Incompatible(Exception):
    """What is stored cannot be read as the new type."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{_subject(self.path)} {self.reason}"


def upgrade(old: Type, new: Type) -> Convert | None:
    """Carries a plain value of `old` over to `new`; None when it can stay as it is, `Incompatible` when it cannot be carried."""
    return _upgrade(old, new, "", [])


def describe(old: Type, new: Type) -> list[str]:
    """What changes, in sentences without a subject; nothing when what is stored means the same. `Incompatible` as with `upgrade`."""
    changes: list[str] = []
    _upgrade(old, new, "", changes)
    return changes


def _subject(path: str) -> str:
    return f"field '{path}'" if path else "the value"


def _inside(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _upgrade(old: Type, new: Type, path: str, changes: list[str]) -> Convert | None:
    if old == new:
        return None
    if isinstance(old, StructOf) and isinstance(new, StructOf):
        return _struct(old, new, path, changes)
    if isinstance(old, ArrayOf) and isinstance(new, ArrayOf):
        return _array(_upgrade(old.element, new.element, _inside(path, "element"), changes))
    if isinstance(old, MapOf) and isinstance(new, MapOf):
        _key(old.key, new.key, _inside(path, "key"), changes)
        return _map(_upgrade(old.value, new.value, _inside(path, "value"), changes))
    return _widened(old, new, path, changes)


def _widened(old: Type, new: Type, path: str, changes: list[str]) -> Convert | None:
    change: Convert | None = None
    if isinstance(new, DecimalOf) and _whole_digits(old) <= new.precision - new.scale:
        if not isinstance(old, DecimalOf) or new.scale > old.scale:
            change = _to_decimal(new)
        elif new.scale < old.scale:
            raise _changed(old, new, path)
    elif isinstance(old, Primitive) and isinstance(new, Primitive) and new.name == "double" and old.name in INTEGERS:
        change = _nullable(float)
    elif not _wider_integer(old, new) and (old, new) != (Primitive("float"), Primitive("double")):
        raise _changed(old, new, path)
    changes.append(_widens(old, new, path))
    return change


def _widens(old: Type, new: Type, path: str) -> str:
    what = f"'{path}'" if path else "the value"
    return f"widens {what} from {old.ddl} to {new.ddl}"


def _changed(old: Type, new: Type, path: str) -> Incompatible:
    return Incompatible(path, f"changes from {old.ddl} to {new.ddl}")


def _wider_integer(old: Type, new: Type) -> bool:
    if not isinstance(old, Primitive) or not isinstance(new, Primitive):
        return False
    return INTEGERS.get(old.name, 99) < INTEGERS.get(new.name, 0)


def _whole_digits(kind: Type) -> int:
    """Digits before the point that a number of this type may have; more than any decimal has when it is no number."""
    if isinstance(kind, DecimalOf):
        return kind.precision - kind.scale
    if isinstance(kind, Primitive) and kind.name in INTEGERS:
        return len(str(bounds(kind.name).stop - 1))
    return 99


def _key(old: Type, new: Type, path: str, changes: list[str]) -> None:
    """Keys are what entries are found by: only an integer may widen, since it is written the same."""
    if old != new:
        if not _wider_integer(old, new):
            raise _changed(old, new, path)
        changes.append(_widens(old, new, path))


def _nullable(change: Convert) -> Convert:
    return lambda plain: None if plain is None else change(plain)


def _to_decimal(new: DecimalOf) -> Convert:
    fit = new.fitter()
    return _nullable(lambda plain: str(fit(Decimal(plain))))


def _array(change: Convert | None) -> Convert | None:
    return None if change is None else _nullable(lambda plain: [change(item) for item in plain])


def _map(change: Convert | None) -> Convert | None:
    return None if change is None else _nullable(lambda plain: [[key, change(item)] for key, item in plain])


def _struct(old: StructOf, new: StructOf, path: str, changes: list[str]) -> Convert | None:
    before = {field.name.lower(): (at, field) for at, field in enumerate(old.fields)}
    moves: list[tuple[int | None, Any]] = []
    """Where each new field comes from and what happens to it; nowhere, and what it holds instead."""
    for field in new.fields:
        inside = _inside(path, field.name)
        at, earlier = before.pop(field.name.lower(), (None, None))
        if earlier is None:
            moves.append((None, _added(field, inside, changes)))
        else:
            _nullability(earlier, field, inside, changes)
            moves.append((at, _upgrade(earlier.type, field.type, inside, changes)))
    changes.extend(f"drops field '{_inside(path, field.name)}'" for _, field in before.values())
    kept = [at for at, _ in moves if at is not None]
    if kept != sorted(kept):
        changes.append(f"reorders the fields of '{path}'" if path else "reorders the fields")
    if moves == [(at, None) for at in range(len(old.fields))]:
        return None

    def change(plain: Any) -> Any:
        return [what if at is None else plain[at] if what is None else what(plain[at]) for at, what in moves]

    return _nullable(change)


def _added(field: Field, path: str, changes: list[str]) -> Any:
    if field.default is None and not field.nullable:
        raise Incompatible(path, "is added as NOT NULL without a DEFAULT, so what is stored would have no value for it")
    plain = codec_of(field.type).to_plain(field.default)
    changes.append(f"adds field '{path}' ({'null' if plain is None else repr(plain)} for what is stored)")
    return plain


def _nullability(old: Field, new: Field, path: str, changes: list[str]) -> None:
    if old.nullable and not new.nullable:
        raise Incompatible(path, "becomes NOT NULL, but what is stored may be null")
    if new.nullable and not old.nullable:
        changes.append(f"allows null in '{path}'")
