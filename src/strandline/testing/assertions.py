"""Looking at the table, not at the log; and not through Spark, which wrote it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from strandline.model.stamp import StampKind
from strandline.project.config import Project
from strandline.tables.catalog import EmbeddedCatalog


def table_rows(project: Project, table: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Rows of the table now, or at a ref (``shop.orders@branch``), read by PyIceberg; empty when the table does not exist."""
    name, _, ref = table.partition("@")
    view = EmbeddedCatalog(project).find(name)
    if view is None:
        return []
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(project.profile.catalog.name, uri=f"sqlite:///{project.catalog_file}", warehouse=f"file://{project.warehouse}")
    try:
        at = view.refs[ref] if ref else None
        scan = catalog.load_table(name).scan(selected_fields=tuple(columns) if columns else ("*",), snapshot_id=at)
        rows: list[dict[str, Any]] = scan.to_arrow().to_pylist()
        return rows
    finally:
        catalog.engine.dispose()


def assert_rows_once(project: Project, table: str, key: str, expected: Iterable[Any]) -> None:
    """The table holds each expected key exactly once: nothing lost, nothing doubled, nothing else."""
    found = Counter(row[key] for row in table_rows(project, table, [key]))
    wanted = set(expected)
    lost = sorted(wanted - found.keys())
    foreign = sorted(found.keys() - wanted)
    doubled = sorted(value for value, count in found.items() if count > 1)
    assert not lost, f"{table} lost {len(lost)} of {len(wanted)}: {lost[:5]}"
    assert not doubled, f"{table} doubled {len(doubled)}: {doubled[:5]}"
    assert not foreign, f"{table} holds {len(foreign)} that were never sent: {foreign[:5]}"


def assert_chain_unbroken(project: Project, table: str, pipeline: str) -> None:
    """Every stamp starts where the one before it ended, attempts never go back, no batch appears twice."""
    view = EmbeddedCatalog(project).load(table)
    stamps = [s.stamp for s in reversed(list(view.ancestors())) if s.stamp is not None and s.stamp.pipeline == pipeline]
    batches = [(stamp.strand, stamp.batch) for stamp in stamps if stamp.kind is StampKind.BATCH]
    assert len(batches) == len(set(batches)), f"{table} holds a batch twice: {batches}"
    for before, after in itertools.pairwise(stamps):
        assert after.holder.attempt >= before.holder.attempt, f"{table}: attempt {after.holder.attempt} after {before.holder.attempt}"
        if after.strand == before.strand:
            assert after.start_digest == before.end_digest, f"{table}: batch {after.batch} does not start where {before.batch} ended"


def committed_batches(project: Project, table: str) -> list[int]:
    """Batches in the table's history, oldest first, boundaries left out."""
    snapshots = reversed(list(EmbeddedCatalog(project).load(table).ancestors()))
    stamps = [snapshot.stamp for snapshot in snapshots if snapshot.stamp is not None]
    return [stamp.batch for stamp in stamps if stamp.kind is StampKind.BATCH]
