"""The ledger on SQLite: what the repositories remember, who wins a race, what happens when the file is in trouble."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from strandline.ledger import Ledger, open_ledger
from strandline.ledger.migrations import LATEST, UPGRADES
from strandline.ledger.records import (
    Attempt,
    AttemptStatus,
    BatchRecord,
    CommitRecord,
    Delivery,
    Intent,
    IntentState,
    ProcessIdentity,
    SavepointRecord,
    SavepointState,
    StagedFile,
    StateSize,
)
from strandline.ledger.requests import CANCEL, STOP
from strandline.model.continuity import Gap, TopicFacts
from strandline.model.errors import LedgerUnavailable

FIXTURES = Path(__file__).parent.parent / "fixtures"
HERE = ProcessIdentity("host-a", 42, "boot:1")
PATIENCE = timedelta(milliseconds=200)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def ledger(file: Path) -> Iterator[Ledger]:
    opened = open_ledger(f"sqlite:///{file}", patience=PATIENCE)
    yield opened
    opened.close()


def begin(ledger: Ledger, pipeline: str = "orders", *, id: str = "a", above: int = 0, replaces: int | None = None) -> Attempt | None:
    return ledger.attempts.begin(
        pipeline, id=id, above=above, replaces=replaces, process=HERE, code="src:1", tables=["shop.orders", "shop.vip"]
    )


def must_begin(ledger: Ledger, pipeline: str = "orders", *, id: str = "a", above: int = 0, replaces: int | None = None) -> Attempt:
    attempt = begin(ledger, pipeline, id=id, above=above, replaces=replaces)
    assert attempt is not None
    return attempt


def plan(batch: int, attempt: int = 1, strand: str = "s1") -> BatchRecord:
    return BatchRecord(
        "orders", strand, batch, attempt, f'{{"from": {batch}}}', f'{{"to": {batch}}}', f"{batch:064d}", {"shop.orders": 10, "shop.vip": 0}
    )


def intent(batch: int, *paths: str, table: str = "shop.orders", pipeline: str = "orders") -> Intent:
    return Intent(pipeline, "s1", batch, table, 1, "a", tuple(StagedFile(path, 10, 1000) for path in paths))


def commit(batch: int, snapshot: int, *, table: str = "shop.orders", strand: str = "s1", kind: str = "batch") -> CommitRecord:
    return CommitRecord(
        table=table,
        snapshot_id=snapshot,
        parent_id=snapshot - 1 if batch else None,
        sequence_number=batch + 1,
        committed_at="2026-01-31T12:00:00.000Z",
        kind=kind,
        pipeline="orders",
        strand=strand,
        attempt=1,
        attempt_id="a",
        batch_first=batch,
        batch=batch,
        offsets_start=None,
        offsets_end='{"to": 1}',
        end_digest=f"{batch:064d}",
        rows=10,
        late=1,
        corrected=2,
        replayed=3,
        files=4,
        manifests=5,
        code="src:1",
    )


# -- attempts ------------------------------------------------------------------------------------------------


def test_an_attempt_remembers_who_started_it(ledger: Ledger) -> None:
    attempt = must_begin(ledger, id="first")

    assert (attempt.number, attempt.id, attempt.status) == (1, "first", AttemptStatus.RUNNING)
    assert (attempt.process, attempt.code, attempt.tables) == (HERE, "src:1", ("shop.orders", "shop.vip"))
    assert attempt.started_at == attempt.heartbeat_at
    assert (attempt.strand, attempt.ended_at, attempt.reason, attempt.progress) == (None, None, None, None)
    assert ledger.attempts.get("orders", 1) == attempt
    assert ledger.attempts.latest("orders") == attempt


def test_a_running_attempt_keeps_the_next_one_out(ledger: Ledger) -> None:
    must_begin(ledger)

    assert begin(ledger) is None
    assert must_begin(ledger, "returns").number == 1, "another pipeline has numbers of its own"


def test_numbers_ever_grow(ledger: Ledger) -> None:
    for expected in (1, 2, 3):
        attempt = must_begin(ledger)
        assert attempt.number == expected
        ledger.attempts.end(attempt, AttemptStatus.STOPPED, "as asked")


def test_a_young_ledger_continues_above_what_the_tables_know(ledger: Ledger) -> None:
    assert must_begin(ledger, above=7).number == 8


def test_a_dead_attempt_is_replaced_and_recorded_as_lost(ledger: Ledger) -> None:
    dead = must_begin(ledger)

    assert must_begin(ledger, replaces=dead.number).number == 2

    lost = ledger.attempts.get("orders", 1)
    assert lost is not None
    assert lost.status is AttemptStatus.LOST
    assert lost.ended_at is not None
    assert lost.reason == "found dead or silent by a later start"


def test_of_two_starts_that_found_the_same_dead_attempt_one_gets_it(ledger: Ledger) -> None:
    dead = must_begin(ledger)

    assert must_begin(ledger, id="quick", replaces=dead.number).number == 2
    assert begin(ledger, id="slow", replaces=dead.number) is None


def test_an_attempt_that_ended_by_itself_while_it_was_being_replaced_keeps_its_own_end(ledger: Ledger) -> None:
    silent = must_begin(ledger)
    ledger.attempts.end(silent, AttemptStatus.STOPPED, "its limit was reached")

    assert must_begin(ledger, replaces=silent.number).number == 2

    ended = ledger.attempts.get("orders", 1)
    assert ended is not None
    assert (ended.status, ended.reason) == (AttemptStatus.STOPPED, "its limit was reached")


def test_lost_attempts_are_told_until_the_end_of_time(ledger: Ledger) -> None:
    """One of them may still wake up."""
    must_begin(ledger)
    must_begin(ledger, replaces=1)
    must_begin(ledger, replaces=2)

    assert [attempt.number for attempt in ledger.attempts.lost("orders")] == [1, 2]
    assert ledger.attempts.lost("returns") == []


def test_a_heartbeat_tells_progress_until_the_attempt_is_lost(ledger: Ledger) -> None:
    attempt = must_begin(ledger)

    assert ledger.attempts.beat(attempt, '{"batch": 3}')
    beaten = ledger.attempts.latest("orders")
    assert beaten is not None
    assert beaten.progress == '{"batch": 3}'
    assert beaten.heartbeat_at >= attempt.heartbeat_at

    must_begin(ledger, replaces=attempt.number)
    assert not ledger.attempts.beat(attempt, '{"batch": 4}'), "a zombie learns from its heartbeat that it was replaced"


def test_a_strand_belongs_to_the_pipeline_that_ran_it(ledger: Ledger) -> None:
    attempt = must_begin(ledger)

    ledger.attempts.bind(attempt, "s1", ["shop.orders", "shop.orders__late"])

    bound = ledger.attempts.latest("orders")
    assert bound is not None
    assert (bound.strand, bound.tables) == ("s1", ("shop.orders", "shop.orders__late"))
    assert ledger.attempts.owner_of("s1") == "orders"
    assert ledger.attempts.owner_of("s2") is None


def test_the_newest_attempt_of_every_pipeline(ledger: Ledger) -> None:
    for name in ("returns", "orders"):
        ledger.attempts.end(must_begin(ledger, name), AttemptStatus.FAILED, "broke")
    must_begin(ledger, "orders")

    found = ledger.attempts.latest_of_all()

    assert [(a.pipeline, a.number, a.status) for a in found] == [
        ("orders", 2, AttemptStatus.RUNNING),
        ("returns", 1, AttemptStatus.FAILED),
    ]
    assert ledger.attempts.latest("never") is None
    assert ledger.attempts.get("orders", 9) is None


# -- races ---------------------------------------------------------------------------------------------------

RACER = """
import os, sys, time
from pathlib import Path
from strandline.ledger import open_ledger
from strandline.ledger.records import ProcessIdentity

