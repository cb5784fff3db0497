"""Is the holder of a pipeline alive? Real processes, started, frozen and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from strandline.ledger.records import Attempt, AttemptStatus, ProcessIdentity
from strandline.model.times import rfc3339, utc_now
from strandline.runtime.liveness import BEAT, LEASE, Liveness, liveness_of, process_is_gone, this_process

IDENTIFY = "import sys; from strandline.runtime.liveness import this_process as t; print(t().started, flush=True); sys.stdin.read()"


def attempt(process: ProcessIdentity, *, silent_for: timedelta = timedelta(0), status: AttemptStatus = AttemptStatus.RUNNING) -> Attempt:
    beat = rfc3339(utc_now() - silent_for)
    return Attempt("orders", 1, "a", status, "s1", process, "src:1", (), beat, beat, None, None, None)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", IDENTIFY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def identity_of(child: subprocess.Popen[str]) -> ProcessIdentity:
    assert child.stdout is not None
    return ProcessIdentity(this_process().host, child.pid, child.stdout.readline().strip())


def test_this_process_lives() -> None:
    me = this_process()

    assert me.pid == os.getpid()
    assert me == this_process(), "an identity does not change while the process lives"
    assert not process_is_gone(me)
    assert liveness_of(attempt(me)) is Liveness.ALIVE


def test_a_killed_process_is_dead_from_that_moment_even_as_a_zombie_of_the_system(child: subprocess.Popen[str]) -> None:
    identity = identity_of(child)
    assert liveness_of(attempt(identity)) is Liveness.ALIVE

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not yet taken notice

    assert liveness_of(attempt(identity)) is Liveness.DEAD
    child.wait()
    assert liveness_of(attempt(identity)) is Liveness.DEAD


def test_a_frozen_process_is_silent_but_not_dead(child: subprocess.Popen[str]) -> None:
    identity = identity_of(child)
    child.send_signal(signal.SIGSTOP)

    assert not process_is_gone(identity)
    assert liveness_of(attempt(identity, silent_for=LEASE + timedelta(seconds=5))) is Liveness.SILENT


def test_a_later_process_with_the_same_pid_is_another_one() -> None:
    me = this_process()
    place, _, _ = me.started.rpartition(":")

    assert process_is_gone(replace(me, started=f"{place}:1"))


@pytest.mark.parametrize(
    "elsewhere",
    [
        replace(this_process(), host="another-host", pid=2**22 + 1),
        replace(this_process(), started="another-boot:1:1", pid=2**22 + 1),
        replace(this_process(), started="unknown", pid=2**22 + 1),
    ],
)
def test_a_process_that_ran_elsewhere_is_never_provably_gone_only_silent(elsewhere: ProcessIdentity) -> None:
    assert not process_is_gone(elsewhere)
    assert liveness_of(attempt(elsewhere)) is Liveness.ALIVE
    assert liveness_of(attempt(elsewhere, silent_for=LEASE - timedelta(seconds=5))) is Liveness.ALIVE
    assert liveness_of(attempt(elsewhere, silent_for=LEASE + timedelta(seconds=5))) is Liveness.SILENT


@pytest.mark.parametrize("status", [status for status in AttemptStatus if status is not AttemptStatus.RUNNING])
def test_an_attempt_that_recorded_its_end_has_ended_whatever_its_process_does(status: AttemptStatus) -> None:
    assert liveness_of(attempt(this_process(), status=status)) is Liveness.ENDED


def test_a_clock_that_runs_ahead_elsewhere_does_not_make_a_holder_silent() -> None:
    ahead = attempt(ProcessIdentity("another-host", 1, "x:1:1"), silent_for=timedelta(minutes=-5))

    assert liveness_of(ahead) is Liveness.ALIVE


def test_a_lease_survives_several_missed_beats() -> None:
    assert LEASE >= 10 * BEAT
