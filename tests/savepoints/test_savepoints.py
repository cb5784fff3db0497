"""Savepoints on Spark: taken, restored, disposed of. The table and the state afterwards equal those of a run that was never interrupted."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from strandline.evidence.history import Kind, history_of
from strandline.ledger.records import SavepointState
from strandline.model.errors import ChainBroken, CheckpointDamaged, NotFound, Refused, SavepointDamaged, UsageError
from strandline.runtime.options import Allowances, AvailableNow, ForBatches
from strandline.runtime.run import run_pipeline
from strandline.savepoints.abandoned import abandoned, release
from strandline.savepoints.archive import MANIFEST, Archive, archive_of, find_archive
from strandline.savepoints.attending import savepoint_keeper
from strandline.savepoints.catalogue import examine, export, listed
from strandline.savepoints.disposing import dispose
from strandline.savepoints.restoring import RestorePlan, plan_from_checkpoint, plan_from_savepoint
from strandline.savepoints.session import SessionTags
from strandline.savepoints.table_plans import CONTINUE, ROLLBACK, Tables
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import table_rows
from strandline.testing.fixtures import Sandbox

from .counted import COUNTED, add_file, take

pytestmark = pytest.mark.engine


def assert_counted(shop: Sandbox, files: int) -> None:
    """As if computed in one go: every event once, numbered per key in the order it came."""
    rows = table_rows(shop.project, "shop.counted")
    assert sorted(row["n"] for row in rows) == list(range(files * 10))
    seen: Counter[str] = Counter()
    for row in sorted(rows, key=lambda row: row["n"]):
        seen[row["who"]] += 1
        assert row["seen"] == seen[row["who"]], row


@pytest.fixture
def shop(sandbox: Sandbox) -> Sandbox:
    sandbox.pipelines(COUNTED)
    for number in range(3):
        add_file(sandbox, number)
    return sandbox


def let_go(shop: Sandbox, savepoint: str, **options: bool) -> None:
    with SessionTags(shop.project, "test", shop.heard.say, shop.spark) as tags:
        dispose(shop.project, "counted", savepoint, shop.ledger, tags, by="me@here", **options)


def restore(shop: Sandbox, savepoint: str, choice: Tables, *, claim: bool = False) -> RestorePlan:
    archive = find_archive(shop.project, "counted", savepoint)
    found = plan_from_savepoint(shop.project, shop.pipeline("counted"), shop.ledger, archive, choice, claim=claim)
    shop.run("counted", allow=Allowances(restoration=found.restoration))
    return found.plan


def test_a_savepoint_is_self_contained_and_says_what_it_belongs_to(shop: Sandbox) -> None:
    shop.run("counted")
    head = next(EmbeddedCatalog(shop.project).load("shop.counted").ancestors())

    saved = take(shop, note="before the upgrade")

    assert (saved.batch, saved.note, saved.positions.human(None)) == (2, "before the upgrade", "files 1–3")
    assert [operator["name"] for operator in saved.operators] == ["counted", "dedupe"]
    assert [(table.name, table.snapshot, table.current) for table in saved.tables] == [("shop.counted", head.id, head.id)]
    assert EmbeddedCatalog(shop.project).load("shop.counted").refs[saved.tag] == head.id
    assert archive_of(shop.project, "counted", saved.id).read() == saved
    assert [(line.id, line.state) for line in listed(shop.project, shop.ledger, "counted")] == [(saved.id, "complete")]
    assert not examine(shop.project, archive_of(shop.project, "counted", saved.id)).tables
    assert str(shop.folder) not in json.dumps([vars(file) for file in saved.files]), "its files are named relative to it"


def test_rollback_takes_table_and_state_back_and_nothing_is_lost_or_doubled(shop: Sandbox) -> None:
    """Flink's sink, restored from an older savepoint, doubled 24 rows."""
    shop.run("counted")
    saved = take(shop)
    for number in (3, 4):
        add_file(shop, number)
    old = shop.run("counted")
    before = EmbeddedCatalog(shop.project).load("shop.counted")

    plan = restore(shop, saved.id, ROLLBACK)

    (table,) = plan.tables
    assert (table.rows_leaving, table.batches_leaving, table.target) == (20, (3, 4), saved.tables[0].snapshot)
    assert_counted(shop, 5)
    view = EmbeddedCatalog(shop.project).load("shop.counted")
    entries = history_of("shop.counted", view, shop.ledger)
    boundary = next(entry for entry in entries if entry.kind is Kind.BOUNDARY)
    stamp = view.snapshots[boundary.snapshot_id].stamp
    assert stamp is not None and (stamp.savepoint, stamp.batch, stamp.extra["parent"]) == (saved.id, 2, old.strand)
    assert view.refs["strandline-abandoned-counted-3"] == before.refs["main"], "what was left stays reachable"
    (strand,) = shop.ledger.strands.of_pipeline("counted")
    assert (strand.parent, strand.parent_batch, strand.savepoint) == (old.strand, 2, saved.id)
    (left,) = abandoned(shop.project, shop.ledger, "counted")
    assert (left.rows, left.snapshots, left.attempt, left.strand) == (20, 2, 3, strand.strand)
    assert (left.left_strand, left.left_batch, left.left_at) == (old.strand, 4, boundary.committed_at)
    with SessionTags(shop.project, "test", shop.heard.say, shop.spark) as tags:
        release([left], shop.ledger, tags, by="me@here")
    assert abandoned(shop.project, shop.ledger) == []
    add_file(shop, 5)
    shop.run("counted")
    assert_counted(shop, 6)


