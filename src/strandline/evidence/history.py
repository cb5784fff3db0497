"""The history of a table: every snapshot with the batch that made it, also after it expired."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from strandline.ledger import Ledger
from strandline.ledger.records import CommitRecord
from strandline.model.continuity import Gap
from strandline.model.offsets import Offsets
from strandline.model.stamp import GAPS_FACT, SCHEMAS_FACT, TOPICS_FACT
from strandline.model.times import from_millis, rfc3339
from strandline.tables.view import Snapshot, TableView

HISTORY_VERSION = 1


class Kind(str, Enum):
    BATCH = "batch"
    BOUNDARY = "boundary"
    MAINTENANCE = "maintenance"  # rewrites files, changes no rows
    FOREIGN = "foreign"  # written by someone else


_GOING_ON = ("restore", "fork", "publish", "left-for-another-branch")
"""Reasons of boundaries where a strand goes on from another."""


@dataclass(frozen=True)
class HistoryEntry:
    snapshot_id: int
    committed_at: str
    kind: Kind
    pipeline: str | None
    strand: str | None
    attempt: int | None
    batch_first: int | None
    batch: int | None
    offsets_start: dict[str, Any] | None
    offsets_end: dict[str, Any] | None
    rows: int
    files: int
    late: int | None
    corrected: int | None
    code: str | None
    expired: bool
    sequence_number: int
    gaps: str | None = None
    """Records inside the range that were accepted as lost."""
    topics: dict[str, str] | None = None
    """Id of each Kafka topic that was read."""
    schemas: dict[str, list[int]] | None = None
    """Lowest and highest writer schema id of each topic of Avro messages."""
    branch: str | None = None
    """The branch beside main that holds it; None when it is, or was, in main."""
    left: bool = False
    """No longer in the table's history: it was rolled back behind this snapshot, which is still kept."""
    reason: str | None = None
    """Why a boundary was written."""
    parent: str | None = None
    """The strand that a boundary's strand takes the place of."""
    savepoint: str | None = None
    """The savepoint that the strand goes on from."""

    @property
    def label(self) -> str:
        """The kind, and what makes it special."""
        notes = [
            self.savepoint or self.reason if self.kind is Kind.BOUNDARY and self.reason in _GOING_ON else None,
            f"branch {self.branch}" if self.branch else None,
            "left" if self.left else None,
            "expired" if self.expired else None,
        ]
        told = ", ".join(note for note in notes if note)
        return f"{self.kind.value} ({told})" if told else self.kind.value

    @property
    def offsets(self) -> str:
        """The range in short human form."""
        if self.offsets_end is None:
            return ""
        end = Offsets.from_json(self.offsets_end)
        if self.kind is Kind.BOUNDARY:
            return end.human(end)
        range_ = end.human(Offsets.from_json(self.offsets_start or {}))
        return f"{range_} (without {self.gaps})" if self.gaps else range_


def history_of(table: str, view: TableView | None, ledger: Ledger | None) -> list[HistoryEntry]:
    """Newest first. What the table still holds, in main and beside it, comes from the table; what expired comes from the ledger."""
    records = {record.snapshot_id: record for record in ledger.commits.of_table(table)} if ledger else {}
    live = list(view.ancestors()) if view else []
    entries = [_from_snapshot(snapshot, records.get(snapshot.id)) for snapshot in live]
    seen = {snapshot.id for snapshot in live}
    for branch in view.branches if view else ():
        beside = [snapshot for snapshot in view.on(branch).ancestors() if snapshot.id not in seen] if view else []
        entries += [replace(_from_snapshot(snapshot, records.get(snapshot.id)), branch=branch) for snapshot in beside]
        seen |= {snapshot.id for snapshot in beside}
    left = [snapshot for snapshot in view.snapshots.values() if snapshot.id not in seen and snapshot.id in records] if view else []
    entries += [replace(_from_snapshot(snapshot, records[snapshot.id]), left=True) for snapshot in left]
    seen |= {snapshot.id for snapshot in left}
    expired = [record for record in records.values() if record.snapshot_id not in seen]
    if ledger is not None:
        accepted = {key: ledger.gaps.of_strand(*key) for key in {(record.pipeline, record.strand) for record in expired}}
        entries += [_from_record(record, accepted[record.pipeline, record.strand]) for record in expired]
    return sorted(entries, key=lambda entry: entry.sequence_number, reverse=True)


def history_json(table: str, entries: list[HistoryEntry]) -> dict[str, Any]:
    def plain(entry: HistoryEntry) -> dict[str, Any]:
        values = asdict(entry)
        values["kind"] = entry.kind.value
        return values

    return {"version": HISTORY_VERSION, "table": table, "snapshots": [plain(entry) for entry in entries]}


def _from_snapshot(snapshot: Snapshot, record: CommitRecord | None) -> HistoryEntry:
    stamp = snapshot.stamp
    common = {
        "snapshot_id": snapshot.id,
        "committed_at": rfc3339(from_millis(snapshot.timestamp_ms)),
        "files": snapshot.count("added-data-files"),
        "expired": False,
        "sequence_number": snapshot.sequence_number,
    }
    if stamp is None:
        kind = Kind.MAINTENANCE if snapshot.operation == "replace" else Kind.FOREIGN
        rows = 0 if kind is Kind.MAINTENANCE else snapshot.count("added-records")
        nothing = dict.fromkeys(("pipeline", "strand", "attempt", "batch_first", "batch", "offsets_start", "offsets_end", "code"))
        return HistoryEntry(kind=kind, rows=rows, late=None, corrected=None, **nothing, **common)  # type: ignore[arg-type]
    start = stamp.start.to_json() if stamp.start is not None else _loads(record.offsets_start if record else None)
    end = stamp.end.to_json() if stamp.end is not None else _loads(record.offsets_end if record else None)
    return HistoryEntry(
        kind=Kind(stamp.kind.value),
        pipeline=stamp.pipeline,
        strand=stamp.strand,
        attempt=stamp.holder.attempt,
        batch_first=stamp.batch_first,
        batch=stamp.batch,
        offsets_start=start,
        offsets_end=end,
        rows=stamp.rows,
        late=stamp.late,
        corrected=snapshot.count("spark.merge-into.num-target-rows-updated") or stamp.corrected,
        code=stamp.code,
        savepoint=stamp.savepoint or None,
        reason=stamp.extra.get("reason"),
        parent=stamp.extra.get("parent"),
        **_sources(stamp.extra),
        **common,  # type: ignore[arg-type]
    )


def _sources(facts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "gaps": facts.get(GAPS_FACT),
        "topics": _loads(facts.get(TOPICS_FACT)),
        "schemas": _loads(facts.get(SCHEMAS_FACT)),
    }


def _from_record(record: CommitRecord, accepted: list[tuple[int, Gap]]) -> HistoryEntry:
    gaps = ", ".join(str(gap) for batch, gap in accepted if record.batch_first <= batch <= record.batch)
    return HistoryEntry(
        snapshot_id=record.snapshot_id,
        committed_at=record.committed_at,
        kind=Kind(record.kind),
        pipeline=record.pipeline,
        strand=record.strand,
        attempt=record.attempt,
        batch_first=record.batch_first,
        batch=record.batch,
        offsets_start=_loads(record.offsets_start),
        offsets_end=_loads(record.offsets_end),
        rows=record.rows,
        files=record.files,
        late=record.late,
        corrected=record.corrected,
        code=record.code,
        expired=True,
        sequence_number=record.sequence_number,
        gaps=gaps or None,
    )


def _loads(text: str | None) -> dict[str, Any] | None:
    return json.loads(text) if text else None
