"""What a processor's attributes turn into: state of the key at hand, read from and written to its cells."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from strandline.state.codec import WrongType
from strandline.state.declarations import ValueDeclaration
from strandline.state.entry import Entry
from strandline.state.layout import StateLayout


class Handle:
    """One state. The bucket calls `clean`, `expires`, `count`, `spill` and `close`; the rest belongs to the user's code."""

    def __init__(self, entry: Entry, slot: int, layout: StateLayout) -> None:
        self._entry = entry
        self._slot = slot
        self._layout = layout
        self._to_plain = layout.codec.to_plain
        self._from_plain = layout.codec.from_plain
        self._is_plain = layout.codec.is_plain
        self._ttl = layout.ttl.milliseconds if layout.ttl else 0
        self._hides_expired = layout.ttl is not None and layout.ttl.visibility == "never_return_expired"
        self._read_touches = layout.ttl is not None and layout.ttl.update == "read_and_write"

    @property
    def _cell(self) -> Any:
        return self._entry.cells[self._slot]

    @_cell.setter
    def _cell(self, cell: Any) -> None:
        self._entry.cells[self._slot] = cell
        self._entry.dirty = True

    def clear(self) -> None:
        if self._cell is not None:
            self._cell = None

    def _checked(self, value: Any) -> Any:
        try:
            return self._to_plain(value)
        except WrongType as wrong:
            raise wrong.within(self._layout.name) from None

    # -- elements ------------------------------------------------------------------------------------------------

    def _element(self, value: Any) -> Any:
        plain = self._checked(value)
        return [plain, self._entry.now] if self._ttl else plain

    def _value(self, element: Any) -> Any:
        plain = element[0] if self._ttl else element
        return plain if self._is_plain else self._from_plain(plain)

    def _expired(self, element: Any) -> bool:
        return self._ttl > 0 and bool(element[1] + self._ttl <= self._entry.now)

    def _visible(self, element: Any) -> bool:
        return not (self._hides_expired and self._expired(element))

    def _touch(self, element: Any) -> None:
        """A read that counts as a touch; what has expired stays expired."""
        if self._read_touches and not self._expired(element) and element[1] != self._entry.now:
            element[1] = self._entry.now
            self._entry.dirty = True

    # -- the bucket's part -----------------------------------------------------------------------------------------

    def fill(self, value: Any) -> None:
        """Initial state: the whole of it."""
        self._cell = self._element(value)

    def clean(self) -> int:
        """Drop what has expired; how many elements that was."""
        return 0

    def expires(self) -> int | None:
        """When the first element expires, in milliseconds."""
        return None

    def count(self) -> int:
        """Stored elements, expired ones among them."""
        return 0 if self._cell is None else 1

    def spill(self) -> None:
        """The key's entry is too large: move what can be moved out of it."""

    def close(self) -> None:
        """The key is done: write down what is not in its cell."""


class SingleHandle(Handle):
    """One element per key."""

    def exists(self) -> bool:
        element = self._cell
        return element is not None and self._visible(element)

    def _current(self) -> Any:
        """The element that counts, or None."""
        element = self._cell
        return element if element is not None and self._visible(element) else None

    def clean(self) -> int:
        element = self._cell
        if element is None or not self._expired(element):
            return 0
        self._cell = None
        return 1

    def expires(self) -> int | None:
        element = self._cell
        return None if element is None or not self._ttl else int(element[1]) + self._ttl


class ValueHandle(SingleHandle):
    def __init__(self, entry: Entry, slot: int, layout: StateLayout, declared: ValueDeclaration) -> None:
        super().__init__(entry, slot, layout)
        self._default = None if declared.default is None else layout.codec.to_plain(declared.default)

    def _otherwise(self) -> Any:
        """The default, as a value of its own each time: what user code does to it must not stay."""
        return None if self._default is None else self._from_plain(copy.copy(self._default))

    def get(self) -> Any:
        element = self._entry.cells[self._slot]
        if element is None:
            return self._otherwise()
        if not self._ttl:
            return element if self._is_plain else self._from_plain(element)
        if not self._visible(element):
            return self._otherwise()
        self._touch(element)
        return self._value(element)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        entry = self._entry
        plain = self._checked(value)
        entry.cells[self._slot] = [plain, entry.now] if self._ttl else plain
        entry.dirty = True


class FoldingHandle(SingleHandle):
    """Reducing and aggregating state: they differ in how the first value enters and how the result leaves."""

    def __init__(
        self,
        entry: Entry,
        slot: int,
        layout: StateLayout,
        first: Callable[[Any], Any],
        fold: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(entry, slot, layout)
        self._first = first
        self._fold = fold
        self._result = result

    def add(self, value: Any) -> None:
        element = self._current()
        folded = self._first(value) if element is None else self._fold(self._value(element), value)
        if folded is None:
            self.clear()
        else:
            self._cell = self._element(folded)

    def get(self) -> Any:
        element = self._current()
        if element is None:
            return None
        self._touch(element)
        value = self._value(element)
        return value if self._result is None else self._result(value)
