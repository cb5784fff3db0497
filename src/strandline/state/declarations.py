"""What a processor declares: its states, how long they last, which clocks its timers use.

A state is declared as a class attribute and used through the instance: `total = sl.reducing_state("double", add)`, then
`self.total.add(3.0)`. The constructors are therefore typed as the handles that the attribute turns into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, cast

from strandline.model.choices import choice
from strandline.model.errors import DefinitionError
from strandline.model.times import parse_duration

TtlUpdate = Literal["create_and_write", "read_and_write"]
TtlVisibility = Literal["never_return_expired", "return_expired_if_not_cleaned_up"]
Clock = Literal["event", "processing"]
Timers = Literal["event", "processing", "both"]


@dataclass(frozen=True)
class Ttl:
    """How long an entry lasts after it was touched, on the processing clock."""

    duration: timedelta
    update: TtlUpdate = "create_and_write"
    visibility: TtlVisibility = "never_return_expired"

    def __post_init__(self) -> None:
        choice("ttl update", self.update, TtlUpdate)
        choice("ttl visibility", self.visibility, TtlVisibility)
        if self.duration < timedelta(milliseconds=1):
            raise DefinitionError(
                f"a ttl of {self.duration} keeps nothing; give at least '1 ms', or leave ttl out to keep entries for ever"
            )

    @property
    def milliseconds(self) -> int:
        return int(self.duration / timedelta(milliseconds=1))


@dataclass(frozen=True)
class StateDeclaration:
    type: str
    """Spark DDL of what one entry holds."""
    ttl: Ttl | None = None


@dataclass(frozen=True)
class ValueDeclaration(StateDeclaration):
    default: Any = None


@dataclass(frozen=True)
class ListDeclaration(StateDeclaration):
    pass


@dataclass(frozen=True)
class MapDeclaration(StateDeclaration):
    key_type: str = "string"


@dataclass(frozen=True)
class ReducingDeclaration(StateDeclaration):
    reduce: Callable[[Any, Any], Any] = max


@dataclass(frozen=True)
class AggregatingDeclaration(StateDeclaration):
    create: Callable[[], Any] = tuple
    add: Callable[[Any, Any], Any] = max
    result: Callable[[Any], Any] | None = None


# -- what the attributes turn into -------------------------------------------------------------------------------


class ValueState(Protocol):
    """One value per key."""

    def get(self) -> Any: ...
    def update(self, value: Any) -> None: ...
    def exists(self) -> bool: ...
    def clear(self) -> None: ...


class ListState(Protocol):
    """A list per key; a long one is kept in chunks, and adding to it does not load it."""

    def get(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def add(self, value: Any) -> None: ...
    def add_all(self, values: Iterable[Any]) -> None: ...
    def update(self, values: Iterable[Any]) -> None: ...
    def exists(self) -> bool: ...
    def clear(self) -> None: ...


class MapState(Protocol):
    """A map per key; of a large one only the entries that are asked for are loaded."""

    def get(self, key: Any, default: Any = None) -> Any: ...
    def put(self, key: Any, value: Any) -> None: ...
    def put_all(self, entries: Mapping[Any, Any]) -> None: ...
    def remove(self, key: Any) -> None: ...
    def __contains__(self, key: object) -> bool: ...
    def keys(self) -> Iterator[Any]: ...
    def values(self) -> Iterator[Any]: ...
    def items(self) -> Iterator[tuple[Any, Any]]: ...
    def __len__(self) -> int: ...
    def exists(self) -> bool: ...
    def clear(self) -> None: ...


class FoldingState(Protocol):
    """A value that every addition folds into: reducing and aggregating state."""

    def add(self, value: Any) -> None: ...
    def get(self) -> Any: ...
    def exists(self) -> bool: ...
    def clear(self) -> None: ...


class Context(Protocol):
    """What a processor may ask about the batch and the key at hand."""

    @property
    def key(self) -> Any: ...
    @property
    def watermark(self) -> datetime | None: ...
    @property
    def processing_time(self) -> datetime: ...
    @property
    def batch(self) -> int: ...
    @property
    def clock(self) -> Clock | None:
        """Which clock's timer fires, inside `on_timer`."""
        ...

    @property
    def control(self) -> Mapping[str, Mapping[Any, Any]]:
        """Control data by name: rows by their key."""
        ...

    def set_timer(self, at: datetime, clock: Clock | None = None) -> None: ...
    def delete_timer(self, at: datetime, clock: Clock | None = None) -> None: ...
    def timers(self, clock: Clock | None = None) -> list[datetime]: ...
    def emit(self, output: str, row: Any) -> None: ...


