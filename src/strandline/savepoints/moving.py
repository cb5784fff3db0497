"""Moving a pipeline: a savepoint exported with its tables, and imported where there is another warehouse, catalog and ledger.

An export holds the tables' files as they are. They are rewritten for their new place when they land there, so the same export serves any
number of places. Iceberg's own `rewrite_table_path` is not used: it leaves out files whose snapshots have expired.

Export: copy every file, then `move.json`, then `savepoint.json`: without the last there is no export.
Import: check every byte; land the files; tell the ledger; register the tables; seal the savepoint. Killed anywhere, it may be repeated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from strandline.checkpoints.storage import Storage, storage_at
from strandline.ledger import Ledger
from strandline.ledger.records import SavepointRecord, SavepointState
from strandline.model.crash import CrashPoint, reach
from strandline.model.errors import NotFound, Refused, SavepointDamaged, TableUnavailable, UsageError
from strandline.model.move import Move, MovedTable, is_inner_path
from strandline.model.savepoint import SavedTable, Savepoint
from strandline.model.sizes import human_bytes
from strandline.model.times import rfc3339, utc_now
from strandline.project.config import Project
from strandline.runtime.liveness import this_process
from strandline.savepoints.archive import MANIFEST, Archive, archive_of
from strandline.savepoints.holding import links_of
from strandline.savepoints.remembering import Remembered
from strandline.tables.catalog import EmbeddedCatalog, read_metadata
from strandline.tables.extract import cut, files_of
from strandline.tables.manifests import NotIceberg
from strandline.tables.relocation import (
    Outside,
    Relocation,
    TableFileKind,
    plain_location,
    relocate_list,
    relocate_manifest,
    relocate_metadata,
    relocate_positions,
    relocate_vectors,
)
from strandline.tables.view import MAIN

MOVE = "move.json"
LEDGER = "ledger.json"
LEDGER_KIND = "ledger"

Say = Callable[[str], None]


class Registrar(Protocol):
    def register(self, table: str, metadata_location: str) -> None: ...


# -- export ------------------------------------------------------------------------------------------------------------


def export_with_tables(project: Project, ledger: Ledger, archive: Archive, destination: str, say: Say) -> Move:
    """A checked copy of the savepoint, and its tables at its snapshots. The pipeline may run meanwhile: the tags keep every file."""
    raw = archive.raw()
    saved = Savepoint.decode(raw, archive.location)
    target = Archive(destination)
    if target.storage.read(MANIFEST) is not None:
        raise Refused(f"{destination} already holds a savepoint", next_command="the same command with another folder")
    if saved.branch != MAIN:
        raise UsageError(
            f"savepoint {saved.id} belongs to branch '{saved.branch}' of its tables, and a table is moved with its main",
            next_command=f"strandline publish {saved.branch}, then take a savepoint and export that",
        )
    tables = tuple(_export_table(project, saved, table, target, say) for table in saved.tables)
    known = Remembered.gather(ledger, saved.pipeline, links_of(ledger, saved.pipeline, saved.strand, saved.batch), {t.name for t in tables})
    kept = target.keep(LEDGER, LEDGER_KIND, known.encode())
    for file in saved.files:
        target.keep(file.path, file.kind, archive.content(file))
    reach(CrashPoint.EXPORT_COPIED)
    move = Move(saved.id, saved.pipeline, hashlib.sha256(raw).hexdigest(), rfc3339(utc_now()), kept, tables)
    target.storage.write(MOVE, move.encode())
    target.storage.write(MANIFEST, raw)
    return move


def _export_table(project: Project, saved: Savepoint, table: SavedTable, target: Archive, say: Say) -> MovedTable:
    catalog = EmbeddedCatalog(project)
    view, at = catalog.load(table.name), catalog.metadata_location(table.name)
    if view.uuid != table.uuid or at is None:
        raise NotFound(
            f"table '{table.name}' is another one than when savepoint {saved.id} was taken: it was dropped and made again",
            next_command=f"strandline savepoint list {saved.pipeline}, and export another",
        )
    if table.snapshot is not None and table.snapshot not in view.snapshots:
        raise NotFound(
            f"table '{table.name}' no longer keeps snapshot {table.snapshot} of savepoint {saved.id}",
            next_command=f"strandline savepoint list {saved.pipeline}, and export another",
        )
    metadata = cut(view, read_metadata(table.name, at), table.snapshot, saved.pipeline, saved.tag)
    storage = storage_at(plain_location(view.location))
    number = at.rpartition("/")[2].partition("-")[0]
    moved = MovedTable(
        table.name,
        view.uuid,
        view.location,
        table.snapshot,
        f"metadata/{number if number.isdigit() else '00000'}-{saved.id}.metadata.json",
        (),
    )
    files = [
        target.keep(moved.folder + path, kind.value, _content(storage, table.name, path))
        for path, kind in files_of(table.name, metadata, storage.read).items()
    ]
    raw = json.dumps(metadata, separators=(",", ":")).encode()
    files.append(target.keep(moved.folder + moved.metadata, TableFileKind.METADATA.value, raw))
    say(f"table {table.name} at snapshot {table.snapshot}: {len(files)} files, {human_bytes(sum(file.size for file in files))}")
    return MovedTable(**{**vars(moved), "files": tuple(files)})


def _content(storage: Storage, table: str, path: str) -> bytes:
    raw = storage.read(path)
    if raw is None:
        raise TableUnavailable(f"file {path} of table '{table}' is missing", next_command=f"strandline history {table}")
    return raw


# -- import ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Landing:
    """A table of an export, and where it goes."""

    table: MovedTable
    location: str

    @property
    def metadata_location(self) -> str:
        return f"{self.location}/{self.table.metadata}"


def import_folder(project: Project, ledger: Ledger, folder: str, registrar: Registrar, by: str, say: Say) -> tuple[Savepoint, Move]:
    """Checks come first, and nothing is written if one fails."""
    source = Archive(folder.rstrip("/"))
    saved, move = _checked(source)
    archive = archive_of(project, saved.pipeline, saved.id)
    record = ledger.savepoints.get(saved.id)
    if record is not None and record.state is SavepointState.COMPLETE and archive.storage.read(MANIFEST) is not None:
        raise Refused(
            f"savepoint {saved.id} of '{saved.pipeline}' is here already",
            next_command=f"strandline run {saved.pipeline} --from-savepoint {saved.id} --tables continue",
        )
    landings = [Landing(table, _location(project, table.name)) for table in move.tables]
    open_ones = [landing for landing in landings if not _is_registered(project, landing)]
    for file in saved.files:
        archive.keep(file.path, file.kind, source.content(file))
    for landing in open_ones:
        _land(source, landing)
        say(f"table {landing.table.name}: {len(landing.table.files)} files in {landing.location}")
    reach(CrashPoint.IMPORT_LANDED)
    Remembered.decode(source.content(move.ledger), f"{folder}/{LEDGER}").tell(ledger)
    for landing in open_ones:
        registrar.register(landing.table.name, landing.metadata_location)
    reach(CrashPoint.IMPORT_REGISTERED)
    raw = source.raw()
    archive.storage.write(MANIFEST, raw)
    if record is None:
        ledger.savepoints.begin(
            SavepointRecord(
                saved.id,
                saved.pipeline,
                saved.type.value,
                SavepointState.CREATING,
                saved.strand,
                saved.batch,
                archive.location,
                saved.created_by,
                saved.note,
                this_process(),
                saved.created_at,
            )
        )
    ledger.savepoints.complete(saved.id, hashlib.sha256(raw).hexdigest(), saved.size)
    ledger.events.add(saved.pipeline, "savepoint-imported", f"{saved.id} of batch {saved.batch}, by {by}")
    return saved, move


def _checked(source: Archive) -> tuple[Savepoint, Move]:
    saved = source.read()
    told = source.storage.read(MOVE)
    if told is None:
        raise SavepointDamaged(
            f"{source.location} holds savepoint {saved.id} without its tables: {MOVE} is missing",
            next_command=f"strandline savepoint export {saved.pipeline} {saved.id} FOLDER --with-tables, where the tables are",
        )
    move = Move.decode(told, f"{source.location}/{MOVE}")
    if move.savepoint_sha256 != hashlib.sha256(source.raw()).hexdigest():
        raise SavepointDamaged(
            f"{source.location}/{MOVE} belongs to another savepoint than {MANIFEST} beside it",
            next_command="export the savepoint again, into an empty folder",
        )
    if strange := [name for name in _names(saved, move) if not is_inner_path(name)]:
        raise SavepointDamaged(
            f"{source.location} names '{strange[0]}', which leads out of its folder: this is no export of strandline",
            next_command="find out where it comes from",
        )
    if damages := source.damages([*saved.files, *move.files]):
        more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
        raise SavepointDamaged(
            f"the export {source.location} is damaged: {damages[0].path}: {damages[0].what}{more}",
            next_command="copy it again, or export the savepoint again",
        )
    return saved, move


def _names(saved: Savepoint, move: Move) -> list[str]:
    """Everything that becomes a path here."""
    files = [file.path for file in (*saved.files, *move.files)]
    return files + [name for table in move.tables for name in (table.metadata, table.folder.rstrip("/"))]


def _location(project: Project, table: str) -> str:
    """Where the embedded catalog puts a table of that name."""
    root = project.warehouse if "://" in project.warehouse else f"file:{project.warehouse}"
    return f"{root.rstrip('/')}/{table.replace('.', '/')}"


def _is_registered(project: Project, landing: Landing) -> bool:
    """By this very import, when it was killed: exactly the metadata that would be registered now."""
    at = EmbeddedCatalog(project).metadata_location(landing.table.name)
    if at is not None and at != landing.metadata_location:
        raise Refused(
            f"table '{landing.table.name}' exists here already; an import never replaces a table",
            next_command=f"strandline history {landing.table.name}, and drop it if nobody needs it",
        )
    return at is not None


def _land(source: Archive, landing: Landing) -> None:
    """In the order of kinds: manifests tell the sizes of what they name."""
    storage = storage_at(plain_location(landing.location))
    move = Relocation(landing.table.location, landing.location)
    sizes: dict[str, int] = {}
    order = list(TableFileKind)
    for file in sorted(landing.table.files, key=lambda file: order.index(TableFileKind(file.kind))):
        path = file.path.removeprefix(landing.table.folder)
        try:
            content = _relocated(source.content(file), TableFileKind(file.kind), move, sizes)
        except (NotIceberg, Outside) as error:
            raise TableUnavailable(f"file {path} of table '{landing.table.name}' cannot be brought here: {error}") from error
        storage.write(path, content)
        folder, _, name = path.rpartition("/")
        storage.remove(f"{folder}/.{name}.crc")  # of a table that lay here before: Hadoop would compare it
        sizes[path] = len(content)


def _relocated(raw: bytes, kind: TableFileKind, move: Relocation, sizes: dict[str, int]) -> bytes:
    if kind is TableFileKind.VECTORS:
        return relocate_vectors(raw, move)
    if kind is TableFileKind.POSITIONS:
        return relocate_positions(raw, move)
    if kind is TableFileKind.MANIFEST:
        return relocate_manifest(raw, move, sizes)
    if kind is TableFileKind.MANIFEST_LIST:
        return relocate_list(raw, move, sizes)
    if kind is TableFileKind.METADATA:
        return json.dumps(relocate_metadata(json.loads(raw), move), separators=(",", ":")).encode()
    return raw