url, gate, name = sys.argv[1:]
print("ready", flush=True)
while not Path(gate).exists():
    time.sleep(0.001)
ledger = open_ledger(url)
attempt = ledger.attempts.begin(
    "orders", id=name, above=0, replaces=None, process=ProcessIdentity("host", os.getpid(), "boot"), code="src:1", tables=[]
)
print(attempt.number if attempt else "refused", flush=True)
"""


def test_of_processes_that_begin_at_once_on_a_new_ledger_exactly_one_gets_the_attempt(tmp_path: Path) -> None:
    url, gate = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "gate"
    command = [sys.executable, "-c", RACER, url, str(gate)]
    racers = [subprocess.Popen([*command, f"racer-{n}"], stdout=subprocess.PIPE, text=True) for n in range(3)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"

    gate.touch()

    answers = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    assert sorted(answers) == ["1", "refused", "refused"]
    ledger = open_ledger(url)
    winner = ledger.attempts.latest("orders")
    ledger.close()
    assert winner is not None
    assert winner.id == f"racer-{answers.index('1')}"
    assert winner.process.pid == racers[answers.index("1")].pid


def at_once(work: list[Callable[[], None]]) -> None:
    """Runs all at the same moment, each in its own thread; the first error is raised."""
    gate = threading.Barrier(len(work))
    errors: list[BaseException] = []

    def run(part: Callable[[], None]) -> None:
        gate.wait()
        try:
            part()
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(part,)) for part in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_of_threads_that_begin_at_once_exactly_one_gets_each_attempt_and_numbers_grow(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledgers = [open_ledger(url) for _ in range(4)]
    for round_number in range(1, 11):
        won: list[Attempt] = []

        def start(ledger: Ledger, won: list[Attempt] = won) -> None:
            attempt = begin(ledger)
            if attempt is not None:
                won.append(attempt)

        at_once([lambda ledger=ledger: start(ledger) for ledger in ledgers])  # type: ignore[misc]

        assert [attempt.number for attempt in won] == [round_number]
        ledgers[0].attempts.end(won[0], AttemptStatus.STOPPED, "next round")
    for ledger in ledgers:
        ledger.close()


def test_a_new_ledger_can_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """SQLite does not wait by itself while a new file is turned to WAL."""
    for number in range(15):
        url = f"sqlite:///{tmp_path}/{number}.db"
        at_once([lambda url=url: open_ledger(url).close() for _ in range(6)])  # type: ignore[misc]


def test_writers_wait_for_each_other_and_lose_nothing(ledger: Ledger, file: Path) -> None:
    patient = [open_ledger(f"sqlite:///{file}") for _ in range(3)]

    def work(writer: Ledger, name: str) -> None:
        for number in range(20):
            writer.events.add("orders", name, str(number))

    at_once([lambda writer=writer, n=n: work(writer, f"writer-{n}") for n, writer in enumerate(patient)])  # type: ignore[misc]

    events = ledger.events.of_pipeline("orders", limit=1000)
    for n, writer in enumerate(patient):
        assert [e.detail for e in reversed(events) if e.kind == f"writer-{n}"] == [str(number) for number in range(20)]
        writer.close()


# -- batches, intents, commits ---------------------------------------------------------------------------------


def test_the_plan_of_a_batch_is_kept_until_a_replay_replaces_it(ledger: Ledger) -> None:
    ledger.commits.record_intents(plan(0, attempt=1), [])
    assert ledger.batches.get("orders", "s1", 0) == plan(0, attempt=1)

    ledger.commits.record_intents(plan(0, attempt=2), [])

    assert ledger.batches.get("orders", "s1", 0) == plan(0, attempt=2)
    assert ledger.batches.get("orders", "s2", 0) is None


def test_batches_between_two_others_are_told_by_number(ledger: Ledger) -> None:
    for batch in range(5):
        ledger.commits.record_intents(plan(batch), [])

    assert ledger.batches.between("orders", "s1", 1, 4) == {2: plan(2), 3: plan(3)}
    assert ledger.batches.between("orders", "s1", 4, 5) == {}
    assert ledger.batches.knows("orders", "s1")
    assert not ledger.batches.knows("orders", "s2")
    assert not ledger.batches.knows("returns", "s1")


def test_rows_that_turned_out_to_be_nothing_new_are_recorded_as_none(ledger: Ledger) -> None:
    ledger.commits.record_intents(plan(0), [])

    ledger.batches.nothing_new("orders", "s1", 0, "shop.orders")

    assert ledger.batches.get("orders", "s1", 0) == replace(plan(0), rows_by_table={"shop.orders": 0, "shop.vip": 0})


def test_a_batch_and_all_before_it_become_complete(ledger: Ledger) -> None:
    for batch in range(3):
        ledger.commits.record_intents(plan(batch), [])
    ledger.commits.record_intents(plan(0, strand="s2"), [])

    ledger.batches.complete("orders", "s1", 1)

    def completed(batch: int, strand: str = "s1") -> bool:
        record = ledger.batches.get("orders", strand, batch)
        assert record is not None
        return record.completed_at is not None

    assert [completed(batch) for batch in range(3)] == [True, True, False]
    assert not completed(0, "s2")


def test_intents_list_their_files_until_they_are_settled(ledger: Ledger) -> None:
    first, second = ledger.commits.record_intents(plan(0), [intent(0, "/a", "/b"), intent(0, "/c", table="shop.vip")])

    staged = ledger.commits.unsettled([IntentState.STAGED])
    assert staged == [replace(intent(0, "/a", "/b"), id=first), replace(intent(0, "/c", table="shop.vip"), id=second)]

    ledger.commits.record_commit(commit(0, 100), first)
    ledger.commits.settle(second, IntentState.UNKNOWN)

    assert ledger.commits.unsettled([IntentState.STAGED]) == []
    assert [i.id for i in ledger.commits.unsettled([IntentState.STAGED, IntentState.UNKNOWN])] == [second]
    assert [i.id for i in ledger.commits.unsettled([IntentState.COMMITTED])] == [first]


def test_intents_of_one_pipeline(ledger: Ledger) -> None:
    ledger.commits.record_leftover(intent(-1, "/a"), IntentState.REFUSED)
    ledger.commits.record_leftover(intent(-1, "/b", pipeline="returns"), IntentState.REFUSED)

    assert [i.files[0].path for i in ledger.commits.unsettled([IntentState.REFUSED], "returns")] == ["/b"]


def test_files_leave_the_list_when_they_are_removed(ledger: Ledger) -> None:
    (key,) = ledger.commits.record_intents(plan(0), [intent(0, "/a", "/b")])

    ledger.commits.mark_removed(key, ["/a"])

    (left,) = ledger.commits.unsettled([IntentState.STAGED])
    assert [f.path for f in left.files] == ["/b"]


def test_commits_are_kept_in_full_oldest_first(ledger: Ledger) -> None:
    big = 2**62 + 1
    ledger.commits.record_commit(commit(0, big))
    ledger.commits.record_commit(commit(1, big + 1))
    ledger.commits.record_commit(commit(0, 5, table="shop.vip"))

    assert ledger.commits.of_table("shop.orders") == [commit(0, big), commit(1, big + 1)]
    assert ledger.commits.of_table("shop.none") == []
    assert ledger.commits.has_commits("orders", "shop.vip")
    assert not ledger.commits.has_commits("returns", "shop.vip")


def test_recording_a_snapshot_twice_is_once(ledger: Ledger) -> None:
    (key,) = ledger.commits.record_intents(plan(0), [intent(0, "/a")])
    ledger.commits.record_commit(commit(0, 100))

    ledger.commits.record_commit(commit(0, 100), key)

    assert ledger.commits.of_table("shop.orders") == [commit(0, 100)]
    assert ledger.commits.unsettled([IntentState.STAGED]) == []


def test_the_newest_batch_of_a_strand_leaves_other_strands_and_tables_out(ledger: Ledger) -> None:
    ledger.commits.record_commit(commit(0, 100))
    ledger.commits.record_commit(commit(1, 101))
    ledger.commits.record_commit(commit(5, 103, strand="s2"))
    ledger.commits.record_commit(commit(6, 104, table="shop.vip"))

    assert ledger.commits.last_batch_commit("orders", "shop.orders", "s1") == commit(1, 101)
    assert ledger.commits.last_batch_commit("orders", "shop.orders", "s3") is None


def test_a_boundary_sets_a_new_start_for_the_newest_batch(ledger: Ledger) -> None:
    ledger.commits.record_commit(commit(7, 100))
    ledger.commits.record_commit(commit(3, 101, kind="boundary"))
    assert ledger.commits.last_batch_commit("orders", "shop.orders", "s1") is None

    ledger.commits.record_commit(commit(4, 102))

    assert ledger.commits.last_batch_commit("orders", "shop.orders", "s1") == commit(4, 102)


# -- requests, events ------------------------------------------------------------------------------------------


def test_a_request_is_open_until_it_is_answered(ledger: Ledger) -> None:
    stop = ledger.requests.ask("orders", 1, STOP, "ann@host-b")
    cancel = ledger.requests.ask("orders", 1, CANCEL, "ben@host-b")
    ledger.requests.ask("returns", 1, STOP, "ann@host-b")

    assert [(r.id, r.kind, r.requested_by) for r in ledger.requests.open("orders", 1)] == [
        (stop, "stop", "ann@host-b"),
        (cancel, "cancel", "ben@host-b"),
    ]

    ledger.requests.answer(stop, "attempt 1 is ending")

    assert [r.id for r in ledger.requests.open("orders", 1)] == [cancel]


def test_a_request_that_an_attempt_never_saw_does_not_hit_the_next_one(ledger: Ledger) -> None:
    ledger.requests.ask("orders", 1, STOP, "ann@host-b")

    assert ledger.requests.open("orders", 2) == []


def test_events_are_told_newest_first(ledger: Ledger) -> None:
    for number in range(5):
        ledger.events.add("orders", "boundary", f"number {number}", attempt=number)
    ledger.events.add("returns", "boundary", "other")

    told = ledger.events.of_pipeline("orders", limit=2)

    assert [(e.kind, e.detail, e.attempt) for e in told] == [("boundary", "number 4", 4), ("boundary", "number 3", 3)]
    assert told[0].at.endswith("Z")


# -- trouble -------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(file: Path, ledger: Ledger) -> Iterator[sqlite3.Connection]:
    """Another process is in the middle of a long transaction."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield other
    other.close()


