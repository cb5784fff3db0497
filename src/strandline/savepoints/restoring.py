"""Going on from a savepoint, or from an older batch of the checkpoint: what would happen, and how it is made to happen.

The plan is made from files alone and is what the apply does: a table that has moved since is refused, not guessed about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from strandline.checkpoints.needed import FileKind
from strandline.checkpoints.place import current_checkpoint
from strandline.checkpoints.requirements import needed_by
from strandline.checkpoints.state_files import relocate_operator
from strandline.checkpoints.storage import Storage
from strandline.ledger import Ledger
from strandline.model.definition import Pipeline
from strandline.model.errors import ChainBroken, CheckpointDamaged, SavepointDamaged, UsageError
from strandline.model.fence import latest
from strandline.model.offsets import Offsets
from strandline.model.savepoint import SavepointType
from strandline.model.sizes import human_bytes
from strandline.project.config import Project
from strandline.runtime.rehearsal import Rehearsal
from strandline.runtime.seeding import PLACE
from strandline.runtime.strands import FILE as STRAND_FILE
from strandline.runtime.strands import Restoration, StrandOrigin, TableStart
from strandline.savepoints.archive import CHECKPOINT, Archive, archive_of
from strandline.savepoints.batches import restartable
from strandline.savepoints.fitting import check_native_state, decoded_state
from strandline.savepoints.holding import links_of, why_not
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import MAIN, Link, Snapshot, TableView

_IDENTITY = ("metadata", STRAND_FILE)
"""Files that belong to the old strand alone."""


class TableChoice(str, Enum):
    ROLLBACK = "rollback"
    CONTINUE = "continue"


@dataclass(frozen=True)
class TablePlan:
    """What happens to one table."""

    table: str
    choice: TableChoice
    head: int | None
    target: int | None
    """The snapshot that readers will see below the boundary."""
    leaving: tuple[int, ...] = ()
    """Snapshots that leave main, newest first."""
    rows_leaving: int = 0
    rows_returning: int = 0
    """Of snapshots that main had left, and goes back to."""
    batches_leaving: tuple[int, int] | None = None
    """The pipeline's first and last batch among them."""
    foreign_leaving: tuple[int, ...] = ()
    """Those among them that others wrote."""

    @property
    def start(self) -> TableStart:
        return TableStart(self.head, self.target if self.target != self.head else None)


@dataclass(frozen=True)
class RestorePlan:
    pipeline: str
    strand: str
    """The one that is gone on from."""
    batch: int
    savepoint: str
    """Empty when a batch of the checkpoint is restored."""
    positions: Offsets
    state_files: int
    state_bytes: int
    tables: tuple[TablePlan, ...]
    state: tuple[str, ...] = ()
    """What happens to the state of each operator, where that is more than to go on."""

    def human(self) -> list[str]:
        """The plan as an operator reads it."""
        what = f"savepoint {self.savepoint}" if self.savepoint else "the checkpoint"
        lines = [
            f"'{self.pipeline}' goes on from batch {self.batch} of {what} (strand {self.strand}) as a new strand; older attempts are fenced",
            f"state: {self.state_files} files, {human_bytes(self.state_bytes)}; sources go on after {self.positions.human(None)}",
        ]
        return lines + [*self.state] + [_told(table) for table in self.tables]


def _told(plan: TablePlan) -> str:
    if plan.target == plan.head:
        where = f"on snapshot {plan.head}" if plan.head is not None else "into it, which is empty"
        return f"table {plan.table}: nothing leaves it; a boundary is put {where}"
    first, last = plan.batches_leaving or (None, None)
    batches = f" of batch {first}" if first == last else f" of batches {first}–{last}"
    foreign = f", {len(plan.foreign_leaving)} of them written by others" if plan.foreign_leaving else ""
    return (
        f"table {plan.table}: goes back from snapshot {plan.head} to {plan.target}: {plan.rows_leaving} rows{batches if plan.batches_leaving else ''} leave it "
        f"({len(plan.leaving)} snapshots{foreign}), {plan.rows_returning} return; a tag keeps what leaves"
    )


@dataclass(frozen=True)
class _Source:
    """What is restored, wherever it comes from."""

    strand: str
    batch: int
    savepoint: str
    positions: Offsets
    files: Mapping[str, Callable[[], bytes]]
    count: int
    size: int
    operators: frozenset[str]
    """Files that hold absolute paths."""
    seed: Callable[[Storage], None] | None = None
    """Lays out decoded state, which Spark will load, in place of the files."""
    state: tuple[str, ...] = ()
    """What happens to the state, for the plan."""

    def lay_out(self, storage: Storage) -> None:
        if self.seed is not None:
            self.seed(storage)
            return
        for path, content in self.files.items():
            if path not in _IDENTITY:
                storage.write(path, relocate_operator(content(), storage.location) if path in self.operators else content())


