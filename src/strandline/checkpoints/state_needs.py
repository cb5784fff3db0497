"""The state files that a restart loads, found as Spark finds them.

Spark takes the snapshot of the wanted version if there is one. Otherwise it reads the lineage of that version's changelog, loads the newest
snapshot in it, and replays the changelogs after that. Version 0 is empty: a lineage that goes back to 1 needs no snapshot.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from strandline.checkpoints.batch_files import CompletedBatch
from strandline.checkpoints.needed import FileKind, Look, NeededFile, Problem, StorePlace
from strandline.checkpoints.state_files import DEFAULT_STORE, OperatorMetadata, OperatorStore, StateVersion, below, read_operator
from strandline.checkpoints.unreadable import Unreadable

OUR_RECORDS = "strandline-state"
"""The folder where strandline keeps how its keyed operators lay out their state."""
OUR_VARIABLES = "strandline."
"""How the state variables of keyed operators begin."""

_HEAP_ENDINGS = (".delta", ".snapshot")
"""Of the state store that lives on the JVM's heap, which this does not read."""


def operators_in(look: Look) -> list[int]:
    return sorted(int(name) for name in look.folders("state") if name.isdigit())


def state_needs(look: Look, completed: CompletedBatch) -> list[NeededFile]:
    """Everything below `state/`, and strandline's records of the operators that are its own."""
    found: list[NeededFile] = []
    operators = sorted(completed.state_ids) if completed.state_ids is not None else operators_in(look)
    for operator in operators:
        own, metadata = _operator(look, operator, completed.batch)
        found += own
        if completed.state_ids is not None:
            found += _by_ids(look, operator, metadata, completed)
        elif metadata is not None:
            found += _by_versions(look, operator, metadata, completed.batch + 1)
    return list({file.path: file for file in reversed(found)}.values())[::-1]


# -- the operator itself -----------------------------------------------------------------------------------------------


def _operator(look: Look, operator: int, batch: int) -> tuple[list[NeededFile], OperatorMetadata | None]:
    """Metadata, schemas and our record. Without them Spark goes on, but no longer notices a state that does not fit."""
    root = f"state/{operator}"
    path = _metadata_path(look, root, batch)
    file = look.need(path, FileKind.OPERATOR, f"what operator {operator} is and which stores it has")
    raw = look.read(path)
    if raw is None:
        return [file if file.missing else file.with_problem(Problem.MISSING, "it is not there")], None
    try:
        metadata = read_operator(raw)
        schemas = [path for store in metadata.stores for path in _schema_paths(root, store)]
    except Unreadable as error:
        return [file.unreadable(error)], None
    moved = next((place for store in metadata.stores for place in store.schema_locations if not _is_here(look, place)), None)
    if moved is not None:
        detail = f"it names a state schema outside this checkpoint ({moved}): the checkpoint was moved or copied without strandline"
        file = file.with_problem(Problem.ELSEWHERE, detail)
    found = [file, *(look.need(path, FileKind.SCHEMA, f"schema of the state of {_shown(metadata)}") for path in schemas)]
    ours = [look.need(f"{OUR_RECORDS}/{name}.json", FileKind.OURS, f"layout of the keyed state of '{name}'") for name in _keyed(metadata)]
    return [*found, *ours], metadata


def _keyed(metadata: OperatorMetadata) -> list[str]:
    """The keyed operator that Spark's operator is, by its name in the pipeline."""
    return [variable.removeprefix(OUR_VARIABLES) for variable in metadata.variables if variable.startswith(OUR_VARIABLES)]


def _shown(metadata: OperatorMetadata) -> str:
    return next(iter(_keyed(metadata)), metadata.name)


def _metadata_path(look: Look, root: str, batch: int) -> str:
    """Spark writes the metadata of transformWithState anew at each start, and reads the newest that is not after the batch."""
    versions = [number for number in look.numbered(f"{root}/_metadata/v2") if number <= batch]
    starts = [int(name.partition("_")[0]) for path in look.below(f"{root}/_stateSchema") if (name := path.rpartition("/")[2])[:1].isdigit()]
    evolved = max((number for number in starts if number <= batch), default=None)
    if versions:
        return f"{root}/_metadata/v2/{max(*versions, evolved or 0)}"
    return f"{root}/_metadata/v2" if evolved is not None else f"{root}/_metadata/metadata"  # which number it had, nobody knows


def _schema_paths(root: str, store: OperatorStore) -> list[str]:
    if store.schema_locations:
        return [below(location) for location in store.schema_locations]
    return [f"{_folder(root, 0, store.name)}/_metadata/schema"]


def _is_here(look: Look, location: str) -> bool:
    here = look.checkpoint.location
    if "://" in here and "://" in location:
        return _bare(location).startswith(f"{_bare(here).rstrip('/')}/state/")
    base = os.path.realpath(_bare(here))
    return os.path.realpath(_bare(location)).startswith(f"{base}{os.sep}")


def _bare(location: str) -> str:
    """Without the scheme, which may be s3 on one side and s3a on the other."""
    if "://" in location:
        return location.partition("://")[2]
    return location.removeprefix("file:")


