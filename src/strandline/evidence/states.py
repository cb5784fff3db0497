"""The state of a pipeline after a batch: what its checkpoint holds, of which operator, and how far its sources were read.

Whatever can be refused without Spark is refused before it is started.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.place import current_checkpoint
from strandline.ledger import Ledger
from strandline.model.errors import NotFound, StrandlineError, UsageError
from strandline.model.offsets import Offsets
from strandline.model.times import from_millis, human_duration, rfc3339
from strandline.project.config import Project
from strandline.state.layout import StateLayout

if TYPE_CHECKING:
    from strandline.runtime.keyed.building import OperatorRecord
    from strandline.runtime.keyed.inspecting import StateReader, StoredOperator

STATE_VERSION = 1

TIMERS = "timers"
"""The name under which a keyed operator's timers are shown. No state can have it: a processor declares its clocks under it."""


# -- what can be known without Spark -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateSource:
    """A checkpoint that holds state."""

    pipeline: str
    checkpoint: Checkpoint
    strand: str | None
    records: dict[str, OperatorRecord]
    batches: tuple[int, ...]
    """Completed ones that the checkpoint still has, oldest first."""
    operators: int
    """Stateful operators, Spark's own among them."""

    def batch(self, wanted: int | None) -> int:
        """The batch to look at: the newest, or the one that was asked for."""
        if wanted is None:
            return self.batches[-1]
        if wanted not in self.batches:
            raise NotFound(
                f"batch {wanted} of '{self.pipeline}' is not in its checkpoint, which holds the completed batches "
                f"{self.batches[0]} to {self.batches[-1]}",
                next_command=f"strandline state list {self.pipeline} --at {self.batches[-1]}",
            )
        return wanted

    def processing_time(self, batch: int) -> int | None:
        """The clock by which entries expire, as it stood in the batch, in milliseconds."""
        raw = self.checkpoint.storage.read(f"offsets/{batch}")
        try:
            return int(json.loads((raw or b"").decode().split("\n")[1])["batchTimestampMs"])
        except (ValueError, KeyError, IndexError, TypeError):
            return None

    def check_names(self, state: str | None, operator: str | None) -> None:
        """Refuse names that nobody has, if all operators are ours: Spark's own are known only with Spark."""
        if self.operators == len(self.records):
            chosen = _operators_named(self.pipeline, list(self.records), lambda name: [name], operator)
            if state is not None:
                _with_state(self.pipeline, chosen, lambda name: names_of_states(self.records[name]), lambda name: name, state)


def find_state(project: Project, pipeline: str) -> StateSource:
    """The pipeline's checkpoint, if it has one with state."""
    source = find_source(project, pipeline)
    if not source.operators:
        raise NotFound(
            f"pipeline '{pipeline}' keeps no state: nothing in it remembers anything from batch to batch",
            next_command=f"strandline history {pipeline}",
        )
    return source


def find_source(project: Project, pipeline: str) -> StateSource:
    """The pipeline's checkpoint, whether there is state in it or not, if it has completed a batch."""
    from strandline.project.loader import load_pipeline

    checkpoint = current_checkpoint(project, pipeline)
    if not checkpoint.exists():
        load_pipeline(project, pipeline)  # raises, with the pipelines there are
        raise NotFound(
            f"pipeline '{pipeline}' has no checkpoint in {checkpoint.location}: it has not run yet",
            next_command=f"strandline run {pipeline}",
        )
    if not checkpoint.completed():
        raise NotFound(
            f"pipeline '{pipeline}' has not completed a batch yet, so there is no state to see", next_command="strandline status"
        )
    return source_in(pipeline, checkpoint)


def source_in(pipeline: str, checkpoint: Checkpoint) -> StateSource:
    """What a checkpoint holds, wherever it lies."""
    from strandline.runtime.keyed.records import operator_records

    operators = [name for name in checkpoint.storage.names("state") if name.isdigit()]
    batches = tuple(checkpoint.completed())
    return StateSource(pipeline, checkpoint, checkpoint.strand(), operator_records(checkpoint), batches, len(operators))


def names_of_states(record: OperatorRecord) -> list[str]:
    current = record.layouts[-1]
    return [*(state.name for state in current.states), *([TIMERS] if current.clocks else [])]


