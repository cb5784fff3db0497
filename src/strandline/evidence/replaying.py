"""One batch run again, and its rows beside those that its snapshots brought: the same, or which ones differ.

Whatever can be refused without Spark is refused before it is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strandline.checkpoints.place import current_checkpoint
from strandline.evidence.comparing import Comparison, compare
from strandline.ledger import Ledger
from strandline.model.definition import Pipeline, TableSink
from strandline.model.errors import ChainBroken, NotFound
from strandline.model.fork import checked_branch
from strandline.model.kafka import TopicSink
from strandline.model.stamp import PREFIX, StampKind
from strandline.project.config import Project
from strandline.project.loader import code_fingerprint
from strandline.runtime.strands import branch_of, strand_origin
from strandline.savepoints.holding import links_of
from strandline.savepoints.replaying import RecordedBatch, find_batch, scratch_checkpoint
from strandline.savepoints.table_plans import check_new_branch
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import Link, Snapshot, TableView

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from strandline.runtime.dataflow import Dataflow
    from strandline.runtime.reporting import Reporter
    from strandline.tables.jvm import JvmTable

REPLAY_VERSION = 1
REPLAY_FACT = f"{PREFIX}replay"
"""In the summary of a snapshot on a branch: which batch was run again. It is no stamp, so no start takes it for one."""


@dataclass(frozen=True)
class Footprint:
    """What a batch left in a table."""

    view: TableView
    sink: TableSink
    snapshot: Snapshot | None
    """None when it brought nothing."""
    before: int | None
    """The table before the batch; None when it was empty."""
    after: int | None

    @property
    def name(self) -> str:
        return f"{self.view.name}@{self.snapshot.id}" if self.snapshot is not None else self.view.name


@dataclass(frozen=True)
class ReplayedTable:
    table: str
    mode: str
    snapshot: int | None
    """The one that the batch made; None when it brought nothing to the table."""
    branch: str | None
    """Where the replayed rows are now."""
    comparison: Comparison
    """Left is the table, right the replay."""


@dataclass(frozen=True)
class ReplayedTopic:
    """Rows of a topic are counted, not compared."""

    topic: str
    delivered: int
    replayed: int

    @property
    def same(self) -> bool:
        return self.delivered == self.replayed


@dataclass(frozen=True)
class Replay:
    pipeline: str
    strand: str
    batch: int
    offsets: str
    state: str
    """Where the state before the batch came from: ``checkpoint``, a savepoint's id, or ``empty``."""
    code_then: str
    code_now: str
    tables: tuple[ReplayedTable, ...] = ()
    topics: tuple[ReplayedTopic, ...] = ()

    @property
    def same(self) -> bool:
        return all(table.comparison.same for table in self.tables) and all(topic.same for topic in self.topics)


def replay(
    project: Project,
    pipeline: Pipeline,
    ledger: Ledger,
    batch: int,
    reporter: Reporter,
    *,
    into: str | None = None,
    limit: int = 10,
    session: SparkSession | None = None,
) -> Replay:
    """Run a batch again and compare.

    Args:
        into: a new branch of each table that gets the replayed rows, on top of the table before the batch.
        limit: so many differences of each table are shown with their values.
        session: a session to run in, which stays open.
    """
    from strandline.runtime.replaying import Rerun
    from strandline.runtime.run import engine_for

    recorded = find_batch(project, pipeline.name, batch)
    footprints = _footprints(project, pipeline, ledger, recorded)
    if into is not None:
        _check_branch(footprints, into)
    log = project.logs / f"{pipeline.name}-replay.log"
    with scratch_checkpoint(project, recorded) as scratch, engine_for(project, pipeline, log, session, reporter) as spark:
        judge = _Judge(spark, project, ledger, recorded, footprints, into, limit)
        rerun = Rerun(project, pipeline, ledger, recorded.strand, recorded.parent, batch, scratch)
        start, end = rerun.run(spark, judge.take)
    known = ledger.batches.get(pipeline.name, recorded.strand, batch)
    attempt = ledger.attempts.get(pipeline.name, known.attempt) if known is not None else None
    return Replay(
        pipeline.name,
        recorded.strand,
        batch,
        end.human(start),
        recorded.state.origin,
        attempt.code if attempt is not None else "",
        code_fingerprint(pipeline),
        tuple(judge.tables),
        tuple(judge.topics),
    )


# -- what the batch left behind ------------------------------------------------------------------------------------------


