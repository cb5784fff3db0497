"""Reading a bucket that nobody runs: its facts, its keys with all they hold, and their timers. Nothing is written.

Only what `Bucket` left in the store is needed, and the layouts it was written under: no processor, no clocks. Elements that have expired
are there until they are cleaned up, so they are read like the others and carry a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from strandline.state.bucket import page_key
from strandline.state.codec import unpack
from strandline.state.containers import ListHandle, MapHandle
from strandline.state.context import CLOCKS
from strandline.state.declarations import Clock
from strandline.state.entry import Entry
from strandline.state.facts import FACTS_KEY, BucketFacts
from strandline.state.handles import Handle
from strandline.state.keys import Keys
from strandline.state.layout import Epochs, StateLayout
from strandline.state.pages import decode_page, page_number
from strandline.state.store import Store


@dataclass(frozen=True)
class Element:
    """One stored value: that of a single state, of a list's place, or of a map's key."""

    value: Any
    map_key: Any = None
    touched: int | None = None
    """When it was created or written, in milliseconds; only where there is a ttl."""
    expired: bool = False


@dataclass(frozen=True)
class Held:
    """What a key holds in one state."""

    layout: StateLayout
    elements: tuple[Element, ...]

    @property
    def value(self) -> Any:
        """As user code would see it, were nothing hidden: a value, a list or a dict."""
        if self.layout.kind == "list":
            return [element.value for element in self.elements]
        if self.layout.kind == "map":
            return {element.map_key: element.value for element in self.elements}
        return self.elements[0].value

    @property
    def touched(self) -> Any:
        """Milliseconds in the shape of `value`; None without a ttl."""
        if self.layout.ttl is None:
            return None
        if self.layout.kind == "list":
            return [element.touched for element in self.elements]
        if self.layout.kind == "map":
            return {element.map_key: element.touched for element in self.elements}
        return self.elements[0].touched

    @property
    def expired(self) -> int:
        """Elements that no longer count."""
        return sum(element.expired for element in self.elements)


@dataclass(frozen=True)
class KeyState:
    """One key with everything it holds. A state that is empty is not there."""

    key: tuple[Any, ...]
    """The values of the key's columns, also when there is only one."""
    states: Mapping[str, Held]
    timers: tuple[tuple[Clock, int], ...]
    """(clock, millisecond), as they would fire."""


class BucketReader:
    """Reads one bucket. States are those of the layout in force, whatever layout an entry was written under.

    Args:
        now: the processing time, in milliseconds, by which elements count as expired; None marks none.
    """

    def __init__(self, store: Store, epochs: Epochs, keys: Keys, now: int | None = None) -> None:
        self._store = store
        self._epochs = epochs
        self._keys = keys
        self._now = now
        self._entry = Entry(store, epochs)  # it buffers writes, and nobody flushes them
        self._handles = [_handle(self._entry, slot, state) for slot, state in enumerate(epochs.current.states, start=1)]
        self.facts = BucketFacts.decode(store.get_many([FACTS_KEY])[0])

    def __iter__(self) -> Iterator[KeyState]:
        return self.keys()

    def keys(self, skip_pages: Collection[int] = ()) -> Iterator[KeyState]:
        """Every key with all it holds, page by page."""
        for packed, cells in self._cells(skip_pages):
            yield self._key_state(packed, cells)

    def stored(self) -> Iterator[tuple[bytes, Any, list[list[tuple[bytes | None, Any]]]]]:
        """Every key as it is stored: packed, with its timers and the elements of each state; no value is decoded."""
        slots = range(1, len(self._handles) + 1)
        for packed, cells in self._cells():
            yield packed, cells[0], [list(self._stored(packed, cells, slot)) for slot in slots]

    def find(self, columns: Sequence[Any]) -> KeyState | None:
        """One key, from its page alone."""
        packed = self._keys.pack(self._keys.of_columns(columns))
        cells = dict(self._page(page_number(crc32(packed), self.facts.pages))).get(packed)
        return None if cells is None else self._key_state(packed, cells)

    def oldest_touches(self) -> dict[str, int]:
        """By state with a ttl: when its oldest element was last touched. Values are not decoded."""
        mortal = [(slot, state.name) for slot, state in enumerate(self._epochs.current.states, start=1) if state.ttl is not None]
        oldest: dict[str, int] = {}
        for packed, cells in self._cells():
            for slot, name in mortal:
                for _, element in self._stored(packed, cells, slot):
                    if name not in oldest or element[1] < oldest[name]:
                        oldest[name] = element[1]
        return oldest

    def _cells(self, skip_pages: Collection[int] = ()) -> Iterator[tuple[bytes, list[Any]]]:
        for number in range(self.facts.pages):
            if number not in skip_pages:
                yield from self._page(number)

    def _page(self, number: int) -> Iterator[tuple[bytes, list[Any]]]:
        (stored,) = self._store.get_many([page_key(number)])
        if stored is None:
            return
        page = decode_page(stored)
        change: Callable[[list[Any]], list[Any]] | None = self._epochs.entry(page.epoch)
        for packed, content in page.entries.items():
            cells = unpack(content)
            yield packed, cells if change is None else change(cells)

    def _key_state(self, packed: bytes, cells: list[Any]) -> KeyState:
        states = {}
        for slot, state in enumerate(self._epochs.current.states, start=1):
            if elements := tuple(self._element(state, key, stored) for key, stored in self._stored(packed, cells, slot)):
                states[state.name] = Held(state, elements)
        timers = sorted((at, place) for place, times in enumerate(cells[0] or ()) for at in times)
        return KeyState(self._keys.columns(packed), states, tuple((CLOCKS[place], at) for at, place in timers))

    def _stored(self, packed: bytes, cells: list[Any], slot: int) -> Iterator[tuple[bytes | None, Any]]:
        """The elements of one state as they are stored, with a map's packed keys; also those that live outside of the key's page."""
        if cells[slot] is None:
            return
        handle = self._handles[slot - 1]
        self._entry.key, self._entry.cells = packed, cells
        if isinstance(handle, ListHandle):
            for element in handle._elements():
                yield None, element
        elif isinstance(handle, MapHandle):
            yield from handle._all()
            handle._open = None  # the next key's map has pages of its own
        else:
            yield None, cells[slot]

    def _element(self, state: StateLayout, map_key: bytes | None, stored: Any) -> Element:
        key = None if map_key is None else state.key_codec.from_plain(unpack(map_key))
        if state.ttl is None:
            return Element(state.codec.from_plain(stored), key)
        plain, touched = stored
        expired = self._now is not None and touched + state.ttl.milliseconds <= self._now
        return Element(state.codec.from_plain(plain), key, touched, expired)


