"""Removing staged files that no snapshot will ever know. Never while their fate is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strandline.ledger import Ledger
from strandline.ledger.records import Attempt, AttemptStatus, Intent, IntentState
from strandline.model.times import parse_instant, utc_now
from strandline.project.config import Project
from strandline.runtime.liveness import LEASE, Liveness, liveness_of, process_is_gone
from strandline.tables.catalog import EmbeddedCatalog, local_path
from strandline.tables.view import TableView


@dataclass(frozen=True)
class CleanupItem:
    intent: Intent
    decision: str
    """``remove``, or ``keep: <why>``."""

    @property
    def removable(self) -> bool:
        return self.decision == "remove"


def plan_cleanup(project: Project, ledger: Ledger, pipeline: str | None = None) -> list[CleanupItem]:
    """What could be removed, and why the rest must stay."""
    wanted = [state for state in IntentState if state is not IntentState.COMMITTED]
    intents = [intent for intent in ledger.commits.unsettled(wanted, pipeline) if intent.files]
    # Who may still commit is asked before the tables are read: a commit in between is then seen in the table.
    attempts = {(intent.pipeline, intent.attempt): ledger.attempts.get(intent.pipeline, intent.attempt) for intent in intents}
    catalog = EmbeddedCatalog(project)
    tables: dict[str, _KnownTable] = {}
    items = []
    for intent in intents:
        if intent.table not in tables:
            view = catalog.find(intent.table)
            tables[intent.table] = _KnownTable(view, _known_files(project, intent.table) if view else frozenset())
        items.append(CleanupItem(intent, _decide(intent, attempts[intent.pipeline, intent.attempt], tables[intent.table])))
    return items


def apply_cleanup(project: Project, ledger: Ledger, plan: list[CleanupItem]) -> int:
    """Remove the files of removable items, if a second look still finds them so; returns how many files went."""
    removed = 0
    again = {item.intent.id for item in plan_cleanup(project, ledger) if item.removable}
    for item in plan:
        if not item.removable or item.intent.id not in again:
            continue
        for file in item.intent.files:
            local_path(file.path).unlink(missing_ok=True)
            removed += 1
        ledger.commits.mark_removed(item.intent.id, [file.path for file in item.intent.files])
        if item.intent.state is IntentState.STAGED:
            ledger.commits.settle(item.intent.id, IntentState.REFUSED)
    return removed


@dataclass(frozen=True)
class _KnownTable:
    view: TableView | None
    files: frozenset[str]


def _decide(intent: Intent, attempt: Attempt | None, table: _KnownTable) -> str:
    """A staged file is garbage only when its attempt can no longer commit it and no snapshot holds it."""
    if intent.state is IntentState.UNKNOWN:
        return "keep: the outcome of its commit is unknown; the pipeline's next start finds out"
    if intent.state is IntentState.STAGED and attempt is not None and _may_still_commit(attempt, table.view):
        return f"keep: attempt {intent.attempt} might still commit it; start the pipeline once more first"
    if any(_key(file.path) in table.files for file in intent.files):
        return "keep: a snapshot of the table holds it"
    return "remove"


def _may_still_commit(attempt: Attempt, view: TableView | None) -> bool:
    if attempt.status is AttemptStatus.RUNNING:
        return liveness_of(attempt) is not Liveness.DEAD
    if attempt.status is AttemptStatus.LOST and not process_is_gone(attempt.process):
        return not _fenced(attempt, view)
    # It recorded its own end; its process may need a moment more to let go of the last batch.
    return not process_is_gone(attempt.process) and not _fenced(attempt, view) and _ended_just_now(attempt)


def _fenced(attempt: Attempt, view: TableView | None) -> bool:
    return view is not None and view.highest_attempt(attempt.pipeline) > attempt.number


def _ended_just_now(attempt: Attempt) -> bool:
    ended = parse_instant(attempt.ended_at or attempt.heartbeat_at)
    return utc_now() - ended < LEASE


def _known_files(project: Project, table: str) -> frozenset[str]:
    """Every data and delete file that any snapshot of the table refers to."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(project.profile.catalog.name, uri=f"sqlite:///{project.catalog_file}", warehouse=f"file://{project.warehouse}")
    try:
        files = catalog.load_table(table).inspect.all_files()
        return frozenset(_key(path) for path in files.column("file_path").to_pylist())
    finally:
        catalog.engine.dispose()


def _key(path: str) -> str:
    return str(Path(local_path(path)))
