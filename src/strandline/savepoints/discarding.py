"""Giving up a fork: its branches go, then its checkpoint, then its declaration. May be repeated after a crash."""

from __future__ import annotations

from collections.abc import Callable

from strandline.checkpoints.place import forget_place, strand_places
from strandline.checkpoints.storage import storage_at
from strandline.ledger import Ledger
from strandline.model.errors import NotFound, Refused
from strandline.model.fork import Fork
from strandline.project.config import Project
from strandline.project.forks import forget_fork, forks_of
from strandline.savepoints.asking import running_attempt
from strandline.tables.catalog import EmbeddedCatalog

DropBranch = Callable[[str, str], None]
"""(table, branch)"""


def find_fork(project: Project, ledger: Ledger, name: str) -> Fork:
    """One that may be given up."""
    forks = forks_of(project)
    if name not in forks:
        raise NotFound(f"there is no fork '{name}' (forks: {', '.join(sorted(forks)) or 'none'})", next_command="strandline status")
    if (attempt := running_attempt(ledger, name)) is not None:
        raise Refused(f"fork '{name}' is running (attempt {attempt.number})", next_command=f"strandline stop {name}")
    return forks[name]


def branched_tables(project: Project, fork: Fork) -> list[str]:
    """Tables that still have the fork's branch."""
    catalog = EmbeddedCatalog(project)
    return [table for table in catalog.tables() if fork.into.branch and fork.into.branch in catalog.load(table).refs]


def discard(project: Project, ledger: Ledger, fork: Fork, drop: DropBranch, by: str) -> None:
    """A table of its own stays: it is the user's."""
    for table in branched_tables(project, fork):
        drop(table, fork.into.branch)
    for place in strand_places(project):
        if place.pipeline == fork.name:
            storage_at(place.location).delete_all()
    forget_place(project, fork.name)
    forget_fork(project, fork.name)
    ledger.events.add(fork.name, "discarded", f"{fork.into}, by {by}")
