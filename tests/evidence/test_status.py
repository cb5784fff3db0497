"""Which pipelines run, and how the others ended: the ledger's word, unless the process shows otherwise."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from strandline.evidence.status import status_of_all
from strandline.ledger import Ledger, open_ledger
from strandline.ledger.records import Attempt, AttemptStatus, ProcessIdentity
from strandline.runtime.liveness import this_process

ELSEWHERE = ProcessIdentity("another-host", 1, "boot:1:1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(file: Path) -> Iterator[Ledger]:
    opened = open_ledger(f"sqlite:///{file}")
    yield opened
    opened.close()


def begin(ledger: Ledger, pipeline: str, process: ProcessIdentity) -> Attempt:
    attempt = ledger.attempts.begin(pipeline, id="a", above=0, replaces=None, process=process, code="src:1", tables=["shop.orders"])
    assert attempt is not None
    return attempt


def state(ledger: Ledger, pipeline: str) -> str:
    (found,) = status_of_all(ledger, pipeline)
    return found.state


def test_nothing_ran_yet(ledger: Ledger) -> None:
    assert status_of_all(ledger) == []


def test_a_running_pipeline_tells_where_it_runs_and_how_far_it_is(ledger: Ledger) -> None:
    attempt = begin(ledger, "orders", this_process())
    ledger.attempts.bind(attempt, "s1", ["shop.orders", "shop.orders__late"])
    ledger.attempts.beat(attempt, '{"batch": 7, "lag": "3 files"}')

    (status,) = status_of_all(ledger)

    assert (status.pipeline, status.state, status.attempt, status.strand) == ("orders", "running", 1, "s1")
    assert (status.host, status.pid) == (this_process().host, this_process().pid)
    assert status.progress == {"batch": 7, "lag": "3 files"}
    assert status.tables == ("shop.orders", "shop.orders__late")
    assert status.ended_at is None
    assert json.dumps(asdict(status))


@pytest.mark.parametrize("ending", [AttemptStatus.STOPPED, AttemptStatus.FAILED, AttemptStatus.FENCED])
def test_an_ended_pipeline_tells_how_and_why(ledger: Ledger, ending: AttemptStatus) -> None:
    attempt = begin(ledger, "orders", this_process())
    ledger.attempts.end(attempt, ending, "the reason")

    (status,) = status_of_all(ledger)

    assert (status.state, status.reason) == (ending.value, "the reason")
    assert status.ended_at is not None
    assert status.progress == {}


def test_a_killed_process_is_dead_whatever_it_last_said(ledger: Ledger, file: Path) -> None:
    script = (
        "import sys, strandline.ledger as l, strandline.runtime.liveness as v\n"
        "l.open_ledger(sys.argv[1]).attempts.begin("
        "'orders', id='a', above=0, replaces=None, process=v.this_process(), code='src:1', tables=[])\n"
        "print('running', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, f"sqlite:///{file}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    assert state(ledger, "orders") == "running"

    process.kill()
    process.communicate()

    assert state(ledger, "orders") == "dead"


def test_a_process_on_another_machine_is_silent_when_its_lease_is_over(ledger: Ledger, file: Path) -> None:
    begin(ledger, "orders", ELSEWHERE)
    assert state(ledger, "orders") == "running"

    connection = sqlite3.connect(file)
    connection.execute("UPDATE attempts SET heartbeat_at = '2026-01-01T00:00:00.000Z'")
    connection.commit()
    connection.close()

    assert state(ledger, "orders") == "silent"


def test_only_the_newest_attempt_of_each_pipeline_is_told(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.attempts.end(begin(ledger, "orders", ELSEWHERE), AttemptStatus.STOPPED, "as asked")
    begin(ledger, "returns", ELSEWHERE)

    assert [(s.pipeline, s.attempt, s.state) for s in status_of_all(ledger)] == [("orders", 2, "stopped"), ("returns", 1, "running")]
    assert [s.pipeline for s in status_of_all(ledger, "returns")] == ["returns"]
    assert status_of_all(ledger, "never") == []
