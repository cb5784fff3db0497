"""The states of a processor as the harness understands them: one handle per declared state, over plain dicts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from strandline.model.errors import DefinitionError
from strandline.state.codec import WrongType, codec_of
from strandline.state.declarations import (
    AggregatingDeclaration,
    ListDeclaration,
    MapDeclaration,
    ReducingDeclaration,
    StateDeclaration,
    ValueDeclaration,
)
from strandline.state.types import parse_type
from strandline.testing.keyed_kept import ONLY, Entry, Kept, expired


class Desk:
    """Whose turn it is: the handles of a processor always speak of this key, at this time."""

    def __init__(self) -> None:
        self._kept: Kept | None = None
        self.now = 0

    def sit(self, kept: Kept, now: int) -> None:
        self._kept, self.now = kept, now

    def leave(self) -> None:
        self._kept = None

    def entries(self, name: str) -> dict[Any, Entry]:
        if self._kept is None:
            raise DefinitionError(f"the state '{name}' was used outside of process and on_timer, where it speaks of no key")
        return self._kept.states.setdefault(name, {})


class Handle:
    """What all states have in common: entries that are seen or not, and touched by writing and perhaps by reading."""

    def __init__(self, name: str, declaration: StateDeclaration, desk: Desk) -> None:
        self._name = name
        self._declaration = declaration
        self._desk = desk
        self._codec = codec_of(parse_type(declaration.type))

    def exists(self) -> bool:
        return bool(self._seen())

    def clear(self) -> None:
        self._entries.clear()

    def shown(self, alive: list[Entry]) -> Any:
        """The state for a person who looks at it from outside."""
        return self._python(alive[0].plain)

    @property
    def _entries(self) -> dict[Any, Entry]:
        return self._desk.entries(self._name)

    def _seen(self) -> dict[Any, Entry]:
        """The entries that the processor gets to see."""
        ttl = self._declaration.ttl
        if ttl is None or ttl.visibility == "return_expired_if_not_cleaned_up":
            return dict(self._entries)
        return {slot: entry for slot, entry in self._entries.items() if not expired(self._declaration, entry, self._desk.now)}

    def _read(self, seen: dict[Any, Entry]) -> list[Entry]:
        """Entries for their content: reading keeps alive what is alive, if so declared; what has expired stays so."""
        ttl = self._declaration.ttl
        if ttl is not None and ttl.update == "read_and_write":
            for slot, entry in seen.items():
                if not expired(self._declaration, entry, self._desk.now):
                    self._entries[slot] = replace(entry, touched=self._desk.now)
        return list(seen.values())

    def _read_one(self, slot: Any) -> Entry | None:
        seen = self._seen()
        return self._read({slot: seen[slot]})[0] if slot in seen else None

    def _read_all(self) -> list[Entry]:
        return self._read(self._seen())

    def _write(self, slot: Any, plain: Any, key: Any = None) -> None:
        self._entries[slot] = Entry(plain, self._desk.now, key)

    def _plain(self, value: Any) -> Any:
        return self._codec.to_plain(value)

    def _python(self, plain: Any) -> Any:
        return self._codec.from_plain(plain)


class _Value(Handle):
    _declaration: ValueDeclaration

    def get(self) -> Any:
        entry = self._read_one(ONLY)
        if entry is None:
            return self._python(self._plain(self._declaration.default))
        return self._python(entry.plain)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._write(ONLY, self._plain(value))


class _List(Handle):
    def get(self) -> list[Any]:
        return [self._python(entry.plain) for entry in self._read_all()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self._seen())

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        plain = [self._plain(value) for value in values]
        free = next(reversed(self._entries), -1) + 1
        for number, each in enumerate(plain, free):
            self._write(number, each)

    def update(self, values: Iterable[Any]) -> None:
        plain = [self._plain(value) for value in values]
        self.clear()
        for number, each in enumerate(plain):
            self._write(number, each)

    def shown(self, alive: list[Entry]) -> Any:
        return [self._python(entry.plain) for entry in alive]


class _Map(Handle):
    def __init__(self, name: str, declaration: MapDeclaration, desk: Desk) -> None:
        super().__init__(name, declaration, desk)
        self._key_codec = codec_of(parse_type(declaration.key_type))

    def get(self, key: Any, default: Any = None) -> Any:
        entry = self._read_one(_slot(self._plain_key(key)))
        return default if entry is None else self._python(entry.plain)

    def put(self, key: Any, value: Any) -> None:
        self._put([(key, value)])

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        self._put(entries.items())

    def remove(self, key: Any) -> None:
        self._entries.pop(_slot(self._plain_key(key)), None)

    def __contains__(self, key: object) -> bool:
        return _slot(self._plain_key(key)) in self._seen()

    def __len__(self) -> int:
        return len(self._seen())

    def keys(self) -> Iterator[Any]:
        return iter([self._python_key(entry.key) for entry in self._read_all()])

    def values(self) -> Iterator[Any]:
        return iter([self._python(entry.plain) for entry in self._read_all()])

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter([(self._python_key(entry.key), self._python(entry.plain)) for entry in self._read_all()])

    def _put(self, entries: Iterable[tuple[Any, Any]]) -> None:
        plain = [(self._plain_key(key), self._plain(value)) for key, value in entries]
        for key, value in plain:
            self._write(_slot(key), value, key)

    def shown(self, alive: list[Entry]) -> Any:
        return {self._python_key(entry.key): self._python(entry.plain) for entry in alive}

    def _plain_key(self, key: Any) -> Any:
        if key is None:
            raise WrongType("", f"{self._key_codec.kind.ddl} NOT NULL", None, f"it is a key of the map state '{self._name}'")
        return self._key_codec.to_plain(key)

    def _python_key(self, plain: Any) -> Any:
        return self._key_codec.from_plain(plain)


class _Folding(Handle):
    """Reducing and aggregating state: what the declared function makes of the old and the added replaces the old."""

    def _old(self) -> Any:
        """What `get()` would show, so an expired one is folded on only where it is also returned."""
        entry = self._seen().get(ONLY)
        return None if entry is None else self._python(entry.plain)

    def _fold(self, new: Any) -> None:
        if new is None:
            self.clear()
        else:
            self._write(ONLY, self._plain(new))


class _Reducing(_Folding):
    _declaration: ReducingDeclaration

    def add(self, value: Any) -> None:
        added, old = self._python(self._plain(value)), self._old()
        self._fold(added if old is None else self._declaration.reduce(old, added))

    def get(self) -> Any:
        entry = self._read_one(ONLY)
        return None if entry is None else self._python(entry.plain)


class _Aggregating(_Folding):
    _declaration: AggregatingDeclaration

    def add(self, value: Any) -> None:
        old = self._old()
        self._fold(self._declaration.add(self._declaration.create() if old is None else old, value))

    def get(self) -> Any:
        entry = self._read_one(ONLY)
        if entry is None:
            return None
        accumulator = self._python(entry.plain)
        return accumulator if self._declaration.result is None else self._declaration.result(accumulator)


def handle_of(name: str, declaration: StateDeclaration, desk: Desk) -> Handle:
    if isinstance(declaration, MapDeclaration):
        return _Map(name, declaration, desk)
    kinds: list[tuple[type[StateDeclaration], type[Handle]]] = [
        (ValueDeclaration, _Value),
        (ListDeclaration, _List),
        (ReducingDeclaration, _Reducing),
        (AggregatingDeclaration, _Aggregating),
    ]
    for declared, handle in kinds:
        if isinstance(declaration, declared):
            return handle(name, declaration, desk)
    raise DefinitionError(f"the state '{name}' is declared as {declaration!r}, which the harness does not know")


def _slot(plain: Any) -> Hashable:
    """A plain value as a key of a dict."""
    if isinstance(plain, (list, tuple)):
        return tuple(_slot(each) for each in plain)
    if isinstance(plain, dict):
        return frozenset((_slot(key), _slot(value)) for key, value in plain.items())
    return cast(Hashable, "NaN" if plain != plain else plain)
