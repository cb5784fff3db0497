"""What a new strand goes on from: a savepoint, or a batch that the checkpoint still keeps. Read and checked before anything is planned."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from strandline.checkpoints.copying import CheckpointFiles, Moved, files_of
from strandline.checkpoints.place import current_checkpoint
from strandline.checkpoints.requirements import needed_by
from strandline.checkpoints.storage import Storage
from strandline.ledger import Ledger
from strandline.model.definition import Pipeline
from strandline.model.errors import ChainBroken, CheckpointVanished, SavepointDamaged, UsageError
from strandline.model.offsets import Offsets
from strandline.model.savepoint import SavepointType
from strandline.project.config import Project
from strandline.runtime.rehearsal import Rehearsal
from strandline.runtime.seeding import PLACE
from strandline.runtime.strands import branch_of, strand_origin
from strandline.savepoints.archive import Archive
from strandline.savepoints.batches import restartable
from strandline.savepoints.fitting import check_native_state, decoded_state
from strandline.savepoints.input_paths import AS_THEY_ARE, PathMap
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import MAIN


@dataclass(frozen=True)
class Beginning:
    """What is gone on from, wherever it comes from."""

    strand: str
    batch: int
    savepoint: str
    positions: Offsets
    files: CheckpointFiles
    count: int
    size: int
    branch: str = MAIN
    """Of the tables, which the strand wrote to."""
    snapshots: Mapping[str, int | None] = field(default_factory=dict)
    """The tables' snapshots after the batch, where something names them."""
    inputs: PathMap = AS_THEY_ARE
    """Where input folders are now."""
    seed: Callable[[Storage, Moved], None] | None = None
    """Lays out decoded state, which Spark will load, in place of the files."""
    state: tuple[str, ...] = ()
    """What happens to the state, for the plan."""

    def lay_out(self, storage: Storage) -> None:
        if self.seed is not None:
            self.seed(storage, self._moved)
            return
        self.files.lay_out(storage, self._moved)

    def _moved(self, path: str, content: bytes) -> bytes:
        return self.inputs.apply(content) if path in self.files.logs else content

    @property
    def place(self) -> int | None:
        """The batch of the new strand that equals this one; None when it keeps its number."""
        return None if self.seed is None else PLACE

    def read_logs(self) -> list[bytes]:
        return [self.files.contents[path]() for path in sorted(self.files.logs)]


def from_savepoint(
    project: Project,
    pipeline: Pipeline,
    archive: Archive,
    again: Collection[str] = (),
    dropped: Collection[str] = (),
    code: Rehearsal | None = None,
) -> Beginning:
    """Every file is checked against the manifest first: nothing is planned on a damaged savepoint."""
    saved = archive.read()
    if saved.pipeline != pipeline.name:
        raise UsageError(
            f"savepoint {saved.id} belongs to pipeline '{saved.pipeline}', not to '{pipeline.name}'",
            next_command=f"strandline savepoint list {pipeline.name}",
        )
    if damages := archive.damages(saved.files):
        more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
        raise SavepointDamaged(
            f"savepoint {saved.id} is damaged: {damages[0].path}: {damages[0].what}{more}",
            next_command=f"strandline savepoint list {pipeline.name}, and use another",
        )
    found = Beginning(
        saved.strand,
        saved.batch,
        saved.id,
        saved.positions,
        archive.checkpoint_files(saved).anonymous(),
        len(saved.files),
        saved.size,
        saved.branch,
        {table.name: table.snapshot for table in saved.tables},
    )
    if saved.type is SavepointType.CANONICAL:
        decoded = decoded_state(saved, archive, pipeline, dropped, code)
        found = replace(found, seed=decoded.lay_out, state=decoded.told)
    else:
        check_native_state(saved, archive, project, pipeline, dropped, code)
    catalog = EmbeddedCatalog(project)
    for table in saved.tables:
        view = catalog.find(table.name)
        if view is not None and view.uuid != table.uuid and table.name not in again:
            raise ChainBroken(
                f"table '{table.name}' is another one than when savepoint {saved.id} was taken: it was dropped and made again",
                next_command=f"strandline history {table.name}",
            )
    return found


def from_checkpoint(project: Project, pipeline: Pipeline, ledger: Ledger, batch: int | None, command: str) -> Beginning:
    """A batch of the checkpoint, the newest one when none is named.

    Args:
        command: with a batch behind it, asks for another one.
    """
    checkpoint = current_checkpoint(project, pipeline.name)
    strand, known = restartable(checkpoint, ledger, pipeline.name, batch, command)
    needed = needed_by(checkpoint, known.batch)

    def vanished(path: str) -> CheckpointVanished:
        return CheckpointVanished(f"checkpoint file {path} vanished: is '{pipeline.name}' running?", next_command="strandline status")

    files = files_of(checkpoint, needed, vanished).anonymous().read_now()
    return Beginning(
        strand,
        known.batch,
        "",
        Offsets.from_json(json.loads(known.offsets_end)),
        files,
        len(files.contents),
        sum(file.size or 0 for file in needed),
        branch_of(pipeline, strand_origin(checkpoint)),
    )
