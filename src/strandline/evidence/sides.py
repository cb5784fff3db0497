"""What somebody names to compare: a pipeline after a batch, with its tables and its state, or a savepoint, of which the state counts.

Whatever can be refused without Spark is refused before it is started.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strandline.checkpoints.place import current_checkpoint
from strandline.checkpoints.storage import storage_at
from strandline.evidence.states import StateSource, find_source, source_in
from strandline.ledger import Ledger
from strandline.model.definition import Pipeline, TableSink, is_pipeline_name
from strandline.model.errors import NotFound, UsageError
from strandline.model.kafka import TOPIC_PREFIX
from strandline.model.savepoint import is_savepoint_id
from strandline.project.config import Project
from strandline.project.loader import load_pipeline, load_pipelines
from strandline.runtime.strands import writes_to
from strandline.savepoints.archive import MANIFEST, Archive, archive_of
from strandline.savepoints.holding import links_of
from strandline.savepoints.unpacking import unpacked
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.rows import RowsOf, rows_at
from strandline.tables.view import MAIN, TableView

SIDE_MARK = "__"
"""Side tables are named after a table, with this and what they hold behind it."""


@dataclass(frozen=True)
class Output:
    """A table of a pipeline."""

    rows: RowsOf
    key: tuple[str, ...] = ()
    """What its rows are known by, where it was declared."""


@dataclass(frozen=True)
class Side:
    name: str
    """As it was asked for."""
    pipeline: str
    batch: int | None
    """None when there is no checkpoint to tell."""
    source: StateSource | None
    """Its checkpoint, if there is one."""
    is_savepoint: bool = False

    @property
    def keeps_state(self) -> bool:
        return self.source is not None and self.source.operators > 0


def names_table(asked: str) -> bool:
    """``shop.orders`` and ``shop.orders@tag``; a pipeline's name has no dot, a folder has a slash or is there."""
    return "." in asked.partition("@")[0] and "/" not in asked and not Path(asked).is_dir()


@contextmanager
def side_of(project: Project, ledger: Ledger, asked: str) -> Iterator[Side]:
    """A savepoint is unpacked for as long as it is looked at."""
    pipeline, _, batch = asked.partition("@")
    has_run = ledger.attempts.latest(pipeline) is not None
    archive = None if has_run else _archive(project, ledger, asked)
    if archive is not None:
        saved = archive.read()
        with unpacked(project, archive) as checkpoint:
            yield Side(asked, saved.pipeline, saved.batch, source_in(saved.pipeline, checkpoint), is_savepoint=True)
        return
    if names_table(asked):
        raise UsageError(
            f"'{asked}' is a table: a table is compared with a table, a pipeline with a pipeline or a savepoint",
            next_command="strandline status",
        )
    if not has_run:
        load_pipeline(project, pipeline)  # raises when it is none, with those there are; code is only imported for a name that never ran
    yield _pipeline_side(project, ledger, asked, pipeline, _number(asked, batch))


def _number(asked: str, batch: str) -> int | None:
    if batch and not batch.isdecimal():
        raise UsageError(
            f"'{batch}' in '{asked}' is not the number of a batch", next_command=f"strandline checkpoint list {asked.partition('@')[0]}"
        )
    return int(batch) if batch else None


def _archive(project: Project, ledger: Ledger, asked: str) -> Archive | None:
    """A savepoint by its id, whosever it is, or by its folder."""
    if is_savepoint_id(asked):
        record = ledger.savepoints.get(asked)
        owners = [record.pipeline] if record is not None else storage_at(project.savepoints).names("")
        for owner in filter(is_pipeline_name, owners):
            if (found := archive_of(project, owner, asked)).storage.read(MANIFEST) is not None:
                return found
    folder = Archive(asked.rstrip("/"))
    return folder if folder.storage.read(MANIFEST) is not None else None


# -- a pipeline --------------------------------------------------------------------------------------------------------


def _pipeline_side(project: Project, ledger: Ledger, asked: str, pipeline: str, wanted: int | None) -> Side:
    """A pipeline that was cancelled may have lost its checkpoint; its tables are there all the same."""
    gone = not current_checkpoint(project, pipeline).exists() and ledger.attempts.latest(pipeline) is not None and wanted is None
    source = None if gone else find_source(project, pipeline)
    return Side(asked, pipeline, wanted if wanted is not None or source is None else source.batch(None), source)


def outputs_of(project: Project, ledger: Ledger, side: Side) -> dict[str, Output]:
    """The tables of a pipeline after the batch, by the names that the pipeline gives them."""
    catalog = EmbeddedCatalog(project)
    branch = writes_to(project, side.pipeline)
    found = {}
    for name, (table, key) in _tables(project, ledger, side.pipeline, catalog).items():
        view = catalog.load(table).on(branch)
        at = _snapshot(ledger, view, side)
        shown = (
            table
            if at == view.refs.get(MAIN)
            else f"{table}@{branch}"
            if at == view.head
            else f"{table}@{at if at is not None else 'empty'}"
        )
        found[name] = Output(rows_at(project, shown, table, at), key)
    return found


def _tables(project: Project, ledger: Ledger, pipeline: str, catalog: EmbeddedCatalog) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Table and key by output. A pipeline whose code is gone has the names that the ledger remembers."""
    declared = load_pipelines(project).get(pipeline)
    if declared is None:
        attempt = ledger.attempts.latest(pipeline)
        names = [name for name in (attempt.tables if attempt is not None else ()) if not name.startswith(TOPIC_PREFIX)]
        return {name.rpartition(".")[2]: (name, ()) for name in names}
    mains = {name: (sink.name, sink.key) for name, sink in declared.sinks.items() if isinstance(sink, TableSink)}
    return mains | {f"{SIDE_MARK}{name}": (table, ()) for name, table in _side_tables(declared, catalog).items()}


def _side_tables(declared: Pipeline, catalog: EmbeddedCatalog) -> dict[str, str]:
    base = f"{declared.side_table_base}{SIDE_MARK}"
    return {table.removeprefix(base): table for table in catalog.tables() if table.startswith(base)}


def _snapshot(ledger: Ledger, view: TableView, side: Side) -> int | None:
    """The table after the batch; as it is now where no checkpoint tells of batches."""
    pipeline, batch, strand = side.pipeline, side.batch, side.source.strand if side.source is not None else None
    if strand is None or batch is None:
        return view.head
    if ledger.batches.get(pipeline, strand, batch) is None:
        raise NotFound(
            f"the ledger does not know batch {batch} of strand {strand}, so what table '{view.name}' held after it cannot be told",
            next_command=f"strandline checkpoint list {pipeline}",
        )
    at = view.after_batch(pipeline, links_of(ledger, pipeline, strand, batch))
    if at is not None and at not in view.snapshots:
        raise NotFound(
            f"table '{view.name}' no longer keeps its snapshot of batch {batch}: it has expired",
            next_command=f"strandline history {view.name}",
        )
    return at
