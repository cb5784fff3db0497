"""What a savepoint says of itself: the state, the positions and the tables of one batch, and every byte it is made of.

A durable format. Readers of old versions stay; the digest over the whole makes a changed word as visible as a changed file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from strandline.model.offsets import Offsets
from strandline.model.sealed import damaged, seal, unseal

SAVEPOINT_VERSION = 2
"""2: the branch of the tables."""
TAG_PREFIX = "strandline-savepoint-"


class SavepointType(str, Enum):
    """How state is kept."""

    NATIVE = "native"  # as Spark's own files
    CANONICAL = "canonical"  # decoded, as Parquet files in the declared types


@dataclass(frozen=True)
class SavedFile:
    path: str
    """Relative to the savepoint."""
    kind: str
    """What it is to a restart."""
    size: int
    sha256: str


@dataclass(frozen=True)
class SavedTable:
    """A table of the pipeline, seen from the savepoint."""

    name: str
    uuid: str
    snapshot: int | None
    """The table after the savepoint's batch and before the next; None when it was empty."""
    current: int | None
    """The newest snapshot when the savepoint was taken."""
    schema_id: int | None
    """Of `snapshot`."""


@dataclass(frozen=True)
class SavedTopic:
    """An output topic: how far it was written after the savepoint's batch."""

    name: str
    topic_id: str
    batch: int


@dataclass(frozen=True)
class Savepoint:
    id: str
    pipeline: str
    type: SavepointType
    strand: str
    batch: int
    attempt: int
    """The attempt that ran the batch."""
    code: str
    created_at: str
    created_by: str
    note: str
    positions: Offsets
    """Of every source, after the batch."""
    watermark_ms: int
    checkpoint: str
    """Where it was taken from."""
    definition: Mapping[str, Any]
    operators: tuple[Mapping[str, Any], ...]
    """What keeps state, with its schema."""
    versions: Mapping[str, str]
    contracts: Mapping[str, str]
    tables: tuple[SavedTable, ...]
    topics: tuple[SavedTopic, ...]
    files: tuple[SavedFile, ...] = field(repr=False, default=())
    branch: str = "main"
    """Of the tables, which the strand wrote to."""

    @property
    def tag(self) -> str:
        """The tag on its table snapshots, which keeps them from expiry."""
        return TAG_PREFIX + self.id

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        content = {
            **asdict(self),
            "type": self.type.value,
            "positions": self.positions.to_json(),
            "definition": dict(self.definition),
            "operators": [dict(operator) for operator in self.operators],
            "versions": dict(self.versions),
            "contracts": dict(self.contracts),
        }
        return seal(content, SAVEPOINT_VERSION)

    @classmethod
    def decode(cls, raw: bytes, where: str) -> Savepoint:
        content = unseal(raw, where, SAVEPOINT_VERSION)
        if content.get("type") not in [known.value for known in SavepointType]:
            raise damaged(where, f"its type '{content.get('type')}' is not one that this strandline knows")
        return cls(
            **{
                **content,
                "type": SavepointType(content["type"]),
                "positions": Offsets.from_json(content["positions"]),
                "operators": tuple(content["operators"]),
                "tables": tuple(SavedTable(**table) for table in content["tables"]),
                "topics": tuple(SavedTopic(**topic) for topic in content["topics"]),
                "files": tuple(SavedFile(**file) for file in content["files"]),
            }
        )


def is_savepoint_id(text: str) -> bool:
    """Ids become folder names and parts of tags."""
    return re.fullmatch(r"[a-z0-9][a-z0-9-]{3,60}", text) is not None