def states_without_ttl(project: Project, pipeline: str) -> dict[str, list[str]]:
    """By keyed operator, for `strandline status`; nothing when the records cannot be read: status is no place to fail."""
    from strandline.runtime.keyed.records import operator_records

    try:
        records = operator_records(current_checkpoint(project, pipeline))
    except (StrandlineError, OSError):
        return {}
    return {name: [state.name for state in record.layouts[-1].states if state.ttl is None] for name, record in records.items()}


# -- names -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What to look at: a state of one of our operators, its timers, or all rows of one of Spark's."""

    operator: StoredOperator
    state: StateLayout | None

    @property
    def is_native(self) -> bool:
        return self.operator.record is None

    @property
    def name(self) -> str:
        if self.is_native:
            return self.operator.name
        return TIMERS if self.state is None else self.state.name


def resolve(pipeline: str, operators: Sequence[StoredOperator], state: str, operator: str | None) -> Target:
    """The one state of that name; `operator` says whose, where several have it."""
    chosen = _operators_named(pipeline, operators, _names_of, operator)
    owners = _with_state(pipeline, chosen, _states_of, lambda found: found.name, state)
    if len(owners) > 1:
        names = [owner.name for owner in owners]
        raise UsageError(
            f"'{state}' is a state of {', '.join(map(repr, names))}; say which with --operator",
            next_command=f"strandline state show {pipeline} {state} --operator {names[0]}",
        )
    owner = owners[0]
    layouts = owner.record.layouts[-1].states if owner.record is not None else ()
    return Target(owner, next((layout for layout in layouts if layout.name == state), None))


def choose_operators(pipeline: str, operators: Sequence[StoredOperator], wanted: str | None) -> list[StoredOperator]:
    """All of them, or those that go by a name."""
    return _operators_named(pipeline, operators, _names_of, wanted)


def _names_of(operator: StoredOperator) -> list[str]:
    return [operator.name] if operator.record is not None else list({operator.name: 1, operator.spark_name: 1, str(operator.id): 1})


def _states_of(operator: StoredOperator) -> list[str]:
    return names_of_states(operator.record) if operator.record is not None else list({operator.name: 1, operator.spark_name: 1})


def _operators_named(pipeline: str, operators: Sequence[Any], names: Callable[[Any], list[str]], wanted: str | None) -> list[Any]:
    if wanted is None:
        return list(operators)
    found = [operator for operator in operators if wanted in names(operator)]
    if not found:
        known = [names(operator)[0] for operator in operators]
        raise NotFound(
            f"pipeline '{pipeline}' has no stateful operator '{wanted}' (operators: {', '.join(known)}){_near(wanted, known)}",
            next_command=f"strandline state list {pipeline}",
        )
    return found


def _with_state(
    pipeline: str, operators: Sequence[Any], states: Callable[[Any], list[str]], name: Callable[[Any], str], wanted: str
) -> list[Any]:
    found = [operator for operator in operators if wanted in states(operator)]
    if not found:
        known = list(dict.fromkeys(state for operator in operators for state in states(operator)))
        owner = f"operator '{name(operators[0])}'" if len(operators) == 1 else f"pipeline '{pipeline}'"
        near = difflib.get_close_matches(wanted, known, n=1)
        raise NotFound(
            f"{owner} has no state '{wanted}' (states: {', '.join(known)}){_near(wanted, known)}",
            next_command=f"strandline state show {pipeline} {near[0]}" if near else f"strandline state list {pipeline}",
        )
    return found


