"""What a restore or a fork does to each table: chosen by somebody, decided from the table's metadata, told before it happens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from strandline.ledger import Ledger
from strandline.model.definition import Pipeline
from strandline.model.errors import ChainBroken, NotFound, UsageError
from strandline.model.fence import latest
from strandline.model.fork import checked_branch
from strandline.project.config import Project
from strandline.runtime.strands import TableStart
from strandline.savepoints.beginnings import Beginning
from strandline.savepoints.holding import links_of, why_not
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.view import MAIN, Link, TableView


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

    @property
    def start(self) -> TableStart:
        return TableStart(self.head, self.target if self.target != self.head else None)

    def human(self) -> str:
        """As an operator reads it."""
        shown = self.table if self.branch == MAIN else f"{self.table}@{self.branch}"
        if self.choice is TableChoice.BRANCH:
            where = f"at snapshot {self.target}" if self.target is not None else "without rows"
            return f"table {self.table}: branch '{self.branch}' begins {where}, and everything is written there; main stays as it is"
        if self.target == self.head:
            where = f"on snapshot {self.head}" if self.head is not None else "into it, which is empty"
            return f"table {shown}: nothing leaves it; a boundary is put {where}"
        first, last = self.batches_leaving or (None, None)
        batches = f" of batch {first}" if first == last else f" of batches {first}–{last}"
        foreign = f", {len(self.foreign_leaving)} of them written by others" if self.foreign_leaving else ""
        return (
            f"table {shown}: goes back from snapshot {self.head} to {self.target}: {self.rows_leaving} rows{batches if self.batches_leaving else ''} leave it "
            f"({len(self.leaving)} snapshots{foreign}), {self.rows_returning} return; a tag keeps what leaves"
        )


def plan_tables(
    project: Project, pipeline: Pipeline, ledger: Ledger, beginning: Beginning, choice: Tables, again: Collection[str] = ()
) -> tuple[TablePlan, ...]:
    """What happens to each table that the pipeline has written, or could have."""
    catalog = EmbeddedCatalog(project)
    planner = _Planner(pipeline.name, ledger, beginning, links_of(ledger, pipeline.name, beginning.strand, beginning.batch), choice)
    ours = [name for name in catalog.tables() if pipeline.writes(name) and name not in again]
    return tuple(planner.plan(catalog.load(name).on(beginning.branch), beginning.snapshots.get(name)) for name in ours)


@dataclass(frozen=True)
class _Planner:
    pipeline: str
    ledger: Ledger
    beginning: Beginning
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
        nothing_came = target is None and not any(s.rows_added for s in view.ancestors())  # empty then, and only boundaries since
        if saved is None or target != saved:
            self._check_holds(view, target, saved)
        if target == at or nothing_came:
            return TablePlan(view.name, choice, at, at, branch=view.branch)
        if target is None or target not in view.snapshots:
            kept = "was empty then" if target is None else f"no longer keeps snapshot {target}"
            raise ChainBroken(
                f"table '{view.name}' cannot go back to batch {self.beginning.batch}: it {kept}",
                next_command=f"drop table {view.name}, then the same command with --start-table {view.name}",
            )
        kept_ids, left_ids = ({s.id for s in view.lineage(snapshot)} for snapshot in (target, at))
        leaving = [s for s in view.ancestors() if s.id not in kept_ids]
        own = view.writers_of(self.pipeline)
        stamps = [s.stamp for s in leaving if s.stamp is not None and s.stamp.pipeline in own and s.stamp.rows]
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
            tuple(s.id for s in leaving if s.operation != "replace" and (s.stamp is None or s.stamp.pipeline not in own)),
            view.branch,
        )

    def _branched(self, view: TableView, saved: int | None) -> TablePlan:
        check_new_branch(view, self.tables.branch)
        target = self._target(view, saved)
        if saved is None or target != saved:
            self._check_holds(view, target, saved)
        if target is not None and target not in view.snapshots:
            raise ChainBroken(
                f"table '{view.name}' no longer keeps snapshot {target}, which holds it as it was after batch {self.beginning.batch}",
                next_command=f"strandline savepoint list {self.pipeline}, which keep theirs",
            )
        return TablePlan(view.name, TableChoice.BRANCH, None, target, branch=self.tables.branch)

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
                f"table '{view.name}' cannot be shown to hold the batches up to {self.beginning.batch}: {reason}",
                next_command=f"strandline history {view.name}",
            )

    def _check_continues(self, view: TableView, at: int | None) -> None:
        """Only a table that ends exactly where the savepoint does can go on without losing or doubling a row."""
        seen = latest(view.mark(self.pipeline), view.newest_stamp(self.pipeline))
        named = f"--from-savepoint {self.beginning.savepoint}" if self.beginning.savepoint else f"--from-checkpoint {self.beginning.batch}"
        again = f"strandline run {self.pipeline} {named} --tables rollback"
        if seen is not None and seen.strand == self.beginning.strand and seen.batch > self.beginning.batch:
            after = seen.end.human(self.beginning.positions) if seen.end is not None else f"batches {self.beginning.batch + 1}–{seen.batch}"
            raise ChainBroken(
                f"table '{view.name}' is ahead of what is restored: it holds batch {seen.batch}, the restore goes on after batch "
                f"{self.beginning.batch}; {after} would be doubled",
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
