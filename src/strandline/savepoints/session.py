"""Spark for savepoints of a pipeline that is not running: it is started when it is first needed, to tag snapshots or to read state."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from strandline.project.config import Project
from strandline.tables.tags import JvmTags

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionTags:
    def __init__(self, project: Project, purpose: str, say: Callable[[str], None], given: SparkSession | None = None) -> None:
        self._project = project
        self._purpose = purpose
        self._say = say
        self._given = given
        self._own: SparkSession | None = None

    def __enter__(self) -> SessionTags:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._own is not None:
            self._own.stop()

    def tag(self, table: str, name: str, snapshot: int) -> None:
        self._tags().tag(table, name, snapshot)

    def untag(self, table: str, name: str) -> None:
        self._tags().untag(table, name)

    def session(self) -> SparkSession:
        return self._given or self._own or self._start()

    def _tags(self) -> JvmTags:
        return JvmTags(self.session(), self._project.profile.catalog.name)

    def _start(self) -> SparkSession:
        from strandline.runtime.session import start_session

        log_file = self._project.logs / f"{self._purpose}.log"
        self._say(f"starting Spark to name table snapshots, log in {log_file}")
        self._own = start_session(self._project, self._purpose, log_file, self._say)
        return self._own
