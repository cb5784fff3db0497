"""Can a pipeline be restarted from this batch? Every file that the restart would read is looked at; nothing is believed.

Presence and sizes always; checksums wherever one lies beside a file or inside it; and each file that has a format is read. What only
Spark can read is its own answer, never a yes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

from strandline.checkpoints.batch_files import parse_plan
from strandline.checkpoints.checkpoint import ORIGIN, ORIGIN_VERSION, Checkpoint
from strandline.checkpoints.checksums import hadoop_says_same, spark_says_same
from strandline.checkpoints.needed import FileKind, Look, NeededFile, Problem
from strandline.checkpoints.requirements import needed_by
from strandline.checkpoints.state_files import check_changelog
from strandline.checkpoints.unreadable import Unreadable
from strandline.model.offsets import Offsets

RECORD_VERSION = 1
"""Of the records of keyed operators, the newest that this strandline reads."""


class Answer(str, Enum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"  # nothing is wrong with what can be read here, and something cannot be


@dataclass(frozen=True)
class Verification:
    """What was found out about a restart from a batch."""

    batch: int
    answer: Answer
    files: tuple[NeededFile, ...]
    """All that the restart needs, those in trouble with their problem."""
    checked: int
    """Files whose content was compared with a checksum."""

    @property
    def troubles(self) -> tuple[NeededFile, ...]:
        return tuple(file for file in self.files if file.problem is not None)

    @property
    def bytes(self) -> int:
        return sum(file.size or 0 for file in self.files)

    @property
    def because(self) -> str:
        """One clause for the first trouble, those that forbid a restart first; empty when there is none."""
        worst = sorted(self.troubles, key=lambda file: (file.problem is Problem.NOT_KNOWN, file.kind is not FileKind.COMPLETION))
        if not worst:
            return ""
        more = f", and {len(worst) - 1} more" if len(worst) > 1 else ""
        return f"{worst[0].path}: {worst[0].detail}{more}"


def verify(checkpoint: Checkpoint, batch: int) -> Verification:
    """Spark may be running and retiring old files: what looks damaged is looked at once more, with a fresh listing."""
    found = _verify(Look(checkpoint), batch)
    return found if found.answer is Answer.YES else _verify(Look(checkpoint), batch)


def look_over(checkpoint: Checkpoint, batch: int) -> Verification:
    """Whether everything is there, in its size: for a copy whose content was compared while it was made."""
    return _found(batch, needed_by(checkpoint, batch), checked=0)


def newest_restartable(checkpoint: Checkpoint, before: int | None = None) -> int | None:
    """The newest completed batch (below `before`, if that is given) that a restart is possible from."""
    for batch in reversed(checkpoint.completed()):
        if (before is None or batch < before) and verify(checkpoint, batch).answer is Answer.YES:
            return batch
    return None


def _verify(look: Look, batch: int) -> Verification:
    examined = [_examined(look, file) for file in (*needed_by(look.checkpoint, batch, look), *_next_plan(look, batch))]
    return _found(batch, tuple(file for file, _ in examined), sum(checked for _, checked in examined))


def _found(batch: int, files: tuple[NeededFile, ...], checked: int) -> Verification:
    problems = {file.problem for file in files} - {None}
    answer = Answer.YES if not problems else Answer.UNKNOWN if problems == {Problem.NOT_KNOWN} else Answer.NO
    return Verification(batch, answer, files, checked)


def _next_plan(look: Look, batch: int) -> list[NeededFile]:
    """After the newest batch Spark goes on with the plan it made already, if there is one. A copy can do without it."""
    path = f"offsets/{batch + 1}"
    if path not in look or f"commits/{batch + 1}" in look:
        return []
    file = look.need(path, FileKind.PLAN, "what the next batch will read: it was planned and not completed")
    try:
        parse_plan(batch + 1, look.read(path) or b"")
    except Unreadable as error:
        return [file.unreadable(error)]
    return [file]


# -- one file ----------------------------------------------------------------------------------------------------------


def _examined(look: Look, file: NeededFile) -> tuple[NeededFile, bool]:
    """The file with what its content says, and whether a checksum was compared."""
    if file.problem is not None:
        return file, False
    folder, slash, name = file.path.rpartition("/")
    beside = [path for path in (f"{folder}{slash}.{name}.crc", f"{file.path}.crc") if path in look]
    if not beside and file.kind is FileKind.TABLE:
        return file, False  # only its size is known here; RocksDB compares the checksums inside when it reads
    content = look.read(file.path)
    if content is None:
        return file.with_problem(Problem.MISSING, "it is not there"), False
    checked = file.kind is FileKind.SNAPSHOT  # its members were compared when it was opened
    for path in beside:
        says_same = hadoop_says_same if path.rpartition("/")[2].startswith(".") else spark_says_same
        same = says_same(content, look.read(path) or b"")
        if same is False:
            return file.with_problem(Problem.CHECKSUM, f"its content does not match the checksum in {path}"), True
        checked = checked or same is True
    try:
        checked = _read(file, content, checked) or checked
    except Unreadable as error:
        return file.unreadable(error), checked
    return file, checked


def _read(file: NeededFile, content: bytes, checked: bool) -> bool:
    """Understand the content as far as it has a format; true when that compared a checksum."""
    match file.kind:
        case FileKind.IDENTITY:
            _json(content, "id")
        case FileKind.CHANGELOG if not checked:
            check_changelog(content)
            return True
        case FileKind.CHANGELOG if not content:
            raise Unreadable("it is empty")
        case FileKind.SCHEMA if content[:3] not in (b"\x00\x02v",):
            raise Unreadable("it is not a schema of Spark's")
        case FileKind.SOURCE_LOG:
            _source_log(content)
        case FileKind.OURS if file.path == ORIGIN:
            _origin(content)
        case FileKind.OURS:
            _version(_json(content, "name"), RECORD_VERSION)
    return False


def _json(content: bytes, key: str) -> dict[str, object]:
    try:
        told = json.loads(content)
    except ValueError as error:
        raise Unreadable("it is not whole JSON") from error
    if not isinstance(told, dict) or not told.get(key):
        raise Unreadable(f"it has no '{key}'")
    return told


def _version(told: dict[str, object], known: int) -> None:
    version = told.get("version")
    if not isinstance(version, int):
        raise Unreadable("it has no version")
    if version > known:
        raise Unreadable(f"its version {version} is newer than this strandline, which reads {known}")


def _origin(content: bytes) -> None:
    told = _json(content, "version")
    _version(told, ORIGIN_VERSION)
    try:
        Offsets.from_json(told["sources"])  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable("it is not what strandline wrote") from error


def _source_log(content: bytes) -> None:
    """A version, then a file a line."""
    try:
        version, *lines = content.decode("utf-8").split("\n")
        if version != "v1" or not all(json.loads(line)["path"] for line in lines if line):
            raise ValueError(version)
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable("it is truncated or not in Spark's format") from error
