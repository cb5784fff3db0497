"""Filling the checkpoint of a new strand with state from a canonical savepoint.

The laid-out checkpoint holds a *seed*: the saved state as Parquet files, and the position of the sources. Batch 0 of the strand is planned
by hand, with no source in it: Spark runs it without input and loads the initial state. Then the position is written into its plan, and the
strand goes on with batch 1 as if batch 0 had read everything up to there.

The seed's description is removed last. As long as it is there, nothing else of the checkpoint counts: whoever finds it begins again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from strandline.checkpoints.batch_files import parse_plan
from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.storage import Storage, storage_at
from strandline.checkpoints.unreadable import Unreadable
from strandline.ledger.records import Attempt
from strandline.model.crash import CrashPoint, reach
from strandline.model.definition import Pipeline
from strandline.model.errors import CheckpointDamaged, DefinitionError
from strandline.model.offsets import ORIGIN
from strandline.runtime.dataflow import Dataflow, SourceLine, build
from strandline.runtime.keyed.building import KeyedBuild, OperatorRecord
from strandline.runtime.keyed.planting import SavedOperator, fitting, initial_state
from strandline.runtime.keyed.records import keep_records
from strandline.runtime.lateness import LateWatermark
from strandline.runtime.reporting import Reporter
from strandline.runtime.sources import SourceReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = "strandline-seed"
SEED_VERSION = 1
PLACE = 0
"""The batch that equals the saved one: Spark loads initial state in the first batch alone."""

_FILE = f"{FOLDER}/seed.json"
_POSITION = f"{FOLDER}/checkpoint/"
_STATE = f"{FOLDER}/state/"
_SPARKS_OWN = ("offsets", "commits", "sources", "state")
_NEVER_READ = "-"


@dataclass(frozen=True)
class Seed:
    """What a checkpoint is to be filled with."""

    plan: str
    """Spark's plan of the saved batch: settings, watermark, and where its sources ended."""
    next_watermark_ms: int
    """The watermark after the saved batch."""
    operators: tuple[SavedOperator, ...]
    without_timers: frozenset[str] = frozenset()
    """Operators whose timers on clocks they no longer use are let go."""

    def encode(self) -> bytes:
        told = {
            "version": SEED_VERSION,
            "plan": self.plan,
            "next_watermark_ms": self.next_watermark_ms,
            "operators": [operator.as_json() for operator in self.operators],
            "without_timers": sorted(self.without_timers),
        }
        return json.dumps(told, indent=1).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Seed:
        told = json.loads(raw)
        if told["version"] > SEED_VERSION:
            raise ValueError("it was written by a newer strandline")
        operators = tuple(map(SavedOperator.from_json, told["operators"]))
        return cls(told["plan"], told["next_watermark_ms"], operators, frozenset(told["without_timers"]))


def lay_seed(storage: Storage, seed: Seed, position: Iterable[tuple[str, bytes]], state: Iterable[tuple[str, bytes]]) -> None:
    """Put a seed into a new checkpoint.

    Args:
        position: what the sources keep in a checkpoint, with its path there.
        state: files, each as ``OPERATOR/NAME``; one is in memory at a time.
    """
    for folder, files in ((_POSITION, position), (_STATE, state)):
        for path, content in files:
            storage.write(folder + path, content)
    storage.write(_FILE, seed.encode())


