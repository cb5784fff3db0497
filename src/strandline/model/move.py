"""What an export with tables says of itself: the savepoint it goes with, and every byte of its tables.

A durable format, beside that of the savepoint in the same folder.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from strandline.model.savepoint import SavedFile
from strandline.model.sealed import damaged, seal, unseal

MOVE_VERSION = 1
EXPORT_AGAIN = "export the savepoint again, then import that"


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
        return seal(asdict(self), MOVE_VERSION)

    @classmethod
    def decode(cls, raw: bytes, where: str) -> Move:
        content = unseal(raw, where, MOVE_VERSION, EXPORT_AGAIN)
        if strange := [table["name"] for table in content["tables"] if not re.fullmatch(r"\w[\w-]*(\.\w[\w-]*)+", table["name"])]:
            raise damaged(where, f"'{strange[0]}' is no name of a table", EXPORT_AGAIN)
        tables = [MovedTable(**{**table, "files": tuple(SavedFile(**file) for file in table["files"])}) for table in content["tables"]]
        return cls(**{**content, "ledger": SavedFile(**content["ledger"]), "tables": tuple(tables)})


def is_inner_path(path: str) -> bool:
    """Names from a file that was brought here become places to write to: none may lead out of the folder that it is put into."""
    return not path.startswith("/") and "\\" not in path and all(part not in ("", ".", "..") for part in path.split("/"))
