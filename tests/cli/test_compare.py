"""`strandline compare` as a user meets it. The tables are made by PyIceberg: no engine is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.ledger import ledger_of
from strandline.project.config import load_project
from strandline.runtime.liveness import this_process
from strandline.testing import run_cli
from strandline.testing.plain_tables import PlainTables


@pytest.fixture
def folder(tables: PlainTables) -> Path:
    for name, amounts in (("shop.a", [1.0, 2.0, 3.0]), ("shop.b", [1.0, 2.5])):
        tables.make(name, id=pa.int64(), amount=pa.float64())
        tables.append(name, id=list(range(len(amounts))), amount=amounts)
    return tables.project.root


def test_a_table_is_the_same_as_itself(folder: Path) -> None:
    finished = run_cli(folder, "compare", "shop.a", "shop.a@main")

    assert (finished.code, finished.out) == (0, "shop.a: 3 rows, shop.a@main: 3 rows\n  rows equal: 3\n"), finished.err


def test_differences_are_shown_with_their_values_and_exit_code_3(folder: Path) -> None:
    finished = run_cli(folder, "compare", "shop.a", "shop.b", "--key", "id", "--by", "id")

    assert finished.code == 3
    assert "  keys (id) equal: 1\n  only in the first: 1\n  different: 1\n" in finished.out
    assert '    first: {"id": 1, "amount": 2.0}\n    second: {"id": 1, "amount": 2.5}\n' in finished.out
    assert "    second: not there\n" in finished.out
    assert "error: shop.a and shop.b differ: 1 only in the first, 0 only in the second, 1 different\n" in finished.err
    assert "next: strandline history shop.a" in finished.err


def test_what_is_ignored_does_not_count(folder: Path) -> None:
    finished = run_cli(folder, "compare", "shop.a", "shop.b", "--key", "id", "--ignore", "amount")

    assert finished.code == 3
    assert "  keys (id) equal: 2\n  only in the first: 1\n" in finished.out


def test_pipelines_without_state_are_compared_by_their_tables_and_no_spark_is_started(folder: Path) -> None:
    ledger = ledger_of(load_project(folder))
    for pipeline in ("a", "b"):
        assert ledger.attempts.begin(
            pipeline, id="x", above=0, replaces=None, process=this_process(), code="c", tables=[f"shop.{pipeline}"]
        )
    ledger.close()

    same, differs = run_cli(folder, "compare", "a", "a"), run_cli(folder, "compare", "a", "b", "--key", "id", "--json")

    assert (same.code, same.out) == (0, "first: a\nsecond: a\ntable 'a'\nshop.a: 3 rows, shop.a: 3 rows\n  rows equal: 3\n"), same.err
    assert (differs.code, "error: a and b differ: table shop.a\nnext: strandline history a\n" in differs.err) == (3, True), differs.err
    assert "Spark" not in differs.err
    told = json.loads(differs.out)
    assert (told["version"], told["same"], told["left"]["pipeline"], told["operators"]) == (1, False, "a", [])
    assert [(table["output"], table["equal"], table["only_left"]) for table in told["tables"]] == [("a / b", 1, 1)]


def test_json_is_versioned(folder: Path) -> None:
    told = json.loads(run_cli(folder, "compare", "shop.a", "shop.b", "--key", "id", "--limit", "1", "--json").out)

    assert (told["version"], told["same"], told["equal"], told["differing"], told["only_left"]) == (1, False, 1, 1, 1)
    assert len(told["examples"]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shop.a", "shop.c"], "there is no table 'shop.c'"),
        (["shop.a@nope", "shop.a"], "has no branch, tag or snapshot 'nope'"),
        (["shop.a", "shop.b", "--key", "who"], "'who' is not a column of both"),
        (["shop.a", "shop.b", "--state"], "--tables and --state are about pipelines"),
        (["shop.a", "orders"], "'shop.a' is a table: a table is compared with a table"),
        (["orders", "ordres"], "there is no pipeline 'orders'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(folder: Path, arguments: list[str], words: str) -> None:
    finished = run_cli(folder, "compare", *arguments)

    assert finished.code == 2
    assert words in finished.err
    assert "Traceback" not in finished.err
