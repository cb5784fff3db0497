"""Publishing a branch: what it holds becomes the tables' main, and the pipeline goes on from where the branch's writer was.

To the protocol this is a restore: a new strand goes on from the newest batch of the strand that wrote the branch, and each table goes, in one
transaction, to the branch's head with a boundary on top. What main held is kept by a tag. So nothing is lost or doubled, wherever it stops.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from strandline.checkpoints.file_log import logged_paths
from strandline.checkpoints.place import current_checkpoint
from strandline.ledger import Ledger
from strandline.model.definition import Pipeline
from strandline.model.errors import ChainBroken, NotFound, Refused, UsageError
from strandline.model.fence import latest
from strandline.model.offsets import Break, Offsets, chain_break
from strandline.model.positions import FilesPosition
from strandline.model.stamp import UNTIL_FACT
from strandline.project.config import Project
from strandline.project.forks import forks_of
from strandline.project.loader import code_fingerprint, declared_in, load_pipeline
from strandline.runtime.liveness import Liveness, liveness_of
from strandline.runtime.strands import PUBLISH, PUBLISHED_BY, Published, Restoration, StrandOrigin, TableStart, branch_of, strand_origin
from strandline.savepoints.beginnings import Beginning, from_checkpoint
from strandline.savepoints.holding import links_of, why_not
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
    head: int | None
    """The branch's; None when the table stays as it is."""
    leaving: tuple[int, ...]
    """Snapshots that leave main, newest first."""


@dataclass(frozen=True)
class Publication:
    branch: str
    writer: Pipeline
    pipeline: Pipeline
    """The one whose main it becomes: the writer's parent, or the writer itself."""
    beginning: Beginning
    tables: tuple[PublishedTable, ...]
    objections: Mapping[Objection, str]
    retiring: Published

    @property
    def restoration(self) -> Restoration:
        starts = {table.name: TableStart(table.main, table.head) for table in self.tables}
        beginning = self.beginning
        origin = StrandOrigin(beginning.strand, beginning.batch, "", False, starts, PUBLISH, MAIN, self.retiring)
        return Restoration(origin, beginning.lay_out)

    def human(self) -> list[str]:
        lines = [
            f"branch '{self.branch}', written by '{self.writer.name}' up to batch {self.beginning.batch}, becomes main; '{self.pipeline.name}' goes on "
            f"after {self.beginning.positions.human(None)}"
        ]
        return lines + [
            f"table {table.name}: main goes from snapshot {table.main} to {table.head}; {len(table.leaving)} snapshots leave it, kept by a tag"
            for table in self.tables
            if table.head is not None
        ]


def find_writer(project: Project, asked: str) -> Pipeline:
    """The pipeline whose strand writes to a branch. A fork may be asked for by its name, where branches are called alike."""
    forks = forks_of(project)
    if asked in forks and forks[asked].into.branch:
        return load_pipeline(project, asked)
    names = [fork.name for fork in forks.values() if fork.into.branch == asked]
    found = [load_pipeline(project, name) for name in names] + [p for p in declared_in(project).values() if _writes_to(project, p, asked)]
    found = [pipeline for pipeline in found if current_checkpoint(project, pipeline.name).strand() is not None]
    if len(found) > 1:
        raise UsageError(
            f"{' and '.join(repr(p.name) for p in found)} both write to a branch '{asked}'",
            next_command="name the fork instead of the branch",
        )
    if not found:
        raise NotFound(f"no pipeline or fork of this project writes to a branch '{asked}'", next_command="strandline status")
    return found[0]


def _writes_to(project: Project, pipeline: Pipeline, branch: str) -> bool:
    """Also one that has begun to publish its own branch: until a table has gone, it can be planned anew."""
    origin = strand_origin(current_checkpoint(project, pipeline.name))
    if origin is None:
        return False
    published = origin.publishes is not None and (origin.publishes.branch, origin.publishes.pipeline) == (branch, pipeline.name)
    return origin.branch == branch or (published and not all(has_entered(project, pipeline.name, origin)))


def has_entered(project: Project, pipeline: str, origin: StrandOrigin) -> list[bool]:
    """Of each table of a strand: is it in it?"""
    strand, catalog = current_checkpoint(project, pipeline).strand(), EmbeddedCatalog(project)
    views = [view.on(origin.branch) for table in origin.tables if (view := catalog.find(table)) is not None]
    seen = [latest(view.mark(pipeline), view.newest_stamp(pipeline)) for view in views]
    return [witness is not None and witness.strand == strand for witness in seen]


@dataclass(frozen=True)
class Finished:
    """A publication of which only the fork's declaration is left."""

    pipeline: str
    writer: str


