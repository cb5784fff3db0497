"""One look at a checkpoint, and what a restart needs of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.state_files import HEADER_BYTES, Snapshot, StateVersion, read_lineage, read_snapshot
from strandline.checkpoints.storage import StoredFile
from strandline.checkpoints.unreadable import NotKnown, Truncated, Unreadable


class FileKind(str, Enum):
    IDENTITY = "identity"  # `metadata`: Spark's query id
    PLAN = "plan"  # `offsets/N`
    COMPLETION = "completion"  # `commits/N`
    SOURCE_LOG = "source log"  # `sources/<i>/<entry>`: which files a file source has read
    SOURCE = "source"  # `sources/<i>/…`: what another source keeps of its own
    OPERATOR = "operator"  # `state/<op>/_metadata/…`; may hold absolute paths, see `relocate_operator`
    SCHEMA = "schema"  # of an operator's state
    SNAPSHOT = "snapshot"  # a zip that names the tables below
    TABLE = "table"  # an SST or a log file of RocksDB
    CHANGELOG = "changelog"
    OURS = "strandline"  # what strandline keeps beside Spark's files


class Problem(str, Enum):
    """What is wrong with a needed file; all but the last mean that a restart fails or goes wrong."""

    MISSING = "missing"
    OTHER_SIZE = "other size"
    CHECKSUM = "checksum"
    UNREADABLE = "unreadable"
    ELSEWHERE = "elsewhere"  # it points out of this checkpoint
    NOT_KNOWN = "not known"  # only Spark can read it: neither good nor bad


@dataclass(frozen=True)
class StorePlace:
    """A state store: one of an operator's partition."""

    operator: int
    operator_name: str
    partition: int
    store: str
    version: StateVersion
    """What the restart loads."""


@dataclass(frozen=True)
class NeededFile:
    path: str
    kind: FileKind
    why: str
    size: int | None
    """Bytes in the checkpoint; None when it is not there."""
    expected: int | None = None
    """Bytes that another file says it has."""
    place: StorePlace | None = None
    """Whose state it is."""
    problem: Problem | None = None
    detail: str = ""

    @property
    def missing(self) -> bool:
        return self.size is None

    def with_problem(self, problem: Problem, detail: str) -> NeededFile:
        return replace(self, problem=problem, detail=detail)

    def unreadable(self, error: Unreadable) -> NeededFile:
        return self.with_problem(Problem.NOT_KNOWN if isinstance(error, NotKnown) else Problem.UNREADABLE, str(error))


class Look:
    """The files of a checkpoint as one listing shows them. What was read of state files is remembered: batches share most of them.

    Spark may delete old files meanwhile. A file that is listed and gone when it is read counts as missing; take a fresh look then.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.files: dict[str, StoredFile] = {file.path: file for file in checkpoint.storage.walk("")}
        self._names: dict[str, list[str]] = {}
        for path in self.files:
            if not self._is_sidecar(path):
                folder, _, name = path.rpartition("/")
                self._names.setdefault(folder, []).append(name)
        self._lineages: dict[str, tuple[StateVersion, ...] | Unreadable | None] = {}
        self._snapshots: dict[str, Snapshot | Unreadable | None] = {}

    def __contains__(self, path: str) -> bool:
        return path in self.files

    def below(self, folder: str) -> list[str]:
        """Paths of files anywhere below a folder; hidden ones and checksums beside others left out."""
        inside = [parent for parent in self._names if parent == folder or parent.startswith(f"{folder}/")]
        return sorted(f"{parent}/{name}" for parent in inside for name in self._names[parent])

    def names(self, folder: str) -> list[str]:
        """Names of files in a folder itself."""
        return self._names.get(folder, [])

    def folders(self, folder: str) -> list[str]:
        return sorted({parent.removeprefix(f"{folder}/").partition("/")[0] for parent in self._names if parent.startswith(f"{folder}/")})

    def numbered(self, folder: str) -> list[int]:
        return sorted(int(name) for name in self.names(folder) if name.isdigit())

    def _is_sidecar(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        return name.startswith(".") or (name.endswith(".crc") and path.removesuffix(".crc") in self.files)

    def read(self, path: str) -> bytes | None:
        return self.checkpoint.storage.read(path) if path in self.files else None

    def need(
        self, path: str, kind: FileKind, why: str, *, expected: int | None = None, place: StorePlace | None = None, detail: str = ""
    ) -> NeededFile:
        """A file that is needed; when it is missing, or smaller or larger than it must be, that is said at once."""
        there = self.files.get(path)
        file = NeededFile(path, kind, why, there.size if there else None, expected, place)
        if there is None:
            return file.with_problem(Problem.MISSING, detail or "it is not there")
        if expected is not None and there.size != expected:
            return file.with_problem(Problem.OTHER_SIZE, f"it has {there.size} bytes instead of {expected}")
        return file

    def lineage(self, path: str) -> tuple[StateVersion, ...] | Unreadable | None:
        """The versions that a changelog needs before itself; None when it is gone."""
        if path not in self._lineages:
            try:
                self._lineages[path] = self._lineage(path)
            except Unreadable as error:
                self._lineages[path] = error
        return self._lineages[path]

    def _lineage(self, path: str) -> tuple[StateVersion, ...] | None:
        start = self.checkpoint.storage.read_start(path, HEADER_BYTES)
        try:
            return None if start is None else read_lineage(start)
        except Truncated:
            if start is not None and len(start) < HEADER_BYTES:
                raise
            whole = self.checkpoint.storage.read(path)
            return None if whole is None else read_lineage(whole)

    def snapshot(self, path: str) -> Snapshot | Unreadable | None:
        """What a snapshot needs beside itself; None when it is gone."""
        if path not in self._snapshots:
            raw = self.checkpoint.storage.read(path)
            try:
                self._snapshots[path] = None if raw is None else read_snapshot(raw)
            except Unreadable as error:
                self._snapshots[path] = error
        return self._snapshots[path]
