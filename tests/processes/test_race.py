"""Two processes race to commit the same 200 batches: one winner each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.runtime.session import catalog_settings
from strandline.testing import assert_chain_unbroken, assert_rows_once, committed_batches, table_rows
from strandline.testing.fixtures import Sandbox
from strandline.testing.projects import write_sandbox

pytestmark = [pytest.mark.process, pytest.mark.engine]

BATCHES = 200


def test_two_processes_race_for_the_same_200_batches(tmp_path: Path, sandbox: Sandbox) -> None:
    folder = tmp_path / "race"
    project = write_sandbox(folder, catalog="race")
    project.catalog_file.parent.mkdir(parents=True)
    for key, value in catalog_settings(project).items():
        sandbox.spark.conf.set(key, value)
    sandbox.spark.sql("CREATE NAMESPACE race.shop")
    sandbox.spark.sql(
        "CREATE TABLE race.shop.race (batch bigint, winner string) USING iceberg "
        "TBLPROPERTIES ('format-version'='3', 'commit.retry.num-retries'='20', 'commit.retry.min-wait-ms'='10')"
    )

    worker = Path(__file__).with_name("race_worker.py")
    racers = [
        subprocess.Popen([sys.executable, str(worker), str(folder), me, str(BATCHES)], stdout=subprocess.PIPE, text=True) for me in "ab"
    ]
    try:
        outcomes = [json.loads(racer.communicate(timeout=400)[0]) for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()

    assert sum(outcome["won"] for outcome in outcomes) == BATCHES
    assert sum(outcome["duplicate"] for outcome in outcomes) == BATCHES
    assert sum(outcome["other"] for outcome in outcomes) == 0
    assert committed_batches(project, "shop.race") == list(range(BATCHES))
    assert_rows_once(project, "shop.race", "batch", range(BATCHES))
    assert_chain_unbroken(project, "shop.race", "race")
    winners = {row["winner"] for row in table_rows(project, "shop.race")}
    assert winners <= {"a", "b"}
