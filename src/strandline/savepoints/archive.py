"""A savepoint's folder: files under ``checkpoint/`` as Spark keeps them, and ``savepoint.json``, written last.

Without that file the savepoint is not complete. Nothing in it names the folder's own place, so it may be moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from strandline.checkpoints.copying import CheckpointFiles
from strandline.checkpoints.storage import Storage, storage_at
from strandline.model.definition import is_pipeline_name
from strandline.model.errors import NotFound, SavepointDamaged
from strandline.model.savepoint import SavedFile, Savepoint, is_savepoint_id
from strandline.project.config import Project

MANIFEST = "savepoint.json"
CHECKPOINT = "checkpoint/"
"""Where the files of the checkpoint are, under the names they have there."""


@dataclass(frozen=True)
class Damage:
    path: str
    what: str


class Archive:
    def __init__(self, location: str) -> None:
        self.storage: Storage = storage_at(location)
        self.location = location

    def keep(self, path: str, kind: str, content: bytes) -> SavedFile:
        self.storage.write(path, content)
        return SavedFile(path, kind, len(content), hashlib.sha256(content).hexdigest())

    def seal(self, savepoint: Savepoint) -> str:
        """Write the manifest, which makes the savepoint complete; returns its digest."""
        raw = savepoint.encode()
        self.storage.write(MANIFEST, raw)
        return hashlib.sha256(raw).hexdigest()

    def read(self) -> Savepoint:
        return Savepoint.decode(self.raw(), f"{self.location}/{MANIFEST}")

    def raw(self) -> bytes:
        """The manifest as it was written, which is what digests are about."""
        raw = self.storage.read(MANIFEST)
        if raw is None:
            raise SavepointDamaged(
                f"{self.location} holds no complete savepoint: {MANIFEST} is missing", next_command="strandline savepoint list"
            )
        return raw

    def content(self, file: SavedFile) -> bytes:
        """One file, checked."""
        raw = self.storage.read(file.path)
        if damage := _compare(file, raw):
            raise SavepointDamaged(
                f"savepoint {self.location} is damaged: {damage.path}: {damage.what}",
                next_command="strandline savepoint list, and use another",
            )
        assert raw is not None
        return raw

    def checkpoint_files(self, saved: Savepoint) -> CheckpointFiles:
        """What it keeps of the checkpoint; every file is checked when it is read."""
        inside = [file for file in saved.files if file.path.startswith(CHECKPOINT)]
        return CheckpointFiles.of(
            (file.path.removeprefix(CHECKPOINT), file.kind, lambda file=file: self.content(file))  # type: ignore[misc]
            for file in inside
        )

    def damages(self, files: Iterable[SavedFile]) -> list[Damage]:
        """Every file that is missing or is not what the manifest says."""
        return [damage for file in files if (damage := _compare(file, self.storage.read(file.path)))]


def _compare(file: SavedFile, raw: bytes | None) -> Damage | None:
    if raw is None:
        return Damage(file.path, "it is missing")
    if len(raw) != file.size:
        return Damage(file.path, f"it has {len(raw)} bytes instead of {file.size}")
    if hashlib.sha256(raw).hexdigest() != file.sha256:
        return Damage(file.path, "its content has changed: the SHA-256 differs")
    return None


def archive_of(project: Project, pipeline: str, savepoint: str) -> Archive:
    """Names become folders, which may be deleted later: nothing that could lead elsewhere is taken for one."""
    if not is_savepoint_id(savepoint) or not is_pipeline_name(pipeline):
        raise NotFound(f"pipeline '{pipeline}' has no savepoint '{savepoint}'", next_command="strandline status")
    return Archive(f"{project.savepoints_of(pipeline)}/{savepoint}")


def find_archive(project: Project, pipeline: str, savepoint: str) -> Archive:
    """By id, or by the folder it lies in, which may have been brought from elsewhere."""
    if is_savepoint_id(savepoint):
        found = archive_of(project, pipeline, savepoint)
        if found.storage.read(MANIFEST) is not None:
            return found
        known = storage_at(project.savepoints_of(pipeline)).names("")
        raise NotFound(
            f"pipeline '{pipeline}' has no complete savepoint '{savepoint}' (there are: {', '.join(known) or 'none'})",
            next_command=f"strandline savepoint list {pipeline}",
        )
    elsewhere = Archive(savepoint.rstrip("/"))
    if elsewhere.storage.read(MANIFEST) is None:
        raise NotFound(
            f"'{savepoint}' is neither the id nor the folder of a savepoint", next_command=f"strandline savepoint list {pipeline}"
        )
    return elsewhere