def _near(wanted: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(wanted, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


# -- the list ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateSummary:
    name: str
    kind: str
    """value, list, map, reducing, aggregating; or rows, of one of Spark's operators."""
    type: str
    key_type: str | None
    """Of a map's keys."""
    ttl_ms: int | None
    entries: int
    oldest_touch: str | None
    """When the oldest entry with a ttl was last touched."""

    @property
    def type_text(self) -> str:
        return f"map<{self.key_type}, {self.type}>" if self.kind == "map" else self.type

    @property
    def ttl_text(self) -> str:
        return human_duration(timedelta(milliseconds=self.ttl_ms)) if self.ttl_ms else ""


@dataclass(frozen=True)
class OperatorSummary:
    id: int
    name: str
    keyed: bool
    """Ours; otherwise one of Spark's."""
    key: str
    """Its columns, as DDL."""
    keys: int
    bytes: int | None
    """Of keys and entries; Spark does not tell them of its own operators."""
    partitions: int
    largest_partition: int
    average_partition: float
    states: tuple[StateSummary, ...]


@dataclass(frozen=True)
class SourceSummary:
    """How far a source was read: state of the source's, not of an operator."""

    name: str
    position: Any
    text: str


@dataclass(frozen=True)
class StateList:
    pipeline: str
    strand: str | None
    batch: int
    processing_time: str | None
    operators: tuple[OperatorSummary, ...]
    sources: tuple[SourceSummary, ...]


def state_list(source: StateSource, reader: StateReader, ledger: Ledger, batch: int) -> StateList:
    """Every operator with its states and sizes, and every source with its position."""
    now = source.processing_time(batch)
    return StateList(
        source.pipeline,
        source.strand,
        batch,
        None if now is None else rfc3339(from_millis(now)),
        tuple(_summary(reader, operator, batch) for operator in reader.operators(batch)),
        tuple(source_positions(source, ledger, batch)),
    )


def _summary(reader: StateReader, operator: StoredOperator, batch: int) -> OperatorSummary:
    return _native(reader, operator, batch) if operator.record is None else _keyed(reader, operator, batch)


def _keyed(reader: StateReader, operator: StoredOperator, batch: int) -> OperatorSummary:
    from strandline.runtime.keyed.inspecting import skew

    assert operator.record is not None
    sizes = reader.sizes(operator, batch)
    layouts = operator.epochs.current.states
    oldest: dict[str, int] = {}
    if any(layout.ttl is not None for layout in layouts):  # only then is it worth reading all of it
        for bucket in reader.buckets(operator, batch):
            for name, at in bucket.oldest_touches().items():
                oldest[name] = min(at, oldest.get(name, at))
    states = tuple(
        StateSummary(
            layout.name,
            layout.kind,
            layout.type.ddl,
            layout.key_type.ddl if layout.key_type else None,
            layout.ttl.milliseconds if layout.ttl else None,
            sizes.entries[layout.name],
            rfc3339(from_millis(oldest[layout.name])) if layout.name in oldest else None,
        )
        for layout in layouts
    )
    largest, average = skew(sizes.keys_by_partition)
    key = operator.record.key.fields_ddl
    return OperatorSummary(operator.id, operator.name, True, key, sizes.keys, sizes.bytes, operator.partitions, largest, average, states)


def _native(reader: StateReader, operator: StoredOperator, batch: int) -> OperatorSummary:
    from strandline.runtime.keyed.inspecting import skew

    rows = reader.rows(operator, batch)
    grouping = ["partition_id", "side"] if operator.is_join else ["partition_id"]
    counted = reader.ask(operator, batch, lambda: rows.groupBy(*grouping).count().collect())
    by_partition = dict.fromkeys(range(operator.partitions), 0)
    by_side: dict[str, int] = dict.fromkeys(("left", "right") if operator.is_join else (operator.name,), 0)
    for row in counted:
        by_partition[row["partition_id"]] += row["count"]
        by_side[row["side"] if operator.is_join else operator.name] += row["count"]
    kind = rows.schema["value"].dataType.simpleString()
    key = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.select("key.*").schema.fields)
    largest, average = skew(by_partition)
    states = tuple(StateSummary(name, "rows", kind, None, None, count, None) for name, count in by_side.items())
    return OperatorSummary(
        operator.id, operator.name, False, key, sum(by_side.values()), None, operator.partitions, largest, average, states
    )


def source_positions(source: StateSource, ledger: Ledger, batch: int) -> list[SourceSummary]:
    """From the ledger, which knows the sources' names; without it, the checkpoint's lines as Spark wrote them."""
    record = ledger.batches.get(source.pipeline, source.strand, batch) if source.strand else None
    if record is not None:
        offsets = Offsets.from_json(json.loads(record.offsets_end))
        told = offsets.to_json()
        return [
            SourceSummary(name, told[name], "nothing read" if position is None else position.human(None))
            for name, position in offsets.sources
        ]
    plan = source.checkpoint.plan(batch)
    lines = plan.lines if plan is not None else ()
    return [SourceSummary(f"source {number}", line, line or "nothing read") for number, line in enumerate(lines)]