def finished_publication(project: Project, asked: str) -> Finished | None:
    for pipeline in declared_in(project).values():
        origin = strand_origin(current_checkpoint(project, pipeline.name))
        if origin is None or origin.publishes is None or asked not in (origin.publishes.branch, origin.publishes.pipeline):
            continue
        writer = origin.publishes.pipeline
        still_declared = writer in forks_of(project) and current_checkpoint(project, writer).strand() == origin.parent
        if still_declared and all(has_entered(project, pipeline.name, origin)):
            return Finished(pipeline.name, writer)
    return None


def plan_publication(project: Project, ledger: Ledger, asked: str, again: Collection[str] = ()) -> Publication:
    """What a publication would do, and what speaks against it. May be planned anew as long as a table has not gone.

    Args:
        asked: a branch, or the name of the fork that writes to it.
        again: outputs that may begin at the branch's position, whatever they hold.
    """
    writer = find_writer(project, asked)
    branch = _branch_of(project, writer)
    pipeline = load_pipeline(project, writer.parent) if writer.parent is not None else writer
    catalog = EmbeddedCatalog(project)
    ours = [catalog.load(name) for name in catalog.tables() if pipeline.writes(name)]
    if writer.until is not None or any(_is_bounded(view.on(branch), writer.name) for view in ours):
        raise UsageError(
            f"fork '{writer.name}' was bounded and leaves out what is later, so the pipeline could not go on from it",
            next_command=f"strandline fork {pipeline.name} … without --until, then publish that",
        )
    topics = sorted(set(pipeline.outputs()) - set(pipeline.tables()) - set(writer.outputs()) - set(again))
    if topics:
        raise ChainBroken(
            f"topic '{topics[0]}' was written by '{pipeline.name}' alone: it may hold rows that the branch has not come to, or lack rows that it has",
            next_command=f"let it go on at the branch's position all the same: strandline publish {branch} --start-table {topics[0]}",
        )
    for name in {writer.name, pipeline.name}:
        _check_rests(ledger, name)
    beginning = from_checkpoint(project, writer, ledger, None, f"strandline checkpoint verify {writer.name}")
    views = [view for view in ours if branch in view.refs]
    if not views:
        raise NotFound(
            f"no table of '{pipeline.name}' has a branch '{branch}' any more", next_command=f"strandline history {pipeline.name}"
        )
    staying = [view for view in ours if branch not in view.refs and view.name not in again]
    _check_staying(project, pipeline.name, branch, staying)
    links = links_of(ledger, writer.name, beginning.strand, beginning.batch)
    for view in views:
        there = view.on(branch)
        if reason := why_not(there, there.head, writer.name, links, ledger):
            raise ChainBroken(
                f"branch '{branch}' of table '{view.name}' cannot be shown to hold the batches up to {beginning.batch}: {reason}",
                next_command=f"strandline run {writer.name}, which says what does not agree",
            )
    retiring = Published(branch, writer.name, _above(ledger, writer.name, views), PUBLISHED_BY)
    tables = tuple(_table(view, branch, writer.name) for view in views) + tuple(
        PublishedTable(view.name, view.head, None, ()) for view in staying
    )
    objections = _objections(project, pipeline, writer, ledger, beginning, views, branch)
    return Publication(branch, writer, pipeline, beginning, tables, objections, retiring)


def _branch_of(project: Project, writer: Pipeline) -> str:
    origin = strand_origin(current_checkpoint(project, writer.name))
    if origin is not None and origin.publishes is not None and origin.publishes.pipeline == writer.name:
        return origin.publishes.branch
    return branch_of(writer, origin)


def _is_bounded(view: TableView, writer: str) -> bool:
    return any(s.stamp is not None and s.stamp.pipeline == writer and UNTIL_FACT in s.stamp.extra for s in view.ancestors())


def _check_staying(project: Project, pipeline: str, branch: str, views: Sequence[TableView]) -> None:
    """Tables without the branch: none of their rows is the fork's. Fine if they are empty, or went in an earlier try."""
    origin = strand_origin(current_checkpoint(project, pipeline))
    begun = current_checkpoint(project, pipeline).strand() if origin is not None and origin.how == PUBLISH else None
    for view in views:
        seen = latest(view.mark(pipeline), view.newest_stamp(pipeline))
        if view.head is not None and (begun is None or seen is None or seen.strand != begun):
            raise ChainBroken(
                f"table '{view.name}' has no branch '{branch}': its rows would not be those of the others",
                next_command=f"let it stay as it is and go on at the branch's position: strandline publish {branch} --start-table {view.name}",
            )


