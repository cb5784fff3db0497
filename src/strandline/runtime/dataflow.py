"""From a declaration to one streaming query: sources → transform → tagged outputs.

Spark gives a streaming query one sink. A pipeline may have several tables, late rows and quarantined records, so
their rows travel together, tagged, and are taken apart again inside the batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from strandline.model.definition import LATE_COLUMN, SINGLE, Pipeline, Sink, TableSink
from strandline.model.errors import DefinitionError, StrandlineError, TransformFailed
from strandline.model.offsets import Offsets
from strandline.runtime.keyed.building import KeyedBuild, building
from strandline.runtime.keyed.pickling import travel_with_their_code
from strandline.runtime.lateness import LateWatermark
from strandline.runtime.sources import SourceReader
from strandline.runtime.sources.reader import SOURCE_OPTION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TAG = "__strandline_output"


class Role(Enum):
    DATA = "data"
    LATE = "late"
    QUARANTINE = "quarantine"


@dataclass(frozen=True)
class SourceLine:
    """One offset line of a checkpoint: the source's name (``name#2`` when a self-join reads it twice) and its number."""

    name: str
    index: int


@dataclass(frozen=True)
class Output:
    """Rows of one kind; without a sink they are only counted."""

    tag: str
    role: Role
    sink: Sink | None
    frame: DataFrame
    """The branch as a streaming frame: its schema is the table's."""


@dataclass(frozen=True)
class Dataflow:
    frame: DataFrame
    outputs: tuple[Output, ...]
    source_lines: tuple[SourceLine, ...]
    """Which source each line of a checkpoint's offsets file belongs to."""
    labels_late: bool
    never_rests: bool = False
    """Timers on the processing clock: Spark makes batches without end, whether or not there is anything to read."""

    @property
    def tagged(self) -> bool:
        return len(self.outputs) > 1

    def rows_of(self, batch: DataFrame, output: Output) -> DataFrame:
        """One output's rows inside a batch."""
        if not self.tagged:
            return batch
        return batch.where(f"{_TAG} = '{output.tag}'").select(f"{output.tag}.*")


def build(
    spark: SparkSession,
    pipeline: Pipeline,
    readers: Mapping[str, SourceReader],
    origin: Offsets,
    lateness: LateWatermark,
    keyed: KeyedBuild,
) -> Dataflow:
    """Read the sources, set late and malformed rows apart, call the user's transform, check what it returns."""
    inputs: dict[str, DataFrame] = {}
    side: list[tuple[Role, str, DataFrame]] = []
    for name, reader in readers.items():
        rows, malformed = reader.read(spark, dict(origin.sources).get(name))
        if malformed is not None:
            side.append((Role.QUARANTINE, name, malformed))
        if name in pipeline.event_time:
            rows, late = _separate_late(spark, pipeline, name, rows, lateness)
            if late is not None:
                side.append((Role.LATE, name, late))
        inputs[name] = rows
    with building(keyed):
        results = _call_transform(pipeline, inputs)
    if pipeline.event_time and pipeline.late == "label":
        _check_label(pipeline, results)
    sinks = {key: None if key in pipeline.withheld else sink for key, sink in pipeline.sinks.items()}
    outputs = [Output(f"o{i}", Role.DATA, sinks[key], frame) for i, (key, frame) in enumerate(results.items())]
    several_sources = len({name for role, name, _ in side if role is Role.LATE}) > 1
    quarantine: DataFrame | None = None
    for role, name, frame in side:
        if role is Role.QUARANTINE:
            quarantine = frame if quarantine is None else quarantine.unionByName(frame, allowMissingColumns=True)
        else:
            suffix = f"__late_{name}" if several_sources else "__late"
            sink = TableSink(f"{pipeline.side_table_base}{suffix}") if pipeline.late == "side_table" else None
            outputs.append(Output(f"o{len(outputs)}", role, sink, frame))
    if quarantine is not None:
        sink = TableSink(f"{pipeline.side_table_base}__quarantine")
        outputs.append(Output(f"o{len(outputs)}", Role.QUARANTINE, sink, quarantine))
    frame = _tagged_union(outputs, keyed) if len(outputs) > 1 else outputs[0].frame
    _check_runs_once(pipeline, frame, keyed)
    labels = bool(pipeline.event_time) and pipeline.late == "label"
    restless = any("processing" in record.layouts[-1].clocks for record in keyed.made.values())
    return Dataflow(frame, tuple(outputs), _source_lines(frame), labels, restless)


def _separate_late(
    spark: SparkSession, pipeline: Pipeline, name: str, rows: DataFrame, lateness: LateWatermark
) -> tuple[DataFrame, DataFrame | None]:
    column = pipeline.event_time[name]
    if column not in rows.columns:
        raise DefinitionError(
            f"pipeline '{pipeline.name}': event_time '{column}' is not a column of source '{name}' ({', '.join(rows.columns)})"
        )
    flagged = lateness.flag(spark, rows, column, LATE_COLUMN)
    delay = f"{int(pipeline.allowed_lateness.total_seconds() * 1000)} milliseconds"
    if pipeline.late == "label":
        return flagged.withWatermark(column, delay), None
    on_time = flagged.where(f"not {LATE_COLUMN}").drop(LATE_COLUMN).withWatermark(column, delay)
    return on_time, flagged.where(LATE_COLUMN).drop(LATE_COLUMN)