def test_a_locked_ledger_is_told_within_the_patience_given_and_nothing_is_half_written(ledger: Ledger, locked: sqlite3.Connection) -> None:
    began = time.monotonic()

    with pytest.raises(LedgerUnavailable, match=r"ledger\.db is locked by another process for more than 200 ms"):
        ledger.commits.record_intents(plan(0), [intent(0, "/a"), intent(0, "/b", table="shop.vip")])
    with pytest.raises(LedgerUnavailable, match="is locked"):
        begin(ledger)

    assert time.monotonic() - began < 5
    locked.execute("ROLLBACK")
    assert ledger.batches.get("orders", "s1", 0) is None
    assert ledger.commits.unsettled(list(IntentState)) == []
    assert must_begin(ledger).number == 1


def test_a_ledger_that_is_locked_while_it_is_opened_is_told_too(file: Path, locked: sqlite3.Connection) -> None:
    began = time.monotonic()

    with pytest.raises(LedgerUnavailable, match="is locked"):
        open_ledger(f"sqlite:///{file}", patience=PATIENCE)

    assert time.monotonic() - began < 5


def test_a_short_lock_is_waited_for(file: Path, ledger: Ledger) -> None:
    patient = open_ledger(f"sqlite:///{file}", patience=timedelta(seconds=20))
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, other.close)
    release.start()

    attempt = must_begin(patient)

    assert attempt.number == 1
    release.join()
    patient.close()


