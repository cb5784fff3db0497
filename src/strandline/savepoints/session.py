"""Spark for a pipeline that is not running, started when it is first needed: to name snapshots, to register tables, to read state."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from strandline.project.config import Project
from strandline.tables.registering import register
from strandline.tables.tags import JvmTags

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Self = TypeVar("Self", bound="_LazySession")


class _LazySession:
    why = ""

    def __init__(self, project: Project, purpose: str, say: Callable[[str], None], given: SparkSession | None = None) -> None:
        self._project = project
        self._purpose = purpose
        self._say = say
        self._given = given
        self._own: SparkSession | None = None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._own is not None:
            self._own.stop()

    def _spark(self) -> SparkSession:
        return self._given or self._own or self._start()

    def _start(self) -> SparkSession:
        from strandline.runtime.session import start_session

        log_file = self._project.logs / f"{self._purpose}.log"
        self._say(f"starting Spark to {self.why}, log in {log_file}")
        self._own = start_session(self._project, self._purpose, log_file, self._say)
        return self._own


class SessionTags(_LazySession):
    why = "name table snapshots"

    def tag(self, table: str, name: str, snapshot: int) -> None:
        self._tags().tag(table, name, snapshot)

    def untag(self, table: str, name: str) -> None:
        self._tags().untag(table, name)

    def drop_branch(self, table: str, branch: str) -> None:
        self._tags().drop_branch(table, branch)

    def session(self) -> SparkSession:
        """To read state."""
        return self._spark()

    def _tags(self) -> JvmTags:
        return JvmTags(self._spark(), self._project.profile.catalog.name)


class SessionCatalog(_LazySession):
    why = "register tables"

    def register(self, table: str, metadata_location: str) -> None:
        register(self._spark(), self._project.profile.catalog.name, table, metadata_location)
