"""Two pipelines, or two moments of one: their tables and their state, put side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from strandline.evidence.comparing import COMPARE_VERSION, Comparison, compare
from strandline.evidence.sides import SIDE_MARK, Output, Side
from strandline.evidence.state_comparing import StateAt, pair_operators

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Session = Callable[[], AbstractContextManager["SparkSession"]]


@dataclass(frozen=True)
class Manner:
    """How rows are compared, as `compare` takes it; key and breakdown are of tables, state has keys of its own."""

    key: tuple[str, ...] = ()
    by: str | None = None
    limit: int = 10
    ignore: tuple[str, ...] = ()


@dataclass
class SideBySide:
    left: Side
    right: Side
    tables: dict[str, Comparison] = field(default_factory=dict)
    """By output."""
    tables_only_left: tuple[str, ...] = ()
    tables_only_right: tuple[str, ...] = ()
    operators: dict[str, Comparison] = field(default_factory=dict)
    """By operator."""
    operators_only_left: tuple[str, ...] = ()
    operators_only_right: tuple[str, ...] = ()

    @property
    def lonely(self) -> tuple[str, ...]:
        """What only one side has."""
        return (*self.tables_only_left, *self.tables_only_right, *self.operators_only_left, *self.operators_only_right)

    @property
    def different(self) -> list[str]:
        tables = [f"table {found.left}" for found in self.tables.values() if not found.same]
        return tables + [f"state of '{name}'" for name, found in self.operators.items() if not found.same]

    @property
    def same(self) -> bool:
        return not self.different and not self.lonely

    def as_json(self) -> dict[str, Any]:
        return {
            "version": COMPARE_VERSION,
            "same": self.same,
            **{which: _side_json(side) for which, side in (("left", self.left), ("right", self.right))},
            "tables": [{"output": name, "same": found.same, **asdict(found)} for name, found in self.tables.items()],
            "tables_only_left": self.tables_only_left,
            "tables_only_right": self.tables_only_right,
            "operators": [{"operator": name, "same": found.same, **asdict(found)} for name, found in self.operators.items()],
            "operators_only_left": self.operators_only_left,
            "operators_only_right": self.operators_only_right,
        }


def _side_json(side: Side) -> dict[str, Any]:
    return {"name": side.name, "pipeline": side.pipeline, "batch": side.batch, "strand": side.source.strand if side.source else None}


def compare_tables(found: SideBySide, left: Mapping[str, Output], right: Mapping[str, Output], manner: Manner) -> None:
    """Tables of the same output; if each pipeline has one table beside its side tables, those two, whatever they are called."""
    mine, theirs = dict(left), dict(right)
    names = [(name, name) for name in mine if name in theirs]
    mains = [[name for name in side if SIDE_MARK not in name] for side in (mine, theirs)]
    if len(mains[0]) == len(mains[1]) == 1 and mains[0] != mains[1]:
        names.insert(0, (mains[0][0], mains[1][0]))
    for one, other in names:
        pair = mine.pop(one), theirs.pop(other)
        found.tables[one if one == other else f"{one} / {other}"] = compare(
            pair[0].rows, pair[1].rows, manner.key or _common_key(*pair), manner.by, manner.limit, manner.ignore
        )
    found.tables_only_left, found.tables_only_right = _names(mine), _names(theirs)


def _common_key(left: Output, right: Output) -> tuple[str, ...]:
    """Rows of an upsert table are known by its key, if both tables have it."""
    return left.key if left.key and left.key == right.key else ()


def _names(outputs: Mapping[str, Output]) -> tuple[str, ...]:
    return tuple(output.rows.name for output in outputs.values())


def compare_state(found: SideBySide, session: Session, manner: Manner) -> None:
    """Spark is only started when there is state to read."""
    if not (found.left.keeps_state or found.right.keeps_state):
        return
    for side in (found.left, found.right):
        if side.source is not None and side.keeps_state:
            side.source.batch(side.batch)  # raises, before Spark is started
    with session() as spark:
        left, right = _state_at(spark, found.left), _state_at(spark, found.right)
        operators = [at.reader.operators(at.batch) if at is not None else [] for at in (left, right)]
        pairs = pair_operators(left, operators[0], right, operators[1])
        for pair in pairs.both:
            ignore = [name for name in manner.ignore if name not in pair.key]
            found.operators[pair.name] = compare(pair.left, pair.right, pair.key, None, manner.limit, ignore)
        found.operators_only_left, found.operators_only_right = pairs.only_left, pairs.only_right


def _state_at(spark: SparkSession, side: Side) -> StateAt | None:
    from strandline.runtime.keyed.inspecting import StateReader

    source = side.source
    if source is None or not side.keeps_state:
        return None
    batch = source.batch(side.batch)
    reader = StateReader(spark, source.checkpoint, source.records, source.pipeline)
    return StateAt(side.name, reader, batch, source.processing_time(batch))
