"""Forks: a second strand that goes on from a savepoint, from a kept batch, or from the sources' beginning, beside the pipeline itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.checkpoints.checkpoint import ORIGIN as ORIGIN_FILE
from strandline.checkpoints.copying import CheckpointFiles
from strandline.checkpoints.place import current_checkpoint
from strandline.ledger import Ledger
from strandline.model.definition import Pipeline
from strandline.model.errors import NotFound, UsageError
from strandline.model.fork import Fork
from strandline.model.kafka import KafkaSource
from strandline.model.offsets import ORIGIN
from strandline.model.sizes import human_bytes
from strandline.project.config import Project
from strandline.project.forks import forks_of
from strandline.runtime.strands import FORK, Restoration, StrandOrigin, TableStart
from strandline.savepoints.archive import find_archive
from strandline.savepoints.beginnings import Beginning, from_checkpoint, from_savepoint
from strandline.savepoints.input_paths import check_inputs
from strandline.savepoints.table_plans import TableChoice, TablePlan, Tables, check_new_branch, plan_tables
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import MAIN

START = "start"
"""Instead of a savepoint or a batch: no state, every source from its beginning."""


@dataclass(frozen=True)
class ForkPlan:
    fork: Fork
    beginning: Beginning
    tables: tuple[TablePlan, ...]
    """Of the parent, when the fork writes to a branch of them."""
    topics: tuple[str, ...]
    """Outputs of the parent that get nothing."""

    @property
    def restoration(self) -> Restoration:
        starts = {plan.table: plan.start for plan in self.tables}
        if self.fork.into.table:
            starts = {self.fork.into.table: TableStart(None)}
        beginning = self.beginning
        branch = self.fork.into.branch or MAIN
        origin = StrandOrigin(beginning.strand, beginning.batch, beginning.savepoint, False, starts, FORK, branch, place=beginning.place)
        return Restoration(origin, beginning.lay_out)

    def human(self) -> list[str]:
        fork, beginning = self.fork, self.beginning
        place = (
            f"batch {beginning.batch} of strand {beginning.strand}"
            if beginning.strand
            else "the beginning of its sources, with empty state"
        )
        saved = f" (savepoint {beginning.savepoint})" if beginning.savepoint else ""
        lines = [f"'{fork.name}' is a fork of '{fork.parent}' from {place}{saved}; '{fork.parent}' itself goes on undisturbed"]
        if beginning.strand:
            lines.append(
                f"state: {beginning.count} files, {human_bytes(beginning.size)}; sources go on after {beginning.positions.human(None)}"
            )
        if fork.until is not None:
            lines.append(f"it ends at {fork.until}: what is there or later is left out")
        for plan in self.tables:
            begins = f"at snapshot {plan.target}" if plan.target is not None else "without rows"
            lines.append(f"table {plan.table}: branch '{plan.branch}' begins {begins}; main is not touched")
        if fork.into.table:
            lines.append(f"table {fork.into.table} is made, and begins with the rows after that place")
        lines += [f"topic {topic} gets nothing" for topic in self.topics]
        return lines


def plan_fork(project: Project, parent: Pipeline, fork: Fork, ledger: Ledger, begins: str) -> ForkPlan:
    """What a fork would be; nothing is made yet.

    Args:
        begins: a savepoint's id or folder, the number of a batch, or `START`.
    """
    if parent.parent is not None:
        raise UsageError(
            f"'{parent.name}' is a fork itself, of '{parent.parent}'; a pipeline is forked",
            next_command=f"strandline fork {parent.parent} …, or: strandline publish {parent.name}",
        )
    _check_end(parent, fork)
    beginning = _beginning(project, parent, ledger, begins)
    check_inputs(project, parent, beginning.read_logs(), beginning.inputs)
    if fork.into.table:
        if EmbeddedCatalog(project).find(fork.into.table) is not None:
            raise UsageError(
                f"table '{fork.into.table}' exists already; a fork makes its own", next_command="the same command with another table"
            )
        tables: tuple[TablePlan, ...] = ()
    elif beginning.strand:
        tables = plan_tables(project, parent, ledger, beginning, Tables(TableChoice.BRANCH, fork.into.branch))
    else:
        tables = _without_rows(project, parent, fork)
    return ForkPlan(fork, beginning, tables, tuple(sorted(set(parent.outputs()) - set(parent.tables()))))


def _check_end(parent: Pipeline, fork: Fork) -> None:
    """A topic that nobody reads would be a limit that nobody keeps."""
    sources = [source for source in parent.sources.values() if isinstance(source, KafkaSource)]
    if fork.until is None or any(source.pattern is not None for source in sources):
        return
    if unknown := sorted(set(fork.until.offsets) - {topic for source in sources for topic in source.topics}):
        raise UsageError(
            f"--until names topic '{unknown[0]}', which '{parent.name}' does not read", next_command="the same command with its topics"
        )


def is_made(project: Project, fork: Fork) -> bool:
    """Is there a fork just like this one? One whose making was interrupted has no checkpoint, and is made again."""
    known = forks_of(project).get(fork.name)
    if known is None or current_checkpoint(project, fork.name).strand() is None:
        return False
    if replace(known, made_at=fork.made_at, made_by=fork.made_by) == fork:
        return True
    raise UsageError(
        f"there is a fork '{fork.name}' already, of '{known.parent}' into {known.into}",
        next_command=f"go on with it: strandline run {fork.name}; or choose another name",
    )


def _beginning(project: Project, parent: Pipeline, ledger: Ledger, begins: str) -> Beginning:
    if begins == START:
        origin = current_checkpoint(project, parent.name).storage.read(ORIGIN_FILE)  # 'latest' was decided once
        files = CheckpointFiles({ORIGIN_FILE: lambda: origin} if origin is not None else {})
        return Beginning("", -1, "", ORIGIN, files, 0, 0)
    if begins.isdigit():
        command = f"strandline fork {parent.name} … --from"
        return from_checkpoint(project, parent, ledger, int(begins), command)
    return from_savepoint(project, parent, find_archive(project, parent.name, begins))


def _without_rows(project: Project, parent: Pipeline, fork: Fork) -> tuple[TablePlan, ...]:
    catalog = EmbeddedCatalog(project)
    plans = []
    for name in filter(parent.writes, catalog.tables()):
        view = catalog.load(name)
        check_new_branch(view, fork.into.branch)
        plans.append(TablePlan(name, TableChoice.BRANCH, None, None, branch=fork.into.branch))
    if not plans:
        raise NotFound(
            f"pipeline '{parent.name}' has written no table yet, so there is nothing to make a branch of",
            next_command=f"strandline run {parent.name}",
        )
    return tuple(plans)
