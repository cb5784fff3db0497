"""Checkpoints that a killed attempt had not finished: found and removed, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.place import empty_place, make_current
from strandline.ledger import Ledger, ledger_of
from strandline.ledger.records import Attempt, AttemptStatus, BatchRecord, ProcessIdentity, StrandRecord
from strandline.model.times import utc_now
from strandline.project.config import Project
from strandline.runtime import unfinished
from strandline.runtime.liveness import this_process
from strandline.runtime.strands import FILE, StrandOrigin
from strandline.runtime.unfinished import find_unfinished, remove_unfinished
from strandline.testing.projects import write_sandbox

ALIVE = this_process()
DEAD = replace(ALIVE, started=f"{ALIVE.started.rpartition(':')[0]}:1")
ELSEWHERE = ProcessIdentity("another-host", 7, "another:place:7")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_sandbox(tmp_path)


@pytest.fixture
def ledger(project: Project) -> Iterator[Ledger]:
    opened = ledger_of(project)
    yield opened
    opened.close()


def attempt(ledger: Ledger, process: ProcessIdentity = DEAD, id: str = "abc123") -> Attempt:
    last = ledger.attempts.latest("orders")
    running = last is not None and last.status is AttemptStatus.RUNNING
    begun = ledger.attempts.begin(
        "orders", id=id, above=0, replaces=last.number if last and running else None, process=process, code="c", tables=["shop.orders"]
    )
    assert begun is not None
    return begun


def laid_out(project: Project, by: Attempt, *, whole: bool = True) -> Checkpoint:
    """A restore of batch 4: copies first, then where the strand comes from, then its identity."""
    place = empty_place(project, by.pipeline, by.number, by.id)
    place.storage.write("offsets/4", b"v1\n{}\n{}")
    place.storage.write("commits/4", b"v1\n{}")
    if whole:
        place.storage.write(FILE, StrandOrigin("parent", 4).encode())
        place.give_identity()
    return place


def decisions(project: Project, ledger: Ledger) -> list[str]:
    return [found.decision for found in find_unfinished(project, ledger)]


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_killed_attempt_laid_out_is_removed(project: Project, ledger: Ledger, whole: bool) -> None:
    place = laid_out(project, attempt(ledger), whole=whole)

    (found,) = find_unfinished(project, ledger, "orders")
    assert (found.pipeline, found.attempt, found.location, found.files) == ("orders", 1, place.location, 4 if whole else 2)
    assert found.decision == "remove: unfinished checkpoint of a killed attempt"
    assert remove_unfinished(project, ledger, [found]) == [found]

    assert not Path(place.location).exists()
    assert find_unfinished(project, ledger) == []
    assert [(event.kind, event.detail) for event in ledger.events.of_pipeline("orders")] == [
        ("unfinished-checkpoint-removed", place.location)
    ]


def test_that_of_an_attempt_that_failed_by_itself_too(project: Project, ledger: Ledger) -> None:
    failed = attempt(ledger, ALIVE)
    laid_out(project, failed, whole=False)
    ledger.attempts.end(failed, AttemptStatus.FAILED, "disk full")

    assert decisions(project, ledger) == ["remove: unfinished checkpoint of a failed attempt"]


def test_the_one_that_counts_is_no_leftover(project: Project, ledger: Ledger) -> None:
    make_current(project, "orders", laid_out(project, attempt(ledger)))

    assert decisions(project, ledger) == []


def test_those_that_ever_counted_stay(project: Project, ledger: Ledger) -> None:
    """However it shows: its attempt came to run, another one did, it descends, it has a batch in the ledger, or one of its own on disk."""
    bound = attempt(ledger, id="bound")
    ledger.attempts.bind(bound, str(laid_out(project, bound).strand()), [])
    taken_up = laid_out(project, attempt(ledger, id="placed")).strand()
    ledger.attempts.bind(attempt(ledger, id="later"), str(taken_up), [])
    recorded = laid_out(project, attempt(ledger, id="recorded")).strand()
    ledger.strands.record(StrandRecord("orders", str(recorded), "restore", "parent", 4, None, 4, "2026-01-01T00:00:00Z"))
    inherited = laid_out(project, attempt(ledger, id="inherited")).strand()
    ledger.batches.inherit(BatchRecord("orders", str(inherited), 4, 5, "{}", "{}", "d", {}))
    ran = laid_out(project, attempt(ledger, id="ran"))
    ran.storage.write("offsets/5", b"v1\n{}\n{}")

    assert decisions(project, ledger) == []
    assert len(list(Path(project.checkpoints).iterdir())) == 5


def test_one_that_somebody_may_still_be_at_work_on_stays(project: Project, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(project, attempt(ledger, ELSEWHERE, id="lost"), whole=False)
    laid_out(project, attempt(ledger, ALIVE, id="alive"), whole=False)

    kept = [f"keep: attempt {number} might still be at work on it" for number in (1, 2)]
    assert decisions(project, ledger) == kept
    assert remove_unfinished(project, ledger, find_unfinished(project, ledger)) == []
    monkeypatch.setattr(unfinished, "utc_now", lambda: utc_now() + timedelta(days=2))
    assert decisions(project, ledger) == ["remove: unfinished checkpoint of a killed attempt", kept[1]], "the lost one can never come back"


def test_one_that_the_ledger_cannot_explain_stays(project: Project, ledger: Ledger) -> None:
    known = attempt(ledger)
    laid_out(project, replace(known, id="other"))
    laid_out(project, replace(known, number=9))

    assert decisions(project, ledger) == [
        "keep: the ledger does not know attempt 1 with the id other",
        "keep: the ledger does not know attempt 9 with the id abc123",
    ]


def test_while_nobody_can_say_which_one_counts_all_stay(project: Project, ledger: Ledger) -> None:
    laid_out(project, attempt(ledger))
    Path(project.checkpoints, "orders.current.json").write_text("?")

    (decision,) = decisions(project, ledger)
    assert decision.startswith("keep: ") and "does not say which checkpoint counts" in decision


def test_what_was_taken_up_since_the_plan_was_made_stays(project: Project, ledger: Ledger) -> None:
    place = laid_out(project, attempt(ledger))
    plan = find_unfinished(project, ledger)
    make_current(project, "orders", place)

    assert remove_unfinished(project, ledger, plan) == []
    assert place.exists()
