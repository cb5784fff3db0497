"""kill -9 at every line of the protocol, for every kind of table, and then: is every row there once?

Each variant runs one pipeline through the whole list of crash points: one start per point, killed there at the
next batch, and the following start must first recover. The last start runs to the end of the stream.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.ledger import ledger_of
from strandline.ledger.records import IntentState
from strandline.project.config import Project
from strandline.runtime.cleanup import apply_cleanup, plan_cleanup
from strandline.testing import CrashPoint, assert_chain_unbroken, assert_rows_once, run_cli, table_rows
from strandline.testing.projects import write_sandbox

from . import shop

pytestmark = pytest.mark.process

BATCH_POINTS = [p for p in shop.BATCH_POINTS if p is not CrashPoint.GROUPS_COMMITTED and not p.value.startswith("topic-")]
"""Points of a batch that enters tables; Kafka's own are in `test_kafka_matrix`."""


def crash_through(folder: Path, pipeline: str) -> None:
    """One killed start per point, each a batch further, then a clean run to the end."""
    for number, point in enumerate(BATCH_POINTS, start=1):
        died = run_cli(folder, "run", pipeline, "--available-now", crash_at=point, batch=number)
        assert died.killed, f"the run did not reach {point.value} in batch {number}: {died.err}"
    finished = run_cli(folder, "run", pipeline, "--available-now")
    assert finished.code == 0, finished.err


def assert_no_garbage_after_cleanup(project: Project) -> None:
    """Files staged by killed attempts are known to the ledger, and cleanup leaves exactly the live ones."""
    ledger = ledger_of(project)
    apply_cleanup(project, ledger, plan_cleanup(project, ledger))
    left = [i for i in ledger.commits.unsettled([IntentState.STAGED, IntentState.REFUSED, IntentState.DUPLICATE]) if i.files]
    assert left == []


@pytest.mark.parametrize("pipeline", ["plain", "deduped", "totals", "split"])
def test_killed_at_every_point_in_later_batches(tmp_path: Path, pipeline: str) -> None:
    project = write_sandbox(tmp_path, shop.PIPELINES)

    crash_through(tmp_path, pipeline)

    everything = range(shop.TOTAL)
    if pipeline == "plain":
        assert_rows_once(project, "shop.plain", "seq", everything)
    elif pipeline == "deduped":
        assert_rows_once(project, "shop.deduped", "order_id", shop.deduped_ids())
    elif pipeline == "totals":
        found = {row["customer"]: row["orders"] for row in table_rows(project, "shop.totals")}
        assert found == shop.orders_per_customer()
        assert len(table_rows(project, "shop.totals")) == len(found)
    else:
        assert_rows_once(project, "shop.even", "seq", [n for n in everything if n % 2 == 0])
        assert_rows_once(project, "shop.odd", "seq", [n for n in everything if n % 2 == 1])
    for table in {"plain": ["plain"], "deduped": ["deduped"], "totals": ["totals"], "split": ["even", "odd"]}[pipeline]:
        assert_chain_unbroken(project, f"shop.{table}", pipeline)
    assert_no_garbage_after_cleanup(project)
    if pipeline == "plain":
        assert_rows_once(project, "shop.plain", "seq", everything)  # cleanup removed nothing that lives


@pytest.mark.parametrize("point", BATCH_POINTS, ids=lambda point: point.value)
def test_killed_in_the_very_first_batch(tmp_path: Path, point: CrashPoint) -> None:
    project = write_sandbox(tmp_path, shop.PIPELINES)

    died = run_cli(tmp_path, "run", "deduped", "--batches", "2", crash_at=point, batch=0)
    finished = run_cli(tmp_path, "run", "deduped", "--batches", "2")

    assert died.killed
    assert finished.code == 0, finished.err
    batches = ledger_of(project).attempts.latest("deduped")
    assert batches is not None and batches.number == 2
    read = max(int(row["seq"]) for row in table_rows(project, "shop.deduped")) // shop.PER_BATCH + 1
    assert_rows_once(project, "shop.deduped", "order_id", shop.deduped_ids(read * shop.PER_BATCH))
    assert_chain_unbroken(project, "shop.deduped", "deduped")
