"""A checkpoint's batches with what ledger and tables know of them; without an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.evidence import checkpoints
from strandline.evidence.checkpoints import CheckpointView, TableSnapshot, find_checkpoint
from strandline.evidence.offset_lines import human_lines
from strandline.evidence.retention import batches_retained
from strandline.ledger import Ledger, open_ledger
from strandline.ledger.records import BatchRecord, CommitRecord
from strandline.model.errors import NotFound, TableUnavailable
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.positions import GeneratorPosition
from strandline.model.stamp import Holder, Stamp
from strandline.project.config import Project
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import TableView
from strandline.testing.projects import write_sandbox

TABLE = "shop.totals"
PIPELINES = """
import strandline as sl

KEPT = 7

@sl.pipeline(source=sl.generator(total=10), sink=sl.table("shop.totals"), checkpoint=sl.checkpoint(every="0 s", retain=4))
def totals(orders):
    return orders

@sl.pipeline(source=sl.generator(total=10), sink=sl.table("shop.plain"))
def plain(orders):
    return orders

@sl.pipeline(source=sl.generator(total=10), sink=sl.table("shop.counted"), checkpoint=sl.checkpoint(retain=KEPT))
def counted(orders):
    return orders

@sl.pipeline(name="renamed", source=sl.generator(total=10), sink=sl.table("shop.renamed"), checkpoint=sl.checkpoint(retain=9))
def otherwise(orders):
    return orders
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_sandbox(tmp_path, PIPELINES)


@pytest.fixture
def folder(project: Project, written_by_spark: Callable[[str, Path], Checkpoint]) -> Path:
    return Path(written_by_spark("totals", Path(project.checkpoint_of("totals"))).location)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    yield opened
    opened.close()


class Catalog(EmbeddedCatalog):
    """Holds what it is given."""

    def __init__(self, views: dict[str, TableView | TableUnavailable]) -> None:
        self._views = views

    def tables(self) -> list[str]:
        return list(self._views)

    def find(self, table: str) -> TableView | None:
        found = self._views.get(table)
        if isinstance(found, TableUnavailable):
            raise found
        return found


def view(project: Project, ledger: Ledger, catalog: EmbeddedCatalog | None = None, retain: int | None = 4) -> CheckpointView:
    return CheckpointView(find_checkpoint(project, "totals"), ledger, catalog or Catalog({}), retain)


def strand_of(project: Project) -> str:
    strand = find_checkpoint(project, "totals").strand
    assert strand is not None
    return strand


def at(events: int) -> Offsets:
    return Offsets.of({"orders": GeneratorPosition(events, 0)}) if events else ORIGIN


def commit(strand: str, batch: int, snapshot: int, kind: str = "batch", table: str = TABLE) -> CommitRecord:
    end = at(20 * batch + 20)
    return CommitRecord(
        *(table, snapshot, None, snapshot, "2026-01-01T00:00:00.000Z", kind, "totals", strand, 1, "a", batch, batch),
        *(at(20 * batch).canonical(), end.canonical(), end.digest, 9, 0, 0, 0, 1, 1, "src:1"),
    )


# -- entries -----------------------------------------------------------------------------------------------------------


def test_every_batch_with_its_times_offsets_and_state(project: Project, folder: Path, ledger: Ledger) -> None:
    os.utime(folder / "commits/4", (4_000_000_000, 4_000_000_000))

    entries = view(project, ledger).entries()

    assert [(entry.batch, entry.complete) for entry in entries] == [(5, False), (4, True), (3, True), (2, True), (1, True), (0, True)]
    assert [entry.offsets for entry in entries] == [f"events {20 * n}–{20 * n + 20}" for n in range(5, -1, -1)]
    newest = entries[1]
    assert newest.finished_at == "2096-10-02T07:06:40.000Z"
    assert newest.planned_at is not None and newest.duration_ms is not None and newest.duration_ms > 10**12
    assert newest.watermark is None, "it has no event time"
    assert newest.state_bytes is not None and newest.state_bytes > entries[-1].state_bytes > 0  # type: ignore[operator]
    assert (entries[0].state_bytes, entries[0].finished_at, entries[0].duration_ms) == (None, None, None)
    assert [entry.batch for entry in view(project, ledger).entries(limit=2)] == [5, 4]


