"""Taking a savepoint apart: its manifest first, so that nobody starts from half of it, then its tags, then its bytes."""

from __future__ import annotations

from typing import Protocol

from strandline.model.crash import CrashPoint, reach
from strandline.model.savepoint import TAG_PREFIX
from strandline.project.config import Project
from strandline.savepoints.archive import MANIFEST, archive_of
from strandline.tables.catalog import EmbeddedCatalog


class Tagger(Protocol):
    """Names snapshots of tables. Both calls may be repeated."""

    def tag(self, table: str, name: str, snapshot: int) -> None: ...
    def untag(self, table: str, name: str) -> None: ...


def remove(project: Project, pipeline: str, savepoint: str, tagger: Tagger) -> None:
    """May be repeated after a crash. Tags are looked for in every table: the manifest may be gone already."""
    archive = archive_of(project, pipeline, savepoint)
    archive.storage.remove(MANIFEST)
    reach(CrashPoint.SAVEPOINT_UNSEALED)
    catalog = EmbeddedCatalog(project)
    tag = TAG_PREFIX + savepoint
    for table in catalog.tables():
        if tag in catalog.load(table).refs:
            tagger.untag(table, tag)
    reach(CrashPoint.SAVEPOINT_UNTAGGED)
    archive.storage.delete_all()
