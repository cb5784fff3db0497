"""Outcomes that a healthy catalog rarely gives: unknown commits, conflicts, refusals. Look before you retry."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.ledger.records import IntentState
from strandline.model.errors import CommitUnknown, Fenced, TableUnavailable
from strandline.model.fence import Decision, Verdict
from strandline.runtime.cleanup import plan_cleanup
from strandline.runtime.options import ForBatches
from strandline.tables.catalog import EmbeddedCatalog, local_path
from strandline.tables.fencing import FenceValidator
from strandline.tables.jvm import CommitConflict, CommitOutcomeUnknown, CommitRefused, JvmTable
from strandline.testing import assert_chain_unbroken, assert_rows_once, committed_batches
from strandline.testing.fixtures import Sandbox

pytestmark = pytest.mark.engine

ORDERS = """
import strandline as sl

@sl.pipeline(source=sl.generator(events_per_batch=10, total=40), sink=sl.table("shop.orders"), checkpoint=sl.checkpoint(every="0 s"))
def orders(orders):
    return orders
"""

Append = Callable[..., Any]


@pytest.fixture
def shop(sandbox: Sandbox) -> Sandbox:
    sandbox.pipelines(ORDERS)
    return sandbox


def trouble(monkeypatch: pytest.MonkeyPatch, behave: Callable[[Append, int], Append]) -> list[int]:
    """Replace the table commit by one that misbehaves; returns the list of calls so far."""
    calls: list[int] = []
    real: Append = JvmTable.append

    def append(self: JvmTable, *arguments: Any) -> Any:
        calls.append(len(calls))
        return behave(real, calls[-1])(self, *arguments)

    monkeypatch.setattr(JvmTable, "append", append)
    return calls


def lost_answer(real: Append) -> Append:
    """The catalog commits, and the connection breaks before it can say so."""

    def append(*arguments: Any) -> Any:
        real(*arguments)
        raise CommitOutcomeUnknown("connection reset")

    return append


def never_arrives(*_: Any) -> Any:
    raise CommitOutcomeUnknown("connection reset")


def test_a_commit_whose_answer_was_lost_is_found_by_its_stamp(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = trouble(monkeypatch, lambda real, call: lost_answer(real) if call == 1 else real)

    shop.run("orders")

    assert len(calls) == 4, "the batch that landed was not committed again"
    assert_rows_once(shop.project, "shop.orders", "seq", range(40))
    assert committed_batches(shop.project, "shop.orders") == [0, 1, 2, 3]


def test_a_commit_that_never_arrived_is_tried_again_after_a_look(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = trouble(monkeypatch, lambda real, call: never_arrives if call in (1, 2) else real)

    shop.run("orders")

    assert len(calls) == 6
    assert_rows_once(shop.project, "shop.orders", "seq", range(40))


def test_an_outcome_that_stays_unknown_keeps_its_files_and_the_next_start_decides(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble(monkeypatch, lambda real, call: never_arrives if call >= 1 else real)
    with pytest.raises(CommitUnknown, match="its files are kept"):
        shop.run("orders")
    (unknown,) = shop.ledger.commits.unsettled([IntentState.UNKNOWN])
    assert all(local_path(file.path).exists() for file in unknown.files)
    assert [item.removable for item in plan_cleanup(shop.project, shop.ledger)] == [False], "never while unknown"
    monkeypatch.undo()

    shop.run("orders")
    shop.run("orders")  # the batch is in the table by another attempt's files: now the old ones are known to be garbage

    assert_rows_once(shop.project, "shop.orders", "seq", range(40))
    assert [item.removable for item in plan_cleanup(shop.project, shop.ledger)] == [True]


def test_a_table_that_cannot_be_read_after_an_unknown_commit_ends_the_attempt_and_doubles_nothing(
    shop: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble(monkeypatch, lambda real, call: lost_answer(real) if call == 1 else real)
    monkeypatch.setattr(JvmTable, "own_snapshot", never_arrives)
    with pytest.raises(CommitUnknown, match="the next start finds out"):
        shop.run("orders")
    monkeypatch.undo()

    shop.run("orders")

    assert_rows_once(shop.project, "shop.orders", "seq", range(40))
    assert_chain_unbroken(shop.project, "shop.orders", "orders")
    assert shop.ledger.commits.unsettled([IntentState.UNKNOWN]) == []


def test_a_table_that_others_keep_changing_fails_the_batch_cleanly(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(*_: Any) -> Any:
        raise CommitConflict("main moved")

    trouble(monkeypatch, lambda real, call: conflict if call >= 1 else real)
    with pytest.raises(TableUnavailable, match="changed by others faster than batch 1 could be committed"):
        shop.run("orders")
    monkeypatch.undo()

    shop.run("orders")

    assert_rows_once(shop.project, "shop.orders", "seq", range(40))


def test_a_refused_attempt_removes_its_own_files_and_says_who_holds_the_pipeline(shop: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise CommitRefused(Decision(Verdict.FENCED, "attempt 9 (xyz) holds the pipeline"))

    trouble(monkeypatch, lambda real, call: refuse if call >= 1 else real)
    with pytest.raises(Fenced, match="attempt 9"):
        shop.run("orders")

    data = Path(local_path(EmbeddedCatalog(shop.project).load("shop.orders").location)) / "data"
    live = {row["file_path"] for row in shop.sql("SELECT file_path FROM {c}.shop.orders.files")}
    assert {str(file) for file in data.glob("*.parquet")} == {str(local_path(str(path))) for path in live}


def test_an_upsert_redone_on_top_of_a_foreign_commit(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Main moves between merge and publish: the compare-and-set refuses, the merge is done again on what is there now."""
    sandbox.pipelines("""
        import strandline as sl

        @sl.pipeline(
            source=sl.generator(events_per_batch=10, total=30),
            sink=sl.table("shop.latest", mode="upsert", key="customer", order_by="seq"), checkpoint=sl.checkpoint(every="0 s"),
        )
        def latest(orders):
            return orders.select("customer", "seq")
    """)
    publish = JvmTable.fast_forward
    moved: list[bool] = []

    def move_then_publish(self: JvmTable, *arguments: Any) -> Any:
        if not moved:
            moved.append(True)
            sandbox.sql("INSERT INTO {c}.shop.latest VALUES ('a stranger', 1)")
        return publish(self, *arguments)

    monkeypatch.setattr(JvmTable, "fast_forward", move_then_publish)

    sandbox.run("latest", ForBatches(3))

    rows = sandbox.sql("SELECT customer, count(*) AS n FROM {c}.shop.latest GROUP BY customer")
    assert {row["n"] for row in rows} == {1}
    assert "a stranger" in {row["customer"] for row in rows}
    assert_chain_unbroken(sandbox.project, "shop.latest", "latest")


def test_a_commit_leaves_nothing_behind_in_memory(shop: Sandbox) -> None:
    """A validator that kept its Java table would keep the whole transaction alive: some 1,300 batches filled a 2 GB heap."""
    shop.run("orders")

    validators = [thing for thing in gc.get_objects() if isinstance(thing, FenceValidator)]
    assert all(validator._table is None for validator in validators)