def _check_rests(ledger: Ledger, name: str) -> None:
    attempt = ledger.attempts.latest(name)
    state = liveness_of(attempt) if attempt is not None else Liveness.ENDED
    if attempt is None or state not in (Liveness.ALIVE, Liveness.SILENT):
        return
    if state is Liveness.SILENT:
        raise Refused(
            f"'{name}' has not given a sign of life lately (attempt {attempt.number}), and may still be running",
            next_command=f"strandline run {name} --take-over --available-now",
        )
    raise Refused(f"'{name}' is running (attempt {attempt.number}); a publication needs it at rest", next_command=f"strandline stop {name}")


def _above(ledger: Ledger, writer: str, views: list[TableView]) -> int:
    latest_known = ledger.attempts.latest(writer)
    return max([latest_known.number if latest_known else 0, *(view.highest_attempt(writer) for view in views)]) + 1


def _kept(view: TableView, branch: str, writer: str) -> set[int]:
    """Snapshots whose rows the branch holds; one that begins without rows holds none of those below."""
    found: set[int] = set()
    for snapshot in view.on(branch).ancestors():
        found.add(snapshot.id)
        if snapshot.operation == "delete" and snapshot.stamp is not None and snapshot.stamp.pipeline == writer:
            break
    return found


def _table(view: TableView, branch: str, writer: str) -> PublishedTable:
    kept = _kept(view, branch, writer)
    return PublishedTable(view.name, view.head, view.refs[branch], tuple(s.id for s in view.ancestors() if s.id not in kept))


def _objections(
    project: Project, pipeline: Pipeline, writer: Pipeline, ledger: Ledger, beginning: Beginning, views: list[TableView], branch: str
) -> dict[Objection, str]:
    found: dict[Objection, str] = {}
    if unread := _unread(project, pipeline, writer, ledger, beginning, views):
        found[Objection.BEHIND] = (
            f"main has read {unread} that the branch has not: those rows leave main until '{pipeline.name}' has read them again (let the branch "
            f"catch up first: strandline run {writer.name} --available-now)"
        )
    for view in views:
        kept, own = _kept(view, branch, writer.name), view.writers_of(pipeline.name)
        foreign = [
            s
            for s in view.ancestors()
            if s.id not in kept and s.operation != "replace" and (s.stamp is None or s.stamp.pipeline not in own)
        ]
        if foreign:
            found.setdefault(
                Objection.FOREIGN,
                f"others wrote {len(foreign)} snapshots to main of '{view.name}' that the branch does not hold, the newest {foreign[0].id}: what they "
                "did leaves main (a tag keeps it)",
            )
    written_by = ledger.attempts.latest(writer.name)
    now = code_fingerprint(pipeline)
    if written_by is not None and _source_part(written_by.code) != _source_part(now):
        found[Objection.CODE] = (
            f"the branch was written by code {written_by.code}, and '{pipeline.name}' would go on with {now} (put the fork's code in its place first)"
        )
    return found


def _source_part(code: str) -> str:
    """Of a fingerprint: a commit of the same file changes only the other part."""
    return code.rpartition("src:")[2]


def _unread(
    project: Project, pipeline: Pipeline, writer: Pipeline, ledger: Ledger, beginning: Beginning, views: list[TableView]
) -> str | None:
    """What main has read and the branch has not, in words. Files are compared by name: each strand counts them in its own way."""
    if pipeline.name != writer.name and (missing := _files_read(project, pipeline.name) - _files_read(project, writer.name)):
        return f"{len(missing)} files ({min(missing).rpartition('/')[2]}, …)" if len(missing) > 1 else min(missing).rpartition("/")[2]
    there = {name: position for name, position in beginning.positions.sources if not isinstance(position, FilesPosition)}
    for view in views:
        main = latest(view.mark(pipeline.name), view.newest_stamp(pipeline.name))
        if main is None or main.batch < 0:
            continue
        known = ledger.batches.get(pipeline.name, main.strand, main.batch)
        end = main.end or (Offsets.from_json(json.loads(known.offsets_end)) if known is not None else None)
        if end is None:
            return "a range that is not known any more"
        counted = Offsets.of({name: position for name, position in end.sources if not isinstance(position, FilesPosition)})
        if chain_break(counted, Offsets.of(there)) in (Break.OVERLAP, Break.UNRELATED):
            return counted.human(Offsets.of(there))
    return None


def _files_read(project: Project, pipeline: str) -> set[str]:
    """Every input file that the pipeline's checkpoint has seen."""
    storage = current_checkpoint(project, pipeline).storage
    raws = [storage.read(file.path) for file in storage.walk("sources") if file.path.rpartition("/")[2].removesuffix(".compact").isdigit()]
    found: set[str] = set()
    for raw in raws:
        with suppress(ValueError, KeyError, TypeError):  # the log of another kind of source
            found.update(logged_paths(raw or b""))
    return found