def _handle(entry: Entry, slot: int, layout: StateLayout) -> Handle:
    if layout.kind == "list":
        return ListHandle(entry, slot, layout)
    return MapHandle(entry, slot, layout) if layout.kind == "map" else Handle(entry, slot, layout)


# -- two moments of one bucket -----------------------------------------------------------------------------------------


def same_pages(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> set[int]:
    """Pages that hold the same keys with the same content in both, so that nobody needs to decode them.

    An entry that stays the same may still name chunks or pages outside of it that did not: if any of those differ, no page is vouched for.
    """
    facts = BucketFacts.decode(before.get(FACTS_KEY)), BucketFacts.decode(after.get(FACTS_KEY))
    outside = {key for key in {**before, **after} if key[:1] in (b"l", b"q")}
    if facts[0].pages != facts[1].pages or any(before.get(key) != after.get(key) for key in outside):
        return set()
    return {number for number in range(facts[0].pages) if before.get(page_key(number)) == after.get(page_key(number))}


@dataclass(frozen=True)
class KeyChange:
    """A key that is not the same in two moments; None where it is not there."""

    before: KeyState | None
    after: KeyState | None

    @property
    def key(self) -> tuple[Any, ...]:
        found = self.after or self.before
        assert found is not None
        return found.key

    @property
    def kind(self) -> str:
        return "added" if self.before is None else "removed" if self.after is None else "changed"


def changes(before: Iterator[KeyState], after: Iterator[KeyState]) -> Iterator[KeyChange]:
    """Of one bucket's keys. An element that was only touched again is no change."""
    old = {pack_key(found.key): found for found in before}
    for found in after:
        was = old.pop(pack_key(found.key), None)
        if was is None or _content(was) != _content(found):
            yield KeyChange(was, found)
    for gone in old.values():
        yield KeyChange(gone, None)


def pack_key(columns: tuple[Any, ...]) -> str:
    """A dict's key for a key's columns: NaN is itself here, and 1 is not True."""
    return repr(columns)


def _content(state: KeyState) -> Any:
    """As text, in which NaN equals itself; a map's entries have no order."""
    held = {name: [(repr(e.map_key), repr(e.value)) for e in held.elements] for name, held in state.states.items()}
    return {name: sorted(found) if state.states[name].layout.kind == "map" else found for name, found in held.items()}, state.timers
