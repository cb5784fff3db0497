"""Branches, forks and publications on Spark: a second strand beside the pipeline, and what it takes to become its main."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strandline.checkpoints.place import strand_places
from strandline.evidence.history import Kind, history_of
from strandline.ledger.records import AttemptStatus
from strandline.model.errors import ChainBroken, Fenced, NotFound, Refused, UsageError
from strandline.model.fork import Fork, Into
from strandline.model.until import Until
from strandline.project.forks import declare_fork, forks_of
from strandline.runtime.options import Allowances, ClaimOnly
from strandline.savepoints.archive import find_archive
from strandline.savepoints.discarding import discard, find_fork
from strandline.savepoints.forking import is_made, plan_fork
from strandline.savepoints.publishing import Objection, plan_publication
from strandline.savepoints.restoring import plan_from_checkpoint, plan_from_savepoint
from strandline.savepoints.session import SessionTags
from strandline.savepoints.table_plans import ROLLBACK, TableChoice, Tables
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import table_rows
from strandline.testing.fixtures import Sandbox

from .counted import COUNTED, add_file, take

pytestmark = pytest.mark.engine


@pytest.fixture
def shop(sandbox: Sandbox) -> Sandbox:
    sandbox.pipelines(COUNTED)
    for number in range(3):
        add_file(sandbox, number)
    return sandbox


def assert_counted(shop: Sandbox, table: str, files: int, first: int = 0) -> None:
    """Every event of the files once, numbered per key from the very first event on."""
    rows = sorted(table_rows(shop.project, table), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == list(range(first * 10, files * 10))
    for row in rows:
        assert row["seen"] == row["n"] // 3 + 1, row


def into_branch(shop: Sandbox, savepoint: str, branch: str) -> None:
    archive = find_archive(shop.project, "counted", savepoint)
    tables = Tables(TableChoice.BRANCH, branch)
    found = plan_from_savepoint(shop.project, shop.pipeline("counted"), shop.ledger, archive, tables)
    shop.run("counted", allow=Allowances(restoration=found.restoration))


def fork(shop: Sandbox, begins: str, into: str, name: str = "trial", until: Until | None = None, code: str | None = None) -> None:
    wanted = Fork(name, "counted", Into.parse(into), begins, code, until, profile=shop.project.profile_name)
    plan = plan_fork(shop.project, shop.pipeline("counted"), wanted, shop.ledger, begins)
    declare_fork(shop.project, wanted)
    shop.run(name, allow=Allowances(restoration=plan.restoration))


def publish_branch(shop: Sandbox, branch: str) -> None:
    plan = plan_publication(shop.project, shop.ledger, branch)
    shop.run(plan.pipeline.name, ClaimOnly(), Allowances(restoration=plan.restoration))


def refs(shop: Sandbox, table: str = "shop.counted") -> dict[str, int]:
    return EmbeddedCatalog(shop.project).load(table).refs


def test_a_restore_into_a_branch_leaves_main_to_its_readers_and_fences_whoever_wrote_it(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)
    add_file(shop, 3)
    old = shop.run("counted")

    into_branch(shop, saved.id, "again")

    assert_counted(shop, "shop.counted", 4)
    assert_counted(shop, "shop.counted@again", 4)
    add_file(shop, 4)
    shop.run("counted")  # goes on in the branch
    assert_counted(shop, "shop.counted", 4)
    assert_counted(shop, "shop.counted@again", 5)
    view = EmbeddedCatalog(shop.project).load("shop.counted")
    main, branch = (view.on(name).mark("counted") for name in ("main", "again"))
    assert main is not None and branch is not None
    assert main.strand == old.strand and main.holder.attempt == 3, "an old attempt may no longer write to main"
    assert branch.strand != old.strand
    told = [(entry.branch, entry.reason) for entry in history_of("shop.counted", view, shop.ledger) if entry.kind is Kind.BOUNDARY]
    assert told == [("again", "restore"), (None, "left-for-another-branch")]

    publish_branch(shop, "again")
    assert_counted(shop, "shop.counted", 5)
    assert "again" not in refs(shop)
    add_file(shop, 5)
    shop.run("counted")
    assert_counted(shop, "shop.counted", 6)


def test_a_savepoint_of_a_branch_goes_back_in_the_branch(shop: Sandbox) -> None:
    shop.run("counted")
    into_branch(shop, take(shop).id, "again")
    add_file(shop, 3)
    shop.run("counted")
    saved = take(shop)
    add_file(shop, 4)
    shop.run("counted")

    found = plan_from_savepoint(
        shop.project, shop.pipeline("counted"), shop.ledger, find_archive(shop.project, "counted", saved.id), ROLLBACK
    )
    shop.run("counted", allow=Allowances(restoration=found.restoration))

    assert saved.branch == "again" and found.plan.tables[0].rows_leaving == 10
    assert_counted(shop, "shop.counted@again", 5)
    assert_counted(shop, "shop.counted", 3)


def test_a_fork_runs_beside_its_parent_and_becomes_main_when_it_is_published(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)

    fork(shop, saved.id, "branch:trial")
    add_file(shop, 3)
    shop.run("trial")
    shop.run("counted")  # undisturbed
    assert_counted(shop, "shop.counted", 4)
    assert_counted(shop, "shop.counted@trial", 4)
    (strand,) = shop.ledger.strands.of_pipeline("trial")
    assert (strand.kind, strand.parent, strand.savepoint) == ("fork", saved.strand, saved.id)

    plan = plan_publication(shop.project, shop.ledger, "trial")
    assert not plan.objections
    shop.run("counted", ClaimOnly(), Allowances(restoration=plan.restoration))

    assert_counted(shop, "shop.counted", 4)
    left = next(ref for ref in refs(shop) if ref.startswith("strandline-abandoned-counted-"))
    assert_counted(shop, f"shop.counted@{left}", 4)
    for number in (4, 5):
        add_file(shop, number)
        shop.run("counted")
    assert_counted(shop, "shop.counted", 6)
    with pytest.raises(Fenced):
        shop.run("trial")
    assert "trial" not in refs(shop)


def test_a_fork_from_the_start_recomputes_everything_with_other_code(shop: Sandbox) -> None:
    shop.run("counted")
    (shop.folder / "drafts").mkdir()
    (shop.folder / "drafts" / "doubled.py").write_text(
        COUNTED.replace("yield event.n, key, self.seen.get()", "yield event.n, key, -self.seen.get()")
    )

    fork(shop, "start", "branch:doubled", name="doubled", code="drafts/doubled.py")

    rows = table_rows(shop.project, "shop.counted@doubled")
    assert sorted(row["seen"] for row in rows) == sorted(-row["seen"] for row in table_rows(shop.project, "shop.counted"))
    assert len(rows) == 30
    plan = plan_publication(shop.project, shop.ledger, "doubled")
    assert set(plan.objections) == {Objection.CODE}
    add_file(shop, 3)
    shop.run("counted")
    assert Objection.BEHIND in plan_publication(shop.project, shop.ledger, "doubled").objections


def test_a_fork_into_a_table_of_its_own_begins_after_the_savepoint(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)
    add_file(shop, 3)

    fork(shop, saved.id, "table:shop.counted_b")

    assert_counted(shop, "shop.counted_b", 4, first=3)
    assert_counted(shop, "shop.counted", 3)
    add_file(shop, 4)
    shop.run("trial")
    assert_counted(shop, "shop.counted_b", 5, first=3)


def test_a_restore_behind_a_publication_takes_the_published_rows_back_too(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)
    fork(shop, saved.id, "branch:trial")
    add_file(shop, 3)
    shop.run("trial")
    publish_branch(shop, "trial")
    add_file(shop, 4)
    shop.run("counted")
    assert_counted(shop, "shop.counted", 5)

    found = plan_from_savepoint(
        shop.project, shop.pipeline("counted"), shop.ledger, find_archive(shop.project, "counted", saved.id), ROLLBACK
    )
    shop.run("counted", allow=Allowances(restoration=found.restoration))

    assert found.plan.tables[0].target == saved.tables[0].snapshot
    assert_counted(shop, "shop.counted", 5)


def test_a_branch_that_was_dropped_is_not_begun_again_with_rows_of_main(shop: Sandbox) -> None:
    shop.run("counted")
    fork(shop, "2", "branch:trial")
    shop.sql("ALTER TABLE {c}.shop.counted DROP BRANCH trial")
    add_file(shop, 3)

    with pytest.raises(ChainBroken, match="rolled back"):
        shop.run("trial")
    assert "trial" not in refs(shop)


def test_a_publication_that_main_has_outrun_is_planned_anew(shop: Sandbox) -> None:
    shop.run("counted")
    fork(shop, "2", "branch:trial")
    old = plan_publication(shop.project, shop.ledger, "trial")
    shop.sql("INSERT INTO {c}.shop.counted VALUES (1000, 'a stranger', 1)")

    with pytest.raises(Refused, match="has moved since the plan was made"):
        shop.run("counted", ClaimOnly(), Allowances(restoration=old.restoration))

    assert [place.pipeline for place in strand_places(shop.project)] == ["trial"], "refused before a checkpoint was laid out"
    shop.run("counted")
    assert Objection.FOREIGN in plan_publication(shop.project, shop.ledger, "trial").objections


def test_a_discarded_fork_leaves_nothing_but_its_record(shop: Sandbox) -> None:
    shop.run("counted")
    before = refs(shop)
    fork(shop, "0", "branch:trial")
    found = find_fork(shop.project, shop.ledger, "trial")

    with SessionTags(shop.project, "test", shop.heard.say, shop.spark) as session:
        for _ in range(2):  # may be repeated
            discard(shop.project, shop.ledger, found, session.drop_branch, "me@here")

    assert refs(shop) == before and not forks_of(shop.project)
    assert not [path for path in Path(shop.project.checkpoints).iterdir() if path.name.startswith("trial")]
    assert_counted(shop, "shop.counted", 3)
    fork(shop, "0", "branch:trial")
    assert_counted(shop, "shop.counted@trial", 3)


def test_what_is_refused_says_why_and_makes_nothing(shop: Sandbox) -> None:
    shop.run("counted")
    saved = take(shop)
    before = refs(shop)
    for into, said in (("main", "says not where"), ("branch:main", "main cannot be that branch"), ("table:shop.counted", "itself writes")):
        with pytest.raises(UsageError, match=said):
            wanted = Fork("trial", "counted", Into.parse(into), saved.id)
            wanted.of(shop.pipeline("counted"))
    with pytest.raises(NotFound, match="no complete savepoint"):
        fork(shop, "sp-nothing", "branch:trial")
    with pytest.raises(NotFound, match="keeps batches"):
        fork(shop, "77", "branch:trial")
    with pytest.raises(NotFound, match="no pipeline or fork"):
        plan_publication(shop.project, shop.ledger, "trial")
    assert refs(shop) == before and not forks_of(shop.project)

    fork(shop, "1", "branch:trial")
    with pytest.raises(UsageError, match="already"):
        fork(shop, "1", "branch:trial", name="other")
    other = Fork("trial", "counted", Into("elsewhere"), "1", profile=shop.project.profile_name)
    with pytest.raises(UsageError, match="into branch:trial"):
        is_made(shop.project, other)
    assert is_made(shop.project, replace(other, into=Into("trial"), made_at="another time"))
    with pytest.raises(UsageError, match="already"):
        plan_from_checkpoint(shop.project, shop.pipeline("counted"), shop.ledger, 1, Tables(TableChoice.BRANCH, "trial"))


def test_others_who_wrote_to_main_are_not_written_over_silently(shop: Sandbox) -> None:
    shop.run("counted")
    fork(shop, "2", "branch:trial")
    shop.sql("INSERT INTO {c}.shop.counted VALUES (1000, 'a stranger', 1)")

    assert set(plan_publication(shop.project, shop.ledger, "trial").objections) == {Objection.FOREIGN}

    attempt = shop.ledger.attempts.latest("trial")
    assert attempt is not None and attempt.status is AttemptStatus.STOPPED