# -- its stores --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Store:
    look: Look
    folder: str
    place: StorePlace

    @property
    def _why(self) -> str:
        place = self.place
        store = "" if place.store == DEFAULT_STORE else f", store {place.store}"
        return f"state version {place.version.version} of {place.operator_name}, partition {place.partition}{store}"

    def _path(self, version: StateVersion, ending: str) -> str:
        return f"{self.folder}/{version.name}.{ending}"

    def _need(self, path: str, kind: FileKind, *, expected: int | None = None, detail: str = "") -> NeededFile:
        return self.look.need(path, kind, self._why, expected=expected, place=self.place, detail=detail)

    def by_lineage(self) -> list[NeededFile]:
        """Format 2: ids say exactly which files belong together."""
        wanted = self.place.version
        if self._path(wanted, "zip") in self.look:
            return self._snapshot(wanted)
        path = self._path(wanted, "changelog")
        head = self._need(path, FileKind.CHANGELOG, detail="neither it nor a snapshot of this version is there")
        if head.missing:
            return [head]
        before = self.look.lineage(path)
        if before is None:
            return [head.with_problem(Problem.MISSING, "it is not there")]
        if isinstance(before, Unreadable):
            return [head.unreadable(before)]
        return self._from_base([*before, wanted])

    def by_version(self) -> list[NeededFile]:
        """Format 1: names have no ids, so the newest snapshot that is there is the one that is meant."""
        names = [name for name in self.look.names(self.folder) if name.endswith(".zip")]
        snapshots = [int(name.removesuffix(".zip")) for name in names if name.removesuffix(".zip").isdigit()]
        wanted = self.place.version.version
        base = max((version for version in snapshots if version <= wanted), default=0)
        return self._from_base([StateVersion(version) for version in range(max(base, 1), wanted + 1)])

    def _from_base(self, versions: list[StateVersion]) -> list[NeededFile]:
        base = max((version for version in versions if self._path(version, "zip") in self.look), default=None)
        found = self._snapshot(base) if base is not None else []
        if base is None and versions[0].version != 1:
            detail = "the changelogs after it build on it"
            found = [self._need(self._path(versions[0], "zip"), FileKind.SNAPSHOT, detail=detail)]
            base = versions[0]
        after = base.version if base is not None else 0
        return found + [self._need(self._path(v, "changelog"), FileKind.CHANGELOG) for v in versions if v.version > after]

    def _snapshot(self, version: StateVersion) -> list[NeededFile]:
        path = self._path(version, "zip")
        file = self._need(path, FileKind.SNAPSHOT)
        content = self.look.snapshot(path)
        if content is None:
            return [file.with_problem(Problem.MISSING, "it is not there")]
        if isinstance(content, Unreadable):
            return [file.unreadable(content)]
        return [file, *(self._need(f"{self.folder}/{t.path}", FileKind.TABLE, expected=t.size) for t in content.files)]


def _by_ids(look: Look, operator: int, metadata: OperatorMetadata | None, completed: CompletedBatch) -> list[NeededFile]:
    assert completed.state_ids is not None
    root = f"state/{operator}"
    found = []
    for partition, ids in enumerate(completed.state_ids[operator]):
        for number, id_ in enumerate(ids):
            version = StateVersion(completed.batch + 1, id_)
            if metadata is not None and number < len(metadata.stores):
                store, name = metadata.stores[number].name, _shown(metadata)
            else:  # its metadata is lost, and said to be: the id alone finds the files
                store, name = _store_with(look, f"{root}/{partition}", version), f"operator {operator}"
            place = StorePlace(operator, name, partition, store, version)
            found += _Store(look, _folder(root, partition, store), place).by_lineage()
    return found


def _by_versions(look: Look, operator: int, metadata: OperatorMetadata, version: int) -> list[NeededFile]:
    root = f"state/{operator}"
    found = []
    for store in metadata.stores:
        for partition in range(store.partitions):
            folder = _folder(root, partition, store.name)
            place = StorePlace(operator, _shown(metadata), partition, store.name, StateVersion(version))
            heap = next((name for name in look.names(folder) if name.endswith(_HEAP_ENDINGS)), None)
            if heap is not None:
                file = look.need(f"{folder}/{heap}", FileKind.CHANGELOG, f"state of {metadata.name}", place=place)
                found.append(file.with_problem(Problem.NOT_KNOWN, "it is of HDFSBackedStateStoreProvider, which only Spark reads"))
            else:
                found += _Store(look, folder, place).by_version()
    return found


def _folder(root: str, partition: int, store: str) -> str:
    return f"{root}/{partition}" if store == DEFAULT_STORE else f"{root}/{partition}/{store}"


def _store_with(look: Look, partition: str, version: StateVersion) -> str:
    for path in look.below(partition):
        if path.endswith((f"/{version.name}.zip", f"/{version.name}.changelog")):
            inner = path.removeprefix(f"{partition}/").split("/")
            return inner[0] if len(inner) > 1 else DEFAULT_STORE
    return DEFAULT_STORE
