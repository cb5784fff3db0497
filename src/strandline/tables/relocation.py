"""A table's files for another place: Iceberg keeps absolute paths in its metadata, its manifests, and beside row deletes.

Everything here is a function from bytes to bytes. Files must be relocated in the order of `TableFileKind`: a manifest tells the size of the
delete files it names, a manifest list the size of its manifests.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from strandline.tables.manifests import NotIceberg, Record, changed

POSITION_DELETES = 1
"""`content` of a manifest entry."""

PATH_FIELD = 2147483546
"""Iceberg's reserved id of the column `file_path` in position deletes."""

LOCATION_PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")

_PUFFIN = b"PFA1"


class TableFileKind(str, Enum):
    """What a file is to its table, in the order in which files must be relocated."""

    DATA = "data"  # names no other file
    VECTORS = "deletion vectors"  # Puffin; its footer names data files
    POSITIONS = "position deletes"  # Parquet; every row names a data file
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest list"
    METADATA = "metadata"


class Outside(Exception):
    """A path that does not lie in the table's folder."""


@dataclass(frozen=True)
class Relocation:
    """From one table location to another."""

    old: str
    new: str

    def below(self, path: str) -> str:
        """A path relative to the old location."""
        folder, wanted = f"{plain_location(self.old)}/", plain_location(path)
        if not wanted.startswith(folder):
            raise Outside(path)
        return wanted.removeprefix(folder)

    def moved(self, path: str) -> str:
        return f"{self.new.rstrip('/')}/{self.below(path)}"

    def location(self, folder: str) -> str:
        """The same for a folder, which may be the table's own."""
        return self.new.rstrip("/") if plain_location(folder) == plain_location(self.old) else self.moved(folder)


def plain_location(location: str) -> str:
    """Iceberg and its clients write a local path as ``file:/a``, ``file:///a`` or ``/a``: the last of these. Others stay as they are."""
    return re.sub(r"^file:/+", "/", location).rstrip("/")


# -- each kind of file -------------------------------------------------------------------------------------------------


def relocate_metadata(metadata: Mapping[str, Any], move: Relocation) -> dict[str, Any]:
    """A metadata file that `extract` made: it names no older metadata and no statistics."""
    properties = dict(metadata.get("properties", {}))
    for key in LOCATION_PROPERTIES:
        if key in properties:
            properties[key] = move.location(properties[key])
    snapshots = [{**snapshot, "manifest-list": move.moved(snapshot["manifest-list"])} for snapshot in metadata.get("snapshots", [])]
    return {**metadata, "location": move.new.rstrip("/"), "properties": properties, "snapshots": snapshots}


def relocate_list(raw: bytes, move: Relocation, sizes: Mapping[str, int]) -> bytes:
    """A manifest list.

    Args:
        sizes: of the relocated manifests, by their path below the table's location.
    """

    def change(manifest: Record) -> Record:
        below = move.below(manifest["manifest_path"])
        if below not in sizes:
            raise NotIceberg(f"it names manifest {below}, which did not come along")
        return {**manifest, "manifest_path": move.moved(manifest["manifest_path"]), "manifest_length": sizes[below]}

    return changed(raw, change)


def relocate_manifest(raw: bytes, move: Relocation, sizes: Mapping[str, int]) -> bytes:
    """A manifest.

    Args:
        sizes: of the relocated delete files, by their path below the table's location. Entries of deleted files may name others.
    """

    def change(entry: Record) -> Record:
        file: Record = {**entry["data_file"]}
        below = move.below(file["file_path"])
        file["file_path"] = move.moved(file["file_path"])
        if file.get("content", 0) == POSITION_DELETES:
            file["file_size_in_bytes"] = sizes.get(below, file["file_size_in_bytes"])
            if file.get("referenced_data_file") is not None:
                file["referenced_data_file"] = move.moved(file["referenced_data_file"])
            if file["file_format"].upper() != "PUFFIN":
                file["split_offsets"] = None  # written anew: its row groups begin elsewhere
            file |= _moved_bounds(file, move)
        return {**entry, "data_file": file}

    return changed(raw, change)


def _moved_bounds(file: Record, move: Relocation) -> Record:
    """Bounds of the paths that a delete file names: readers skip it for files out of them, so they must move, or go."""
    found: Record = {}
    for name in ("lower_bounds", "upper_bounds"):
        bounds = file.get(name)
        if bounds is None:
            continue
        try:
            found[name] = [
                {**bound, "value": move.moved(bound["value"].decode("utf-8")).encode()} if bound["key"] == PATH_FIELD else bound
                for bound in bounds
            ]
        except (Outside, UnicodeDecodeError):  # cut off inside the location: without them the file is read for every data file
            return {each: [b for b in file[each] or () if b["key"] != PATH_FIELD] for each in ("lower_bounds", "upper_bounds")}
    return found


def relocate_vectors(raw: bytes, move: Relocation) -> bytes:
    """A Puffin file of deletion vectors. The blobs stay where they are, so offsets in manifests still hold; the footer behind them moves."""
    size = int.from_bytes(raw[-12:-8], "little")
    begins = len(raw) - 12 - size
    if raw[-4:] != _PUFFIN or begins < 8 or raw[begins - 4 : begins] != _PUFFIN:
        raise NotIceberg("it is no Puffin file")
    if raw[-8] & 1:
        raise NotIceberg("its footer is compressed, which Iceberg does not do for deletion vectors")
    footer = json.loads(raw[begins : begins + size])
    for blob in footer["blobs"]:
        properties = blob.get("properties", {})
        if "referenced-data-file" in properties:
            properties["referenced-data-file"] = move.moved(properties["referenced-data-file"])
    payload = json.dumps(footer, separators=(",", ":"), ensure_ascii=False).encode()
    return raw[:begins] + payload + len(payload).to_bytes(4, "little") + raw[-8:]


def relocate_positions(raw: bytes, move: Relocation) -> bytes:
    """A Parquet file of position deletes, as tables of format version 2 have them. The same prefix for all keeps its order."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(raw))
    place = table.schema.get_field_index("file_path")
    if place < 0:
        raise NotIceberg("it holds no position deletes")
    paths = [move.moved(path) for path in table.column(place).to_pylist()]
    field = table.schema.field(place)
    moved = table.set_column(place, field, pyarrow.array(paths, field.type))
    out = io.BytesIO()
    pyarrow.parquet.write_table(moved.cast(table.schema), out, compression="zstd")
    return out.getvalue()