@dataclass(frozen=True)
class Restore:
    plan: RestorePlan
    restoration: Restoration


def plan_from_savepoint(
    project: Project,
    pipeline: Pipeline,
    ledger: Ledger,
    archive: Archive,
    choice: TableChoice,
    *,
    claim: bool = False,
    again: Collection[str] = (),
    dropped: Collection[str] = (),
    code: Rehearsal | None = None,
) -> Restore:
    """Every file is checked against the manifest first: nothing is planned on a damaged savepoint.

    Args:
        again: outputs that may begin at the restored batch, whatever they hold.
        dropped: operators whose saved state may be left behind; ``OPERATOR.timers`` for their timers alone.
        code: what the pipeline declares now. Without it, state that does not fit is found out when the run starts.
    """
    saved = archive.read()
    if saved.pipeline != pipeline.name:
        raise UsageError(
            f"savepoint {saved.id} belongs to pipeline '{saved.pipeline}', not to '{pipeline.name}'",
            next_command=f"strandline savepoint list {pipeline.name}",
        )
    if claim and archive.location != archive_of(project, pipeline.name, saved.id).location:
        raise UsageError(
            f"{archive.location} lies outside of this project's savepoints, so it cannot be claimed",
            next_command=f"strandline run {pipeline.name} --from-savepoint {archive.location} --tables {choice.value}",
        )
    if damages := archive.damages(saved.files):
        more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
        raise SavepointDamaged(
            f"savepoint {saved.id} is damaged: {damages[0].path}: {damages[0].what}{more}",
            next_command=f"strandline savepoint list {pipeline.name}, and use another",
        )
    files = {file.path.removeprefix(CHECKPOINT): file for file in saved.files if file.path.startswith(CHECKPOINT)}
    source = _Source(
        saved.strand,
        saved.batch,
        saved.id,
        saved.positions,
        {path: lambda file=file: archive.content(file) for path, file in files.items()},  # type: ignore[misc]
        len(saved.files),
        saved.size,
        frozenset(path for path, file in files.items() if file.kind == FileKind.OPERATOR.value),
    )
    if saved.type is SavepointType.CANONICAL:
        decoded = decoded_state(saved, archive, pipeline, dropped, code)
        source = replace(source, seed=decoded.lay_out, state=decoded.told)
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
    return _plan(project, pipeline, ledger, source, choice, again, claim, {table.name: table.snapshot for table in saved.tables})


def plan_from_checkpoint(
    project: Project, pipeline: Pipeline, ledger: Ledger, batch: int, choice: TableChoice, *, again: Collection[str] = ()
) -> Restore:
    """The same from a batch that the checkpoint still keeps."""
    checkpoint = current_checkpoint(project, pipeline.name)
    strand, known = restartable(checkpoint, ledger, pipeline.name, batch, f"strandline run {pipeline.name} --from-checkpoint")
    content: dict[str, Callable[[], bytes]] = {}
    needed = needed_by(checkpoint, batch)
    for file in needed:
        raw = checkpoint.storage.read(file.path)
        if raw is None:
            raise CheckpointDamaged(
                f"checkpoint file {file.path} vanished: is '{pipeline.name}' running?", next_command="strandline status"
            )
        content[file.path] = lambda raw=raw: raw  # type: ignore[misc]
    source = _Source(
        strand,
        batch,
        "",
        Offsets.from_json(json.loads(known.offsets_end)),
        content,
        len(content),
        sum(file.size or 0 for file in needed),
        frozenset(file.path for file in needed if file.kind is FileKind.OPERATOR),
    )
    return _plan(project, pipeline, ledger, source, choice, again, False, {})


def _plan(
    project: Project,
    pipeline: Pipeline,
    ledger: Ledger,
    source: _Source,
    choice: TableChoice,
    again: Collection[str],
    claim: bool,
    saved: Mapping[str, int | None],
) -> Restore:
    catalog = EmbeddedCatalog(project)
    ours = filter(pipeline.writes, catalog.tables())
    links = links_of(ledger, pipeline.name, source.strand, source.batch)
    _check_deliveries(pipeline, ledger, links, again)
    planner = _Planner(pipeline.name, ledger, source, links, choice)
    tables = tuple(planner.plan(catalog.load(name), saved.get(name)) for name in ours if name not in again)
    shown = RestorePlan(
        pipeline.name, source.strand, source.batch, source.savepoint, source.positions, source.count, source.size, tables, source.state
    )
    starts = {table.table: table.start for table in tables}
    origin = StrandOrigin(source.strand, source.batch, source.savepoint, claim, starts, None if source.seed is None else PLACE)
    return Restore(shown, Restoration(origin, source.lay_out))


