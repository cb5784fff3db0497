"""Publishing a branch: what it holds becomes the tables' main, and the pipeline goes on from where the branch's writer was.

To the protocol this is a restore: a new strand goes on from the newest batch of the strand that wrote the branch, and each table goes, in one
transaction, to the branch's head with a boundary on top. What main held is kept by a tag. So nothing is lost or doubled, wherever it stops.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from strandline.checkpoints.place import current_checkpoint
from strandline.ledger import Ledger
from strandline.model.definition import Pipeline
from strandline.model.errors import ChainBroken, NotFound, Refused, UsageError
from strandline.model.fence import latest
from strandline.model.offsets import Break, Offsets, chain_break
from strandline.project.config import Project
from strandline.project.forks import forks_of
from strandline.project.loader import code_fingerprint, load_pipelines
from strandline.runtime.liveness import Liveness, liveness_of
from strandline.runtime.strands import PUBLISH, PUBLISHED_BY, Published, Restoration, StrandOrigin, TableStart, branch_of, strand_origin
from strandline.savepoints.holding import links_of, why_not
from strandline.savepoints.restoring import Source, kept_source
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import MAIN, TableView


class Objection(str, Enum):
    """What may speak against a publication, and can be accepted by name."""

    BEHIND = "behind"  # main holds more of the input than the branch
    FOREIGN = "foreign"  # others wrote to main since the branch began
    CODE = "code"  # the branch was written by other code than the pipeline will go on with
    DIFFERENT = "different"  # branch and main hold other rows


@dataclass(frozen=True)
class PublishedTable:
    name: str
    main: int | None
    head: int
    """The branch's."""
    leaving: tuple[int, ...]
    """Snapshots that leave main, newest first."""


@dataclass(frozen=True)
class Publication:
    branch: str
    writer: Pipeline
    pipeline: Pipeline
    """The one whose main it becomes: the writer's parent, or the writer itself."""
    source: Source
    tables: tuple[PublishedTable, ...]
    objections: Mapping[Objection, str]
    retiring: Published

    @property
    def restoration(self) -> Restoration:
        starts = {table.name: TableStart(table.main, table.head) for table in self.tables}
        source = self.source
        origin = StrandOrigin(source.strand, source.batch, "", False, starts, PUBLISH, MAIN, self.retiring)
        return Restoration(origin, source.lay_out)

    def human(self) -> list[str]:
        lines = [
            f"branch '{self.branch}', written by '{self.writer.name}' up to batch {self.source.batch}, becomes main; '{self.pipeline.name}' goes on "
            f"after {self.source.positions.human(None)}"
        ]
        return lines + [
            f"table {table.name}: main goes from snapshot {table.main} to {table.head}; {len(table.leaving)} snapshots leave it, kept by a tag"
            for table in self.tables
        ]


def find_writer(project: Project, branch: str) -> Pipeline:
    """The pipeline whose strand writes to the branch."""
    pipelines = load_pipelines(project)
    for pipeline in pipelines.values():
        checkpoint = current_checkpoint(project, pipeline.name)
        if checkpoint.strand() is not None and branch_of(pipeline, strand_origin(checkpoint)) == branch != MAIN:
            return pipeline
    raise NotFound(f"no pipeline or fork of this project writes to a branch '{branch}'", next_command="strandline status")


@dataclass(frozen=True)
class Begun:
    """A publication that was interrupted: the pipeline's strand is there, and perhaps not every table has entered it."""

    pipeline: Pipeline
    writer: str


def begun_publication(project: Project, branch: str) -> Begun | None:
    for pipeline in load_pipelines(project).values():
        checkpoint = current_checkpoint(project, pipeline.name)
        origin = strand_origin(checkpoint)
        if origin is None or origin.publishes is None or origin.publishes.branch != branch:
            continue
        writer, catalog = origin.publishes.pipeline, EmbeddedCatalog(project)
        witnesses = [latest(view.mark(pipeline.name), view.newest_stamp(pipeline.name)) for view in map(catalog.load, origin.tables)]
        outside = any(seen is None or seen.strand != checkpoint.strand() for seen in witnesses)
        still_declared = (
            writer != pipeline.name and current_checkpoint(project, writer).strand() == origin.parent and writer in forks_of(project)
        )
        if outside or still_declared:
            return Begun(pipeline, writer)
    return None