def _footprints(project: Project, pipeline: Pipeline, ledger: Ledger, recorded: RecordedBatch) -> dict[str, Footprint]:
    catalog = EmbeddedCatalog(project)
    sinks = {sink.name: sink for sink in pipeline.sinks.values() if isinstance(sink, TableSink)}
    known = ledger.batches.get(pipeline.name, recorded.strand, recorded.batch)
    finder = _Finder(
        pipeline.name,
        recorded.strand,
        recorded.batch,
        links_of(ledger, pipeline.name, recorded.strand, recorded.batch),
        known.rows_by_table if known is not None else None,
    )
    branch = branch_of(pipeline, strand_origin(current_checkpoint(project, pipeline.name)))
    ours = filter(pipeline.writes, catalog.tables())
    return {name: finder.find(catalog.load(name).on(branch), sinks.get(name, TableSink(name))) for name in ours}


@dataclass(frozen=True)
class _Finder:
    pipeline: str
    strand: str
    batch: int
    links: Sequence[Link]
    rows: Mapping[str, int] | None
    """Rows that the batch brought to each table, as the ledger knows it; None when it does not know the batch."""

    def find(self, view: TableView, sink: TableSink) -> Footprint:
        snapshot, told = self._snapshot(view)
        if snapshot is not None:
            if sink.mode == "upsert" and snapshot.parent_id is not None and snapshot.parent_id not in view.snapshots:
                raise self._expired(view, sink, "the table before")
            return Footprint(view, sink, snapshot, snapshot.parent_id, snapshot.id)
        brought = self.rows.get(view.name, 0) if self.rows is not None else None
        if not told and brought != 0:
            raise self._expired(view, sink, "the snapshot of")
        if brought:
            raise ChainBroken(
                f"the ledger saw batch {self.batch} enter table '{view.name}', and it is not in the table's history",
                next_command=f"strandline history {view.name}",
            )
        at = view.after_batch(self.pipeline, self.links)
        if sink.mode == "upsert" and at is not None and at not in view.snapshots:
            raise self._expired(view, sink, "the table after")
        return Footprint(view, sink, None, at, at)

    def _snapshot(self, view: TableView) -> tuple[Snapshot | None, bool]:
        """What the batch made, if main's history has it; and whether that history reaches back far enough to tell."""
        oldest: Snapshot | None = None
        for snapshot in view.ancestors():
            oldest, stamp = snapshot, snapshot.stamp
            if stamp is None or stamp.pipeline != self.pipeline:
                continue
            if stamp.strand == self.strand and stamp.batch == self.batch and stamp.kind is StampKind.BATCH:
                return snapshot, True
            if stamp.strand != self.strand or stamp.batch < self.batch:
                return None, True
        return None, oldest is None or oldest.parent_id is None

    def _expired(self, view: TableView, sink: TableSink, what: str) -> NotFound:
        kept = [
            snapshot.stamp.batch
            for snapshot in view.ancestors()
            if snapshot.stamp is not None
            and (snapshot.stamp.pipeline, snapshot.stamp.strand, snapshot.stamp.kind) == (self.pipeline, self.strand, StampKind.BATCH)
            and (sink.mode == "append" or snapshot.parent_id is None or snapshot.parent_id in view.snapshots)
        ]
        oldest = f"the oldest that can be compared is batch {kept[-1]}" if kept else "none of this strand can be compared"
        return NotFound(
            f"table '{view.name}' no longer keeps {what} batch {self.batch}: it has expired; {oldest}",
            next_command=f"strandline replay {self.pipeline} --batch {kept[-1]}" if kept else f"strandline history {view.name}",
        )


def _check_branch(footprints: Mapping[str, Footprint], branch: str) -> None:
    checked_branch(branch)
    for footprint in footprints.values():
        check_new_branch(footprint.view, branch)


