"""kill -9 of driver and broker with Kafka on both sides: from topic to table, to topic, to both, and every record once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.ledger import ledger_of
from strandline.project.config import Project
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import CrashPoint, assert_chain_unbroken, assert_rows_once, run_cli, start_cli, table_rows
from strandline.testing.kafka import KafkaForTests
from strandline.testing.projects import write_sandbox

from .shop import BATCH_POINTS

pytestmark = pytest.mark.process

TOTAL = 300
PER_BATCH = 20

TABLE_ONLY = {CrashPoint.COMMITTING, CrashPoint.COMMITTED, CrashPoint.OUTCOME_RECORDED}
TOPIC_ONLY = {CrashPoint.TOPIC_BEGUN, CrashPoint.TOPIC_SENT, CrashPoint.TOPIC_COMMITTED}
POINTS = BATCH_POINTS


class Shop:
    """A project that reads one topic into a table, into another topic, and into both."""

    def __init__(self, folder: Path, kafka: KafkaForTests, more: str = "") -> None:
        self.kafka, self.folder = kafka, folder
        self.input = kafka.create_topic(kafka.topic("in"), partitions=2)
        self.output = kafka.create_topic(kafka.topic("out"), partitions=2)
        self.project: Project = write_sandbox(
            folder,
            f"""
import strandline as sl

source = sl.kafka("{self.input}", bootstrap="{kafka.bootstrap}", schema="n int", max_offsets_per_batch={PER_BATCH}, {more})
out = sl.topic("{self.output}", key="n", bootstrap="{kafka.bootstrap}", {more})
quick = sl.checkpoint(every="0 s")


@sl.pipeline(source=source, sink=sl.table("shop.rows"), checkpoint=quick)
def to_table(numbers):
    return numbers


@sl.pipeline(source=source, sink=out, checkpoint=quick)
def to_topic(numbers):
    return numbers


@sl.pipeline(source=source, sinks={{"rows": sl.table("shop.rows"), "out": out}}, checkpoint=quick)
def to_both(numbers):
    return {{"rows": numbers, "out": numbers}}
""",
        )

    def feed(self, first: int, last: int) -> None:
        self.kafka.produce(self.input, [json.dumps({"n": n}) for n in range(first, last)])

    def delivered(self) -> list[int]:
        return sorted(json.loads(record.value or b"null")["n"] for record in self.kafka.read(self.output))

    def rows(self) -> int:
        if EmbeddedCatalog(self.project).find("shop.rows") is None:
            return 0
        return len(table_rows(self.project, "shop.rows"))

    def assert_complete(self, pipeline: str, total: int) -> None:
        if pipeline != "to_topic":
            assert_rows_once(self.project, "shop.rows", "n", range(total))
            assert_chain_unbroken(self.project, "shop.rows", pipeline)
        if pipeline != "to_table":
            assert self.delivered() == list(range(total)), "every record once, as read_committed readers see it"
            recorded = [d.rows for d in ledger_of(self.project).deliveries.of_topic(f"kafka:{self.output}")]
            assert sum(recorded) == total, "what a killed attempt could not record was caught up with"
        ends = self.kafka.ends(self.input)
        group = self.kafka.group_offsets(f"strandline.{pipeline}.numbers")  # which other tests use for other topics
        assert {place: offset for place, offset in group.items() if place[0] == self.input} == {
            (self.input, number): end for number, end in ends.items()
        }, "lag monitors see the truth"


def until(done: Callable[[], bool], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.5)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


@pytest.mark.parametrize("pipeline", ["to_table", "to_topic", "to_both"])
def test_killed_at_every_point(tmp_path: Path, kafka: KafkaForTests, pipeline: str) -> None:
    shop = Shop(tmp_path, kafka)
    shop.feed(0, TOTAL)
    never = {"to_table": TOPIC_ONLY, "to_topic": TABLE_ONLY, "to_both": set()}[pipeline]

    for batch, point in enumerate([p for p in POINTS if p not in never]):
        died = run_cli(tmp_path, "run", pipeline, "--available-now", crash_at=point, batch=batch)
        assert died.killed, f"the run did not reach {point.value} in batch {batch}: {died.err}"
    finished = run_cli(tmp_path, "run", pipeline, "--available-now")

    assert finished.code == 0, finished.err
    shop.assert_complete(pipeline, TOTAL)


@pytest.mark.parametrize("point", [CrashPoint.TOPIC_SENT, CrashPoint.BATCH_PLANNED], ids=lambda point: point.value)
def test_a_zombie_never_delivers(tmp_path: Path, kafka: KafkaForTests, point: CrashPoint) -> None:
    """Frozen with an open transaction, or before it looked: its successor goes on, and it can do nothing when it wakes."""
    shop = Shop(tmp_path, kafka)
    shop.feed(0, 60)
    zombie = start_cli(tmp_path, "run", "to_both", "--available-now", pause_at=point, batch=1)
    until(lambda: _is_stopped(zombie.pid), f"the first attempt freezes at {point.value}")

    successor = run_cli(tmp_path, "run", "to_both", "--available-now", "--take-over")
    os.kill(zombie.pid, signal.SIGCONT)
    code, said = finish(zombie)

    assert successor.code == 0, successor.err
    assert code == 4, said
    shop.assert_complete("to_both", 60)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_broker_that_dies_and_comes_back_is_waited_for(tmp_path: Path, kafka: KafkaForTests) -> None:
    shop = Shop(tmp_path, kafka)
    shop.feed(0, 100)
    running = start_cli(tmp_path, "run", "to_both")
    until(lambda: shop.rows() >= 20, "the first batches arrive")

    with kafka.outage():
        time.sleep(12)
    shop.feed(100, 160)
    until(lambda: shop.rows() == 160, "the same attempt goes on")
    stopped = run_cli(tmp_path, "stop", "to_both")
    code, said = finish(running)

    assert stopped.code == 0, stopped.err
    assert code == 0, said
    assert "does not answer" in said
    assert "answers again" in said
    assert ledger_of(shop.project).attempts.latest("to_both").number == 1  # type: ignore[union-attr]
    shop.assert_complete("to_both", 160)


def test_a_broker_that_stays_away_ends_the_run_cleanly(tmp_path: Path, kafka: KafkaForTests) -> None:
    shop = Shop(tmp_path, kafka, 'give_up_after="5 s"')
    shop.feed(0, 40)
    running = start_cli(tmp_path, "run", "to_both")
    until(lambda: shop.rows() == 40 and len(shop.delivered()) == 40, "everything arrives")

    with kafka.outage():
        began = time.monotonic()
        code, said = finish(running)
    waited = time.monotonic() - began

    assert code == 1, said
    assert "does not answer" in said
    assert "gave up after 5 s" in said
    assert waited < 60, "and not after minutes of silence"
    again = run_cli(tmp_path, "run", "to_both", "--available-now")
    assert again.code == 0, again.err
    shop.assert_complete("to_both", 40)
