"""The savepoints there are: as the ledger remembers them, as their folders show them, and whether each can be used."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.checkpoints.storage import storage_at
from strandline.ledger import Ledger
from strandline.ledger.records import SavepointState
from strandline.model.errors import SavepointDamaged, StrandlineError
from strandline.model.savepoint import Savepoint
from strandline.project.config import Project
from strandline.savepoints.archive import MANIFEST, Archive, Damage, archive_of
from strandline.tables.catalog import EmbeddedCatalog


@dataclass(frozen=True)
class Listed:
    """A line of the list."""

    id: str
    pipeline: str
    type: str
    state: str
    batch: int | None
    created_at: str
    size: int | None
    by: str
    note: str


def listed(project: Project, ledger: Ledger, pipeline: str) -> list[Listed]:
    """Newest first. A folder that the ledger does not know is a savepoint too: it was brought here, or the ledger was lost."""
    records = ledger.savepoints.of_pipeline(pipeline)
    found = [
        Listed(r.id, pipeline, r.type, _state(project, r.pipeline, r.id, r.state), r.batch, r.begun_at, r.bytes, r.requested_by, r.note)
        for r in records
    ]
    known = {record.id for record in records}
    folders = storage_at(project.savepoints_of(pipeline)).names("")
    found += [_unrecorded(project, pipeline, name) for name in folders if name not in known]
    return sorted(found, key=lambda line: (line.created_at, line.id), reverse=True)


def _state(project: Project, pipeline: str, savepoint: str, state: SavepointState) -> str:
    if state is SavepointState.COMPLETE and archive_of(project, pipeline, savepoint).storage.read(MANIFEST) is None:
        return "missing"
    return state.value


def _unrecorded(project: Project, pipeline: str, name: str) -> Listed:
    try:
        saved = archive_of(project, pipeline, name).read()
    except SavepointDamaged:
        return Listed(name, pipeline, "", "incomplete", None, "", None, "", "")
    return Listed(
        name, pipeline, saved.type.value, "not in the ledger", saved.batch, saved.created_at, saved.size, saved.created_by, saved.note
    )


@dataclass(frozen=True)
class Examined:
    savepoint: Savepoint
    damages: tuple[Damage, ...]
    """Files that are not what the manifest says."""
    tables: tuple[Damage, ...]
    """Tables that no longer hold what the savepoint belongs to; state can be restored, the table cannot go back."""

    @property
    def restorable(self) -> bool:
        return not self.damages


def examine(project: Project, archive: Archive) -> Examined:
    saved = archive.read()
    return Examined(saved, tuple(archive.damages(saved.files)), tuple(_table_troubles(project, saved)))


def _table_troubles(project: Project, saved: Savepoint) -> list[Damage]:
    catalog = EmbeddedCatalog(project)
    found = []
    for table in saved.tables:
        try:
            view = catalog.find(table.name)
        except StrandlineError as error:
            found.append(Damage(table.name, error.message))
            continue
        if view is None:
            found.append(Damage(table.name, "the catalog does not know it"))
        elif view.uuid != table.uuid:
            found.append(Damage(table.name, f"it is another table now: its uuid was {table.uuid}, it is {view.uuid}"))
        elif table.snapshot is not None and table.snapshot not in view.snapshots:
            found.append(Damage(table.name, f"snapshot {table.snapshot} is gone"))
        elif table.snapshot is not None and view.refs.get(saved.tag) != table.snapshot:
            found.append(Damage(table.name, f"tag {saved.tag} is gone: snapshot {table.snapshot} may expire"))
    return found


def export(archive: Archive, destination: str) -> Savepoint:
    """A checked copy elsewhere; the manifest comes last there too."""
    saved = archive.read()
    target = Archive(destination)
    for file in saved.files:
        target.keep(file.path, file.kind, archive.content(file))
    target.seal(saved)
    return saved