class KeyedProcess:
    """Base class of processors: state per key, and what to do with events and timers.

    Instances travel to the workers, so they must be picklable. One instance serves many keys: what belongs to a key goes into
    states, never into other attributes.
    """

    timers: Timers | None = None
    """The clocks of its timers; `event` when only `on_timer` is there."""

    def process(self, key: Any, events: list[Any], ctx: Context) -> Iterable[Any] | None:
        """All events of one key in this batch; returns or yields rows of the output."""
        raise NotImplementedError

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterable[Any] | None:
        """A timer of this key is due."""
        raise NotImplementedError


# -- constructors --------------------------------------------------------------------------------------------------


def ttl(
    duration: str | timedelta,
    update: TtlUpdate = "create_and_write",
    visibility: TtlVisibility = "never_return_expired",
) -> Ttl:
    """How long an entry lasts: since it was written, or with ``read_and_write`` since it was last touched at all."""
    return Ttl(parse_duration(duration), update, visibility)


def value_state(type: str, default: Any = None, ttl: Ttl | None = None) -> ValueState:
    """One value per key; `default` is what `get()` gives while there is none."""
    return cast(ValueState, ValueDeclaration(type, ttl, default))


def list_state(type: str, ttl: Ttl | None = None) -> ListState:
    """A list per key of elements of `type`."""
    return cast(ListState, ListDeclaration(type, ttl))


def map_state(key_type: str, value_type: str, ttl: Ttl | None = None) -> MapState:
    """A map per key."""
    return cast(MapState, MapDeclaration(value_type, ttl, key_type))


def reducing_state(type: str, reduce: Callable[[Any, Any], Any], ttl: Ttl | None = None) -> FoldingState:
    """A value per key that `reduce(old, added)` folds additions into."""
    return cast(FoldingState, ReducingDeclaration(type, ttl, reduce))


def aggregating_state(
    type: str,
    create: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] | None = None,
    ttl: Ttl | None = None,
) -> FoldingState:
    """An accumulator of `type` per key: `create()`, then `add(accumulator, value)`; `get()` gives `result(accumulator)`."""
    return cast(FoldingState, AggregatingDeclaration(type, ttl, create, add, result))


# -- reading a processor --------------------------------------------------------------------------------------------


def states_of(process: KeyedProcess) -> dict[str, StateDeclaration]:
    """The declared states by attribute name, base classes first, in order of declaration."""
    found: dict[str, StateDeclaration] = {}
    for kind in reversed(type(process).__mro__):
        found.update({name: value for name, value in vars(kind).items() if isinstance(value, StateDeclaration)})
    return found


def clocks_of(process: KeyedProcess) -> frozenset[Clock]:
    """The clocks its timers may use."""
    reacts = type(process).on_timer is not KeyedProcess.on_timer
    name = type(process).__name__
    if process.timers is None:
        return frozenset(["event"]) if reacts else frozenset()
    choice(f"timers of {name}", process.timers, Timers)
    if not reacts:
        raise DefinitionError(f"{name} declares timers = '{process.timers}', but has no method on_timer(self, key, at, ctx)")
    return frozenset(["event", "processing"]) if process.timers == "both" else frozenset([process.timers])