def _check_deliveries(pipeline: Pipeline, ledger: Ledger, links: Sequence[Link], again: Collection[str]) -> None:
    """Before any table goes back: rows in a topic cannot."""
    strand, batch = links[0]
    for output in pipeline.outputs():
        last = ledger.deliveries.last(pipeline.name, strand, output)
        if last is not None and last.batch > batch and output not in again:
            raise ChainBroken(
                f"topic '{output}' holds batch {last.batch} of strand {strand}, and batch {batch} is restored: the rows in between cannot be "
                "taken back and would be delivered twice",
                next_command=f"let it begin again there: add --start-table {output}",
            )


@dataclass(frozen=True)
class _Planner:
    pipeline: str
    ledger: Ledger
    source: _Source
    links: Sequence[Link]
    choice: TableChoice

    def plan(self, view: TableView, saved: int | None) -> TablePlan:
        at = view.refs.get(MAIN)
        if self.choice is TableChoice.CONTINUE:
            self._check_continues(view, at)
            return TablePlan(view.name, self.choice, at, at)
        target = self._target(view, saved)
        nothing_came = target is None and not any(map(_added, view.ancestors()))  # empty then, and only boundaries since
        if saved is None or target != saved:
            self._check_holds(view, target, saved)
        if target == at or nothing_came:
            return TablePlan(view.name, self.choice, at, at)
        if target is None or target not in view.snapshots:
            kept = "was empty then" if target is None else f"no longer keeps snapshot {target}"
            raise ChainBroken(
                f"table '{view.name}' cannot go back to batch {self.source.batch}: it {kept}",
                next_command=f"drop table {view.name}, then the same command with --start-table {view.name}",
            )
        kept_ids, left_ids = ({s.id for s in view.lineage(snapshot)} for snapshot in (target, at))
        leaving = [s for s in view.ancestors() if s.id not in kept_ids]
        stamps = [s.stamp for s in leaving if s.stamp is not None and s.stamp.pipeline == self.pipeline and s.stamp.rows]
        batches = [stamp.batch for stamp in stamps] + [stamp.batch_first for stamp in stamps]
        return TablePlan(
            view.name,
            self.choice,
            at,
            target,
            tuple(snapshot.id for snapshot in leaving),
            sum(map(_added, leaving)),
            sum(_added(s) for s in view.lineage(target) if s.id not in left_ids),
            (min(batches), max(batches)) if batches else None,
            tuple(s.id for s in leaving if s.operation != "replace" and (s.stamp is None or s.stamp.pipeline != self.pipeline)),
        )

    def _target(self, view: TableView, saved: int | None) -> int | None:
        """The table as it was after the batch, with what others did to it before the pipeline's next commit.

        A savepoint names its snapshot. It may lie on a chain that was left since; then it alone is right.
        """
        on_main = view.after_batch(self.pipeline, self.links)
        if saved is None:
            return on_main
        for snapshot in view.lineage(on_main):
            if snapshot.id == saved:
                return on_main
            if snapshot.stamp is not None and snapshot.stamp.pipeline == self.pipeline:
                break
        return saved

    def _check_holds(self, view: TableView, target: int | None, saved: int | None) -> None:
        """A snapshot that a savepoint names was checked when it was taken; any other must be shown to hold the batches."""
        if saved is not None and any(snapshot.id == saved for snapshot in view.lineage(target)):
            return
        if reason := why_not(view, target, self.pipeline, self.links, self.ledger):
            raise ChainBroken(
                f"table '{view.name}' cannot be shown to hold the batches up to {self.source.batch}: {reason}",
                next_command=f"strandline history {view.name}",
            )

    def _check_continues(self, view: TableView, at: int | None) -> None:
        """Only a table that ends exactly where the savepoint does can go on without losing or doubling a row."""
        seen = latest(view.mark(self.pipeline), view.newest_stamp(self.pipeline))
        named = f"--from-savepoint {self.source.savepoint}" if self.source.savepoint else f"--from-checkpoint {self.source.batch}"
        again = f"strandline run {self.pipeline} {named} --tables rollback"
        if seen is not None and seen.strand == self.source.strand and seen.batch > self.source.batch:
            after = seen.end.human(self.source.positions) if seen.end is not None else f"batches {self.source.batch + 1}–{seen.batch}"
            raise ChainBroken(
                f"table '{view.name}' is ahead of what is restored: it holds batch {seen.batch}, the restore goes on after batch "
                f"{self.source.batch}; {after} would be doubled",
                next_command=again,
            )
        if reason := why_not(view, at, self.pipeline, self.links, self.ledger):
            raise ChainBroken(f"table '{view.name}' does not end where the restore goes on: {reason}", next_command=again)


def _added(snapshot: Snapshot) -> int:
    return 0 if snapshot.operation == "replace" else snapshot.count("added-records")