def test_a_moved_savepoint_restores_after_the_checkpoint_is_lost(shop: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> None:
    shop.run("counted")
    saved = take(shop)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    export(archive_of(shop.project, "counted", saved.id), str(elsewhere))
    shutil.rmtree(shop.project.checkpoint_of("counted"))
    shutil.rmtree(shop.project.savepoints)
    add_file(shop, 3)

    restore(shop, str(elsewhere), CONTINUE)

    assert_counted(shop, 4)


def test_continue_is_refused_when_the_table_is_ahead_and_names_what_would_double(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)
    add_file(shop, 3)
    shop.run("counted")

    with pytest.raises(ChainBroken, match=r"'shop.counted' is ahead of what is restored: it holds batch 3.* files 4–4 would be doubled"):
        restore(shop, saved.id, CONTINUE)

    assert_counted(shop, 4)


def test_an_older_batch_of_the_checkpoint_restores_the_same_way(shop: Sandbox) -> None:
    shop.run("counted")
    found = plan_from_checkpoint(shop.project, shop.pipeline("counted"), shop.ledger, 0, ROLLBACK)

    shop.run("counted", allow=Allowances(restoration=found.restoration))

    assert found.plan.tables[0].rows_leaving == 20
    assert_counted(shop, 3)


def test_a_table_that_moved_after_the_plan_is_refused_and_the_plan_can_be_made_again(shop: Sandbox) -> None:
    shop.run("counted", ForBatches(2))
    saved = take(shop)
    shop.run("counted")
    found = plan_from_savepoint(
        shop.project, shop.pipeline("counted"), shop.ledger, find_archive(shop.project, "counted", saved.id), ROLLBACK
    )
    shop.sql("INSERT INTO {c}.shop.counted VALUES (1000, 'x', 1)")

    with pytest.raises(Refused, match="has moved since the plan was made"):
        shop.run("counted", allow=Allowances(restoration=found.restoration))
    plan = restore(shop, saved.id, ROLLBACK)

    assert len(plan.tables[0].foreign_leaving) == 1
    assert_counted(shop, 3)


def test_savepoints_of_a_chain_that_was_left_take_the_table_back_to_it(shop: Sandbox) -> None:
    """Restored to batch 0, gone on; then back to batch 2 of the first strand, whose snapshots main had left."""
    shop.run("counted", ForBatches(1))
    first = take(shop)
    shop.run("counted")
    second = take(shop)
    add_file(shop, 3)
    restore(shop, first.id, ROLLBACK)
    assert_counted(shop, 4)

    plan = restore(shop, second.id, ROLLBACK)

    assert (plan.tables[0].rows_leaving, plan.tables[0].rows_returning) == (30, 20)
    assert_counted(shop, 4)


def test_a_claimed_savepoint_goes_when_the_strand_has_a_batch_of_its_own(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)
    add_file(shop, 3)
    add_file(shop, 4)
    found = plan_from_savepoint(
        shop.project,
        shop.pipeline("counted"),
        shop.ledger,
        find_archive(shop.project, "counted", saved.id),
        CONTINUE,
        claim=True,
    )

    run_pipeline(
        shop.project,
        shop.pipeline("counted"),
        AvailableNow(),
        shop.heard,
        allow=Allowances(restoration=found.restoration),
        session=shop.spark,
        hire=[savepoint_keeper(shop.project, shop.ledger, shop.heard)],
    )

    assert_counted(shop, 5)
    record = shop.ledger.savepoints.get(saved.id)
    assert record is not None and record.state is SavepointState.DISPOSED
    assert saved.tag not in EmbeddedCatalog(shop.project).load("shop.counted").refs


def test_a_running_pipeline_takes_scheduled_savepoints_and_disposes_of_the_old_ones(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.savepoints.attending.SCHEDULE_EVERY", 0.0)
    monkeypatch.setattr("strandline.savepoints.attending.is_due", lambda *_: True)
    shop.pipelines(
        COUNTED.replace(
            'checkpoint=sl.checkpoint(every="0 s")', 'checkpoint=sl.checkpoint(every="0 s"), savepoint=sl.savepoint(every="1 hour", keep=1)'
        )
    )
    for number in (3, 4, 5):
        add_file(shop, number)

    run_pipeline(
        shop.project,
        shop.pipeline("counted"),
        AvailableNow(),
        shop.heard,
        session=shop.spark,
        hire=[savepoint_keeper(shop.project, shop.ledger, shop.heard)],
    )

    assert_counted(shop, 6)
    states = [record.state for record in shop.ledger.savepoints.of_pipeline("counted")]
    assert states[0] is SavepointState.COMPLETE
    assert len(states) > 1 and set(states[1:]) == {SavepointState.DISPOSED}


def test_disposing_removes_bytes_and_tags_and_keeps_the_record(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)

    let_go(shop, saved.id)

    assert not Path(archive_of(shop.project, "counted", saved.id).location).exists()
    assert saved.tag not in EmbeddedCatalog(shop.project).load("shop.counted").refs
    assert [(line.id, line.state) for line in listed(shop.project, shop.ledger, "counted")] == [(saved.id, "disposed")]
    with pytest.raises(NotFound, match="has no savepoint 'sp-nothing'"):
        let_go(shop, "sp-nothing")


def test_a_damaged_savepoint_is_refused_by_the_name_of_the_file(shop: Sandbox, tmp_path: Path) -> None:
    shop.run("counted")
    saved = take(shop)
    whole = Path(archive_of(shop.project, "counted", saved.id).location)

    def refused(change: str) -> str:
        copy = tmp_path / f"damaged-{change}"
        shutil.copytree(whole, copy)
        victim = copy / saved.files[-1].path
        manifest = copy / MANIFEST
        if change == "flipped":
            raw = bytearray(victim.read_bytes())
            raw[len(raw) // 2] ^= 1
            victim.write_bytes(raw)
        elif change == "missing":
            victim.unlink()
        elif change == "future":
            manifest.write_text(re.sub(r'"version": \d', '"version": 9', manifest.read_text()))
        elif change == "edited":
            manifest.write_text(manifest.read_text().replace('"batch": 2', '"batch": 1', 1))
        elif change == "unsealed":
            manifest.unlink()
        with pytest.raises((SavepointDamaged, NotFound)) as told:
            plan_from_savepoint(
                shop.project, shop.pipeline("counted"), shop.ledger, find_archive(shop.project, "counted", str(copy)), ROLLBACK
            )
        return told.value.message

    name = saved.files[-1].path
    assert f"{name}: its content has changed: the SHA-256 differs" in refused("flipped")
    assert f"{name}: it is missing" in refused("missing")
    assert "has version 9, written by a newer strandline" in refused("future")
    assert "its content is not what its digest says" in refused("edited")
    assert "is neither the id nor the folder of a savepoint" in refused("unsealed")
    assert_counted(shop, 3)


def test_a_savepoint_of_another_pipeline_is_refused(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)
    shop.pipelines(COUNTED.replace("def counted(", "def others(").replace("shop.counted", "shop.others"))

    with pytest.raises(UsageError, match=r"belongs to pipeline 'counted', not to 'others'"):
        plan_from_savepoint(
            shop.project,
            shop.pipeline("others"),
            shop.ledger,
            Archive(archive_of(shop.project, "counted", saved.id).location),
            ROLLBACK,
        )


def test_a_strand_can_be_saved_and_restored_again_before_it_has_a_batch_of_its_own(shop: Sandbox) -> None:
    shop.run("counted")
    first = take(shop)
    restore(shop, first.id, CONTINUE)  # nothing new to read

    second = take(shop)
    add_file(shop, 3)
    plan = restore(shop, second.id, ROLLBACK)

    assert (second.batch, second.strand != first.strand, plan.tables[0].leaving) == (2, True, ())
    assert_counted(shop, 4)


def test_a_side_table_that_is_empty_is_in_nobodys_way(shop: Sandbox) -> None:
    """A restore puts a boundary into it; an older savepoint must still be able to come back."""
    shop.pipelines(COUNTED.replace('schema="n bigint, who string"', 'schema="n bigint, who string", malformed="quarantine"'))
    shop.run("counted")
    first = take(shop)
    add_file(shop, 3)

    restore(shop, first.id, ROLLBACK)
    restore(shop, first.id, ROLLBACK)

    assert_counted(shop, 4)
    assert table_rows(shop.project, "shop.counted__quarantine") == []


def test_a_copy_elsewhere_cannot_be_claimed(shop: Sandbox, tmp_path: Path) -> None:
    shop.run("counted")
    saved = take(shop)
    export(archive_of(shop.project, "counted", saved.id), str(tmp_path / "copy"))

    with pytest.raises(UsageError, match="lies outside of this project's savepoints, so it cannot be claimed"):
        restore(shop, str(tmp_path / "copy"), CONTINUE, claim=True)


def rolled_back_by_hand(shop: Sandbox, snapshots: int) -> None:
    target = list(EmbeddedCatalog(shop.project).load("shop.counted").ancestors())[snapshots]
    shop.sql(f"CALL {{c}}.system.rollback_to_snapshot('shop.counted', {target.id})")


def test_a_table_that_lacks_batches_is_never_taken_for_whole(shop: Sandbox) -> None:
    """Rolled back by hand to batch 0: state of batch 1 or 2 on top of it would lose rows without a word."""
    shop.run("counted")
    saved = take(shop)
    rolled_back_by_hand(shop, 2)

    for batch in (1, 2):
        with pytest.raises(ChainBroken, match=r"cannot be shown to hold the batches up to \d: it was rolled back without a boundary"):
            plan_from_checkpoint(shop.project, shop.pipeline("counted"), shop.ledger, batch, ROLLBACK)
    with pytest.raises(ChainBroken, match="does not end where the restore goes on: it was rolled back without a boundary"):
        restore(shop, saved.id, CONTINUE)
    with pytest.raises(ChainBroken, match="cannot be shown to hold the batches up to 2"):
        take(shop)

    restore(shop, saved.id, ROLLBACK)  # its own snapshot is kept by the savepoint's tag

    assert_counted(shop, 3)


def test_a_table_that_moved_before_it_entered_the_strand_can_be_planned_anew(shop: Sandbox) -> None:
    shop.run("counted")
    found = plan_from_checkpoint(shop.project, shop.pipeline("counted"), shop.ledger, 1, ROLLBACK)
    shop.sql("INSERT INTO {c}.shop.counted VALUES (1000, 'x', 1)")
    with pytest.raises(Refused, match="has moved since") as told:
        shop.run("counted", allow=Allowances(restoration=found.restoration))
    assert told.value.next_command.startswith("strandline run counted --from-checkpoint 1 --tables rollback")

    again = plan_from_checkpoint(shop.project, shop.pipeline("counted"), shop.ledger, 1, ROLLBACK)
    shop.run("counted", allow=Allowances(restoration=again.restoration))

    assert_counted(shop, 3)


def test_a_table_made_again_is_not_the_one_that_was_saved(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)
    shop.sql("DROP TABLE {c}.shop.counted PURGE")
    shop.sql("CREATE TABLE {c}.shop.counted (n bigint, who string, seen bigint) USING iceberg")

    for choice in (ROLLBACK, CONTINUE):
        with pytest.raises(ChainBroken, match="it was dropped and made again"):
            restore(shop, saved.id, choice)


def test_a_damaged_pointer_keeps_nobody_from_restoring(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)
    (Path(shop.project.checkpoints) / "counted.current.json").write_text("")
    add_file(shop, 3)
    with pytest.raises(CheckpointDamaged, match="does not say which checkpoint counts"):
        shop.run("counted")

    restore(shop, saved.id, CONTINUE)

    assert_counted(shop, 4)