def unfinished_seed(checkpoint: Checkpoint) -> Seed | None:
    raw = checkpoint.storage.read(_FILE)
    if raw is None:
        return None
    try:
        return Seed.decode(raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(
            f"{checkpoint.location}/{_FILE} cannot be read: {error}",
            next_command="restore the savepoint again: strandline run … --from-savepoint",
        ) from error


@dataclass(frozen=True)
class Seeding:
    """One attempt's work on a checkpoint that is not filled yet."""

    spark: SparkSession
    pipeline: Pipeline
    checkpoint: Checkpoint
    readers: Mapping[str, SourceReader]
    attempt: Attempt
    reporter: Reporter

    def settle(self) -> None:
        """Fill the checkpoint if that is still to be done; afterwards it is like any other."""
        seed = unfinished_seed(self.checkpoint)
        if seed is None:
            if self.checkpoint.storage.names(FOLDER):
                self._folder(FOLDER).delete_all()
            return
        for folder in _SPARKS_OWN:  # left by one who was killed at it
            self._folder(folder).delete_all()
        dataflow = self._load(seed)
        reach(CrashPoint.SEED_LOADED)
        self._put_position(seed, dataflow)
        reach(CrashPoint.SEED_POSITIONED)
        self.checkpoint.storage.remove(_FILE)
        self._folder(FOLDER).delete_all()

    def _folder(self, name: str) -> Storage:
        return storage_at(f"{self.checkpoint.location.rstrip('/')}/{name}")

    # -- state -----------------------------------------------------------------------------------------------------

    def _load(self, seed: Seed) -> Dataflow:
        storage = self.checkpoint.storage
        lateness = LateWatermark(self.checkpoint.location, self.attempt.number)
        lateness.set(0)
        keyed = KeyedBuild(saved={saved.name: partial(self._state, seed, saved) for saved in seed.operators})
        dataflow = build(self.spark, self.pipeline, self.readers, self.checkpoint.origin() or ORIGIN, lateness, keyed)
        check_operators(seed.operators, keyed.made)
        position_lines(self._lines(seed), dataflow.source_lines, self.pipeline.name)
        keep_records(self.checkpoint, keyed)
        storage.write(f"offsets/{PLACE}", self._plan(seed, [_NEVER_READ] * len(dataflow.source_lines)))
        reach(CrashPoint.SEED_BEGUN)
        total = sum(saved.keys for saved in seed.operators)
        self.reporter.say(f"loading the state of {total} keys" if seed.operators else "taking up the position of the sources")
        query = (
            dataflow.frame.writeStream.format("noop")
            .queryName(f"{self.pipeline.name}-{self.attempt.id}-seed")
            .outputMode(self.pipeline.output_mode)
            .option("checkpointLocation", self.checkpoint.location)
            .trigger(once=True)  # the batch that is planned already, and no other
            .start()
        )
        query.awaitTermination()
        if not self.checkpoint.is_completed(PLACE):
            raise CheckpointDamaged(
                f"the state of the savepoint was not loaded into {self.checkpoint.location}: Spark ended before batch {PLACE} was completed",
                next_command=f"strandline run {self.pipeline.name}",
            )
        return dataflow

    def _state(self, seed: Seed, saved: SavedOperator, declared: OperatorRecord) -> DataFrame:
        fitting(saved, declared, saved.name in seed.without_timers)
        folder, storage = f"{_STATE}{saved.name}", self.checkpoint.storage
        control = _control(storage.read(f"{folder}/control.parquet"))
        files = [f"{folder}/{name}" for name in storage.names(folder) if name.startswith("part-")]
        planned = parse_plan(PLACE, seed.plan.encode()).planned_ms
        return initial_state(self.spark, storage.location, files, control, saved, declared, planned or 0)

    # -- position --------------------------------------------------------------------------------------------------

    def _lines(self, seed: Seed) -> list[str]:
        try:
            parse_plan(PLACE, seed.plan.encode())
        except Unreadable as error:
            raise CheckpointDamaged(f"the saved plan in {self.checkpoint.location}/{_FILE} is damaged: {error}") from error
        return seed.plan.split("\n")[2:]

    def _plan(self, seed: Seed, lines: list[str]) -> bytes:
        """The saved plan with other source lines, and with the settings of this session: partitions and backend may be new."""
        version, metadata, *_ = seed.plan.split("\n")
        told: dict[str, Any] = json.loads(metadata)
        told["conf"] = {name: self.spark.conf.get(name, value) for name, value in told.get("conf", {}).items()}
        return "\n".join([version, json.dumps(told, separators=(",", ":")), *lines]).encode()

    def _put_position(self, seed: Seed, dataflow: Dataflow) -> None:
        storage = self.checkpoint.storage
        self._folder("sources").delete_all()
        for file in storage.walk(_POSITION.rstrip("/")):
            content = storage.read(file.path)
            assert content is not None
            storage.write(file.path.removeprefix(_POSITION), content)
        lines = position_lines(self._lines(seed), dataflow.source_lines, self.pipeline.name)
        self._replace(f"offsets/{PLACE}", self._plan(seed, lines))
        version, completed = (storage.read(f"commits/{PLACE}") or b"").decode().split("\n", 1)
        told = {**json.loads(completed), "nextBatchWatermarkMs": seed.next_watermark_ms}
        self._replace(f"commits/{PLACE}", f"{version}\n{json.dumps(told, separators=(',', ':'))}".encode())

    def _replace(self, path: str, content: bytes) -> None:
        """Also the checksum that Spark wrote beside it."""
        folder, _, name = path.rpartition("/")
        self.checkpoint.storage.write(path, content)
        self.checkpoint.storage.remove(f"{folder}/.{name}.crc")


def position_lines(saved: Sequence[str], declared: Sequence[SourceLine], pipeline: str) -> list[str]:
    """The saved positions in the order in which the query names its sources now.

    Spark writes a line for each time that a source is read in a query, and no names: only a single source may be read more or less often.
    """
    if len(saved) == len(declared):
        return list(saved)
    if len(set(saved)) == 1 and len({line.index for line in declared}) == 1:
        return [saved[0]] * len(declared)
    raise DefinitionError(
        f"the query of '{pipeline}' reads its sources {len(declared)} times now, and {len(saved)} times when the savepoint was taken; which "
        "saved position belongs to which of several sources cannot be told",
        next_command="read the sources as they were read then, or begin again with: strandline run PIPELINE --new-strand",
    )


def check_operators(saved: Sequence[SavedOperator], declared: Mapping[str, OperatorRecord]) -> None:
    """Every saved state needs its operator, by name."""
    if gone := sorted({operator.name for operator in saved} - set(declared)):
        raise DefinitionError(
            f"the savepoint holds state of the keyed operator '{gone[0]}', which the pipeline no longer has (it has "
            f"{', '.join(sorted(declared)) or 'none'})",
            next_command=f"keep the operator and its name=…, or let its state go: add --allow-dropped-state {gone[0]}",
        )


def _control(raw: bytes | None) -> dict[str, bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if raw is None:
        return {}
    table = pq.read_table(pa.BufferReader(raw))
    return dict(zip(table.column("name").to_pylist(), table.column("rows").to_pylist(), strict=True))