def test_a_transaction_that_fails_in_the_middle_leaves_nothing(ledger: Ledger) -> None:
    with pytest.raises(LedgerUnavailable):
        ledger.commits.record_intents(plan(0), [intent(0, "/a"), intent(0, "/b", "/b")])

    assert ledger.batches.get("orders", "s1", 0) is None
    assert ledger.commits.unsettled(list(IntentState)) == []


def test_a_process_killed_in_the_middle_of_a_transaction_leaves_nothing(file: Path, ledger: Ledger) -> None:
    script = (
        "import os, signal, sys\n"
        "from sqlalchemy import insert\n"
        "from strandline.ledger import open_ledger\n"
        "from strandline.ledger.schema import events\n"
        "with open_ledger(sys.argv[1]).transaction() as connection:\n"
        "    connection.execute(insert(events).values(at='now', pipeline='orders', kind='half', detail='written'))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    killed = subprocess.run([sys.executable, "-c", script, f"sqlite:///{file}"], timeout=60)

    assert killed.returncode == -9
    assert ledger.events.of_pipeline("orders") == []
    assert must_begin(ledger).number == 1, "the lock died with the process"


def test_a_file_that_is_no_database_is_told_as_damaged_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    file.write_bytes(b"not a database at all" * 100)

    with pytest.raises(LedgerUnavailable, match=r"ledger\.db is damaged .*the tables still hold the truth: move the file away"):
        open_ledger(f"sqlite:///{file}")

    assert file.read_bytes() == b"not a database at all" * 100, "nothing was overwritten"


def test_a_torn_file_is_told_as_damaged(file: Path, ledger: Ledger) -> None:
    for number in range(200):
        ledger.events.add("orders", "boundary", f"{number}" * 50)
    ledger.close()
    content = bytearray(file.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    file.write_bytes(content)

    with pytest.raises(LedgerUnavailable, match="is damaged"):
        open_ledger(f"sqlite:///{file}").events.of_pipeline("orders")


def test_a_place_that_cannot_be_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")

    with pytest.raises(LedgerUnavailable, match="cannot be written"):
        open_ledger(f"sqlite:///{tmp_path}")
    with pytest.raises(LedgerUnavailable, match="the ledger folder .* cannot be made: File exists"):
        open_ledger(f"sqlite:///{tmp_path}/taken/ledger.db")


def test_a_database_whose_driver_is_not_installed_is_told_with_what_to_install() -> None:
    with pytest.raises(LedgerUnavailable, match="needs a database driver that is not here") as failed:
        open_ledger("postgresql+nosuchdriver://me@db/ledger")

    assert failed.value.next_command == "pip install 'strandline[postgres]'"


# -- versions ------------------------------------------------------------------------------------------------


def columns(file: Path) -> dict[str, list[tuple[object, ...]]]:
    """Columns and indexes of every table, as SQLite itself tells them."""
    connection = sqlite3.connect(file)
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    found = {
        name: connection.execute(f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{name}') ORDER BY cid").fetchall()
        + connection.execute(f"SELECT name, \"unique\" FROM pragma_index_list('{name}') ORDER BY name").fetchall()
        for name in names
    }
    connection.close()
    return found


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    copy = tmp_path / "ledger-v1.db"
    shutil.copy(FIXTURES / "ledger-v1.db", copy)
    return copy


def test_a_ledger_of_version_1_is_opened_and_read_in_full(version_1: Path) -> None:
    ledger = open_ledger(f"sqlite:///{version_1}")

    attempt = ledger.attempts.latest("orders")
    assert attempt is not None
    assert (attempt.number, attempt.id, attempt.status, attempt.strand) == (1, "a1b2c3d4e5f6", AttemptStatus.RUNNING, "strand-1")
    assert attempt.process == ProcessIdentity("host-a", 4242, "0a1b2c3d:12345")
    assert attempt.tables == ("shop.orders", "shop.orders__late")
    assert attempt.progress == '{"batch": 0, "rows": 7}'
    batches = [ledger.batches.get("orders", "strand-1", batch) for batch in (0, 1)]
    assert [(b.end_digest[:1], b.completed_at is not None) for b in batches if b] == [("e", True), ("f", False)]
    assert [b.rows_by_table for b in batches if b] == [{"shop.orders": 7}, {"shop.orders": 5}]
    (record,) = ledger.commits.of_table("shop.orders")
    assert (record.snapshot_id, record.rows, record.late, record.files, record.kind) == (9_007_199_254_740_993, 7, 1, 2, "batch")
    (staged,) = ledger.commits.unsettled([IntentState.STAGED])
    assert (staged.batch, staged.files) == (1, (StagedFile("/w/c", 5, 90),))
    assert [(r.kind, r.requested_by) for r in ledger.requests.open("orders", 1)] == [("stop", "ann@host-b")]
    assert [e.detail for e in ledger.events.of_pipeline("orders")] == ["shop.orders: takeover"]
    ledger.close()


def test_a_ledger_of_version_1_is_written_on(version_1: Path) -> None:
    ledger = open_ledger(f"sqlite:///{version_1}")

    assert must_begin(ledger, replaces=1).number == 2
    ledger.commits.record_intents(plan(0), [intent(0, "/a")])
    ledger.commits.record_commit(commit(0, 100))

    assert len(ledger.commits.of_table("shop.orders")) == 2
    ledger.close()


def test_a_ledger_of_version_2_tells_of_topics_gaps_and_deliveries(tmp_path: Path) -> None:
    copy = tmp_path / "ledger-v2.db"
    shutil.copy(FIXTURES / "ledger-v2.db", copy)
    ledger = open_ledger(f"sqlite:///{copy}")

    assert ledger.topics.latest("orders", "strand-1") == {"orders": TopicFacts("topic-id", {0: (0, 7), 1: (2, 9)})}
    assert ledger.gaps.of_strand("orders", "strand-1") == [(1, Gap("orders", 1, 2, 4))]
    assert ledger.gaps.of_batches("orders", "strand-1", 1, 5) == []
    (delivery,) = ledger.deliveries.of_topic("kafka:out")
    assert (delivery.batch, delivery.rows, delivery.delivery, delivery.topic_id) == (0, 7, "exactly_once", "out-id")
    assert ledger.deliveries.last("orders", "strand-1", "kafka:out") == delivery
    assert ledger.deliveries.last("orders", "strand-2", "kafka:out") is None
    ledger.close()


def test_the_newest_description_of_a_topic_counts(ledger: Ledger) -> None:
    ledger.topics.record("orders", "s", 1, {"a": TopicFacts("id-1", {0: (0, 1)})})
    ledger.topics.record("orders", "s", 2, {"a": TopicFacts("id-1", {0: (0, 1), 1: (0, 0)})})

    assert set(ledger.topics.latest("orders", "s")["a"].bounds) == {0, 1}
    assert ledger.topics.latest("orders", "other") == {}


def test_a_gap_and_a_delivery_are_recorded_once(ledger: Ledger) -> None:
    (delivery,) = [Delivery("kafka:o", "i", "p", "s", 1, "h", 3, "{}", "{}", "d", 5, "exactly_once", "c", "2026-01-01T00:00:00.000Z")]
    for _ in range(2):
        ledger.gaps.accept("p", "s", 1, 3, [Gap("t", 0, 1, 2)])
        ledger.deliveries.record(delivery)

    assert ledger.gaps.of_strand("p", "s") == [(3, Gap("t", 0, 1, 2))]
    assert ledger.deliveries.of_topic("kafka:o") == [delivery]


def test_a_ledger_of_version_3_tells_of_keyed_state(tmp_path: Path) -> None:
    copy = tmp_path / "ledger-v3.db"
    shutil.copy(FIXTURES / "ledger-v3.db", copy)
    ledger = open_ledger(f"sqlite:///{copy}")

    assert ledger.state_sizes.operators("orders", "strand-1") == ["totals"]
    (size,) = ledger.state_sizes.of_operator("orders", "strand-1", "totals")
    assert (size.keys, size.bytes, size.touched, size.timers_fired, size.expired) == (3, 120, 2, 1, 4)
    assert size.entries == {"recent": 7, "total": 3}
    assert size.oldest_at == "2026-01-31T11:00:00.000Z"


def test_a_ledger_of_version_4_tells_of_savepoints_and_where_strands_come_from(tmp_path: Path) -> None:
    copy = tmp_path / "ledger-v4.db"
    shutil.copy(FIXTURES / "ledger-v4.db", copy)
    ledger = open_ledger(f"sqlite:///{copy}")

    (record,) = ledger.savepoints.of_pipeline("orders")
    assert (record.id, record.state, record.batch, record.bytes, record.note) == (
        "sp-20260131-120000-00ff",
        SavepointState.COMPLETE,
        0,
        4096,
        "before the upgrade",
    )
    assert record.manifest_sha256 == "a" * 64
    (strand,) = ledger.strands.of_pipeline("orders")
    assert (strand.strand, strand.parent, strand.parent_batch, strand.savepoint) == ("strand-2", "strand-1", 0, record.id)
    assert ledger.strands.descended_from(record.id) == [strand]


def test_a_savepoint_is_begun_ended_and_never_forgotten(ledger: Ledger) -> None:
    record = SavepointRecord(
        "sp-1",
        "orders",
        "native",
        SavepointState.CREATING,
        "s",
        3,
        "/sp",
        "me",
        "",
        ProcessIdentity("h", 1, "x"),
        "2026-01-01T00:00:00.000Z",
    )
    ledger.savepoints.begin(record)
    ledger.savepoints.begin(replace(record, id="sp-2", pipeline="others"))

    assert ledger.savepoints.of_pipeline("orders") == [record]
    ledger.savepoints.complete("sp-1", "b" * 64, 10)
    ledger.savepoints.dispose("sp-1", "by me")
    ledger.savepoints.fail("sp-2", "no space")

    states = {found.id: (found.state, found.reason) for found in ledger.savepoints.of_pipeline()}
    assert states == {"sp-1": (SavepointState.DISPOSED, "by me"), "sp-2": (SavepointState.FAILED, "no space")}
    assert ledger.savepoints.get("sp-3") is None


def test_a_request_carries_a_wish_and_tells_how_far_it_is(ledger: Ledger) -> None:
    request = ledger.requests.ask("orders", 1, "savepoint", "me", '{"note": "x"}')
    ledger.requests.report(request, "3 of 7 files")

    (open_one,) = ledger.requests.open("orders", 1)
    assert (open_one.wish, open_one.progress, open_one.answer) == ('{"note": "x"}', "3 of 7 files", None)
    ledger.requests.answer(request, "done")
    assert ledger.requests.get(request).answer == "done"
    assert ledger.requests.open("orders", 1) == []


def test_a_batch_that_runs_again_replaces_its_state_sizes(ledger: Ledger) -> None:
    first = StateSize("orders", "s", 0, "totals", 3, 120, 2, 0, 0, {"total": 3})

    ledger.state_sizes.record([first])
    ledger.state_sizes.record([replace(first, keys=4), replace(first, batch=1, keys=5)])

    assert [(size.batch, size.keys) for size in ledger.state_sizes.of_operator("orders", "s", "totals")] == [(1, 5), (0, 4)]


def test_an_upgraded_ledger_has_the_columns_of_a_new_one(version_1: Path, file: Path, ledger: Ledger) -> None:
    """Whoever changes the schema without a new version and its upgrade step learns it here."""
    open_ledger(f"sqlite:///{version_1}").close()

    assert columns(version_1) == columns(file)


def test_there_is_an_upgrade_step_and_a_fixture_for_every_version() -> None:
    assert sorted(UPGRADES) == list(range(1, LATEST))
    assert [(FIXTURES / f"ledger-v{version}.db").is_file() for version in range(1, LATEST + 1)] == [True] * LATEST


def test_a_ledger_of_a_newer_version_is_refused_and_left_as_it_is(file: Path, ledger: Ledger) -> None:
    must_begin(ledger)
    ledger.close()
    connection = sqlite3.connect(file)
    connection.execute("UPDATE strandline_schema SET version = 99")
    connection.commit()
    connection.close()

    with pytest.raises(LedgerUnavailable, match=f"has schema version 99, this strandline knows up to {LATEST}") as refused:
        open_ledger(f"sqlite:///{file}")

    assert refused.value.next_command == "pip install --upgrade strandline"


def test_a_ledger_opened_twice_is_created_once(file: Path, ledger: Ledger) -> None:
    must_begin(ledger)

    again = open_ledger(f"sqlite:///{file}")

    assert again.attempts.latest("orders") is not None
    again.close()
