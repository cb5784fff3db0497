"""Going on from a savepoint, or from an older batch of the checkpoint: what would happen, and how it is made to happen.

The plan is made from files alone and is what the apply does: a table that has moved since is refused, not guessed about.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from strandline.ledger import Ledger
from strandline.model.definition import Pipeline
from strandline.model.errors import ChainBroken, UsageError
from strandline.model.offsets import Offsets
from strandline.model.sizes import human_bytes
from strandline.project.config import Project
from strandline.runtime.rehearsal import Rehearsal
from strandline.runtime.strands import Restoration, StrandOrigin
from strandline.savepoints.archive import Archive, archive_of
from strandline.savepoints.beginnings import Beginning, from_checkpoint, from_savepoint
from strandline.savepoints.holding import links_of
from strandline.savepoints.input_paths import AS_THEY_ARE, PathMap, check_inputs
from strandline.savepoints.table_plans import TablePlan, Tables, plan_tables
from strandline.tables.view import MAIN, Link


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
        return [*lines, *self.state, *(table.human() for table in self.tables)]


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
    beginning = replace(from_savepoint(project, pipeline, archive, again, dropped, code), inputs=inputs)
    return plan_restore(project, pipeline, ledger, beginning, tables, again, claim)


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
    beginning = replace(
        from_checkpoint(project, pipeline, ledger, batch, f"strandline run {pipeline.name} --from-checkpoint"), inputs=inputs
    )
    return plan_restore(project, pipeline, ledger, beginning, tables, again)


def plan_restore(
    project: Project,
    pipeline: Pipeline,
    ledger: Ledger,
    beginning: Beginning,
    choice: Tables,
    again: Collection[str] = (),
    claim: bool = False,
) -> Restore:
    if choice.branch and pipeline.branch != MAIN:
        raise UsageError(
            f"'{pipeline.name}' is a fork and writes to branch '{pipeline.branch}'; it is restored there",
            next_command=f"the same command with --tables rollback, or: strandline fork {pipeline.parent} …",
        )
    check_inputs(project, pipeline, beginning.read_logs(), beginning.inputs)
    links = links_of(ledger, pipeline.name, beginning.strand, beginning.batch)
    _check_deliveries(pipeline, ledger, links, again)
    tables = plan_tables(project, pipeline, ledger, beginning, choice, again)
    shown = RestorePlan(
        pipeline.name,
        beginning.strand,
        beginning.batch,
        beginning.savepoint,
        beginning.positions,
        beginning.count,
        beginning.size,
        tables,
        beginning.state,
    )
    starts = {table.table: table.start for table in tables}
    origin = StrandOrigin(
        beginning.strand,
        beginning.batch,
        beginning.savepoint,
        claim,
        starts,
        branch=choice.branch or beginning.branch,
        place=beginning.place,
    )
    return Restore(shown, Restoration(origin, beginning.lay_out))


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
