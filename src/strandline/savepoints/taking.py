"""Taking a savepoint, step by step.

1. Choose a completed batch, and check every file that a restart from it needs.
2. Record in the ledger what is about to be made.
3. Tag the tables' snapshots: from here on they cannot expire.
4. Copy the files, each with its SHA-256.
5. Write the manifest: now the savepoint is complete.
6. Record that in the ledger.

Killed anywhere, the next one first undoes what was left: no manifest, no savepoint. The stream goes on meanwhile: Spark never changes a
file of its checkpoint, and those of the newest batches stay.
"""

from __future__ import annotations

import json
import platform
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.needed import NeededFile
from strandline.checkpoints.place import current_checkpoint
from strandline.checkpoints.requirements import needed_by
from strandline.ledger import Ledger
from strandline.ledger.records import BatchRecord, SavepointRecord, SavepointState
from strandline.model.crash import CrashPoint, reach
from strandline.model.definition import Pipeline
from strandline.model.errors import ChainBroken, CheckpointDamaged, CheckpointVanished, NotFound, Refused
from strandline.model.offsets import Offsets
from strandline.model.savepoint import SavedFile, SavedTable, SavedTopic, Savepoint, SavepointType
from strandline.model.sizes import human_bytes
from strandline.model.times import rfc3339, utc_now
from strandline.project.config import Project
from strandline.runtime.jars import locked_jars
from strandline.runtime.keyed.records import operator_records
from strandline.runtime.liveness import this_process
from strandline.runtime.strands import branch_of, strand_origin
from strandline.savepoints.archive import CHECKPOINT, Archive, archive_of
from strandline.savepoints.batches import restartable
from strandline.savepoints.canonical import needed_for_positions, refuse_native_operators, save_operators
from strandline.savepoints.holding import links_of, why_not
from strandline.savepoints.leftovers import half_made, settle, undo
from strandline.savepoints.removing import Tagger
from strandline.tables.catalog import EmbeddedCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAKE_TRIES = 3
"""A running pipeline may let go of an old batch while it is copied; a newer one is taken then."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What somebody asked for."""

    by: str
    type: SavepointType = SavepointType.NATIVE
    note: str = ""
    at: int | None = None

    def encode(self) -> str:
        return json.dumps({"by": self.by, "type": self.type.value, "note": self.note, "at": self.at})

    @classmethod
    def decode(cls, text: str) -> Wish:
        told = json.loads(text)
        return cls(told["by"], SavepointType(told["type"]), told["note"], told["at"])


