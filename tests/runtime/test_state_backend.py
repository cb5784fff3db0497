"""Settings of the state store that a person should hear about."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from strandline.project.config import SparkConfig
from strandline.runtime.session import ENGINE_SETTINGS
from strandline.runtime.state_backend import state_backend_warnings
from strandline.testing import run_cli
from strandline.testing.projects import write_sandbox

STORE = "spark.sql.streaming.stateStore."
HEAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.mark.parametrize(
    ("conf", "sentences"),
    [
        ({}, []),
        (ENGINE_SETTINGS, []),
        ({f"{STORE}providerClass": HEAP}, [f"{STORE}providerClass is HDFSBackedStateStoreProvider.*sl.keyed cannot begin"]),
        ({f"{STORE}rocksdb.changelogCheckpointing.enabled": False}, [f"{STORE}rocksdb.changelogCheckpointing.enabled is false"]),
        ({f"{STORE}rocksdb.changelogCheckpointing.enabled": "False"}, [f"{STORE}rocksdb.changelogCheckpointing.enabled is false"]),
        ({f"{STORE}checkpointFormatVersion": 1}, [f"{STORE}checkpointFormatVersion is 1"]),
        ({f"{STORE}checkpointFormatVersion": "2"}, []),
        ({PARTITIONS: 200}, []),
        ({PARTITIONS: 201}, [f"{STORE}rocksdb.boundedMemoryUsage is not true, and {PARTITIONS} is 201"]),
        ({PARTITIONS: 400, f"{STORE}rocksdb.boundedMemoryUsage": True}, []),
        ({f"{STORE}providerClass": HEAP, f"{STORE}rocksdb.changelogCheckpointing.enabled": False, PARTITIONS: 400}, ["HDFSBacked"]),
        (
            {f"{STORE}checkpointFormatVersion": 1, f"{STORE}rocksdb.changelogCheckpointing.enabled": False},
            ["changelogCheckpointing", "checkpointFormatVersion"],
        ),
    ],
)
def test_each_bad_choice_is_one_sentence_with_the_name_of_the_setting(conf: dict[str, str | int | bool], sentences: list[str]) -> None:
    found = state_backend_warnings(SparkConfig.model_validate({"conf": dict(conf)}))

    assert len(found) == len(sentences)
    assert all(re.search(sentence, said) for sentence, said in zip(sentences, found, strict=True)), found


def test_doctor_warns_and_does_not_fail(tmp_path: Path) -> None:
    write_sandbox(tmp_path)
    config = tmp_path / "strandline.yaml"
    config.write_text(config.read_text() + f"        {STORE}rocksdb.changelogCheckpointing.enabled: false\n")

    checks = json.loads(run_cli(tmp_path, "doctor", "--json").out)["checks"]
    shown = run_cli(tmp_path, "doctor")

    (found,) = [check for check in checks if check["name"] == "state backend"]
    assert found["ok"] and found["warning"]
    assert "changelogCheckpointing.enabled is false" in found["finding"]
    problems = [check["name"] for check in checks if not check["ok"]]
    assert problems in ([], ["jars"]), "a machine that was never set up lacks its jars, and nothing else"
    assert shown.code == (1 if problems else 0), shown.out
    assert re.search(r"^state backend +warning +spark\.sql\.streaming\.stateStore", shown.out, re.MULTILINE)
