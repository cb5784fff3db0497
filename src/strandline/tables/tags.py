"""Tags and branches: names that keep snapshots from expiry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from strandline.model.errors import TableUnavailable
from strandline.tables.jvm import CommitConflict, CommitOutcomeUnknown, JvmTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Change: TypeAlias = Callable[[JvmTable], None]

TRIES = 5
"""A tag or a branch is a commit; a busy pipeline commits too."""


class JvmTags:
    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    def tag(self, table: str, name: str, snapshot: int) -> None:
        self._try(table, lambda found: found.tag(name, snapshot))

    def untag(self, table: str, name: str) -> None:
        self._try(table, lambda found: found.untag(name))

    def branch(self, table: str, name: str, snapshot: int | None) -> None:
        """A new branch; an empty one without a snapshot."""
        self._try(table, lambda found: found.branch_at(name, snapshot))

    def drop_branch(self, table: str, name: str) -> None:
        """With the snapshots that only it could reach."""
        self._try(table, lambda found: found.drop_branches([each for each in found.branches(name) if each == name]))

    def _try(self, table: str, change: Change) -> None:
        for left in reversed(range(TRIES)):
            try:
                change(JvmTable(self._spark, self._catalog, table))
                return
            except (CommitConflict, CommitOutcomeUnknown) as error:
                if left == 0:
                    raise TableUnavailable(f"a tag or branch of table '{table}' could not be changed: {error}") from error
