"""Things that happen to tables and checkpoints between two runs. Afterwards each row is there once, or the start is
refused with the reason: never silence. Each is a failure of a peer, reproduced; see docs/design/commit-protocol.md."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from strandline.evidence.history import Kind, history_of
from strandline.model.errors import ChainBroken, CheckpointDamaged, Fenced
from strandline.project.config import Project, load_project
from strandline.runtime.options import Allowances, ForBatches
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import assert_chain_unbroken, assert_rows_once, table_rows
from strandline.testing.fixtures import Sandbox
from strandline.testing.projects import write_sandbox

pytestmark = pytest.mark.engine

ORDERS = """
import strandline as sl

@sl.pipeline(
    source=sl.files("data", schema="n bigint", max_files_per_batch=1), sink=sl.table("shop.numbers"), checkpoint=sl.checkpoint(every="0 s")
)
def numbers(numbers):
    return numbers
"""


@pytest.fixture
def shop(sandbox: Sandbox) -> Sandbox:
    """Five files of ten numbers each, read in five batches."""
    sandbox.pipelines(ORDERS)
    (sandbox.folder / "data").mkdir()
    for number in range(5):
        add_file(sandbox, number)
    return sandbox


def add_file(shop: Sandbox, number: int) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in range(number * 10, number * 10 + 10))
    file = shop.folder / "data" / f"{number:03d}.jsonl"
    file.write_text(lines)
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest first


def checkpoint(shop: Sandbox, project: Project | None = None) -> Path:
    return Path((project or shop.project).checkpoint_of("numbers"))


def assert_numbers(shop: Sandbox, files: int) -> None:
    assert_rows_once(shop.project, "shop.numbers", "n", range(files * 10))
    assert_chain_unbroken(shop.project, "shop.numbers", "numbers")


def replay_last_batch(shop: Sandbox) -> None:
    """What a crash right before `commits/N` leaves behind."""
    last = max((checkpoint(shop) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_replayed_batch_is_recognised(shop: Sandbox) -> None:
    shop.run("numbers")
    replay_last_batch(shop)

    summary = shop.run("numbers")

    assert summary.rows == 0
    assert_numbers(shop, 5)


def test_compaction_expiry_and_replay_double_nothing(shop: Sandbox) -> None:
    """Iceberg's own sink forgets with its snapshots: compaction + expiry + replay gave it 60 rows, 50 distinct."""
    shop.run("numbers")
    shop.sql("CALL {c}.system.rewrite_data_files(table => 'shop.numbers', options => map('min-input-files', '2'))")
    shop.sql("CALL {c}.system.expire_snapshots(table => 'shop.numbers', older_than => TIMESTAMP '2999-01-01', retain_last => 1)")
    assert not [s for s in EmbeddedCatalog(shop.project).load("shop.numbers").ancestors() if s.stamp], "our stamps should be gone"
    replay_last_batch(shop)
    add_file(shop, 5)

    shop.run("numbers")

    assert_rows_once(shop.project, "shop.numbers", "n", range(60))
    entries = history_of("shop.numbers", EmbeddedCatalog(shop.project).load("shop.numbers"), shop.ledger)
    assert [(e.kind, e.expired) for e in entries][:2] == [(Kind.BATCH, False), (Kind.MAINTENANCE, False)]
    assert [e.batch for e in entries if e.expired] == [4, 3, 2, 1, 0], "expired snapshots stay in the history"


def test_an_older_checkpoint_with_new_input_is_refused(shop: Sandbox) -> None:
    """Iceberg's own sink silently skips the new rows here: 0 of 30 landed, no error."""
    shop.run("numbers", ForBatches(2))
    shutil.copytree(checkpoint(shop), shop.folder / "old")
    shop.run("numbers")
    shutil.rmtree(checkpoint(shop))
    shutil.copytree(shop.folder / "old", checkpoint(shop))
    add_file(shop, 5)

    # Batch 3 or 4: a stop while Spark plans leaves a file listed, and the next run's first batch reads two.
    with pytest.raises(ChainBroken, match="older than table 'shop.numbers'.* already holds batch [34]"):
        shop.run("numbers")

    assert_numbers(shop, 5)


