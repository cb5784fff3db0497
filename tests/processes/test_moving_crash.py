"""kill -9 at every step of moving a pipeline: an export is whole or none, an import that was killed is repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.savepoints.archive import MANIFEST
from strandline.savepoints.moving import MOVE
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import CrashPoint, assert_chain_unbroken, run_cli, table_rows
from strandline.testing.projects import write_sandbox

pytestmark = pytest.mark.process

PIPELINE = """
import strandline as sl

@sl.pipeline(source=sl.files("data", schema="n bigint", max_files_per_batch=1), sink=sl.table("shop.numbers"), checkpoint=sl.checkpoint(every="0 s"))
def numbers(rows):
    return sl.dedupe(rows, by="n", forever=True)
"""


def add_file(folder: Path, number: int) -> None:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / f"{number}.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(number * 10, number * 10 + 10)))


def said(folder: Path, *arguments: str) -> str:
    finished = run_cli(folder, *arguments)
    assert finished.code == 0, finished.err
    return finished.out


def test_a_killed_move_is_repeated_and_finishes(tmp_path: Path) -> None:
    here, there, out = tmp_path / "here", tmp_path / "there", tmp_path / "out"
    write_sandbox(here, PIPELINE)
    project = write_sandbox(there, PIPELINE)
    add_file(here, 0)
    said(here, "run", "numbers", "--available-now")
    savepoint = json.loads(said(here, "savepoint", "create", "numbers", "--json"))["id"]

    assert run_cli(here, "savepoint", "export", "numbers", savepoint, str(out), "--with-tables", crash_at=CrashPoint.EXPORT_COPIED).killed

    assert not (out / MANIFEST).exists() and not (out / MOVE).exists()
    assert run_cli(there, "savepoint", "import", str(out)).code == 3
    said(here, "savepoint", "export", "numbers", savepoint, str(out), "--with-tables")

    assert run_cli(there, "savepoint", "import", str(out), crash_at=CrashPoint.IMPORT_LANDED).killed

    assert EmbeddedCatalog(project).tables() == []
    assert states(there) == {savepoint: "incomplete"}

    assert run_cli(there, "savepoint", "import", str(out), crash_at=CrashPoint.IMPORT_REGISTERED).killed

    assert EmbeddedCatalog(project).tables() == ["shop.numbers"]
    assert states(there) == {savepoint: "incomplete"}
    add_file(there, 1)
    lost = run_cli(there, "run", "numbers", "--available-now")
    assert lost.code == 3 and "is gone" in lost.err, "the table is here, its savepoint is not: nothing may be read from the start"

    said(there, "savepoint", "import", str(out))

    assert states(there) == {savepoint: "complete"}
    assert run_cli(there, "savepoint", "import", str(out)).code == 4
    restore = ("--from-savepoint", savepoint, "--tables", "continue", "--map-path", f"{here}/data=data", "--yes", "--available-now")
    said(there, "run", "numbers", *restore)
    assert sorted(row["n"] for row in table_rows(project, "shop.numbers")) == list(range(20))
    assert_chain_unbroken(project, "shop.numbers", "numbers")


def states(folder: Path) -> dict[str, str]:
    lines = json.loads(said(folder, "savepoint", "list", "numbers", "--json"))["savepoints"]
    return {line["id"]: line["state"] for line in lines}
