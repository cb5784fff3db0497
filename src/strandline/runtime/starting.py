"""Starting an attempt: look at ledger, checkpoint and tables, refuse or claim, and hand over something that can run."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.storage import storage_at
from strandline.ledger import Ledger
from strandline.ledger.records import Attempt, Intent, IntentState, StagedFile
from strandline.model.definition import Pipeline
from strandline.model.errors import AlreadyRunning, NotFound, TableUnavailable
from strandline.model.fence import Claim, Decision, Verdict, decide_claim, latest
from strandline.model.offsets import ORIGIN
from strandline.model.stamp import Holder, Witness
from strandline.model.times import utc_now
from strandline.project.config import Project
from strandline.project.loader import code_fingerprint
from strandline.runtime.agreement import CheckpointFacts, TableFacts, check_identity, check_table
from strandline.runtime.dataflow import Dataflow, Output, Role, build
from strandline.runtime.lateness import LateWatermark
from strandline.runtime.liveness import Liveness, liveness_of, this_process
from strandline.runtime.options import Allowances
from strandline.runtime.positions import Positions
from strandline.runtime.protocol import CommitProtocol, Identity, TableChain, boundary_stamp, commit_record, refusal
from strandline.runtime.provision import provision
from strandline.runtime.reporting import Reporter
from strandline.runtime.sources import SourceReader, reader_for
from strandline.runtime.upsert import BRANCH_PREFIX
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.jvm import CommitRefused, JvmTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLAIM_TRIES = 10
"""A zombie may commit between our look and our claim, once per batch; ten in a row means it is not a zombie."""


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


@dataclass(frozen=True)
class Registered:
    """An attempt number taken in the ledger, before any engine is started."""

    attempt: Attempt
    checkpoint: Checkpoint
    strand: str
    boundary_reason: str | None
    """Why the tables must be claimed by a boundary; None when the last holder is provably gone."""


def register(project: Project, pipeline: Pipeline, ledger: Ledger, allow: Allowances, reporter: Reporter) -> Registered:
    """The checks that need no engine, then the next attempt number."""
    for name, source in pipeline.sources.items():
        reader_for(project, name, source).check()
    side = f"{pipeline.side_table_base}__"
    if unknown := {name for name in allow.start_tables if name not in pipeline.tables() and not name.startswith(side)}:
        raise NotFound(
            f"pipeline '{pipeline.name}' writes {', '.join(pipeline.tables())}, not {', '.join(sorted(unknown))}",
            next_command=f"strandline run {pipeline.name} --start-table {pipeline.tables()[0]}",
        )
    previous = ledger.attempts.latest(pipeline.name)
    state = liveness_of(previous) if previous else Liveness.ENDED
    if state is Liveness.ALIVE and not allow.take_over:
        assert previous is not None
        raise _already_running(previous)
    checkpoint = Checkpoint(storage_at(project.checkpoint_of(pipeline.name)))
    facts = facts_of(checkpoint)
    if not allow.new_strand:
        check_identity(facts, pipeline.name, ledger.attempts.owner_of(facts.strand) if facts.strand else None)
    catalog = EmbeddedCatalog(project)
    views = [view for view in map(catalog.find, pipeline.tables()) if view is not None]
    witnessed = max((view.highest_attempt(pipeline.name) for view in views), default=0)
    reason: str | None = None
    if allow.new_strand:
        reason = "new-strand"
    elif state in (Liveness.ALIVE, Liveness.SILENT):
        reason = "takeover"
    elif witnessed > (previous.number if previous else 0):
        reason = "ledger-lost"
    attempt = ledger.attempts.begin(
        pipeline.name,
        id=uuid.uuid4().hex[:12],
        above=witnessed,
        replaces=previous.number if previous and state is not Liveness.ENDED else None,
        process=this_process(),
        code=code_fingerprint(pipeline),
        tables=pipeline.tables(),
    )
    if attempt is None:
        winner = ledger.attempts.latest(pipeline.name)
        assert winner is not None
        raise _already_running(winner)
    if allow.new_strand and (facts.strand is not None or facts.last_planned is not None):
        aside = f"{checkpoint.location}.abandoned-{utc_now().strftime('%Y%m%dT%H%M%SZ')}-{attempt.number}"
        checkpoint.storage.set_aside(aside)
        reporter.say(f"the old checkpoint is kept in {aside}")
    strand = checkpoint.strand() or checkpoint.give_identity()
    return Registered(attempt, checkpoint, strand, reason)


def start(
    spark: SparkSession, project: Project, pipeline: Pipeline, ledger: Ledger, registered: Registered, allow: Allowances, reporter: Reporter
) -> Started:
    """Build the query, prepare the tables, check that everything agrees, claim what must be claimed."""
    attempt, checkpoint = registered.attempt, registered.checkpoint
    identity = Identity(pipeline.name, registered.strand, Holder(attempt.number, attempt.id), attempt.code)
    readers = {name: reader_for(project, name, source) for name, source in pipeline.sources.items()}
    lateness = LateWatermark(checkpoint.location)
    lateness.set(checkpoint.late_watermark_ms(checkpoint.next_batch()))
    dataflow = build(spark, pipeline, readers, lateness)
    positions = Positions(pipeline.name, registered.strand, checkpoint, ledger, readers, dataflow.source_lines)
    catalog = project.profile.catalog.name
    chains: list[tuple[Output, TableChain]] = []
    created: set[str] = set()
    for output in dataflow.outputs:
        if output.sink is None:
            continue
        if provision(spark, catalog, output.sink, output.frame):
            created.add(output.sink.name)
        chains.append((output, TableChain(output.sink, JvmTable(spark, catalog, output.sink.name), None)))
    ledger.attempts.bind(attempt, registered.strand, [chain.sink.name for _, chain in chains])
    facts = facts_of(checkpoint)
    if facts.last_planned is not None:
        positions.after(facts.last_planned)  # a damaged offsets file is reported before anything is claimed
    for output, chain in chains:
        new_side_table = (
            chain.sink.name in created
            and output.role is not Role.DATA
            and not ledger.commits.has_commits(pipeline.name, chain.sink.name)
        )
        _settle(project, ledger, identity, chain.sink.name)
        _drop_leftover_branches(chain.table, pipeline.name, ledger, identity)
        begins_here = chain.sink.name in allow.start_tables or new_side_table
        reason = registered.boundary_reason
        if reason != "new-strand":
            seen = _check(chain, identity, facts, positions, ledger, created, begins_here)
            if begins_here and seen is None and facts.next_batch > 0:
                reason = "start-table"
        if reason is not None:
            _claim(chain, identity, ledger, reason, facts, positions)
            reporter.say(f"boundary ({reason}) written to table '{chain.sink.name}': older attempts can no longer commit")
        chain.witness = latest(*chain.table.witnesses(pipeline.name))
    protocol = CommitProtocol(identity, dataflow, chains, positions, ledger)
    return Started(pipeline, attempt, identity, dataflow, protocol, checkpoint, positions, readers, lateness)


def facts_of(checkpoint: Checkpoint) -> CheckpointFacts:
    planned = checkpoint.planned()
    return CheckpointFacts(checkpoint.location, checkpoint.strand(), planned[-1] if planned else None, checkpoint.next_batch())


def _already_running(holder: Attempt) -> AlreadyRunning:
    return AlreadyRunning(
        f"pipeline '{holder.pipeline}' is already running: attempt {holder.number} on {holder.process.host}, pid {holder.process.pid}, since "
        f"{holder.started_at} (last sign of life {holder.heartbeat_at})",
        next_command=f"strandline stop {holder.pipeline}",
    )


def _check(
    chain: TableChain,
    identity: Identity,
    facts: CheckpointFacts,
    positions: Positions,
    ledger: Ledger,
    created: Iterable[str],
    begins_here: bool,
) -> Witness | None:
    mark, newest = chain.table.witnesses(identity.pipeline)
    seen = latest(mark, newest)
    if seen is None and begins_here:
        return None
    recorded = ledger.commits.last_batch_commit(identity.pipeline, chain.sink.name, identity.strand)
    known = ledger.batches.get(identity.pipeline, identity.strand, facts.next_batch - 1)
    table = TableFacts(
        chain.sink.name,
        chain.sink.name in created,
        mark,
        newest,
        recorded.batch if recorded else None,
        known is not None,
    )
    at_witness = positions.after(seen.batch) if seen is not None and seen.strand == identity.strand else None
    check_table(table, facts, identity.pipeline, at_witness)
    return seen


def _claim(chain: TableChain, identity: Identity, ledger: Ledger, reason: str, facts: CheckpointFacts, positions: Positions) -> None:
    """Write the boundary on top of exactly what was read; read again if a commit slipped in between."""
    for _ in range(CLAIM_TRIES):
        chain.table.refresh()
        seen = latest(*chain.table.witnesses(identity.pipeline))
        at: Witness | None = None
        if reason == "new-strand":
            at = Witness(identity.strand, identity.holder, -1, ORIGIN.digest, ORIGIN)
        elif reason == "start-table":
            end = positions.after(facts.next_batch - 1)
            if end is None:
                raise TableUnavailable(f"the position before batch {facts.next_batch} is unknown, so '{chain.sink.name}' cannot begin there")
            at = Witness(identity.strand, identity.holder, facts.next_batch - 1, end.digest, end)
        stamp = boundary_stamp(identity, seen, reason, at=at)
        claim = Claim(identity.holder, seen)

        def judge(mark: Witness | None, newest: Witness | None, claim: Claim = claim) -> Decision:
            return decide_claim(claim, mark, newest)

        try:
            committed = chain.table.claim(stamp, judge)
        except CommitRefused as refused:
            if refused.decision.verdict is Verdict.MOVED:
                continue
            raise refusal(identity, chain.sink.name, refused.decision) from refused
        ledger.commits.record_commit(commit_record(chain.sink.name, committed, stamp))
        ledger.events.add(identity.pipeline, "boundary", f"{chain.sink.name}: {reason}", identity.holder.attempt)
        return
    raise TableUnavailable(
        f"table '{chain.sink.name}' could not be claimed: another attempt keeps committing to it", next_command="strandline status"
    )


def _settle(project: Project, ledger: Ledger, identity: Identity, table: str) -> None:
    """What a killed attempt did not get to record: commits that the table holds and the ledger does not know."""
    view = EmbeddedCatalog(project).find(table)
    if view is None:
        return
    known = {record.snapshot_id for record in ledger.commits.of_table(table)}
    reachable = {snapshot.id for snapshot in view.ancestors()}
    landed: set[tuple[str, int]] = set()
    for snapshot in sorted(view.snapshots.values(), key=lambda s: s.sequence_number):
        stamp = snapshot.stamp
        if stamp is None or stamp.pipeline != identity.pipeline:
            continue
        landed.add((stamp.holder.id, stamp.batch))
        if snapshot.id not in known and snapshot.id in reachable:
            ledger.commits.record_commit(commit_record(table, snapshot, stamp))
            ledger.events.add(identity.pipeline, "ledger-caught-up", f"{table}: snapshot {snapshot.id}", identity.holder.attempt)
    for intent in ledger.commits.unsettled([IntentState.STAGED, IntentState.UNKNOWN], identity.pipeline):
        if intent.table == table and (intent.attempt_id, intent.batch) in landed:
            ledger.commits.settle(intent.id, IntentState.COMMITTED)


def _drop_leftover_branches(table: JvmTable, pipeline: str, ledger: Ledger, identity: Identity) -> None:
    """Merge branches of attempts before us: their files go on the cleanup list, then the branches go."""
    leftovers = [
        name
        for name in table.branches(f"{BRANCH_PREFIX}{pipeline}-")
        if name.rpartition("-")[2].isdigit() and int(name.rpartition("-")[2]) < identity.holder.attempt
    ]
    if not leftovers:
        return
    for name in leftovers:
        files = tuple(StagedFile(*facts) for facts in table.branch_only_files(name))
        ledger.commits.record_leftover(
            Intent(pipeline, identity.strand, -1, table.name, int(name.rpartition("-")[2]), "", files), IntentState.REFUSED
        )
    table.drop_branches(leftovers)