def test_a_copied_checkpoint_that_went_its_own_way_is_refused(shop: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A copy started elsewhere, with a ledger of its own, on the same table: it reads other files under the same numbers."""
    shop.run("numbers", ForBatches(3))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    copy = write_sandbox(elsewhere, ORDERS, catalog=shop.project.profile.catalog.name)
    config = (elsewhere / "strandline.yaml").read_text()
    shared = f"catalog: {{name: {shop.project.profile.catalog.name}, file: {shop.project.catalog_file}}}"
    (elsewhere / "strandline.yaml").write_text(
        config.replace(f"catalog: {{name: {shop.project.profile.catalog.name}}}", f"{shared}\n    warehouse: {shop.project.warehouse}")
    )
    shutil.copytree(checkpoint(shop), checkpoint(shop, copy))
    shutil.copytree(shop.folder / "data", elsewhere / "data")
    (elsewhere / "data" / "003.jsonl").write_text('{"n": 777}\n')
    shop.run("numbers")
    stray = Sandbox(elsewhere, shop.spark, load_project(elsewhere))

    with pytest.raises(ChainBroken, match=r"older than table|other offsets"):
        stray.run("numbers")

    assert_numbers(shop, 5)


def test_a_start_elsewhere_with_the_same_checkpoint_fences_the_first(shop: Sandbox) -> None:
    """Two ledgers that do not know each other hand out the same number; the table tells the starts apart."""
    shop.run("numbers", ForBatches(2))
    ledger_file = Path(shop.project.ledger_url.removeprefix("sqlite:///"))
    kept = shop.folder / "ledger-kept.db"
    shutil.copy(ledger_file, kept)
    shop.run("numbers", ForBatches(1))  # attempt 2 of the first ledger
    shutil.copy(kept, ledger_file)  # a ledger restored from a backup: it thinks attempt 2 is free

    shop.run("numbers")

    assert_numbers(shop, 5)
    entries = history_of("shop.numbers", EmbeddedCatalog(shop.project).load("shop.numbers"), None)
    assert next(e.attempt for e in entries) == 3, "the table's highest attempt counts, not the ledger's"


def test_a_lost_ledger_is_rebuilt_from_the_table_and_numbers_go_on(shop: Sandbox) -> None:
    shop.run("numbers", ForBatches(3))
    for file in shop.project.catalog_file.parent.glob("ledger.db*"):
        file.unlink()

    shop.run("numbers")

    assert_numbers(shop, 5)
    # A stop may land after Spark listed the next file and before it planned a batch: the next batch then takes two files.
    recorded = shop.ledger.commits.of_table("shop.numbers")
    assert [c.batch for c in recorded if c.kind == "batch"][:4] == [0, 1, 2, 3]
    view = EmbeddedCatalog(shop.project).load("shop.numbers")
    assert [c.snapshot_id for c in recorded] == list(view.snapshots), "every snapshot is known again"
    entries = history_of("shop.numbers", EmbeddedCatalog(shop.project).load("shop.numbers"), None)
    assert (Kind.BOUNDARY, 2) in [(e.kind, e.attempt) for e in entries], "nobody can prove attempt 1 dead"


def test_a_deleted_metadata_file_is_refused(shop: Sandbox) -> None:
    """Spark would invent a new query id and Iceberg's own sink would take every replayed row again."""
    shop.run("numbers", ForBatches(2))
    (checkpoint(shop) / "metadata").unlink()

    with pytest.raises(CheckpointDamaged, match="'metadata' file is missing"):
        shop.run("numbers")

    assert not (checkpoint(shop) / "metadata").exists(), "nothing was written"
    assert_numbers(shop, 2)


def test_a_lost_checkpoint_is_refused_until_a_new_strand_is_asked_for(shop: Sandbox) -> None:
    shop.run("numbers", ForBatches(2))
    shutil.rmtree(checkpoint(shop))

    with pytest.raises(ChainBroken, match="the checkpoint .* is gone"):
        shop.run("numbers")
    assert_numbers(shop, 2)

    shop.run("numbers", allow=Allowances(new_strand=True))

    entries = history_of("shop.numbers", EmbeddedCatalog(shop.project).load("shop.numbers"), None)
    boundary = next(e for e in entries if e.kind is Kind.BOUNDARY)
    assert boundary.strand != entries[-1].strand
    assert len(table_rows(shop.project, "shop.numbers")) == 20 + 50, "asked for: everything was read again"


def test_a_table_rolled_back_behind_our_back_is_refused(shop: Sandbox) -> None:
    shop.run("numbers", ForBatches(3))
    first = list(EmbeddedCatalog(shop.project).load("shop.numbers").ancestors())[-1]
    shop.sql(f"CALL {{c}}.system.rollback_to_snapshot('shop.numbers', {first.id})")

    with pytest.raises(ChainBroken, match="rolled back from batch 2 to batch 0 without a boundary"):
        shop.run("numbers")


def test_a_dropped_table_is_refused_and_may_begin_again_where_the_checkpoint_is(shop: Sandbox) -> None:
    shop.run("numbers", ForBatches(2))
    shop.sql("DROP TABLE {c}.shop.numbers PURGE")

    with pytest.raises(ChainBroken, match="it was dropped, or its history was removed"):
        shop.run("numbers")
    shop.run("numbers", allow=Allowances(start_tables=frozenset(["shop.numbers"])))

    assert_rows_once(shop.project, "shop.numbers", "n", range(20, 50))


def test_foreign_appends_and_compactions_in_between_are_accepted_and_told_apart(shop: Sandbox) -> None:
    shop.run("numbers", ForBatches(2))
    shop.sql("INSERT INTO {c}.shop.numbers VALUES (1000)")
    shop.sql("CALL {c}.system.rewrite_data_files(table => 'shop.numbers', options => map('min-input-files', '2'))")

    shop.run("numbers")

    assert_rows_once(shop.project, "shop.numbers", "n", [*range(50), 1000])
    kinds = [e.kind for e in history_of("shop.numbers", EmbeddedCatalog(shop.project).load("shop.numbers"), shop.ledger)]
    after = kinds.index(Kind.MAINTENANCE)  # three files, in two batches when the stop came while Spark was listing
    assert after in (2, 3)
    assert kinds == [Kind.BATCH] * after + [Kind.MAINTENANCE, Kind.FOREIGN] + [Kind.BATCH] * 2


def test_old_snapshots_are_expired_and_stay_in_the_history(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.runtime.protocol.EXPIRE_EVERY", 1)
    shop.pipelines(ORDERS.replace('sl.table("shop.numbers")', 'sl.table("shop.numbers", keep_snapshots=10)'))
    for number in range(5, 14):
        add_file(shop, number)

    shop.run("numbers")

    assert_rows_once(shop.project, "shop.numbers", "n", range(140))
    view = EmbeddedCatalog(shop.project).load("shop.numbers")
    assert len(view.snapshots) <= 12
    entries = history_of("shop.numbers", view, shop.ledger)
    assert [e.batch for e in entries] == list(reversed(range(14)))
    assert entries[-1].expired


def test_an_attempt_that_lost_its_place_in_the_ledger_ends_as_fenced(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.ledger.attempts import Attempts

    monkeypatch.setattr(Attempts, "beat", lambda *_: False)

    with pytest.raises(Fenced, match="replaced by a newer one"):
        shop.run("numbers", ForBatches(50))


def test_a_table_added_to_a_running_pipeline_is_refused_every_time_until_it_may_begin_here(shop: Sandbox) -> None:
    shop.run("numbers", ForBatches(2))
    shop.pipelines(ORDERS.replace("shop.numbers", "shop.renamed"))

    for _ in range(2):
        with pytest.raises(ChainBroken, match="rows before that would be missing"):
            shop.run("numbers")
    assert EmbeddedCatalog(shop.project).find("shop.renamed") is None, "refused before anything was made"
    shop.run("numbers", allow=Allowances(start_tables=frozenset(["shop.renamed"])))

    assert_rows_once(shop.project, "shop.renamed", "n", range(20, 50))
    entries = history_of("shop.renamed", EmbeddedCatalog(shop.project).load("shop.renamed"), None)
    assert (entries[-1].kind, entries[-1].offsets) == (Kind.BOUNDARY, "files at 2")


def test_batches_that_went_to_another_table_are_not_taken_for_empty_ones(shop: Sandbox) -> None:
    shop.run("numbers", ForBatches(2))
    shop.pipelines(ORDERS.replace("shop.numbers", "shop.detour"))
    shop.run("numbers", ForBatches(1), allow=Allowances(start_tables=frozenset(["shop.detour"])))
    shop.pipelines(ORDERS)

    with pytest.raises(ChainBroken, match="completed batch 2, of which the ledger knows nothing"):
        shop.run("numbers")


def test_a_rollback_below_everything_we_wrote_is_refused(shop: Sandbox) -> None:
    """The mark alone remembers us then, as after expiry; but this history reaches its very first snapshot."""
    shop.sql("CREATE NAMESPACE {c}.shop")
    shop.sql("CREATE TABLE {c}.shop.numbers (n bigint) USING iceberg")
    shop.sql("INSERT INTO {c}.shop.numbers VALUES (1000)")
    backfill = list(EmbeddedCatalog(shop.project).load("shop.numbers").ancestors())[-1]
    shop.run("numbers", ForBatches(2))
    shop.sql(f"CALL {{c}}.system.rollback_to_snapshot('shop.numbers', {backfill.id})")

    with pytest.raises(ChainBroken, match="rolled back"):
        shop.run("numbers")


def test_a_table_restored_to_an_older_state_under_a_running_attempt_is_noticed(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.model.fence import latest
    from strandline.tables.jvm import JvmTable

    witnesses = JvmTable.witnesses
    first: list[object] = []

    def forgetful(self: JvmTable, pipeline: str) -> object:
        found = witnesses(self, pipeline)
        seen = latest(*found)
        if not first and seen is not None and seen.batch == 0:
            first.append(found)
        return first[0] if first else found

    monkeypatch.setattr(JvmTable, "witnesses", forgetful)

    with pytest.raises(ChainBroken, match="it was rolled back or restored"):
        shop.run("numbers")


def test_staging_makes_no_snapshot(shop: Sandbox) -> None:
    """The canary: an Iceberg release that commits what should only be staged must not get past here."""
    from strandline.tables.jvm import JvmTable

    shop.run("numbers", ForBatches(1))
    table = JvmTable(shop.spark, shop.project.profile.catalog.name, "shop.numbers")
    before = EmbeddedCatalog(shop.project).load("shop.numbers").snapshots.keys()

    staged = table.stage(shop.spark.range(7).selectExpr("id as n"))

    assert staged.rows == 7
    assert EmbeddedCatalog(shop.project).load("shop.numbers").snapshots.keys() == before


def test_a_rollback_hidden_by_compaction_and_expiry_is_refused(shop: Sandbox) -> None:
    """No stamp of ours is left in the history, as after ordinary expiry; but the snapshot that the mark names still is."""
    shop.run("numbers", ForBatches(1))
    shop.sql("INSERT INTO {c}.shop.numbers VALUES (1000)")
    foreign = next(EmbeddedCatalog(shop.project).load("shop.numbers").ancestors())
    shop.run("numbers", ForBatches(1))
    first = list(EmbeddedCatalog(shop.project).load("shop.numbers").ancestors())[-1]
    shop.sql(f"CALL {{c}}.system.expire_snapshots(table => 'shop.numbers', snapshot_ids => ARRAY({first.id}))")
    shop.sql(f"CALL {{c}}.system.rollback_to_snapshot('shop.numbers', {foreign.id})")

    with pytest.raises(ChainBroken, match="rolled back"):
        shop.run("numbers")
