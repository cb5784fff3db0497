"""The batches that a checkpoint still has, each with what it read, what it left in the tables and what a restart from it needs. No JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from strandline.checkpoints.batch_files import CompletedBatch, PlannedBatch
from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.needed import Look, NeededFile, StorePlace
from strandline.checkpoints.place import current_checkpoint
from strandline.checkpoints.requirements import needed_by
from strandline.evidence.offset_lines import human_lines
from strandline.model.errors import NotFound, StrandlineError, TableUnavailable
from strandline.model.kafka import TOPIC_PREFIX
from strandline.model.offsets import Offsets
from strandline.model.stamp import StampKind
from strandline.model.times import from_millis, rfc3339
from strandline.project.config import Project
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import MAIN, Snapshot

if TYPE_CHECKING:
    from strandline.ledger import Ledger

CHECKPOINT_VERSION = 1

_Found = TypeVar("_Found")

CHEAP = 1000
"""State stores times batches up to which the list tells sizes: each may cost a request to the store."""


# -- finding it --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointSource:
    pipeline: str
    checkpoint: Checkpoint
    strand: str | None
    planned: tuple[int, ...]
    completed: tuple[int, ...]
    """Those that the checkpoint still has, oldest first."""

    def batch(self, wanted: int | None, *, complete: bool = True) -> int:
        """The one that was asked for, or the newest complete one."""
        if wanted is None:
            if self.completed:
                return self.completed[-1]
            raise NotFound(
                f"pipeline '{self.pipeline}' has not completed a batch yet, so there is nothing to restart from",
                next_command="strandline status",
            )
        known = self.completed if complete else tuple(sorted({*self.planned, *self.completed}))
        if wanted in known:
            return wanted
        there = "was planned and not completed" if wanted in self.planned else "is not in its checkpoint"
        which = f"{'complete ' if complete else ''}batches {_ranges(known)}" if known else "no complete batch yet"
        raise NotFound(
            f"batch {wanted} of '{self.pipeline}' {there}; the checkpoint holds {which}",
            next_command=f"strandline checkpoint list {self.pipeline}",
        )


def find_checkpoint(project: Project, pipeline: str) -> CheckpointSource:
    """The pipeline's checkpoint, damaged or not; its code is only imported to say why there is none."""
    checkpoint = current_checkpoint(project, pipeline)
    planned, completed = tuple(checkpoint.planned()), tuple(checkpoint.completed())
    if not planned and not completed:
        from strandline.project.loader import load_pipeline

        load_pipeline(project, pipeline)  # raises, with the pipelines there are
        raise NotFound(
            f"pipeline '{pipeline}' has no batch in {checkpoint.location}: it has not run yet", next_command=f"strandline run {pipeline}"
        )
    try:
        strand = checkpoint.strand()
    except StrandlineError:
        strand = None  # `verify` says what is wrong with it
    return CheckpointSource(pipeline, checkpoint, strand, planned, completed)