def plan_publication(project: Project, ledger: Ledger, branch: str, again: Collection[str] = ()) -> Publication:
    """What a publication would do, and what speaks against it.

    Args:
        again: output topics that may begin at the branch's position, whatever they hold.
    """
    writer = find_writer(project, branch)
    pipeline = load_pipelines(project)[writer.parent] if writer.parent is not None else writer
    if writer.until is not None:
        raise UsageError(
            f"fork '{writer.name}' ends at {writer.until} and leaves out what is later, so the pipeline could not go on from it",
            next_command=f"strandline fork {pipeline.name} … without --until, then publish that",
        )
    topics = sorted(set(pipeline.outputs()) - set(pipeline.tables()) - set(writer.outputs()) - set(again))
    if topics:
        raise ChainBroken(
            f"topic '{topics[0]}' was written by '{pipeline.name}' alone: what it holds belongs to main, not to the branch",
            next_command=f"let it begin again at the branch's position: strandline publish {branch} --start-table {topics[0]}",
        )
    for name in {writer.name, pipeline.name}:
        _check_rests(ledger, name)
    source = kept_source(project, writer, ledger, None, f"strandline checkpoint verify {writer.name}")
    catalog = EmbeddedCatalog(project)
    views = [view for view in map(catalog.load, filter(pipeline.writes, catalog.tables())) if branch in view.refs]
    if not views:
        raise NotFound(
            f"no table of '{pipeline.name}' has a branch '{branch}' any more", next_command=f"strandline history {pipeline.name}"
        )
    links = links_of(ledger, writer.name, source.strand, source.batch)
    for view in views:
        there = view.on(branch)
        if reason := why_not(there, there.head, writer.name, links, ledger):
            raise ChainBroken(
                f"branch '{branch}' of table '{view.name}' cannot be shown to hold the batches up to {source.batch}: {reason}",
                next_command=f"strandline run {writer.name}, which says what does not agree",
            )
    retiring = Published(branch, writer.name, _above(ledger, writer.name, views), PUBLISHED_BY)
    tables = tuple(_table(view, branch) for view in views)
    objections = _objections(pipeline, writer, ledger, source, views, branch)
    return Publication(branch, writer, pipeline, source, tables, objections, retiring)


def _check_rests(ledger: Ledger, name: str) -> None:
    attempt = ledger.attempts.latest(name)
    if attempt is not None and liveness_of(attempt) in (Liveness.ALIVE, Liveness.SILENT):
        raise Refused(
            f"'{name}' is running (attempt {attempt.number}); a publication needs it at rest", next_command=f"strandline stop {name}"
        )


def _above(ledger: Ledger, writer: str, views: list[TableView]) -> int:
    latest_known = ledger.attempts.latest(writer)
    return max([latest_known.number if latest_known else 0, *(view.highest_attempt(writer) for view in views)]) + 1


def _table(view: TableView, branch: str) -> PublishedTable:
    kept = {snapshot.id for snapshot in view.on(branch).ancestors()}
    leaving = tuple(snapshot.id for snapshot in view.ancestors() if snapshot.id not in kept)
    return PublishedTable(view.name, view.head, view.refs[branch], leaving)


def _objections(
    pipeline: Pipeline, writer: Pipeline, ledger: Ledger, source: Source, views: list[TableView], branch: str
) -> dict[Objection, str]:
    found: dict[Objection, str] = {}
    for view in views:
        main = latest(view.mark(pipeline.name), view.newest_stamp(pipeline.name))
        if main is not None and main.end is not None and _is_behind(source.positions, main.end):
            found.setdefault(
                Objection.BEHIND,
                f"main of '{view.name}' has read {main.end.human(source.positions)} that the branch has not: those rows leave main until "
                f"'{pipeline.name}' has read them again (let the branch catch up first: strandline run {writer.name} --available-now)",
            )
        kept = {snapshot.id for snapshot in view.on(branch).ancestors()}
        foreign = [
            s
            for s in view.ancestors()
            if s.id not in kept and s.operation != "replace" and (s.stamp is None or s.stamp.pipeline != pipeline.name)
        ]
        if foreign:
            found.setdefault(
                Objection.FOREIGN,
                f"others wrote {len(foreign)} snapshots to main of '{view.name}' since the branch began, the newest {foreign[0].id}: what they did "
                "leaves main (a tag keeps it)",
            )
    written_by = ledger.attempts.latest(writer.name)
    if written_by is not None and written_by.code != (now := code_fingerprint(pipeline)):
        found[Objection.CODE] = (
            f"the branch was written by code {written_by.code}, and '{pipeline.name}' would go on with {now} (put the fork's code in its place first)"
        )
    return found


def _is_behind(branch: Offsets, main: Offsets) -> bool:
    """Would going on from the branch's position read something that main has read already? Where that cannot be told, it might."""
    return chain_break(main, branch) in (Break.OVERLAP, Break.UNRELATED)