def _call_transform(pipeline: Pipeline, inputs: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    travel_with_their_code(pipeline.transform.__module__)
    try:
        result: Any = pipeline.transform(**inputs)
    except StrandlineError:
        raise  # a word of ours was used wrongly, and says so itself
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(pipeline.file)]
        raise TransformFailed(
            f"the transform of pipeline '{pipeline.name}' raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            next_command=f"edit {pipeline.file}",
            detail="".join(traceback.format_list(own)),
        ) from error
    if pipeline.single_output:
        result = {SINGLE: result}
    where = f"the transform of pipeline '{pipeline.name}'"
    if not isinstance(result, dict):
        raise TransformFailed(
            f"{where} returned {type(result).__name__}; it has several sinks, so return a dict with the keys {sorted(pipeline.sinks)}",
            next_command=f"edit {pipeline.file}",
        )
    if set(result) != set(pipeline.sinks):
        raise TransformFailed(
            f"{where} returned the keys {sorted(result)}; its sinks are {sorted(pipeline.sinks)}", next_command=f"edit {pipeline.file}"
        )
    for key, frame in result.items():
        kind = type(frame).__name__
        if not (hasattr(frame, "isStreaming") and hasattr(frame, "schema")):
            raise TransformFailed(f"{where} returned {kind} for '{key}', not a DataFrame", next_command=f"edit {pipeline.file}")
        if not frame.isStreaming:
            raise TransformFailed(
                f"{where} returned a DataFrame for '{key}' that does not come from its sources", next_command=f"edit {pipeline.file}"
            )
    return {key: result[key] for key in pipeline.sinks}


_STATEFUL = ("Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "TransformWithState", "FlatMapGroupsWithState")


def _check_label(pipeline: Pipeline, results: Mapping[str, DataFrame]) -> None:
    for key, frame in results.items():
        if LATE_COLUMN not in frame.columns:
            raise TransformFailed(
                f"pipeline '{pipeline.name}' labels late rows, but output '{key}' lost the column {LATE_COLUMN}",
                next_command=f"edit {pipeline.file}: keep {LATE_COLUMN}, or declare late='side_table'",
            )
        if stateful := sorted(name for name in _operators(frame) if name.startswith(_STATEFUL)):
            raise DefinitionError(
                f"pipeline '{pipeline.name}' labels late rows, but its transform is stateful ({stateful[0]}) and Spark drops late rows "
                "there; declare late='side_table' to keep them",
                next_command=f"edit {pipeline.file}",
            )


def _check_runs_once(pipeline: Pipeline, frame: DataFrame, keyed: KeyedBuild) -> None:
    """A keyed operator whose outputs were changed one by one would be in the query once for each, with its state."""
    if not keyed.made:
        return
    found = sum(1 for name in _operators(frame) if name.startswith("TransformWithState"))
    if found > len(keyed.made):
        raise DefinitionError(
            f"pipeline '{pipeline.name}' would run a keyed operator more than once ({', '.join(sorted(keyed.made))}): several of its outputs are "
            "used, and some were changed after it; emit rows in their final form and return the outputs as they are",
            next_command=f"edit {pipeline.file}",
        )


def _operators(frame: DataFrame) -> list[str]:
    """Names of all nodes of the plan. Its text would be shorter to ask for, and is cut off when it is long."""
    names: list[str] = []
    todo = [frame._jdf.queryExecution().analyzed()]
    while todo:
        node = todo.pop()
        names.append(str(node.nodeName()))
        children = node.children()
        todo.extend(children.apply(number) for number in range(children.size()))
    return names


def _tagged_union(outputs: list[Output], keyed: KeyedBuild) -> DataFrame:
    from pyspark.sql import functions as F

    def tag(output: Output) -> DataFrame:
        columns = [F.col(f"`{name}`") for name in output.frame.columns]
        return output.frame.select(F.lit(output.tag).alias(_TAG), F.struct(*columns).alias(output.tag))

    branches: list[DataFrame] = []
    left = list(outputs)
    for operator in keyed.outputs:
        own = {name: output for output in outputs if (name := operator.name_of(output.frame)) is not None}
        if len(own) > 1:
            branches.append(operator.together({name: output.tag for name, output in own.items()}, _TAG))
            left = [output for output in left if output not in own.values()]
    branches += [tag(output) for output in left]
    union = branches[0]
    for branch in branches[1:]:
        union = union.unionByName(branch, allowMissingColumns=True)
    return union


def _source_lines(frame: DataFrame) -> tuple[SourceLine, ...]:
    """Spark writes an offset line per appearance of a source in the plan; equal leaves are one source with one log."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    distinct: list[tuple[Any, str]] = []
    lines: list[SourceLine] = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        kind = leaf.getClass().getSimpleName()
        if kind == "StreamingRelation":
            name = str(leaf.dataSource().options().get(SOURCE_OPTION).get())
        elif kind == "StreamingRelationV2":
            name = str(leaf.extraOptions().get(SOURCE_OPTION))
        else:
            continue
        index = next((i for i, (other, _) in enumerate(distinct) if leaf.equals(other)), len(distinct))
        if index == len(distinct):
            again = sum(1 for _, known in distinct if known.partition("#")[0] == name)
            distinct.append((leaf, f"{name}#{again + 1}" if again else name))
        lines.append(SourceLine(distinct[index][1], index))
    return tuple(lines)
