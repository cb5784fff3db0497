"""Starting an attempt: look at ledger, checkpoint and tables, refuse or claim, and hand over something that can run."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.place import current_checkpoint, empty_place, make_current
from strandline.checkpoints.storage import storage_at
from strandline.checkpoints.verification import Answer, look_over
from strandline.ledger import Ledger
from strandline.ledger.records import Attempt, AttemptStatus, BatchRecord, Intent, IntentState, StagedFile, StrandRecord
from strandline.messaging.cluster import Cluster
from strandline.messaging.connection import KafkaConnection, connect_to
from strandline.model.crash import CrashPoint, reach
from strandline.model.definition import Pipeline, TableSink
from strandline.model.errors import AlreadyRunning, CheckpointDamaged, EnvironmentProblem, Fenced, NotFound, StrandlineError
from strandline.model.fence import latest
from strandline.model.kafka import TopicSink
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.stamp import TOPICS_FACT, UNTIL_FACT, Holder
from strandline.model.times import rfc3339, utc_now
from strandline.model.until import Until
from strandline.project.config import Project
from strandline.project.loader import code_fingerprint
from strandline.runtime.agreement import CheckpointFacts, TableFacts, check_identity, check_table
from strandline.runtime.claims import NEW_STRAND, Claims, moved_since
from strandline.runtime.dataflow import Dataflow, Output, Role, build
from strandline.runtime.heartbeat import Heartbeat
from strandline.runtime.kafka_inputs import KafkaInputs
from strandline.runtime.keyed.building import KeyedBuild, check_dropped_state
from strandline.runtime.keyed.measuring import KeyedMeasures
from strandline.runtime.keyed.records import keep_records, operator_records
from strandline.runtime.lateness import LateWatermark
from strandline.runtime.liveness import Liveness, liveness_of, process_is_gone, this_process
from strandline.runtime.options import Allowances
from strandline.runtime.positions import Positions
from strandline.runtime.protocol import CommitProtocol, Identity, Prover, TableChain, commit_record
from strandline.runtime.provision import provision
from strandline.runtime.reporting import Reporter
from strandline.runtime.seeding import Seeding
from strandline.runtime.sources import SourceReader, readers_of
from strandline.runtime.strands import FILE as STRAND_FILE
from strandline.runtime.strands import Restoration, StrandOrigin, branch_of, strand_origin
from strandline.runtime.topics import TopicChain, check_columns, topic_chain
from strandline.runtime.upsert import BRANCH_PREFIX
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.jvm import JvmTable
from strandline.tables.view import MAIN, TableView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Started:
    """An attempt that holds its pipeline and may run batches."""

    pipeline: Pipeline
    attempt: Attempt
    identity: Identity
    dataflow: Dataflow
    protocol: CommitProtocol
    checkpoint: Checkpoint
    positions: Positions
    readers: dict[str, SourceReader]
    lateness: LateWatermark
    inputs: KafkaInputs
    topics: tuple[TopicChain, ...]
    measures: KeyedMeasures

    def connections(self) -> list[KafkaConnection]:
        """Every Kafka cluster this attempt depends on, once."""
        used = [reader.connection for reader in self.inputs.readers.values()] + [topic.connection for topic in self.topics]
        return list({connection.bootstrap: connection for connection in used}.values())

    def close(self) -> None:
        self.inputs.close()
        for topic in self.topics:
            topic.close()


@dataclass(frozen=True)
class Registered:
    """An attempt number taken in the ledger, before any engine is started."""

    attempt: Attempt
    checkpoint: Checkpoint
    strand: str
    origin: StrandOrigin | None
    """Where the strand comes from, if it goes on from another."""
    readers: dict[str, SourceReader]
    boundary_reason: str | None
    """Why the tables must be claimed by a boundary; None when the last holder is provably gone."""
    witnessed_topics: dict[str, str]
    """Ids of the input topics as the newest snapshot tells them: what is left when the ledger is lost."""


def register(project: Project, pipeline: Pipeline, ledger: Ledger, allow: Allowances, reporter: Reporter) -> Registered:
    """The checks that need no engine, then the next attempt number."""
    readers = readers_of(project, pipeline)
    for reader in readers.values():
        reader.check()
    if unknown := {name for name in allow.start_tables if name not in pipeline.outputs() and not pipeline.writes(name)}:
        raise NotFound(
            f"pipeline '{pipeline.name}' writes {', '.join(pipeline.outputs())}, not {', '.join(sorted(unknown))}",
            next_command=f"strandline run {pipeline.name} --start-table {pipeline.outputs()[0]}",
        )
    previous = ledger.attempts.latest(pipeline.name)
    state = liveness_of(previous) if previous else Liveness.ENDED
    if state is Liveness.ALIVE and not allow.take_over:
        assert previous is not None
        raise _already_running(previous)
    anew = allow.new_strand or allow.restoration is not None
    checkpoint = _present_checkpoint(project, pipeline.name, anew)
    facts = facts_of(checkpoint) if not anew else CheckpointFacts(checkpoint.location, None, None, 0)
    if not anew:
        check_identity(facts, pipeline.name, ledger.attempts.owner_of(facts.strand) if facts.strand else None)
    catalog = EmbeddedCatalog(project)
    branch = branch_of(pipeline, strand_origin(checkpoint) if not anew else None)
    ours = [catalog.load(name).on(branch) for name in filter(pipeline.writes, catalog.tables())]
    if not anew and facts.strand is None:
        _check_not_lost(pipeline, facts, ours)
    if allow.restoration is not None:
        _check_unmoved(pipeline.name, allow.restoration.origin, catalog)
    witnessed = max((view.highest_attempt(pipeline.name) for view in ours), default=0)
    reason = _why_claim(pipeline, ledger, allow, previous, state, witnessed)
    attempt = ledger.attempts.begin(
        pipeline.name,
        id=uuid.uuid4().hex[:12],
        above=witnessed,
        replaces=previous.number if previous and state is not Liveness.ENDED else None,
        process=this_process(),
        code=code_fingerprint(pipeline),
        tables=pipeline.outputs(),
    )
    if attempt is None:
        winner = ledger.attempts.latest(pipeline.name)
        assert winner is not None
        raise _already_running(winner)
    try:
        if anew:
            checkpoint = _new_place(project, ledger, checkpoint, allow.restoration, attempt, reporter)
        strand = checkpoint.strand() or checkpoint.give_identity()
        origin = strand_origin(checkpoint)
    except StrandlineError as error:
        ledger.attempts.end(attempt, AttemptStatus.FENCED if isinstance(error, Fenced) else AttemptStatus.FAILED, error.message)
        raise
    except OSError as error:
        ledger.attempts.end(attempt, AttemptStatus.FAILED, str(error))
        raise EnvironmentProblem(
            f"the checkpoint folder {checkpoint.location} cannot be written: {error.strerror}", next_command="strandline doctor"
        ) from error
    ours = [view.on(branch_of(pipeline, origin)) for view in ours]
    if origin is not None and ledger.strands.get(pipeline.name, strand) is None:
        parent, savepoint = origin.parent or None, origin.savepoint or None
        ledger.strands.record(
            StrandRecord(pipeline.name, strand, origin.how, parent, origin.batch, savepoint, attempt.number, rfc3339(utc_now()))
        )
    known = {**(_witnessed_topics(ours, origin.parent) if origin is not None else {}), **_witnessed_topics(ours, strand)}
    return Registered(attempt, checkpoint, strand, origin, readers, reason, known)


def _check_not_lost(pipeline: Pipeline, facts: CheckpointFacts, ours: Sequence[TableView]) -> None:
    """A lost checkpoint is refused before a new one is begun in its place."""
    if pipeline.parent is not None:
        raise NotFound(
            f"fork '{pipeline.name}' has no checkpoint: its making was interrupted, or the checkpoint is lost",
            next_command=f"strandline discard {pipeline.name}, then: strandline fork {pipeline.parent} …",
        )
    for view in ours:
        seen = TableFacts(view.name, view.mark(pipeline.name), view.newest_stamp(pipeline.name), None, {})
        check_table(seen, facts, pipeline.name, None)


def _check_unmoved(pipeline: str, origin: StrandOrigin, catalog: EmbeddedCatalog) -> None:
    """Before anything is laid out: what was planned must still be true. The claim looks again."""
    for table, start in origin.tables.items():
        view = catalog.find(table)
        at = view.on(origin.branch).head if view is not None else None
        if at != start.head and not (view is not None and view.on(origin.branch).only_maintained_since(start.head)):
            raise moved_since(pipeline, origin, table, at)


def _present_checkpoint(project: Project, pipeline: str, anew: bool) -> Checkpoint:
    """A new strand needs no word from the old one: a damaged pointer must not keep it from beginning."""
    try:
        return current_checkpoint(project, pipeline)
    except CheckpointDamaged:
        if not anew:
            raise
        return Checkpoint(storage_at(project.checkpoint_of(pipeline)))


def _witnessed_topics(views: Sequence[TableView], strand: str) -> dict[str, str]:
    for view in views:
        for snapshot in view.ancestors():
            stamp = snapshot.stamp
            if stamp is not None and stamp.strand == strand and TOPICS_FACT in stamp.extra:
                return {str(topic): str(known) for topic, known in json.loads(stamp.extra[TOPICS_FACT]).items()}
    return {}


def _why_claim(
    pipeline: Pipeline, ledger: Ledger, allow: Allowances, previous: Attempt | None, state: Liveness, witnessed: int
) -> str | None:
    """A boundary is needed whenever someone before us could still commit, or the chain starts anew."""
    if allow.new_strand:
        return NEW_STRAND
    # An earlier takeover may have died before it wrote its boundary: whoever it declared lost can still wake up.
    sleepers = [lost for lost in ledger.attempts.lost(pipeline.name) if lost.number >= witnessed and not process_is_gone(lost.process)]
    if state in (Liveness.ALIVE, Liveness.SILENT) or sleepers:
        return "takeover"
    return "ledger-lost" if witnessed > (previous.number if previous else 0) else None


def _new_place(
    project: Project, ledger: Ledger, old: Checkpoint, restoration: Restoration | None, attempt: Attempt, reporter: Reporter
) -> Checkpoint:
    """A checkpoint for a new strand: complete and checked before it takes the place of the old one, which stays as it is."""
    new = empty_place(project, attempt.pipeline, attempt.number, attempt.id)
    if restoration is not None:
        with Heartbeat(ledger, attempt):  # copying may take longer than others believe us alive
            restoration.lay_out(new.storage)
            new.storage.write(STRAND_FILE, restoration.origin.encode())
    new.give_identity()
    origin = restoration.origin if restoration is not None else None
    restored = origin.batch if origin is not None and origin.place is None else -1  # a seed is loaded by Spark, and checked then
    if restored >= 0 and (found := look_over(new, restored)).answer is not Answer.YES:
        raise CheckpointDamaged(
            f"the restored checkpoint {new.location} is not complete: {found.because}", next_command="the same command again"
        )
    reach(CrashPoint.STRAND_BUILT)
    if not ledger.attempts.beat(attempt, "{}"):
        raise Fenced(
            f"attempt {attempt.number} of '{attempt.pipeline}' was replaced by a newer one before its checkpoint was in place",
            next_command="strandline status",
        )
    make_current(project, attempt.pipeline, new)
    reach(CrashPoint.STRAND_PLACED)
    if old.exists():
        reporter.say(f"the old checkpoint is kept in {old.location}")
    return new


def start(
    spark: SparkSession, project: Project, pipeline: Pipeline, ledger: Ledger, registered: Registered, allow: Allowances, reporter: Reporter
) -> Started:
    """Build the query, prepare the tables, check that everything agrees, claim what must be claimed."""
    attempt, checkpoint = registered.attempt, registered.checkpoint
    savepoint = registered.origin.savepoint if registered.origin is not None else ""
    identity = Identity(pipeline.name, registered.strand, Holder(attempt.number, attempt.id), attempt.code, savepoint)
    readers = registered.readers
    Seeding(spark, pipeline, checkpoint, readers, attempt, reporter).settle()
    lateness = LateWatermark(checkpoint.location, attempt.number)
    lateness.set(checkpoint.late_watermark_ms(checkpoint.next_batch()))
    facts = facts_of(checkpoint)
    inputs = KafkaInputs.of(readers, identity, ledger, reporter)
    inputs.accept(facts.next_batch, allow.accept_gaps)
    origin = _origin_of(checkpoint, facts, readers)
    measures = KeyedMeasures(spark)
    keyed = KeyedBuild(operator_records(checkpoint), measures.teller)
    dataflow = build(spark, pipeline, readers, origin, lateness, keyed)
    check_dropped_state(keyed)
    keep_records(checkpoint, keyed)
    for record in keyed.made.values():
        measures.expect(record.name, len(record.buckets), empty=record.name not in keyed.known)
    for hint in keyed.hints:
        reporter.say(f"hint: {hint}")
    positions = Positions(pipeline.name, registered.strand, checkpoint, ledger, readers, dataflow.source_lines, origin)
    if facts.last_planned is not None:
        positions.after(facts.last_planned)  # a damaged offsets file is reported before anything is claimed
    last = positions.after(facts.next_batch - 1) or ORIGIN
    first = registered.origin is not None and facts.next_batch == registered.origin.begins_after + 1
    if registered.origin is not None and first and facts.next_batch > 0 and ledger.batches.newest(pipeline.name, registered.strand) is None:
        place = json.dumps(last.to_json())
        ledger.batches.inherit(
            BatchRecord(pipeline.name, registered.strand, registered.origin.begins_after, attempt.number, place, place, last.digest, {})
        )
    parent = (registered.origin.parent or None) if registered.origin is not None else None
    inputs.take_up(last, facts.next_batch, registered.witnessed_topics, allow.accept_gaps, parent)
    branch = branch_of(pipeline, registered.origin)
    claims = Claims(identity, ledger, facts, positions, registered.boundary_reason, allow, registered.origin, branch)
    ledger.attempts.bind(attempt, registered.strand, [output.sink.name for output in dataflow.outputs if output.sink])
    topics = [(output, _open_topic(project, pipeline.name, output)) for output in dataflow.outputs if isinstance(output.sink, TopicSink)]
    chains: list[tuple[Output, TableChain]] = []
    for output in dataflow.outputs:
        if not isinstance(output.sink, TableSink):
            continue
        chain = _open_table(spark, project, output.sink, output, claims)
        reason = claims.settle_with(chain, is_side_table=output.role is not Role.DATA)
        if reason is not None:
            where = f"table '{chain.sink.name}'" + (f", branch '{branch}'" if branch != MAIN else "")
            reporter.say(f"boundary ({reason}) written to {where}: older attempts can no longer commit")
        chains.append((output, chain))
    for _, topic in topics:
        claims.settle_with_topic(topic)
    inputs.compare_groups(last)
    if facts.next_batch > 0:
        inputs.commit_groups(last)  # what the last attempt completed and could not tell any more
    gaps = ledger.gaps.of_strand(pipeline.name, registered.strand)
    protocol = CommitProtocol(identity, dataflow, chains, topics, positions, ledger, _prover(readers, pipeline.until), gaps)
    return Started(
        pipeline,
        attempt,
        identity,
        dataflow,
        protocol,
        checkpoint,
        positions,
        readers,
        lateness,
        inputs,
        tuple(topic for _, topic in topics),
        measures,
    )


def _origin_of(checkpoint: Checkpoint, facts: CheckpointFacts, readers: Mapping[str, SourceReader]) -> Offsets:
    """Where the strand began: as it was fixed at its first start, or fixed now."""
    known = checkpoint.origin()
    if known is not None or facts.next_batch > 0 or facts.last_planned is not None:
        return known or ORIGIN
    origin = Offsets.of({name: reader.begin() for name, reader in readers.items()})
    if not origin.is_origin:
        checkpoint.give_origin(origin)
    return origin


def _prover(readers: Mapping[str, SourceReader], until: Until | None) -> Prover:
    bounded = {UNTIL_FACT: str(until)} if until is not None else {}

    def prove(start: Offsets, end: Offsets) -> dict[str, str]:
        before, after = dict(start.sources), dict(end.sources)
        facts: dict[str, dict[str, object]] = {}
        for name, reader in readers.items():
            for kind, by_topic in reader.prove(before.get(name), after.get(name)).items():
                facts.setdefault(kind, {}).update(by_topic)
        return {**bounded, **{kind: json.dumps(by_topic, sort_keys=True) for kind, by_topic in facts.items()}}

    return prove


def _open_topic(project: Project, pipeline: str, output: Output) -> TopicChain:
    """Check that the topic can be written; it is claimed after the tables, which are committed before it."""
    sink = output.sink
    assert isinstance(sink, TopicSink)
    check_columns(output.frame, sink)
    connection = connect_to(project, sink.access)
    cluster = Cluster(connection)
    try:
        facts = cluster.facts([sink.topic]).get(sink.topic)
    finally:
        cluster.close()
    if facts is None:
        raise NotFound(
            f"output topic '{sink.topic}' does not exist on the Kafka cluster at {connection.bootstrap}",
            next_command=f"create topic '{sink.topic}', then run again",
        )
    return topic_chain(sink, connection, facts.id, pipeline)


def _open_table(spark: SparkSession, project: Project, sink: TableSink, output: Output, claims: Claims) -> TableChain:
    """Refuse before anything is made, make what is missing, note what a killed attempt could not record."""
    exists = EmbeddedCatalog(project).find(sink.name) is not None
    if not exists:
        claims.check_missing(sink.name, is_side_table=output.role is not Role.DATA)
    catalog = project.profile.catalog.name
    provision(spark, catalog, sink, output.frame, claims.birth_mark())
    table = JvmTable(spark, catalog, sink.name, claims.branch)
    _settle(project, claims, sink.name)
    _drop_leftover_branches(table, claims.identity, claims.ledger)
    return TableChain(sink, table, None)


def facts_of(checkpoint: Checkpoint) -> CheckpointFacts:
    planned = checkpoint.planned()
    return CheckpointFacts(checkpoint.location, checkpoint.strand(), planned[-1] if planned else None, checkpoint.next_batch())


def _already_running(holder: Attempt) -> AlreadyRunning:
    return AlreadyRunning(
        f"pipeline '{holder.pipeline}' is already running: attempt {holder.number} on {holder.process.host}, pid {holder.process.pid}, since "
        f"{holder.started_at} (last sign of life {holder.heartbeat_at})",
        next_command=f"strandline stop {holder.pipeline}",
    )


def _settle(project: Project, claims: Claims, table: str) -> None:
    """What a killed attempt did not get to record: commits that the table holds and the ledger does not know."""
    ledger, identity = claims.ledger, claims.identity
    found = EmbeddedCatalog(project).find(table)
    if found is None:
        return
    view = found.on(claims.branch)
    known = {record.snapshot_id for record in ledger.commits.of_table(table)}
    reachable = {snapshot.id for snapshot in view.ancestors()}
    landed: set[tuple[str, int]] = set()
    for snapshot in sorted(view.snapshots.values(), key=lambda s: s.sequence_number):
        stamp = snapshot.stamp
        if stamp is None or stamp.pipeline != identity.pipeline:
            continue
        if snapshot.id not in reachable:
            continue  # a merge that was never published
        landed.add((stamp.holder.id, stamp.batch))
        if snapshot.id not in known:
            ledger.commits.record_commit(commit_record(table, snapshot, stamp))
            ledger.events.add(identity.pipeline, "ledger-caught-up", f"{table}: snapshot {snapshot.id}", identity.holder.attempt)
    seen = latest(view.mark(identity.pipeline), view.newest_stamp(identity.pipeline))
    for intent in ledger.commits.unsettled([IntentState.STAGED, IntentState.UNKNOWN], identity.pipeline):
        if intent.table != table:
            continue
        if (intent.attempt_id, intent.batch) in landed:
            ledger.commits.settle(intent.id, IntentState.COMMITTED)
        elif seen is not None and seen.strand == intent.strand and seen.batch >= intent.batch:
            ledger.commits.settle(intent.id, IntentState.DUPLICATE)  # another attempt brought this batch in


def _drop_leftover_branches(table: JvmTable, identity: Identity, ledger: Ledger) -> None:
    """Merge branches of attempts before us: their files go on the cleanup list, then the branches go."""
    prefix = f"{BRANCH_PREFIX}{identity.pipeline}-"
    attempts = {name: int(name.removeprefix(prefix)) for name in table.branches(prefix) if name.removeprefix(prefix).isdigit()}
    leftovers = [name for name, attempt in attempts.items() if attempt < identity.holder.attempt]
    for name in leftovers:
        files = tuple(StagedFile(*facts) for facts in table.branch_only_files(name))
        intent = Intent(identity.pipeline, identity.strand, -1, table.name, attempts[name], "", files)
        ledger.commits.record_leftover(intent, IntentState.REFUSED)
    if leftovers:
        table.drop_branches(leftovers)
