"""`strandline abandoned …` as a user meets it, as far as no engine is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.testing import run_cli
from strandline.testing.plain_tables import PlainTables

TAG = "strandline-abandoned-orders-2"


@pytest.fixture
def folder(tables: PlainTables) -> Path:
    """Three rows that a restore left, as far as the table alone tells."""
    tables.make("shop.orders", id=pa.int64())
    first = tables.append("shop.orders", id=[1])
    tables.tag("shop.orders", tables.append("shop.orders", id=[2, 3, 4]), TAG)
    tables.go_back("shop.orders", first)
    return tables.project.root


def test_what_was_left_is_listed_with_the_way_to_release_it(folder: Path) -> None:
    finished = run_cli(folder, "abandoned", "list")

    assert finished.code == 0, finished.err
    heading, row, following = finished.out.splitlines()
    assert heading.split("  ")[0] == "table"
    assert row.split()[:2] == ["shop.orders", TAG]
    assert following == f"next: strandline abandoned release orders {TAG}"
    (told,) = json.loads(run_cli(folder, "abandoned", "list", "orders", "--json").out)["abandoned"]
    assert (told["tag"], told["rows"], told["snapshots"], told["attempt"], told["left_at"]) == (TAG, 3, 1, 2, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "nobody"], "there is no pipeline 'nobody'"),
        (["release", "orders"], "name the tags to release, or --all"),
        (["release", "orders", TAG, "--all"], "--all and the names of tags exclude each other"),
        (["release", "orders", "strandline-abandoned-orders-9", "--yes"], f"(there are: {TAG})"),
        (["release", "orders", "--all"], "tags are only released when it is confirmed"),
    ],
)
def test_nothing_is_released_by_mistake(folder: Path, arguments: list[str], words: str) -> None:
    finished = run_cli(folder, "abandoned", *arguments)

    assert (finished.code, words in finished.err) == (2, True), finished.err
    assert "Traceback" not in finished.err
    assert "starting Spark" not in finished.err
    assert TAG in run_cli(folder, "abandoned", "list").out


def test_where_nothing_was_left_there_is_nothing_to_release(tmp_path: Path, tables: PlainTables) -> None:
    (tmp_path / "pipelines" / "tested.py").write_text(
        'import strandline as sl\n\n@sl.pipeline(source=sl.generator(), sink=sl.table("shop.orders"))\ndef orders(rows):\n    return rows\n'
    )

    assert run_cli(tmp_path, "abandoned", "list").out == "no restore has left anything behind\n"
    finished = run_cli(tmp_path, "abandoned", "release", "orders", "--all", "--yes")
    assert (finished.code, finished.out) == (0, "no restore has left anything behind\n"), finished.err
