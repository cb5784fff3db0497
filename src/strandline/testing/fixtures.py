"""Pytest fixtures: one Spark session and one Kafka broker per test run, a fresh project per test."""

from __future__ import annotations

import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.ledger import Ledger, ledger_of
from strandline.model.definition import Pipeline
from strandline.project.config import Project
from strandline.project.loader import load_pipeline
from strandline.runtime.options import Allowances, AvailableNow, RunLimit
from strandline.runtime.reporting import Progress
from strandline.runtime.run import run_pipeline
from strandline.runtime.running import RunSummary
from strandline.runtime.session import catalog_settings, start_session
from strandline.testing.projects import write_sandbox

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing.kafka import KafkaForTests


@dataclass
class Heard:
    """A reporter that remembers."""

    said: list[str] = field(default_factory=list)
    batches: list[Progress] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, progress: Progress) -> None:
        self.batches.append(progress)


@dataclass
class Sandbox:
    """A project on the shared session; runs happen in this process."""

    folder: Path
    spark: SparkSession
    project: Project
    heard: Heard = field(default_factory=Heard)

    def configure(self) -> None:
        """Make the project's catalog known to the shared session."""
        for key, value in catalog_settings(self.project).items():
            self.spark.conf.set(key, value)

    def pipelines(self, source: str) -> None:
        """Replace the project's pipeline file."""
        (self.folder / "pipelines" / "tested.py").write_text(textwrap.dedent(source))

    def pipeline(self, name: str) -> Pipeline:
        return load_pipeline(self.project, name)

    def run(self, name: str, limit: RunLimit | None = None, allow: Allowances | None = None) -> RunSummary:
        return run_pipeline(self.project, self.pipeline(name), limit or AvailableNow(), self.heard, allow=allow, session=self.spark)

    def sql(self, statement: str) -> list[dict[str, object]]:
        """Run SQL; ``{c}`` stands for the project's catalog."""
        rows = self.spark.sql(statement.replace("{c}", self.project.profile.catalog.name)).collect()
        return [row.asDict() for row in rows]

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.project)


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for the whole test run."""
    folder = tmp_path_factory.mktemp("spark")
    project = write_sandbox(folder)
    spark = start_session(project, "tests", folder / "spark.log", print)
    yield spark
    spark.stop()


@pytest.fixture
def sandbox(tmp_path: Path, spark_home: SparkSession) -> Sandbox:
    """A fresh project with a catalog of its own on the shared session."""
    project = write_sandbox(tmp_path, catalog=f"c{uuid.uuid4().hex[:8]}")
    Path(project.warehouse).mkdir()
    project.catalog_file.parent.mkdir(parents=True)
    fresh = Sandbox(tmp_path, spark_home, project)
    fresh.configure()
    return fresh


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaForTests]:
    """One Kafka broker for the whole test run; a test that kills it brings it back (`with kafka.outage():`)."""
    from strandline.testing.kafka import KafkaForTests  # loads Kafka's client, which most tests do not need

    broker = KafkaForTests(tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.stop()
