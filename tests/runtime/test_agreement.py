"""Before the first batch: every way in which table, checkpoint and ledger can disagree is refused with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.model.errors import ChainBroken, CheckpointDamaged
from strandline.model.fence import NEVER
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.positions import GeneratorPosition
from strandline.model.stamp import Holder, Witness
from strandline.runtime.agreement import CheckpointFacts, TableFacts, check_identity, check_table


def at(events: int) -> Offsets:
    return Offsets.of({"orders": GeneratorPosition(events, 0)}) if events else ORIGIN


def witness(batch: int, strand: str = "s1", attempt: int = 1) -> Witness:
    end = at((batch + 1) * 10)
    return Witness(strand, Holder(attempt, "a"), batch, end.digest, end)


CHECKPOINT = CheckpointFacts("checkpoints/orders", "s1", last_planned=4, next_batch=5)
"""Planned and completed up to batch 4."""
TABLE = TableFacts("shop.orders", witness(4), witness(4), ledger_batch=4, rows_since={})
FRESH = CheckpointFacts("checkpoints/orders", "s1", last_planned=None, next_batch=0)
UNTOUCHED = TableFacts("shop.orders", None, None, ledger_batch=None, rows_since={})


def refused(table: TableFacts, checkpoint: CheckpointFacts = CHECKPOINT, at_witness: Offsets | None = None) -> str:
    with pytest.raises(ChainBroken) as broken:
        check_table(table, checkpoint, "orders", at_witness)
    assert "strandline" in broken.value.next_command
    assert "'shop.orders'" in broken.value.message
    return broken.value.message


# -- who the checkpoint is -----------------------------------------------------------------------------------


def test_a_checkpoint_that_knows_who_it_is() -> None:
    check_identity(CHECKPOINT, "orders", owner="orders")
    check_identity(CHECKPOINT, "orders", owner=None)
    check_identity(replace(FRESH, strand=None), "orders", owner=None)


def test_a_checkpoint_that_lost_its_identity_is_refused_before_spark_gives_it_a_new_one() -> None:
    with pytest.raises(CheckpointDamaged, match=r"planned batches up to 4 but its 'metadata' file is missing") as refusal:
        check_identity(replace(CHECKPOINT, strand=None), "orders", owner=None)

    assert "restore checkpoints/orders/metadata from a copy" in refusal.value.next_command


def test_the_checkpoint_of_another_pipeline_is_refused() -> None:
    with pytest.raises(ChainBroken, match=r"\(strand s1\) belongs to pipeline 'returns', not to 'orders'"):
        check_identity(CHECKPOINT, "orders", owner="returns")


# -- when all is well ----------------------------------------------------------------------------------------


def test_a_first_start() -> None:
    check_table(UNTOUCHED, FRESH, "orders", None)
    check_table(replace(UNTOUCHED, newest=NEVER), FRESH, "orders", None)


def test_a_table_that_got_its_mark_when_it_was_made() -> None:
    born = Witness("s1", Holder(1, "a"), -1, ORIGIN.digest, ORIGIN)

    check_table(replace(UNTOUCHED, mark=born), FRESH, "orders", ORIGIN)


def test_a_restart_after_a_clean_end() -> None:
    check_table(TABLE, CHECKPOINT, "orders", at(50))


def test_a_restart_after_a_kill_between_table_and_checkpoint() -> None:
    """The table holds batch 5, which the checkpoint has planned but not completed: the replay will be a duplicate."""
    killed = CheckpointFacts("checkpoints/orders", "s1", last_planned=5, next_batch=5)

    check_table(replace(TABLE, mark=witness(5), newest=witness(5), ledger_batch=5), killed, "orders", at(60))


def test_a_restart_with_a_ledger_that_did_not_hear_of_the_last_commit() -> None:
    check_table(replace(TABLE, ledger_batch=3), CHECKPOINT, "orders", at(50))
    check_table(replace(TABLE, ledger_batch=None), CHECKPOINT, "orders", at(50))


def test_a_table_whose_last_batches_had_no_rows() -> None:
    quiet = TableFacts("shop.orders", witness(2), witness(2), ledger_batch=2, rows_since={3: 0, 4: 0})

    check_table(quiet, CHECKPOINT, "orders", at(30))


@pytest.mark.parametrize(("mark", "newest"), [(witness(4), None), (None, witness(4)), (witness(2), witness(4))])
def test_a_table_that_lost_stamps_or_mark_but_not_both(mark: Witness | None, newest: Witness | None) -> None:
    check_table(replace(TABLE, mark=mark, newest=newest), CHECKPOINT, "orders", at(50))


# -- when it is not ------------------------------------------------------------------------------------------


def test_a_table_that_was_rolled_back() -> None:
    message = refused(replace(TABLE, newest=witness(2)), at_witness=at(50))

    assert "was rolled back from batch 4 to batch 2 without a boundary" in message


def test_a_table_that_was_rolled_back_to_before_our_first_commit() -> None:
    assert "was rolled back from batch 4" in refused(replace(TABLE, newest=NEVER), at_witness=at(50))


def test_a_checkpoint_that_is_gone() -> None:
    with pytest.raises(ChainBroken, match="but the checkpoint checkpoints/orders is gone") as broken:
        check_table(TABLE, replace(FRESH, strand="s2"), "orders", None)

    assert "strandline run orders --new-strand" in broken.value.next_command


def test_the_checkpoint_of_another_strand() -> None:
    message = refused(TABLE, replace(CHECKPOINT, strand="s2"))

    assert "was written by strand s1, the checkpoint checkpoints/orders is strand s2: it is another job's memory" in message


@pytest.mark.parametrize(("last", "ends_at"), [(2, "batch 2"), (None, "batch -1")])
def test_an_older_copy_of_the_checkpoint(last: int | None, ends_at: str) -> None:
    older = replace(CHECKPOINT, last_planned=last, next_batch=0 if last is None else last + 1)

    message = refused(TABLE, older)

    assert f"is older than table 'shop.orders': it ends at {ends_at}, the table already holds batch 4" in message


def test_a_copy_of_the_checkpoint_that_went_its_own_way() -> None:
    message = refused(TABLE, at_witness=at(49))

    assert "batch 4 of table 'shop.orders' ends elsewhere than in the checkpoint" in message


def test_a_commit_that_the_ledger_saw_and_the_table_lost() -> None:
    message = refused(replace(TABLE, mark=witness(2), newest=witness(2)), at_witness=at(30))

    assert "the ledger saw batch 4 enter table 'shop.orders', but the table only holds batch 2" in message


def test_batches_that_brought_rows_which_the_table_does_not_hold() -> None:
    holes = TableFacts("shop.orders", witness(2), witness(2), ledger_batch=2, rows_since={3: 0, 4: 12})

    assert "batch 4 brought 12 rows to table 'shop.orders' according to the ledger" in refused(holes, at_witness=at(30))


def test_batches_that_ran_where_nobody_saw_them() -> None:
    unseen = TableFacts("shop.orders", witness(2), witness(2), ledger_batch=2, rows_since={3: None, 4: None})

    assert "has completed batch 3, of which the ledger knows nothing" in refused(unseen, at_witness=at(30))


def test_a_table_that_was_dropped_and_made_anew() -> None:
    message = refused(replace(UNTOUCHED, ledger_batch=4))

    assert "the ledger saw batch 4 enter table 'shop.orders', but it holds nothing of 'orders'" in message


@pytest.mark.parametrize("newest", [None, NEVER])
def test_a_table_added_to_a_pipeline_that_already_runs(newest: Witness | None) -> None:
    with pytest.raises(ChainBroken, match="the checkpoint is already at batch 5: the rows before that would be missing") as broken:
        check_table(replace(UNTOUCHED, newest=newest), CHECKPOINT, "orders", None)

    assert broken.value.next_command.endswith("strandline run orders --start-table shop.orders")
