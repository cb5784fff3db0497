"""What a run knows about its keyed operators while the transform is being called: earlier schemas, and where measures go.

The transform is plain PySpark and calls `sl.keyed` somewhere inside; a context variable tells that call which run it belongs to. Without one (in a
notebook, in a test) operators start fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strandline.model.errors import DefinitionError
from strandline.runtime.keyed.operator import Tell
from strandline.state.evolution import Incompatible
from strandline.state.layout import Epochs, Layout, time_mode
from strandline.state.types import StructOf, parse_fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.runtime.keyed.frames import KeyedOutputs


@dataclass(frozen=True)
class OperatorRecord:
    """What is kept of an operator beside the checkpoint."""

    name: str
    buckets: tuple[int, ...]
    key: StructOf
    single_key: bool
    """The key is a plain value, not a tuple."""
    layouts: tuple[Layout, ...]
    """Every layout the state was written under; an entry names its own by number."""

    def as_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "name": self.name,
            "buckets": list(self.buckets),
            "key": [{"name": f.name, "type": f.type.ddl} for f in self.key.fields],
            "single_key": self.single_key,
            "layouts": [layout.as_json() for layout in self.layouts],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> OperatorRecord:
        key = parse_fields(", ".join(f"`{f['name']}` {f['type']}" for f in found["key"]))
        return cls(found["name"], tuple(found["buckets"]), key, found["single_key"], tuple(map(Layout.from_json, found["layouts"])))


@dataclass
class KeyedBuild:
    """The keyed operators of one run, in the order in which the transform makes them."""

    known: Mapping[str, OperatorRecord] = field(default_factory=dict)
    tell: Callable[[str], Tell] | None = None
    """Where an operator's measures go, by its name."""
    made: dict[str, OperatorRecord] = field(default_factory=dict)
    outputs: list[KeyedOutputs] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    """What the person who starts the run should hear."""
    saved: Mapping[str, Callable[[OperatorRecord], DataFrame]] = field(default_factory=dict)
    """By operator: its state from a savepoint, packed for the buckets it has now."""

    def register(self, name: str, key: StructOf, single_key: bool, layout: Layout, buckets: list[int]) -> OperatorRecord:
        """The operator's record: the earlier one continued, or a new one."""
        if name in self.made:
            raise DefinitionError(f"two keyed operators are named '{name}'; give one of them another name=…")
        before = self.known.get(name)
        if before is None:
            record = OperatorRecord(name, tuple(buckets), key, single_key, (layout,))
        else:
            record = _continued(before, key, single_key, layout)
        self.made[name] = record
        return record


def key_shape(key: StructOf, single_key: bool) -> str:
    """Two keys with the same shape are packed to the same bytes."""
    return ("" if single_key else "a list of ") + key.ddl


def _continued(before: OperatorRecord, key: StructOf, single_key: bool, layout: Layout) -> OperatorRecord:
    shapes = [key_shape(key, single_key), key_shape(before.key, before.single_key)]
    if shapes[0] != shapes[1]:
        raise DefinitionError(
            f"'{before.name}' is keyed by {shapes[0]} now, its state by {shapes[1]}; state cannot change its key",
            next_command="give the operator another name=… to begin with empty state, or keep the key",
        )
    was, becomes = (" and ".join(sorted(each.clocks)) or "no" for each in (before.layouts[-1], layout))
    if time_mode(before.layouts[-1]) != time_mode(layout):
        raise DefinitionError(
            f"'{before.name}' has {becomes} timers now, its state was begun with {was} timers; Spark fixes the clock with the first batch",
            next_command="keep the timers, give the operator another name=…, or begin again with: strandline run PIPELINE --new-strand",
        )
    layouts = before.layouts if before.layouts[-1] == layout else (*before.layouts, layout)
    try:
        Epochs(layouts).check()
    except Incompatible as wrong:
        raise DefinitionError(
            f"the state of '{before.name}' cannot be read as it is declared now: {wrong}",
            next_command="keep the declaration, or declare the new form under a new state name",
        ) from wrong
    return OperatorRecord(before.name, before.buckets, before.key, before.single_key, layouts)


def check_dropped_state(build: KeyedBuild) -> None:
    """State whose operator is gone would stay in the checkpoint unread, and Spark would refuse it in words of its own."""
    if gone := sorted(set(build.known) - set(build.made)):
        raise DefinitionError(
            f"the checkpoint holds state of the keyed operator '{gone[0]}', which the pipeline no longer has (it has "
            f"{', '.join(sorted(build.made)) or 'none'})",
            next_command="keep the operator and its name=…, or begin again with: strandline run PIPELINE --new-strand",
        )


_current: ContextVar[KeyedBuild | None] = ContextVar("strandline_keyed_build", default=None)


@contextmanager
def building(build: KeyedBuild) -> Iterator[KeyedBuild]:
    """Operators made inside belong to this run."""
    token = _current.set(build)
    try:
        yield build
    finally:
        _current.reset(token)


def current_build() -> KeyedBuild:
    return _current.get() or KeyedBuild()