# -- beside it, what the replay makes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FrameRows:
    """Rows of one or two frames, as `compare` reads them."""

    name: str
    columns: tuple[str, ...]
    frames: tuple[DataFrame, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        from pyspark.sql import functions as F

        from strandline.runtime.arrow_batches import arrow_batches

        for frame in self.frames:
            there = set(frame.columns)
            columns = [F.col(f"`{name}`") if name in there else F.lit(None).alias(name) for name in self.columns]
            yield from arrow_batches(frame.select(*columns))

    def records(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from batch.select(list(columns)).to_pylist()


class _Judge:
    def __init__(
        self,
        spark: SparkSession,
        project: Project,
        ledger: Ledger,
        recorded: RecordedBatch,
        footprints: Mapping[str, Footprint],
        into: str | None,
        limit: int,
    ) -> None:
        self._spark = spark
        self._catalog = project.profile.catalog.name
        self._recorded = recorded
        self._ledger = ledger
        self._footprints = footprints
        self._into = into
        self._limit = limit
        self.tables: list[ReplayedTable] = []
        self.topics: list[ReplayedTopic] = []

    def take(self, dataflow: Dataflow, frame: DataFrame) -> None:
        """Called with the rows of the batch: compare every output, then fill the branches."""
        found: list[tuple[Footprint, DataFrame]] = []
        counted: list[tuple[TopicSink, DataFrame]] = []
        for output in dataflow.outputs:
            rows = dataflow.rows_of(frame, output)
            if isinstance(output.sink, TopicSink):
                counted.append((output.sink, rows))
            elif output.sink is not None:
                found.append((self._footprint(output.sink, rows), rows))
        self.tables = [self._compare(footprint, rows) for footprint, rows in found]
        self.topics = [self._count(sink, rows) for sink, rows in counted]
        if self._into is not None:
            self._fill(found, self._into)

    def _footprint(self, sink: TableSink, rows: DataFrame) -> Footprint:
        from strandline.runtime.provision import check_columns

        found = self._footprints.get(sink.name)
        if found is None:
            raise NotFound(
                f"there is no table '{sink.name}': pipeline '{self._recorded.pipeline}' has written no batch to it",
                next_command="strandline status",
            )
        if self._into is not None:  # a comparison can tell of other columns, a branch cannot hold them
            check_columns(sink, rows.schema, rows.sparkSession.table(f"{self._catalog}.{sink.name}").schema)
        return replace(found, sink=sink)

    def _compare(self, footprint: Footprint, rows: DataFrame) -> ReplayedTable:
        sink, snapshot = footprint.sink, footprint.snapshot
        left, right = self._upserted(footprint, rows) if sink.mode == "upsert" else self._appended(footprint, rows)
        comparison = compare(left, right, sink.key, limit=self._limit)
        return ReplayedTable(sink.name, sink.mode, snapshot.id if snapshot is not None else None, self._into, comparison)

    def _appended(self, footprint: Footprint, rows: DataFrame) -> tuple[_FrameRows, _FrameRows]:
        """Every row that the snapshot added against every row of the replay."""
        snapshot = footprint.snapshot
        replayed = _FrameRows("the replay", tuple(rows.columns), (rows,))
        if snapshot is None:
            return _FrameRows(footprint.name, replayed.columns, ()), replayed
        added = self._table(footprint).appended_by(rows.sparkSession, snapshot)
        columns = [name for name in footprint.view.column_names(snapshot.id) if name in added.columns]
        return _FrameRows(footprint.name, tuple(columns), (added,)), replayed

    def _upserted(self, footprint: Footprint, rows: DataFrame) -> tuple[_FrameRows, _FrameRows]:
        """The table after the batch against what the replay makes of the table before it: keys that one of the two touched."""
        from strandline.runtime.upsert import keys_of, newest_per_key, outcome, with_keys

        sink, session, table = footprint.sink, rows.sparkSession, self._table(footprint)
        columns, entering = tuple(rows.columns), newest_per_key(rows, sink)
        if footprint.after is None:
            return _FrameRows(footprint.name, columns, ()), _FrameRows("the replay", columns, (entering,))
        touched = keys_of(entering, sink)
        if footprint.snapshot is not None:
            touched = touched.union(keys_of(table.written_by(session, footprint.snapshot.id), sink))
        after = table.at(session, footprint.after)
        made: tuple[DataFrame, ...] = (entering,)
        if footprint.before is not None:
            entering, staying = outcome(entering, table.at(session, footprint.before), sink)
            made = (entering, with_keys(staying, touched, sink))
        left = _FrameRows(footprint.name, tuple(after.columns), (with_keys(after, touched, sink),))
        return left, _FrameRows("the replay", columns, made)

    def _table(self, footprint: Footprint) -> JvmTable:
        from strandline.tables.jvm import JvmTable

        return JvmTable(self._spark, self._catalog, footprint.view.name)

    def _count(self, sink: TopicSink, rows: DataFrame) -> ReplayedTopic:
        known = self._ledger.batches.get(self._recorded.pipeline, self._recorded.strand, self._recorded.batch)
        delivered = known.rows_by_table.get(sink.name, 0) if known is not None else 0
        return ReplayedTopic(sink.name, delivered, rows.count())

    def _fill(self, found: Sequence[tuple[Footprint, DataFrame]], branch: str) -> None:
        """A branch of each table, with the rows; all of them or none."""
        from strandline.runtime.replaying import put_on_branch
        from strandline.tables.tags import JvmTags

        tags = JvmTags(self._spark, self._catalog)
        summary = {REPLAY_FACT: f"{self._recorded.strand}/{self._recorded.batch}"}
        made: list[str] = []
        try:
            for footprint, rows in found:
                tags.branch(footprint.view.name, branch, footprint.before)
                made.append(footprint.view.name)
                put_on_branch(self._table(footprint), footprint.sink, rows, branch, summary)
        except BaseException:
            for name in made:
                tags.drop_branch(name, branch)
            raise