def new_id() -> str:
    """Sorts by time."""
    return f"sp-{utc_now().strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class Taker:
    """Takes savepoints of one pipeline."""

    project: Project
    pipeline: Pipeline
    ledger: Ledger
    tagger: Tagger
    say: Say
    checkpoint: Checkpoint | None = None
    """The one to read; without it, the one that counts now."""
    engine: Callable[[], SparkSession] | None = None
    """Who reads state that is to be decoded."""

    def take(self, wish: Wish) -> Savepoint:
        for leftover in half_made(self.ledger, self.pipeline.name):
            if leftover.can_be_settled:
                settle(self.project, self.ledger, leftover, self.tagger)
        for left in reversed(range(TAKE_TRIES)):
            try:
                return self._take(wish)
            except CheckpointVanished:
                if left == 0 or wish.at is not None:
                    raise
        raise AssertionError("unreachable")

    def _take(self, wish: Wish) -> Savepoint:
        checkpoint = self.checkpoint or current_checkpoint(self.project, self.pipeline.name)
        name = self.pipeline.name
        strand, known = restartable(checkpoint, self.ledger, name, wish.at, f"strandline savepoint create {name} --at")
        batch = known.batch
        savepoint = self._facts(wish, checkpoint, known)
        if wish.type is SavepointType.CANONICAL:
            refuse_native_operators(name, savepoint.operators)
        archive = archive_of(self.project, self.pipeline.name, savepoint.id)
        record = SavepointRecord(
            savepoint.id,
            self.pipeline.name,
            wish.type.value,
            SavepointState.CREATING,
            strand,
            batch,
            archive.location,
            wish.by,
            wish.note,
            this_process(),
            savepoint.created_at,
        )
        self.ledger.savepoints.begin(record)
        reach(CrashPoint.SAVEPOINT_BEGUN, batch)
        try:
            for table in savepoint.tables:
                if table.snapshot is not None:
                    self.tagger.tag(table.name, savepoint.tag, table.snapshot)
            reach(CrashPoint.SAVEPOINT_TAGGED, batch)
            content = (
                self._decode(checkpoint, batch, archive) if wish.type is SavepointType.CANONICAL else self._copy(checkpoint, batch, archive)
            )
            reach(CrashPoint.SAVEPOINT_COPIED, batch)
            self._still_wanted(savepoint.id)
            complete = replace(savepoint, **content)
            digest = archive.seal(complete)
            reach(CrashPoint.SAVEPOINT_SEALED, batch)
        except BaseException as error:
            undo(self.project, self.ledger, record, self.tagger, str(error) or type(error).__name__)
            raise
        self.ledger.savepoints.complete(savepoint.id, digest, complete.size)
        self.ledger.events.add(self.pipeline.name, "savepoint", f"{savepoint.id} of batch {batch}", savepoint.attempt)
        return complete

    def _facts(self, wish: Wish, checkpoint: Checkpoint, known: BatchRecord) -> Savepoint:
        strand, batch = known.strand, known.batch
        branch = branch_of(self.pipeline, strand_origin(checkpoint))
        plan = checkpoint.plan(batch)
        if plan is None:
            raise self._vanished(f"offsets/{batch}")
        attempt = self.ledger.attempts.get(self.pipeline.name, known.attempt)
        keyed = operator_records(checkpoint)
        operators = [record.as_json() for record in keyed.values()] + native_operators(checkpoint, batch, keyed)
        return Savepoint(
            id=new_id(),
            pipeline=self.pipeline.name,
            type=wish.type,
            strand=strand,
            batch=batch,
            attempt=known.attempt,
            code=attempt.code if attempt is not None else "",
            created_at=rfc3339(utc_now()),
            created_by=wish.by,
            note=wish.note,
            positions=Offsets.from_json(json.loads(known.offsets_end)),
            watermark_ms=plan.watermark_ms,
            checkpoint=checkpoint.location,
            definition=definition_of(self.pipeline),
            operators=tuple(operators),
            versions=versions(),
            contracts={},
            tables=self._tables(strand, batch, branch),
            topics=self._topics(strand, batch),
            branch=branch,
        )

    def _tables(self, strand: str, batch: int, branch: str) -> tuple[SavedTable, ...]:
        catalog = EmbeddedCatalog(self.project)
        links = links_of(self.ledger, self.pipeline.name, strand, batch)
        found = []
        for name in filter(self.pipeline.writes, catalog.tables()):
            view = catalog.load(name).on(branch)
            at = view.after_batch(self.pipeline.name, links)
            if at is not None and at not in view.snapshots:
                raise NotFound(
                    f"table '{name}' no longer keeps its snapshot of batch {batch}: it has expired",
                    next_command=f"strandline savepoint create {self.pipeline.name}",
                )
            if reason := why_not(view, at, self.pipeline.name, links, self.ledger):
                raise ChainBroken(
                    f"table '{name}' cannot be shown to hold the batches up to {batch}: {reason}",
                    next_command=f"strandline run {self.pipeline.name}, which says what does not agree",
                )
            schema = view.schema_id_of(at) if at is not None else None
            found.append(SavedTable(name, view.uuid, at, view.head, schema))
        return tuple(found)

    def _topics(self, strand: str, batch: int) -> tuple[SavedTopic, ...]:
        found = []
        for output in self.pipeline.outputs():
            last = self.ledger.deliveries.last(self.pipeline.name, strand, output)
            if last is not None:
                found.append(SavedTopic(output, last.topic_id, min(last.batch, batch)))
        return tuple(found)

    def _copy(self, checkpoint: Checkpoint, batch: int, archive: Archive) -> dict[str, Any]:
        return {"files": tuple(self._copied(needed_by(checkpoint, batch), checkpoint, archive))}

    def _decode(self, checkpoint: Checkpoint, batch: int, archive: Archive) -> dict[str, Any]:
        """Positions as they are, state as Parquet."""
        kept = self._copied(needed_for_positions(needed_by(checkpoint, batch), batch), checkpoint, archive)
        records = operator_records(checkpoint)
        if not records:
            return {"files": tuple(kept)}
        assert self.engine is not None, "state is decoded by Spark"
        try:
            files, operators = save_operators(self.engine(), checkpoint, batch, records, self.pipeline.name, archive)
        except CheckpointDamaged as error:
            if batch in checkpoint.completed():
                raise
            raise self._vanished(f"state of batch {batch}") from error
        for operator in operators:
            self.say(f"{operator['name']}: {operator['keys']} keys")
        return {"files": (*kept, *files), "operators": tuple(operators)}

    def _copied(self, needed: Sequence[NeededFile], checkpoint: Checkpoint, archive: Archive) -> list[SavedFile]:
        kept, size = [], 0
        for number, file in enumerate(needed, 1):
            content = None if file.problem is not None else checkpoint.storage.read(file.path)
            if content is None:
                raise self._vanished(file.path)
            kept.append(archive.keep(CHECKPOINT + file.path, file.kind.value, content))
            size += len(content)
            if number % 50 == 0 or number == len(needed):
                self.say(f"{number} of {len(needed)} files, {human_bytes(size)}")
        return kept

    def _vanished(self, path: str) -> CheckpointVanished:
        return CheckpointVanished(
            f"checkpoint file {path} vanished while it was copied: the pipeline no longer keeps that batch",
            next_command=f"strandline savepoint create {self.pipeline.name}",
        )

    def _still_wanted(self, savepoint: str) -> None:
        """Whoever slept while it was disposed of must not seal it."""
        record = self.ledger.savepoints.get(savepoint)
        if record is None or record.state is not SavepointState.CREATING:
            raise Refused(f"savepoint {savepoint} was disposed of while it was being made", next_command="strandline savepoint create")


def native_operators(checkpoint: Checkpoint, batch: int, keyed: Collection[str]) -> list[dict[str, Any]]:
    """Operators of Spark's own that keep state, such as aggregations and joins."""
    places = [file.place for file in needed_by(checkpoint, batch) if file.place is not None]
    found = {place.operator: place.operator_name for place in places if place.operator_name not in keyed}
    return [{"name": name, "operator": number, "native": True} for number, name in sorted(found.items())]


def definition_of(pipeline: Pipeline) -> Mapping[str, Any]:
    """The declaration in words that stay comparable; options that may hold secrets are not among them."""
    return {
        "sources": {name: type(source).__name__ for name, source in pipeline.sources.items()},
        "outputs": pipeline.outputs(),
        "event_time": dict(pipeline.event_time),
        "allowed_lateness_s": pipeline.allowed_lateness.total_seconds(),
        "late": pipeline.late,
        "output_mode": pipeline.output_mode,
        "file": pipeline.file.name,
    }


def versions() -> Mapping[str, str]:
    iceberg = next(jar.version for jar in locked_jars() if jar.artifact.startswith("iceberg-"))
    return {"strandline": version("strandline"), "spark": version("pyspark"), "iceberg": iceberg, "python": platform.python_version()}
