"""What an export with tables says of itself: the savepoint it goes with, and every byte of its tables.

A durable format, beside that of the savepoint in the same folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strandline.model.errors import SavepointDamaged
from strandline.model.savepoint import SavedFile

MOVE_VERSION = 1


@dataclass(frozen=True)
class MovedTable:
    """A table at the savepoint's snapshot. Its files keep the paths of the place they come from; they are rewritten where they land."""

    name: str
    uuid: str
    location: str
    """Where it was."""
    snapshot: int | None
    metadata: str
    """The path of its metadata file below the table's location."""
    files: tuple[SavedFile, ...]
    """Their paths are relative to the export."""

    @property
    def folder(self) -> str:
        """Of its files in the export."""
        return f"tables/{self.name}/"


@dataclass(frozen=True)
class Move:
    savepoint: str
    pipeline: str
    savepoint_sha256: str
    """Of `savepoint.json`, which lies beside it."""
    created_at: str
    ledger: SavedFile
    """What the ledger knew."""
    tables: tuple[MovedTable, ...]

    @property
    def files(self) -> list[SavedFile]:
        return [self.ledger, *(file for table in self.tables for file in table.files)]

    def encode(self) -> bytes:
        content = {"version": MOVE_VERSION, **asdict(self)}
        return (json.dumps({**content, "sha256": _digest(content)}, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def decode(cls, raw: bytes, where: str) -> Move:
        try:
            content = json.loads(raw)
            version = int(content.pop("version"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(where, "it cannot be read") from error
        if version > MOVE_VERSION:
            raise SavepointDamaged(
                f"{where} has version {version}, written by a newer strandline; this one reads up to {MOVE_VERSION}",
                next_command="pip install --upgrade strandline",
            )
        told = content.pop("sha256", None)
        if told != _digest({"version": version, **content}):
            raise _damaged(where, "its content is not what its digest says")
        if strange := [table["name"] for table in content["tables"] if not re.fullmatch(r"\w[\w-]*(\.\w[\w-]*)+", table["name"])]:
            raise _damaged(where, f"'{strange[0]}' is no name of a table")
        tables = [MovedTable(**{**table, "files": tuple(SavedFile(**file) for file in table["files"])}) for table in content["tables"]]
        return cls(**{**content, "ledger": SavedFile(**content["ledger"]), "tables": tuple(tables)})


def is_inner_path(path: str) -> bool:
    """Names from a file that was brought here become places to write to: none may lead out of the folder that it is put into."""
    return not path.startswith("/") and "\\" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def _digest(content: Mapping[str, Any]) -> str:
    """Over values as JSON keeps them: a tuple and a list are the same there."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _damaged(where: str, why: str) -> SavepointDamaged:
    return SavepointDamaged(f"{where} is damaged: {why}", next_command="export the savepoint again, then import that")
