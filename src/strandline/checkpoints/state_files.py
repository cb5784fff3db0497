"""Files of a state store, as Spark's RocksDB provider writes them: changelogs, snapshots, the operator's metadata.

A changelog holds what one batch changed, after a header with its lineage: the versions that must be loaded before it. A snapshot is a small
zip whose inner `metadata` names the table files (SSTs) beside it. Spark loads the newest snapshot of a lineage, then the changelogs after it.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

from strandline.checkpoints.lz4_blocks import blocks, check
from strandline.checkpoints.unreadable import NotKnown, Truncated, Unreadable

HEADER_BYTES = 64 * 1024
"""Enough for the header of nearly every changelog: two blocks of Spark's default size."""

DEFAULT_STORE = "default"
"""The store of an operator that has one; its files lie in the partition's folder itself."""

_WITH_LINEAGE = ("v3", "v4")
_ZIP = b"PK\x03\x04"


@dataclass(frozen=True, order=True)
class StateVersion:
    """One version of a store. Batch N makes version N+1."""

    version: int
    id: str | None = None
    """Spark's unique id; None in format 1, whose names can be written twice."""

    @property
    def name(self) -> str:
        """Of its files, without the ending."""
        return str(self.version) if self.id is None else f"{self.version}_{self.id}"


# -- changelogs --------------------------------------------------------------------------------------------------------


def read_lineage(raw: bytes) -> tuple[StateVersion, ...]:
    """The versions before a changelog, oldest first; `raw` may be the start of the file alone (`Truncated` asks for more)."""
    begun = b""
    for block in blocks(raw, checked=False):
        begun += block
        try:
            version, at = _text(begun, 0)
            if version not in _WITH_LINEAGE:
                raise NotKnown(f"its version '{version[:20]}' is not one that this strandline reads")
            lineage, _ = _text(begun, at)
        except Truncated:
            continue  # the header goes on in the next block
        try:
            return tuple(sorted(StateVersion(int(item["version"]), str(item["checkpointUniqueId"])) for item in json.loads(lineage)))
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable("its lineage cannot be read") from error
    raise Unreadable("it ends before its header does")


def check_changelog(raw: bytes) -> None:
    """Unpack every block and compare its checksum: what a changelog proves by itself."""
    check(raw)


def _text(raw: bytes, at: int) -> tuple[str, int]:
    """As Java writes UTF: two bytes of length, then the bytes."""
    if len(raw) < at + 2:
        raise Truncated("it ends in its header")
    (size,) = struct.unpack_from(">H", raw, at)
    if len(raw) < at + 2 + size:
        raise Truncated("it ends in its header")
    try:
        return raw[at + 2 : at + 2 + size].decode("utf-8"), at + 2 + size
    except UnicodeDecodeError as error:
        raise Unreadable("its header is no text") from error


# -- snapshots ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableFile:
    """A file that a snapshot needs beside itself."""

    path: str
    """Below the store's folder."""
    size: int


@dataclass(frozen=True)
class Snapshot:
    keys: int
    files: tuple[TableFile, ...]


def read_snapshot(raw: bytes) -> Snapshot:
    """What a snapshot's inner metadata names. Every member is unpacked, so its own checksums are compared too."""
    if raw[:4] != _ZIP:  # Spark reads it from its start, where a zip may also be read from its end
        raise Unreadable("it is not a whole snapshot")
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            broken = archive.testzip()
            if broken is not None:
                raise Unreadable(f"the checksum of '{broken}' in it does not match")
            version, content = archive.read("metadata").decode("utf-8").split("\n", 1)
            names = set(archive.namelist())
        if version != "v1":
            raise NotKnown(f"its metadata is of version '{version[:20]}', not v1")
        told = json.loads(content)
        tables = [TableFile(f"SSTs/{file['dfsSstFileName']}", int(file["sizeBytes"])) for file in told["sstFiles"]]
        logs = [TableFile(f"logs/{file['dfsLogFileName']}", int(file["sizeBytes"])) for file in told.get("logFiles") or ()]
        if "CURRENT" not in names:
            raise Unreadable("it does not hold a RocksDB")
        return Snapshot(int(told["numKeys"]), (*tables, *logs))
    except Unreadable:
        raise
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, EOFError, NotImplementedError, struct.error) as error:
        raise Unreadable("it is not a whole snapshot") from error


# -- the operator's metadata -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatorStore:
    name: str
    partitions: int
    schema_locations: tuple[str, ...] = ()
    """Absolute, as Spark keeps them for transformWithState; other operators keep the schema with their first partition."""


@dataclass(frozen=True)
class OperatorMetadata:
    id: int
    name: str
    stores: tuple[OperatorStore, ...]
    variables: tuple[str, ...] = ()
    """Names of the state variables of a transformWithState."""


def read_operator(raw: bytes) -> OperatorMetadata:
    _, told = _operator(raw)
    try:
        stores = tuple(
            OperatorStore(str(store["storeName"]), int(store["numPartitions"]), tuple(map(str, store.get("stateSchemaFilePaths") or ())))
            for store in told["stateStoreInfo"]
        )
        properties = json.loads(told.get("operatorPropertiesJson") or "{}")
        variables = tuple(str(variable["stateName"]) for variable in properties.get("stateVariables", ()))
        return OperatorMetadata(int(told["operatorInfo"]["operatorId"]), str(told["operatorInfo"]["operatorName"]), stores, variables)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable("it is not in Spark's format") from error


def relocate_operator(raw: bytes, location: str) -> bytes:
    """The same metadata for a checkpoint at another place: the schema's absolute paths are its only tie to the old one."""
    version, told = _operator(raw)
    base = location if "://" in location else f"file:{location}"
    for store in told.get("stateStoreInfo", ()):
        paths = store.get("stateSchemaFilePaths")
        if paths:
            store["stateSchemaFilePaths"] = [f"{base.rstrip('/')}/{below(path)}" for path in paths]
    return f"{version}\n{json.dumps(told, separators=(',', ':'), ensure_ascii=False)}".encode()


def below(schema_location: str) -> str:
    """The part of a schema's absolute path that is inside the checkpoint."""
    _, found, rest = schema_location.rpartition("/state/")
    if not found or "/_stateSchema/" not in rest:
        raise Unreadable("it names a state schema that is in no checkpoint")
    return f"state/{rest}"


def _operator(raw: bytes) -> tuple[str, dict[str, Any]]:
    try:
        version, content = raw.decode("utf-8").split("\n", 1)
        told = json.loads(content)
    except ValueError as error:
        raise Unreadable("it is truncated or not in Spark's format") from error
    if version not in ("v1", "v2"):
        raise NotKnown(f"its format '{version[:20]}' is neither v1 nor v2")
    if not isinstance(told, dict):
        raise Unreadable("it is not in Spark's format")
    return version, told
