"""`strandline checkpoint …` as a user meets it: a checkpoint that Spark wrote, read, judged and damaged. No engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.project.config import Project
from strandline.testing import run_cli
from strandline.testing.projects import write_sandbox

PIPELINES = """
import strandline as sl
from pyspark.sql import functions as F

@sl.pipeline(source=sl.generator(total=10), sink=sl.table("shop.totals"), checkpoint=sl.checkpoint(retain=4))
def totals(orders):
    return orders

@sl.pipeline(source=sl.files("data", schema="n bigint"), sink=sl.table("shop.numbers"))
def numbers(rows):
    return rows
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_sandbox(tmp_path, PIPELINES)


@pytest.fixture
def folder(project: Project, written_by_spark: Callable[[str, Path], Checkpoint]) -> Path:
    return Path(written_by_spark("totals", Path(project.checkpoint_of("totals"))).location)


def refused(project: Project, *arguments: str, says: str, next_command: str) -> None:
    finished = run_cli(project.root, "checkpoint", *arguments)
    assert finished.code == 2, finished.err
    assert says in finished.err
    assert finished.err.strip().splitlines()[-1] == f"next: {next_command}"
    assert "Traceback" not in finished.err


def told(project: Project, *arguments: str, code: int = 0) -> dict[str, Any]:
    finished = run_cli(project.root, "checkpoint", *arguments, "--json")
    assert finished.code == code, finished.err
    document: dict[str, Any] = json.loads(finished.out)
    assert document["version"] == 1
    assert document["pipeline"] == arguments[1]
    return document


# -- list and show -----------------------------------------------------------------------------------------------------


def test_the_list_for_people_and_for_programs(project: Project, folder: Path) -> None:
    finished = run_cli(project.root, "checkpoint", "list", "totals")
    assert finished.code == 0, finished.err
    heading, *lines = finished.out.splitlines()
    assert heading.split("  ")[0] == "batch"
    assert [line.split()[0] for line in lines] == ["5", "4", "3", "2", "1", "0"]
    assert "not complete" in lines[0]
    assert "events 80–100" in lines[1]
    assert lines[1].endswith("batch 7")

    document = told(project, "list", "totals", "--limit", "2")
    assert document["retain"] == 4
    assert document["location"] == str(folder)
    assert [(batch["batch"], batch["complete"], batch["until"]) for batch in document["batches"]] == [(5, False, 8), (4, True, 7)]
    assert len(told(project, "list", "totals", "--limit", "0")["batches"]) == 6


def test_the_card_of_a_batch(project: Project, folder: Path) -> None:
    finished = run_cli(project.root, "checkpoint", "show", "totals")
    assert finished.code == 0, finished.err
    assert finished.out.startswith("batch 4 of 'totals'\n")
    assert "4 stores" in finished.out
    assert "0 totals" in finished.out
    assert "1 dedupe" in finished.out

    document = told(project, "show", "totals", "2")
    assert (document["batch"], document["complete"], len(document["stores"])) == (2, True, 4)
    assert {store["version"] for store in document["stores"]} == {3}
    assert all(file["problem"] is None and file["size"] for file in document["files"])
    assert "complete         no\n" in run_cli(project.root, "checkpoint", "show", "totals", "5").out


def test_a_pipeline_without_state(project: Project, written_by_spark: Callable[[str, Path], Checkpoint]) -> None:
    written_by_spark("numbers", Path(project.checkpoint_of("numbers")))

    assert "log entry 4" in run_cli(project.root, "checkpoint", "list", "numbers").out
    assert told(project, "show", "numbers")["stores"] == []
    assert run_cli(project.root, "checkpoint", "verify", "numbers").out.startswith("restartable: yes\n")


# -- verify ------------------------------------------------------------------------------------------------------------


def test_yes(project: Project, folder: Path) -> None:
    finished = run_cli(project.root, "checkpoint", "verify", "totals")

    assert (finished.code, finished.err) == (0, "")
    assert finished.out.splitlines()[0] == "restartable: yes"
    document = told(project, "verify", "totals", "1")
    assert (document["batch"], document["restartable"], document["because"], document["troubles"]) == (1, "yes", None, [])
    assert document["newest_restartable"] == 4


def test_no_with_the_file_and_the_batch_to_take_instead(project: Project, folder: Path) -> None:
    (changelog,) = folder.glob("state/1/0/4_*.changelog")
    changelog.unlink()
    name = str(changelog.relative_to(folder))

    finished = run_cli(project.root, "checkpoint", "verify", "totals")

    assert finished.code == 3
    assert finished.out.splitlines()[0] == f"restartable: no, because {name}: it is not there"
    assert f"missing  {name}" in finished.out
    assert finished.out.splitlines()[-1] == "newest restartable batch: 2"
    document = told(project, "verify", "totals", code=3)
    assert (document["restartable"], document["newest_restartable"]) == ("no", 2)
    assert [(trouble["path"], trouble["problem"]) for trouble in document["troubles"]] == [(name, "missing")]


def test_no_batch_is_left(project: Project, folder: Path) -> None:
    (folder / "metadata").write_text("{")

    finished = run_cli(project.root, "checkpoint", "verify", "totals")

    assert finished.code == 3
    assert finished.out.splitlines()[-2:] == [
        "no batch of this checkpoint can be restarted from",
        "next: restore the files from a copy, or: strandline run totals --new-strand",
    ]
    assert told(project, "verify", "totals", code=3)["newest_restartable"] is None


def test_unknown_is_no_yes(project: Project, folder: Path) -> None:
    for sidecar in folder.rglob("*.crc"):
        sidecar.unlink()
    (changelog,) = folder.glob("state/1/0/5_*.changelog")
    changelog.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))

    finished = run_cli(project.root, "checkpoint", "verify", "totals")

    assert finished.code == 3
    assert finished.out.startswith("restartable: unknown, because ")


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "show", "verify"])
def test_unknown_pipelines_and_those_that_never_ran(project: Project, command: str) -> None:
    refused(project, command, "total", says="did you mean 'totals'?", next_command="strandline run totals")
    refused(project, command, "totals", says="it has not run yet", next_command="strandline run totals")


@pytest.mark.parametrize("command", ["show", "verify"])
def test_batches_that_are_not_there(project: Project, folder: Path, command: str) -> None:
    refused(
        project,
        *(command, "totals", "900"),
        says="batch 900 of 'totals' is not in its checkpoint; the checkpoint holds",
        next_command="strandline checkpoint list totals",
    )
    bad = run_cli(project.root, "checkpoint", command, "totals", "x")
    assert bad.code == 2
    assert "Traceback" not in bad.err


def test_a_planned_batch_cannot_be_restarted_from(project: Project, folder: Path) -> None:
    refused(
        project,
        *("verify", "totals", "5"),
        says="batch 5 of 'totals' was planned and not completed; the checkpoint holds complete batches 0 to 4",
        next_command="strandline checkpoint list totals",
    )


# -- no engine ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "show", "verify"])
def test_it_loads_no_engine_whatever_the_pipeline_imports(project: Project, folder: Path, command: str) -> None:
    code = (
        f"import sys; sys.argv = ['strandline', 'checkpoint', '{command}', 'totals']\n"
        "from strandline.cli.main import app\n"
        "try: app()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=project.root, capture_output=True, text=True, check=True, timeout=60)

    assert set(answer.stderr.split()) & {"pyspark", "py4j", "pyiceberg", "pyarrow", "pandas", "numpy"} == set()