def test_a_batch_is_kept_while_spark_keeps_the_plan_before_it(project: Project, folder: Path, ledger: Ledger) -> None:
    """Spark plans batch B and drops the plans below B - 4; a restart from N needs the one of N - 1."""
    assert [entry.until for entry in view(project, ledger).entries()] == [8, 7, 6, 5, 4, 3]
    assert view(project, ledger, retain=None).entries()[0].until is None


def test_a_clock_that_was_set_back_gives_no_duration(project: Project, folder: Path, ledger: Ledger) -> None:
    os.utime(folder / "commits/4", (0, 0))

    assert view(project, ledger).entries()[1].duration_ms is None


def test_sizes_are_left_out_where_they_would_take_long(
    project: Project, folder: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHEAP", 19)

    assert {entry.state_bytes for entry in view(project, ledger).entries()} == {None}, "five batches of four stores"
    assert view(project, ledger).entries(limit=3)[1].state_bytes is not None


def test_the_ledger_knows_the_offsets_by_their_sources(project: Project, folder: Path, ledger: Ledger) -> None:
    several = Offsets.of({"a": GeneratorPosition(60, 0), "b": GeneratorPosition(8, 0)}).canonical()
    ledger.commits.record_intents(BatchRecord("totals", strand_of(project), 2, 1, at(40).canonical(), several, "d", {}), [])

    assert view(project, ledger).entries()[3].offsets == "a events 0–60, b events 0–8"


# -- snapshots ---------------------------------------------------------------------------------------------------------


def stamped(strand: str, *batches: int) -> TableView:
    def snapshot(id: int, batch: int) -> dict[str, Any]:
        stamp = Stamp("totals", strand, Holder(1, "a"), batch, batch, ORIGIN, ORIGIN, ORIGIN.digest, ORIGIN.digest, "src:1", rows=5)
        summary = {"operation": "append", **stamp.to_summary()}
        return {"snapshot-id": id, "parent-snapshot-id": id - 1, "sequence-number": id, "timestamp-ms": id, "summary": summary}

    ids = range(700, 700 + len(batches))
    snapshots = [snapshot(id, batch) for id, batch in zip(ids, batches, strict=True)]
    return TableView(TABLE, {"snapshots": snapshots, "refs": {"main": {"snapshot-id": ids[-1]}}})


def test_snapshots_come_from_the_ledger_and_where_it_is_silent_from_the_table(project: Project, folder: Path, ledger: Ledger) -> None:
    strand = strand_of(project)
    for record in (
        commit(strand, 3, 33),
        commit(strand, 3, 34, table="shop.late"),
        commit("other", 3, 35),
        commit(strand, 3, 36, "boundary"),
    ):
        ledger.commits.record_commit(record)

    found = {entry.batch: entry.snapshots for entry in view(project, ledger, Catalog({TABLE: stamped(strand, 2, 3)})).entries()}

    assert found[3] == (TableSnapshot(TABLE, 33, 9), TableSnapshot("shop.late", 34, 9))
    assert found[2] == (TableSnapshot(TABLE, 700, 5),)
    assert found[4] == found[1] == ()


def test_a_table_that_cannot_be_read_does_not_hide_the_checkpoint(project: Project, folder: Path, ledger: Ledger) -> None:
    catalog = Catalog({"shop.broken": TableUnavailable("gone"), TABLE: stamped(strand_of(project), 4)})

    assert view(project, ledger, catalog).entries()[1].snapshots == (TableSnapshot(TABLE, 700, 5),)


# -- the card ----------------------------------------------------------------------------------------------------------


def test_a_card_tells_every_store_with_its_id(project: Project, folder: Path, ledger: Ledger) -> None:
    card = view(project, ledger).card(4)

    ids = find_checkpoint(project, "totals").checkpoint.completion(4)
    assert ids is not None and ids.state_ids is not None
    assert [(s.operator, s.operator_name, s.partition, s.store, s.version) for s in card.stores] == [
        *((0, "totals", 0, "default", 5), (0, "totals", 1, "default", 5), (1, "dedupe", 0, "default", 5), (1, "dedupe", 1, "default", 5))
    ]
    assert [store.state_id for store in card.stores] == [id for parts in ids.state_ids.values() for stores in parts for id in stores]
    assert sum(store.bytes for store in card.stores) == card.entry.state_bytes
    assert sum(store.files for store in card.stores) == sum(file.place is not None for file in card.files)


def test_a_planned_batch_has_a_card_without_files(project: Project, folder: Path, ledger: Ledger) -> None:
    card = view(project, ledger).card(5)

    assert (card.entry.complete, card.stores, card.files) == (False, (), ())


def test_a_damaged_batch_is_still_listed(project: Project, folder: Path, ledger: Ledger) -> None:
    (folder / "offsets/4").write_text("v1")
    (folder / "commits/3").write_text("")
    (folder / "metadata").write_text("{")

    entries = view(project, ledger).entries()

    assert [(entry.batch, entry.complete) for entry in entries][:3] == [(5, False), (4, True), (3, True)]
    assert (entries[1].offsets, entries[2].state_bytes) == ("", None)


# -- finding it --------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_not_there_is_refused_with_those_that_are(project: Project, folder: Path) -> None:
    (folder / "commits/1").unlink()
    source = find_checkpoint(project, "totals")

    assert (source.batch(None), source.batch(2), source.batch(5, complete=False)) == (4, 2, 5)
    with pytest.raises(NotFound, match="batch 9 of 'totals' is not in its checkpoint; the checkpoint holds complete batches 0, 2 to 4"):
        source.batch(9)
    with pytest.raises(
        NotFound, match="batch 5 of 'totals' was planned and not completed; the checkpoint holds complete batches 0, 2 to 4"
    ):
        source.batch(5)
    with pytest.raises(NotFound, match="the checkpoint holds batches 0 to 5"):
        source.batch(9, complete=False)


def test_nothing_to_restart_from(project: Project, folder: Path) -> None:
    for file in folder.glob("commits/[0-9]*"):
        file.unlink()
    source = find_checkpoint(project, "totals")

    with pytest.raises(NotFound, match="has not completed a batch yet"):
        source.batch(None)
    with pytest.raises(NotFound, match="holds no complete batch yet"):
        source.batch(0)


def test_pipelines_without_a_checkpoint(project: Project) -> None:
    with pytest.raises(NotFound, match="has no batch in .*: it has not run yet"):
        find_checkpoint(project, "totals")
    with pytest.raises(NotFound, match="did you mean 'totals'"):
        find_checkpoint(project, "total")


# -- retention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pipeline", "kept"), [("totals", 4), ("plain", 20), ("counted", 7), ("renamed", 9), ("unknown", None)])
def test_how_many_batches_are_kept(project: Project, pipeline: str, kept: int | None) -> None:
    assert batches_retained(project, pipeline) == kept


def test_retention_written_as_a_number_needs_no_import(project: Project) -> None:
    with (project.pipelines_folder / "tested.py").open("a") as file:
        file.write("\nraise RuntimeError('not importable')\n")
    (project.pipelines_folder / "broken.py").write_text("def (")

    assert (batches_retained(project, "totals"), batches_retained(project, "plain"), batches_retained(project, "counted")) == (4, 20, None)


# -- bare lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "before", "text"),
    [
        (['{"offset":40,"timestamp":1}'] * 2, ['{"offset":20,"timestamp":1}'] * 2, "events 20–40"),
        (['{"orders":{"0":7,"1":2}}'], ['{"orders":{"0":5,"1":2}}'], "orders[0] 5–7"),
        (['{"logOffset":3}', None], None, "log entry 3, nothing read"),
        (["42", '"odd"'], ["41"], '42, "odd"'),
    ],
)
def test_lines_say_what_they_can(lines: list[str | None], before: list[str | None] | None, text: str) -> None:
    assert human_lines(lines, before) == text
