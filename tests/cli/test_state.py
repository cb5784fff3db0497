"""`strandline state …` as a user meets it, as far as no engine is needed: what is refused, and with which next command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.ledger import ledger_of
from strandline.ledger.records import ProcessIdentity, StateSize
from strandline.project.config import Project
from strandline.runtime.keyed.building import OperatorRecord
from strandline.state.declarations import Context, KeyedProcess, list_state, reducing_state, ttl
from strandline.state.layout import layout_of
from strandline.state.types import parse_fields
from strandline.testing import run_cli
from strandline.testing.projects import write_sandbox

PIPELINES = """
import strandline as sl

@sl.pipeline(source=sl.generator(total=10), sink=sl.table("shop.totals"))
def totals(orders):
    return orders
"""


class Totals(KeyedProcess):
    recent = list_state("double", ttl=ttl("7 days"))
    total = reducing_state("double", lambda a, b: a + b)

    def process(self, key: Any, events: list[Any], ctx: Context) -> None:
        self.total.add(len(events))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_sandbox(tmp_path, PIPELINES)


def checkpoint(project: Project, batches: int = 3, operators: int = 1) -> Path:
    """What a run leaves behind, without the state itself."""
    folder = Path(project.checkpoint_of("totals"))
    for name in ("offsets", "commits", "strandline-state", *(f"state/{number}" for number in range(operators))):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"s1"}')
    for number in range(batches):
        (folder / "offsets" / str(number)).write_text('v1\n{"batchWatermarkMs":0}\n{"offset":1,"timestamp":0}')
        (folder / "commits" / str(number)).write_text("v1\n{}")
    record = OperatorRecord("totals", (0,), parse_fields("customer string"), True, (layout_of(Totals()),))
    (folder / "strandline-state" / "totals.json").write_text(json.dumps(record.as_json()))
    return folder


def refused(project: Project, *arguments: str, says: str, next_command: str) -> None:
    finished = run_cli(project.root, "state", *arguments)
    assert finished.code == 2, finished.err
    assert says in finished.err
    assert finished.err.strip().splitlines()[-1] == f"next: {next_command}"
    assert "Traceback" not in finished.err
    assert "starting Spark" not in finished.err, "what is wrong was known before"


def test_unknown_pipeline_and_one_that_never_ran(project: Project) -> None:
    refused(project, "list", "total", says="did you mean 'totals'?", next_command="strandline run totals")
    refused(project, "list", "totals", says="has no checkpoint in", next_command="strandline run totals")
    refused(project, "diff", "totals", "--from", "0", "--to", "1", says="has no checkpoint in", next_command="strandline run totals")


def test_a_pipeline_that_has_not_come_far_enough_or_keeps_nothing(project: Project) -> None:
    folder = checkpoint(project, batches=0, operators=0)
    refused(project, "list", "totals", says="has not completed a batch yet", next_command="strandline status")

    (folder / "commits" / "0").write_text("v1\n{}")
    refused(project, "show", "totals", "total", says="pipeline 'totals' keeps no state", next_command="strandline history totals")


def test_names_and_batches_that_are_not_there(project: Project, tmp_path: Path) -> None:
    checkpoint(project)

    refused(
        project,
        *("show", "totals", "totl"),
        says="operator 'totals' has no state 'totl' (states: recent, total); did you mean 'total'?",
        next_command="strandline state show totals total",
    )
    refused(project, "show", "totals", "zzz", says="(states: recent, total)", next_command="strandline state list totals")
    refused(
        project,
        *("show", "totals", "total", "--operator", "total"),
        says="pipeline 'totals' has no stateful operator 'total' (operators: totals); did you mean 'totals'?",
        next_command="strandline state list totals",
    )
    refused(
        project,
        *("list", "totals", "--at", "900"),
        says="batch 900 of 'totals' is not in its checkpoint, which holds the completed batches 0 to 2",
        next_command="strandline state list totals --at 2",
    )
    refused(
        project,
        *("diff", "totals", "--from", "0", "--to", "3"),
        says="batch 3 of 'totals' is not in its checkpoint",
        next_command="strandline state list totals --at 2",
    )


def test_a_file_that_exists_is_not_overwritten(project: Project, tmp_path: Path) -> None:
    checkpoint(project)
    file = tmp_path / "there.parquet"
    file.write_text("mine")

    refused(
        project,
        *("export", "totals", "total", str(file)),
        says="exists already; it is not overwritten",
        next_command=f"rm {file}, or name another file",
    )
    refused(
        project,
        *("export", "totals", "total", str(tmp_path / "no" / "file.parquet")),
        says="does not exist",
        next_command=f"mkdir -p {tmp_path / 'no'}",
    )
    assert file.read_text() == "mine"


# -- status ------------------------------------------------------------------------------------------------------------


def record_sizes(project: Project, recent: list[int], total: list[int]) -> None:
    ledger = ledger_of(project)
    elsewhere = ProcessIdentity("another-host", 1, "boot:1:1")
    attempt = ledger.attempts.begin("totals", id="a", above=0, replaces=None, process=elsewhere, code="src:1", tables=[])
    assert attempt is not None
    ledger.attempts.bind(attempt, "s1", [])
    for batch, (some, all_of_them) in enumerate(zip(recent, total, strict=True)):
        entries = {"recent": some, "total": all_of_them}
        ledger.state_sizes.record([StateSize("totals", "s1", batch, "totals", all_of_them, 100 * batch, 1, 0, 0, entries)])
    ledger.close()


def test_status_tells_sizes_and_warns_of_state_without_ttl_that_only_grows(project: Project) -> None:
    checkpoint(project)
    record_sizes(project, recent=list(range(1, 13)), total=[50, 10, *range(20, 120, 10)])

    finished = run_cli(project.root, "status")

    assert finished.code == 0, finished.err
    assert "totals    totals    110   1.1 kB  11" in finished.out
    assert finished.out.splitlines()[-1] == (
        "warning: state 'total' of 'totals' has no ttl and grew from 10 to 110 entries in the last 11 batches; declare ttl=… or clear it"
    )
    assert "'recent'" not in finished.out, "it has a ttl"
    (told,) = json.loads(run_cli(project.root, "status", "--json").out)["pipelines"]
    assert told["states"] == [{"operator": "totals", "batch": 11, "keys": 110, "bytes": 1100, "entries": {"recent": 12, "total": 110}}]
    assert len(told["warnings"]) == 1


@pytest.mark.parametrize("total", [[*range(9)], [*range(10), 9], [*range(12, 0, -1)], [5] * 12])
def test_status_does_not_warn_of_state_that_rests_or_is_young(project: Project, total: list[int]) -> None:
    checkpoint(project)
    record_sizes(project, recent=[0] * len(total), total=total)

    assert "warning" not in run_cli(project.root, "status").out
