"""One table as it was at one snapshot: its metadata cut down to that, and every file that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from strandline.model.errors import TableUnavailable
from strandline.model.stamp import MARK_PREFIX, encode_mark, mark_key
from strandline.tables.manifests import AvroFile, NotIceberg
from strandline.tables.relocation import LOCATION_PROPERTIES, POSITION_DELETES, Outside, Relocation, TableFileKind
from strandline.tables.view import FOR_EVER, MAIN, TableView

Read: TypeAlias = Callable[[str], bytes | None]
"""A file of the table, by its path below the table's location."""

_OURS = "strandline-"
"""How refs begin that strandline made; they mean something only beside the ledger and the savepoints of their project."""

_DELETED = 2
"""`status` of a manifest entry whose file is no longer part of the table."""


def cut(view: TableView, metadata: Mapping[str, Any], snapshot: int | None, pipeline: str, tag: str) -> dict[str, Any]:
    """Metadata of the table as if nothing had happened after the snapshot. Paths stay what they are.

    History stays as far as it goes back from the snapshot, with the tags and branches of others that lie on it. Statistics and older metadata
    files are left behind: the first can be computed again, the second are a log of this place.
    """
    kept = list(view.lineage(snapshot))
    ids = {one.id for one in kept}
    known = metadata.get("refs", {})
    refs = {name: ref for name, ref in known.items() if int(ref["snapshot-id"]) in ids and not name.startswith(_OURS)}
    if snapshot is not None:
        refs[MAIN] = {**known.get(MAIN, {"type": "branch"}), "snapshot-id": snapshot}
        refs[tag] = {"snapshot-id": snapshot, "type": "tag", "max-ref-age-ms": FOR_EVER}
    return {
        **{key: value for key, value in metadata.items() if key not in ("statistics", "partition-statistics")},
        "properties": _properties(view, snapshot, pipeline, refs),
        "current-snapshot-id": snapshot if snapshot is not None else (None if view.format_version > 2 else -1),
        "snapshots": [raw for raw in metadata.get("snapshots", []) if int(raw["snapshot-id"]) in ids],
        "refs": refs,
        "snapshot-log": [{"timestamp-ms": one.timestamp_ms, "snapshot-id": one.id} for one in reversed(kept)],
        "metadata-log": [],
    }


def _properties(view: TableView, snapshot: int | None, pipeline: str, refs: Mapping[str, Any]) -> dict[str, str]:
    """The pipeline's mark says what it said after the snapshot: a later one would look like a rollback behind its back."""
    found = {k: v for k, v in view.properties.items() if not (k.startswith(MARK_PREFIX) and "@" in k and k.rpartition("@")[2] not in refs)}
    if view.refs.get(MAIN) == snapshot:
        return found
    key, oldest = mark_key(pipeline), None
    for oldest in view.lineage(snapshot):
        if oldest.stamp is not None and oldest.stamp.pipeline == pipeline:
            return {**found, key: encode_mark(replace(oldest.stamp.witness, snapshot_id=oldest.id))}
    if oldest is not None and oldest.parent_id is not None and key in found:
        raise TableUnavailable(
            f"table '{view.name}' no longer tells how far it was written at snapshot {snapshot}: the history before it has expired",
            next_command=f"strandline savepoint create {pipeline}, and move that one",
        )
    return {k: v for k, v in found.items() if k != key}


def files_of(table: str, metadata: Mapping[str, Any], read: Read) -> dict[str, TableFileKind]:
    """Every file that the snapshots in the metadata need, by its path below the table's location."""
    here = Relocation(metadata["location"], metadata["location"])
    found: dict[str, TableFileKind] = {}
    try:
        for key in LOCATION_PROPERTIES:
            if key in metadata.get("properties", {}):
                here.location(metadata["properties"][key])
        for snapshot in metadata.get("snapshots", []):
            if "manifest-list" not in snapshot or snapshot.get("key-id") is not None:
                raise NotIceberg("a snapshot of it is encrypted, or of format version 1")
            path = here.below(snapshot["manifest-list"])
            found[path] = TableFileKind.MANIFEST_LIST
            for manifest in _decoded(path, read).records:
                below = here.below(manifest["manifest_path"])
                if below not in found:
                    found[below] = TableFileKind.MANIFEST
                    found |= _live(_decoded(below, read), here)
    except Outside as outside:
        raise TableUnavailable(
            f"table '{table}' has a file outside of its own folder, so it cannot be exported: {outside}",
            next_command="rewrite its data files into the table's folder (rewrite_data_files), take a new savepoint, then export that",
        ) from outside
    except NotIceberg as error:
        raise TableUnavailable(f"table '{table}' cannot be exported: {error}") from error
    return found


def _decoded(path: str, read: Read) -> AvroFile:
    raw = read(path)
    if raw is None:
        raise NotIceberg(f"its file {path} is missing")
    try:
        return AvroFile.decode(raw)
    except NotIceberg as error:
        raise NotIceberg(f"its file {path}: {error}") from error


def _live(manifest: AvroFile, here: Relocation) -> dict[str, TableFileKind]:
    found = {}
    for entry in manifest.records:
        if entry["status"] == _DELETED:
            continue  # a snapshot that still needs it has a manifest that says so
        file = entry["data_file"]
        if file.get("key_metadata") is not None:
            raise NotIceberg("its files are encrypted")
        found[here.below(file["file_path"])] = _kind(file)
    return found


def _kind(file: Mapping[str, Any]) -> TableFileKind:
    if file.get("content", 0) != POSITION_DELETES:
        return TableFileKind.DATA
    written_as = str(file["file_format"]).upper()
    if written_as == "PUFFIN":
        return TableFileKind.VECTORS
    if written_as == "PARQUET":
        return TableFileKind.POSITIONS
    raise NotIceberg(f"it has position deletes in {written_as} files; rewrite_position_delete_files turns them into Parquet")
