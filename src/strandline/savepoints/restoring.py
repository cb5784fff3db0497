"""Going on from a savepoint, or from an older batch of the checkpoint: what would happen, and how it is made to happen.

The plan is made from files alone and is what the apply does: a table that has moved since is refused, not guessed about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from strandline.checkpoints.needed import FileKind
from strandline.checkpoints.place import current_checkpoint
from strandline.checkpoints.requirements import needed_by
from strandline.checkpoints.state_files import relocate_operator
from strandline.checkpoints.storage import Storage
from strandline.ledger import Ledger
from strandline.model.definition import Pipeline
from strandline.model.errors import ChainBroken, CheckpointDamaged, NotFound, SavepointDamaged, UsageError
from strandline.model.fence import latest
from strandline.model.fork import checked_branch
from strandline.model.offsets import Offsets
from strandline.model.savepoint import SavepointType
from strandline.model.sizes import human_bytes
from strandline.project.config import Project
from strandline.runtime.rehearsal import Rehearsal
from strandline.runtime.seeding import PLACE
from strandline.runtime.strands import FILE as STRAND_FILE
from strandline.runtime.strands import Restoration, StrandOrigin, TableStart, branch_of, strand_origin
from strandline.savepoints.archive import CHECKPOINT, Archive, archive_of
from strandline.savepoints.batches import restartable
from strandline.savepoints.fitting import Moved, check_native_state, decoded_state
from strandline.savepoints.holding import links_of, why_not
from strandline.savepoints.input_paths import AS_THEY_ARE, PathMap, check_inputs
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import MAIN, Link, TableView

_IDENTITY = ("metadata", STRAND_FILE)
"""Files that belong to the old strand alone."""


class TableChoice(str, Enum):
    ROLLBACK = "rollback"
    CONTINUE = "continue"
    BRANCH = "branch"


@dataclass(frozen=True)
class Tables:
    """What happens to the tables, as somebody chose it."""

    choice: TableChoice
    branch: str = ""
    """The new branch, for that choice."""

    def __str__(self) -> str:
        return f"branch:{self.branch}" if self.branch else self.choice.value

    @classmethod
    def parse(cls, text: str | None) -> Tables | None:
        """None when it is not one of the choices."""
        if text is not None and text.startswith("branch:"):
            return cls(TableChoice.BRANCH, checked_branch(text.removeprefix("branch:")))
        return {str(known): known for known in (ROLLBACK, CONTINUE)}.get(text or "")


ROLLBACK, CONTINUE = Tables(TableChoice.ROLLBACK), Tables(TableChoice.CONTINUE)


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
    branch: str = MAIN
    """Where the strand will write."""
    emptied: bool = False
    """A new branch begins without rows."""

    @property
    def start(self) -> TableStart:
        return TableStart(self.head, self.target if self.target != self.head else None, self.emptied)


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
    shown = plan.table if plan.branch == MAIN else f"{plan.table}@{plan.branch}"
    if plan.choice is TableChoice.BRANCH:
        where = f"at snapshot {plan.target}" if plan.target is not None else "without rows"
        return f"table {plan.table}: branch '{plan.branch}' begins {where}, and everything is written there; main stays as it is"
    if plan.target == plan.head:
        where = f"on snapshot {plan.head}" if plan.head is not None else "into it, which is empty"
        return f"table {shown}: nothing leaves it; a boundary is put {where}"
    first, last = plan.batches_leaving or (None, None)
    batches = f" of batch {first}" if first == last else f" of batches {first}–{last}"
    foreign = f", {len(plan.foreign_leaving)} of them written by others" if plan.foreign_leaving else ""
    return (
        f"table {shown}: goes back from snapshot {plan.head} to {plan.target}: {plan.rows_leaving} rows{batches if plan.batches_leaving else ''} leave it "
        f"({len(plan.leaving)} snapshots{foreign}), {plan.rows_returning} return; a tag keeps what leaves"
    )


@dataclass(frozen=True)
class Source:
    """What is gone on from, wherever it comes from."""

    strand: str
    batch: int
    savepoint: str
    positions: Offsets
    files: Mapping[str, Callable[[], bytes]]
    count: int
    size: int
    operators: frozenset[str]
    """Files that hold absolute paths of the checkpoint."""
    logs: frozenset[str]
    """Files that hold absolute paths of input files."""
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
        for path, content in self.files.items():
            if path in self.operators:
                storage.write(path, relocate_operator(content(), storage.location))
            elif path not in _IDENTITY:
                storage.write(path, self._moved(path, content()))

    def _moved(self, path: str, content: bytes) -> bytes:
        return self.inputs.apply(content) if path in self.logs else content

    @property
    def place(self) -> int | None:
        """The batch of the new strand that equals this one; None when it keeps its number."""
        return None if self.seed is None else PLACE

    def read_logs(self) -> list[bytes]:
        return [self.files[path]() for path in sorted(self.logs)]


@dataclass(frozen=True)
class Restore:
    plan: RestorePlan
    restoration: Restoration


def plan_from_savepoint(
    project: Project,
    pipeline: Pipeline,
    ledger: Ledger,
    archive: Archive,
    tables: Tables,
    *,
    claim: bool = False,
    again: Collection[str] = (),
    inputs: PathMap = AS_THEY_ARE,
    dropped: Collection[str] = (),
    code: Rehearsal | None = None,
) -> Restore:
    """What a restore would do.

    Args:
        again: outputs that may begin at the restored batch, whatever they hold.
        inputs: folders of input files that are elsewhere now.
        dropped: operators whose saved state may be left behind; ``OPERATOR.timers`` for their timers alone.
        code: what the pipeline declares now. Without it, state that does not fit is found out when the run starts.
    """
    if claim and archive.location != archive_of(project, pipeline.name, archive.read().id).location:
        raise UsageError(
            f"{archive.location} lies outside of this project's savepoints, so it cannot be claimed",
            next_command=f"strandline run {pipeline.name} --from-savepoint {archive.location} --tables {tables}",
        )
    source = replace(saved_source(project, pipeline, archive, again, dropped, code), inputs=inputs)
    return plan_restore(project, pipeline, ledger, source, tables, again, claim)


def saved_source(
    project: Project,
    pipeline: Pipeline,
    archive: Archive,
    again: Collection[str] = (),
    dropped: Collection[str] = (),
    code: Rehearsal | None = None,
) -> Source:
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
    files = {file.path.removeprefix(CHECKPOINT): file for file in saved.files if file.path.startswith(CHECKPOINT)}
    source = Source(
        saved.strand,
        saved.batch,
        saved.id,
        saved.positions,
        {path: lambda file=file: archive.content(file) for path, file in files.items()},  # type: ignore[misc]
        len(saved.files),
        saved.size,
        frozenset(path for path, file in files.items() if file.kind == FileKind.OPERATOR.value),
        frozenset(path for path, file in files.items() if file.kind == FileKind.SOURCE_LOG.value),
        saved.branch,
        {table.name: table.snapshot for table in saved.tables},
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
    return source


def plan_from_checkpoint(
    project: Project,
    pipeline: Pipeline,
    ledger: Ledger,
    batch: int,
    tables: Tables,
    *,
    again: Collection[str] = (),
    inputs: PathMap = AS_THEY_ARE,
) -> Restore:
    """The same from a batch that the checkpoint still keeps."""
    source = replace(kept_source(project, pipeline, ledger, batch, f"strandline run {pipeline.name} --from-checkpoint"), inputs=inputs)
    return plan_restore(project, pipeline, ledger, source, tables, again)


def kept_source(project: Project, pipeline: Pipeline, ledger: Ledger, batch: int | None, command: str) -> Source:
    """A batch of the checkpoint, the newest one when none is named.

    Args:
        command: with a batch behind it, asks for another one.
    """
    checkpoint = current_checkpoint(project, pipeline.name)
    strand, known = restartable(checkpoint, ledger, pipeline.name, batch, command)
    content: dict[str, Callable[[], bytes]] = {}
    needed = needed_by(checkpoint, known.batch)
    for file in needed:
        raw = checkpoint.storage.read(file.path)
        if raw is None:
            raise CheckpointDamaged(
                f"checkpoint file {file.path} vanished: is '{pipeline.name}' running?", next_command="strandline status"
            )
        content[file.path] = lambda raw=raw: raw  # type: ignore[misc]
    return Source(
        strand,
        known.batch,
        "",
        Offsets.from_json(json.loads(known.offsets_end)),
        content,
        len(content),
        sum(file.size or 0 for file in needed),
        frozenset(file.path for file in needed if file.kind is FileKind.OPERATOR),
        frozenset(file.path for file in needed if file.kind is FileKind.SOURCE_LOG),
        branch_of(pipeline, strand_origin(checkpoint)),
    )


def plan_restore(
    project: Project,
    pipeline: Pipeline,
    ledger: Ledger,
    source: Source,
    choice: Tables,
    again: Collection[str] = (),
    claim: bool = False,
) -> Restore:
    if choice.branch and pipeline.branch != MAIN:
        raise UsageError(
            f"'{pipeline.name}' is a fork and writes to branch '{pipeline.branch}'; it is restored there",
            next_command=f"the same command with --tables rollback, or: strandline fork {pipeline.parent} …",
        )
    check_inputs(project, pipeline, source.read_logs(), source.inputs)
    links = links_of(ledger, pipeline.name, source.strand, source.batch)
    _check_deliveries(pipeline, ledger, links, again)
    tables = plan_tables(project, pipeline, ledger, source, choice, again)
    shown = RestorePlan(
        pipeline.name, source.strand, source.batch, source.savepoint, source.positions, source.count, source.size, tables, source.state
    )
    starts = {table.table: table.start for table in tables}
    origin = StrandOrigin(
        source.strand, source.batch, source.savepoint, claim, starts, branch=choice.branch or source.branch, place=source.place
    )
    return Restore(shown, Restoration(origin, source.lay_out))


def plan_tables(
    project: Project, pipeline: Pipeline, ledger: Ledger, source: Source, choice: Tables, again: Collection[str] = ()
) -> tuple[TablePlan, ...]:
    """What happens to each table that the pipeline has written, or could have."""
    catalog = EmbeddedCatalog(project)
    planner = _Planner(pipeline.name, ledger, source, links_of(ledger, pipeline.name, source.strand, source.batch), choice)
    ours = [name for name in catalog.tables() if pipeline.writes(name) and name not in again]
    return tuple(planner.plan(catalog.load(name).on(source.branch), source.snapshots.get(name)) for name in ours)


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
    source: Source
    links: Sequence[Link]
    tables: Tables

    def plan(self, view: TableView, saved: int | None) -> TablePlan:
        choice, at = self.tables.choice, view.head
        if choice is TableChoice.BRANCH:
            return self._branched(view, saved)
        if view.branch != MAIN and at is None:
            raise NotFound(
                f"table '{view.name}' has no branch '{view.branch}' any more: it was published or dropped",
                next_command="the same command with --tables branch:NAME",
            )
        if choice is TableChoice.CONTINUE:
            self._check_continues(view, at)
            return TablePlan(view.name, choice, at, at, branch=view.branch)
        target = self._target(view, saved)
        nothing_came = target is None and not any(
            snapshot.rows_added for snapshot in view.ancestors()
        )  # empty then, and only boundaries since
        if saved is None or target != saved:
            self._check_holds(view, target, saved)
        if target == at or nothing_came:
            return TablePlan(view.name, choice, at, at, branch=view.branch)
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
            choice,
            at,
            target,
            tuple(snapshot.id for snapshot in leaving),
            sum(s.rows_added for s in leaving),
            sum(s.rows_added for s in view.lineage(target) if s.id not in left_ids),
            (min(batches), max(batches)) if batches else None,
            tuple(s.id for s in leaving if s.operation != "replace" and (s.stamp is None or s.stamp.pipeline != self.pipeline)),
            view.branch,
        )

    def _branched(self, view: TableView, saved: int | None) -> TablePlan:
        check_new_branch(view, self.tables.branch)
        target = self._target(view, saved)
        if saved is None or target != saved:
            self._check_holds(view, target, saved)
        if target is not None and target not in view.snapshots:
            raise ChainBroken(
                f"table '{view.name}' no longer keeps snapshot {target}, which holds it as it was after batch {self.source.batch}",
                next_command=f"strandline savepoint list {self.pipeline}, which keep theirs",
            )
        emptied = target is None and view.refs.get(MAIN) is not None
        return TablePlan(view.name, TableChoice.BRANCH, None, target, branch=self.tables.branch, emptied=emptied)

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


def check_new_branch(view: TableView, branch: str) -> None:
    if branch in view.refs:
        raise UsageError(
            f"table '{view.name}' has a branch or tag '{branch}' already",
            next_command="the same command with another name",
        )
