"""The table of what checkpoints and savepoints can do says nothing that a test does not show."""

from __future__ import annotations

import ast
import re

from .pages import ROOT

SAVED, CANONICAL, FORKED = "savepoints/test_savepoints.py", "savepoints/test_canonical.py", "savepoints/test_forking.py"
MOVED, MATRIX = "savepoints/test_moving.py", "processes/test_savepoint_matrix.py"

SHOWN_BY = {
    "made": [f"{SAVED}::test_a_running_pipeline_takes_scheduled_savepoints_and_disposes_of_the_old_ones"],
    "lives": [f"{SAVED}::test_disposing_removes_bytes_and_tags_and_keeps_the_record"],
    "cost": [f"{CANONICAL}::test_its_files_are_plain_parquet_in_the_declared_types"],
    "pauses the stream": [f"{MATRIX}::test_taken_hot_and_at_rest_and_restored_in_every_way"],
    "keeps its table snapshots from expiry": [f"{SAVED}::test_a_savepoint_is_self_contained_and_says_what_it_belongs_to"],
    "self-contained, can be moved": [
        f"{SAVED}::test_a_moved_savepoint_restores_after_the_checkpoint_is_lost",
        f"{CANONICAL}::test_a_moved_one_is_continued_from_where_the_table_is",
    ],
    "can go to another cluster with its tables": [f"{MOVED}::test_a_moved_pipeline_ends_like_one_that_stayed"],
    "input files at another path": [f"{MOVED}::test_a_moved_pipeline_ends_like_one_that_stayed"],
    "every byte has a SHA-256": [
        f"{SAVED}::test_a_damaged_savepoint_is_refused_by_the_name_of_the_file",
        f"{CANONICAL}::test_a_flipped_byte_is_found_before_anything_is_planned",
    ],
    "survives the loss of the checkpoint": [f"{SAVED}::test_a_moved_savepoint_restores_after_the_checkpoint_is_lost"],
    "go back, tables included": [
        f"{SAVED}::test_an_older_batch_of_the_checkpoint_restores_the_same_way",
        f"{MATRIX}::test_taken_hot_and_at_rest_and_restored_in_every_way",
    ],
    "go on where the tables are": [f"{MATRIX}::test_taken_hot_and_at_rest_and_restored_in_every_way"],
    "go on in a branch": [f"{MATRIX}::test_taken_hot_and_at_rest_and_restored_in_every_way"],
    "fork": [
        f"{FORKED}::test_a_fork_runs_beside_its_parent_and_becomes_main_when_it_is_published",
        f"{MATRIX}::test_taken_hot_and_at_rest_and_restored_in_every_way",
    ],
    "look into its state with strandline state": [f"{CANONICAL}::test_its_files_are_plain_parquet_in_the_declared_types"],
    "schema evolution of keyed state": [f"{CANONICAL}::test_ttl_and_clocks_may_change_and_timers_are_let_go_by_name"],
    "new code, same sources and operators": [f"{FORKED}::test_a_fork_from_the_start_recomputes_everything_with_other_code"],
    "one more or one less source or sink": [
        f"{CANONICAL}::test_what_cannot_be_carried_over_is_refused_while_it_is_planned",
        "runtime/test_seeding.py::test_positions_are_taken_up_in_the_order_of_the_query",
    ],
    "another version of Spark": [f"{SAVED}::test_a_savepoint_is_self_contained_and_says_what_it_belongs_to"],
    "another number of shuffle partitions (rescaling)": [
        f"{CANONICAL}::test_state_goes_into_other_partitions_buckets_and_fields_and_nothing_shows"
    ],
    "one more or one less keyed operator": [
        f"{CANONICAL}::test_state_without_its_operator_is_refused_unless_it_is_let_go_by_name",
        f"{CANONICAL}::test_a_native_savepoint_says_early_that_it_cannot_change_operators",
    ],
    "Spark's own stateful operators": [
        f"{CANONICAL}::test_state_of_sparks_own_operators_is_refused_before_anything_is_begun",
        f"{MATRIX}::test_taken_hot_and_at_rest_and_restored_in_every_way",
    ],
}


def rows() -> list[str]:
    """First cells of the table, without their marks."""
    page = (ROOT / "docs" / "savepoints.md").read_text(encoding="utf-8")
    table = page.partition("## Checkpoints versus savepoints\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).replace("`", "") for cell in cells]
    return [cell for cell in plain if cell and not cell.startswith("|")]


def test_every_row_of_the_table_is_shown_by_tests_that_exist() -> None:
    assert rows() == list(SHOWN_BY)
    for shown in SHOWN_BY.values():
        for test in shown:
            file, _, name = test.partition("::")
            tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test