def _ranges(numbers: Sequence[int]) -> str:
    """``4 to 7``; with holes ``4, 6 to 7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]} to {p[-1]}" for p in parts)


# -- one batch ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableSnapshot:
    table: str
    snapshot_id: int
    rows: int


@dataclass(frozen=True)
class BatchEntry:
    batch: int
    complete: bool
    planned_at: str | None
    finished_at: str | None
    duration_ms: int | None
    offsets: str
    """What was read, in short human form."""
    watermark: str | None
    """With which the batch ran."""
    state_bytes: int | None
    """Of the state files that a restart from it needs; None when telling it would take long, or the batch is not complete."""
    snapshots: tuple[TableSnapshot, ...]
    until: int | None
    """The last batch during which a restart from this one is possible; then Spark retires what it needs."""


@dataclass(frozen=True)
class StoreEntry:
    """A state store of the batch."""

    operator: int
    operator_name: str
    partition: int
    store: str
    version: int
    state_id: str | None
    files: int
    bytes: int
    """Of the files that a restart needs of it."""


@dataclass(frozen=True)
class BatchCard:
    entry: BatchEntry
    next_watermark: str | None
    stores: tuple[StoreEntry, ...]
    files: tuple[NeededFile, ...]


class CheckpointView:
    """One look at a checkpoint, joined with what ledger and tables know of its batches."""

    def __init__(self, source: CheckpointSource, ledger: Ledger, catalog: EmbeddedCatalog, retain: int | None) -> None:
        self._source = source
        self._ledger = ledger
        self._catalog = catalog
        self._retain = retain
        self._look = Look(source.checkpoint)

    def entries(self, limit: int = 0) -> list[BatchEntry]:
        """Newest first; 0 is all."""
        batches = sorted({*self._source.planned, *self._source.completed}, reverse=True)
        return self._entries(batches[:limit] if limit else batches)

    def card(self, batch: int) -> BatchCard:
        (entry,) = self._entries([batch])
        completed = _read(self._source.checkpoint.completion, batch)
        files = needed_by(self._source.checkpoint, batch, self._look) if completed is not None else ()
        return BatchCard(entry, _instant(completed.next_watermark_ms) if completed else None, _stores(files), files)

    def _entries(self, batches: Sequence[int]) -> list[BatchEntry]:
        if not batches:
            return []
        plans = {batch: _read(self._source.checkpoint.plan, batch) for batch in {*batches, *(b - 1 for b in batches if b > 0)}}
        completions = {batch: _read(self._source.checkpoint.completion, batch) for batch in batches if batch in self._source.completed}
        cheap = sum(_count(completed) for completed in completions.values()) <= CHEAP
        snapshots = self._snapshots(min(batches), max(batches))
        return [self._entry(batch, plans, completions.get(batch), snapshots.get(batch, ()), cheap) for batch in batches]

    def _entry(
        self,
        batch: int,
        plans: dict[int, PlannedBatch | None],
        completed: CompletedBatch | None,
        snapshots: Sequence[TableSnapshot],
        cheap: bool,
    ) -> BatchEntry:
        plan = plans.get(batch)
        planned = from_millis(plan.planned_ms) if plan is not None and plan.planned_ms is not None else None
        finished = self._finished(batch)
        took = (finished - planned).total_seconds() if finished and planned else None
        return BatchEntry(
            batch=batch,
            complete=batch in self._source.completed,
            planned_at=rfc3339(planned) if planned else None,
            finished_at=rfc3339(finished) if finished else None,
            duration_ms=round(took * 1000) if took is not None and took >= 0 else None,
            offsets=self._offsets(batch, plan, plans.get(batch - 1)),
            watermark=_instant(plan.watermark_ms) if plan else None,
            state_bytes=self._state_bytes(batch) if completed is not None and cheap else None,
            snapshots=tuple(snapshots),
            until=batch + self._retain - 1 if self._retain is not None else None,
        )

    def _finished(self, batch: int) -> datetime | None:
        """When `commits/N` was written: the moment itself, where the ledger notes when it was seen."""
        there = self._look.files.get(f"commits/{batch}")
        return there.modified if there is not None else None

    def _offsets(self, batch: int, plan: PlannedBatch | None, before: PlannedBatch | None) -> str:
        """The ledger knows the names of sources and files; without it, what the bare lines tell."""
        record = self._ledger.batches.get(self._source.pipeline, self._source.strand, batch) if self._source.strand else None
        if record is not None:
            return Offsets.from_json(json.loads(record.offsets_end)).human(Offsets.from_json(json.loads(record.offsets_start)))
        if plan is None:
            return ""
        return human_lines(plan.lines, before.lines if before is not None else None)

    def _state_bytes(self, batch: int) -> int:
        files = needed_by(self._source.checkpoint, batch, self._look)
        return sum(file.size or 0 for file in files if file.place is not None)

    def _snapshots(self, first: int, last: int) -> dict[int, list[TableSnapshot]]:
        """From the ledger; from the tables' stamps for batches of which it knows none."""
        if self._source.strand is None:
            return {}
        found: dict[int, list[TableSnapshot]] = {}
        for record in self._ledger.commits.of_batches(self._source.pipeline, self._source.strand, first, last):
            found.setdefault(record.batch, []).append(TableSnapshot(record.table, record.snapshot_id, record.rows))
        if all(batch in found for batch in self._source.completed if first <= batch <= last):
            return found
        stamped: dict[int, list[TableSnapshot]] = {}
        for table in self._tables():
            for snapshot in self._ancestors(table):
                stamp = snapshot.stamp
                if stamp is not None and stamp.strand == self._source.strand and stamp.kind is StampKind.BATCH:
                    stamped.setdefault(stamp.batch, []).append(TableSnapshot(table, snapshot.id, stamp.rows))
        return stamped | found

    def _ancestors(self, table: str) -> Iterable[Snapshot]:
        try:
            view = self._catalog.find(table)
        except TableUnavailable:
            return ()  # the checkpoint can be looked at without it
        if view is None:
            return ()
        everywhere = {snapshot.id: snapshot for branch in (MAIN, *view.branches) for snapshot in view.on(branch).ancestors()}
        return everywhere.values()

    def _tables(self) -> Iterable[str]:
        """What the newest attempt wrote; with an empty ledger every table of the catalog is asked."""
        attempt = self._ledger.attempts.latest(self._source.pipeline)
        return [name for name in (attempt.tables if attempt else self._catalog.tables()) if not name.startswith(TOPIC_PREFIX)]


def _read(reading: Callable[[int], _Found | None], batch: int) -> _Found | None:
    """A batch whose file is damaged is still listed; `verify` names the file."""
    try:
        return reading(batch)
    except StrandlineError:
        return None


def _count(completed: CompletedBatch | None) -> int:
    ids = completed.state_ids if completed is not None else None
    return sum(len(stores) for partitions in (ids or {}).values() for stores in partitions)


def _instant(millis: int) -> str | None:
    return rfc3339(from_millis(millis)) if millis > 0 else None


def _stores(files: Iterable[NeededFile]) -> tuple[StoreEntry, ...]:
    by_place: dict[StorePlace, list[NeededFile]] = {}
    for file in files:
        if file.place is not None:
            by_place.setdefault(file.place, []).append(file)
    places = sorted(by_place, key=lambda place: (place.operator, place.partition, place.store))
    return tuple(
        StoreEntry(
            place.operator,
            place.operator_name,
            place.partition,
            place.store,
            place.version.version,
            place.version.id,
            len(by_place[place]),
            sum(file.size or 0 for file in by_place[place]),
        )
        for place in places
    )
