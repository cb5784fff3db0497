"""What the harness keeps of one key: the entries of its states, and its timers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strandline.state.declarations import Clock, StateDeclaration

ONLY = None
"""Where a state that holds a single entry holds it."""


@dataclass(frozen=True)
class Entry:
    """What expires as one: a value, an element of a list, an entry of a map."""

    plain: Any
    touched: int
    key: Any = None
    """The plain key of a map's entry."""


@dataclass(frozen=True, order=True)
class Timer:
    """Sorted as they fire: by time, and "event" comes before "processing"."""

    at: int
    clock: Clock

    def is_due(self, now: int, mark: int | None) -> bool:
        shows = now if self.clock == "processing" else mark
        return shows is not None and shows >= self.at


@dataclass
class Kept:
    """All that is kept of one key."""

    states: dict[str, dict[Any, Entry]] = field(default_factory=dict)
    """By name of the state: its entries, a list's by number, a map's by key, a single one under `ONLY`."""
    timers: set[Timer] = field(default_factory=set)

    def copy(self) -> Kept:
        return Kept({name: dict(entries) for name, entries in self.states.items()}, set(self.timers))


def expired(declaration: StateDeclaration, entry: Entry, now: int) -> bool:
    return declaration.ttl is not None and now >= entry.touched + declaration.ttl.milliseconds
