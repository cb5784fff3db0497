"""What a rollback left behind: table snapshots that only a tag keeps, and letting go of them.

A restore tags what it takes out of a table, so that somebody can look, or change their mind. The tag stays until it is released.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from strandline.ledger import Ledger
from strandline.model.errors import NotFound
from strandline.model.stamp import StampKind
from strandline.model.times import from_millis, rfc3339
from strandline.project.config import Project
from strandline.runtime.claims import ABANDONED_PREFIX
from strandline.savepoints.removing import Tagger
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import TableView


@dataclass(frozen=True)
class Abandoned:
    """One tag of one table."""

    table: str
    tag: str
    snapshot: int
    """The table's newest snapshot when it was rolled back."""
    pipeline: str
    attempt: int
    """The attempt that went back."""
    strand: str | None
    """The strand that it began; None when neither table nor ledger remember."""
    left_at: str | None
    """When the boundary was written."""
    left_strand: str | None
    """The strand whose batches were left."""
    left_batch: int | None
    """The last of them."""
    snapshots: int
    """Snapshots that only this tag keeps."""
    rows: int
    """Rows that those added."""


def abandoned(project: Project, ledger: Ledger, pipeline: str | None = None) -> list[Abandoned]:
    """What every rollback left, or those of one pipeline: by table, oldest first. From metadata files and the ledger alone."""
    catalog = EmbeddedCatalog(project)
    found = [left for table in catalog.tables() for left in _of_table(catalog.load(table), ledger)]
    return [left for left in found if pipeline is None or left.pipeline == pipeline]


def chosen(found: Sequence[Abandoned], pipeline: str, tags: Collection[str]) -> list[Abandoned]:
    """Those that go by the tags, in whichever tables; a tag that no table has is refused before anything goes."""
    known = sorted({left.tag for left in found})
    for tag in tags:
        if tag not in known:
            raise NotFound(
                f"no table holds a tag '{tag}' that a restore of '{pipeline}' left behind (there are: {', '.join(known) or 'none'})",
                next_command=f"strandline abandoned list {pipeline}",
            )
    return [left for left in found if left.tag in tags]


def release(lefts: Sequence[Abandoned], ledger: Ledger, tagger: Tagger, *, by: str) -> None:
    """Remove the tags. Each is written down first: what is gone must never be gone without a word. May be repeated after a crash."""
    for left in lefts:
        told = f"{left.table}: {left.tag} at snapshot {left.snapshot}, {left.rows} rows, by {by}"
        ledger.events.add(left.pipeline, "abandoned-released", told, left.attempt)
        tagger.untag(left.table, left.tag)


def _of_table(view: TableView, ledger: Ledger) -> list[Abandoned]:
    tags = [tag for tag in view.refs if _parts(tag) is not None]
    found = [_describe(view, tag, ledger) for tag in tags]
    return sorted(found, key=lambda left: (left.left_at or "", left.pipeline, left.attempt))


def _parts(tag: str) -> tuple[str, int] | None:
    """Pipeline and attempt; None when the tag is somebody else's. A pipeline's name may hold dashes, a number does not."""
    pipeline, _, attempt = tag.removeprefix(ABANDONED_PREFIX).rpartition("-")
    return (pipeline, int(attempt)) if tag.startswith(ABANDONED_PREFIX) and pipeline and attempt.isdecimal() else None


def _describe(view: TableView, tag: str, ledger: Ledger) -> Abandoned:
    parts = _parts(tag)
    assert parts is not None
    pipeline, attempt = parts
    elsewhere = {snapshot.id for name, ref in view.refs.items() if name != tag for snapshot in view.lineage(ref)}
    only = [snapshot for snapshot in view.lineage(view.refs[tag]) if snapshot.id not in elsewhere]
    stamps = (snapshot.stamp for snapshot in view.lineage(view.refs[tag]))
    last = next((stamp for stamp in stamps if stamp is not None and stamp.pipeline == pipeline), None)
    strand, at = _boundary(view, pipeline, attempt, ledger)
    return Abandoned(
        view.name,
        tag,
        view.refs[tag],
        pipeline,
        attempt,
        strand,
        at,
        last.strand if last is not None else None,
        last.batch if last is not None else None,
        len(only),
        sum(snapshot.rows_added for snapshot in only),
    )


def _boundary(view: TableView, pipeline: str, attempt: int, ledger: Ledger) -> tuple[str | None, str | None]:
    """Strand and time of the boundary that took the table back: from the table, and from the ledger once it has expired there."""
    for snapshot in view.snapshots.values():
        stamp = snapshot.stamp
        if stamp is not None and (stamp.pipeline, stamp.holder.attempt, stamp.kind) == (pipeline, attempt, StampKind.BOUNDARY):
            return stamp.strand, rfc3339(from_millis(snapshot.timestamp_ms))
    for record in ledger.commits.of_table(view.name):
        if (record.pipeline, record.attempt, record.kind) == (pipeline, attempt, StampKind.BOUNDARY.value):
            return record.strand, record.committed_at
    return None, None
