"""Giving up a fork: its branches go, then its checkpoint, then its declaration. May be repeated after a crash."""

from __future__ import annotations

from collections.abc import Callable

from strandline.checkpoints.place import current_checkpoint, forget_place, strand_places
from strandline.checkpoints.storage import storage_at
from strandline.ledger import Ledger
from strandline.model.errors import NotFound, Refused
from strandline.model.fork import Fork
from strandline.model.stamp import mark_key
from strandline.project.config import Project
from strandline.project.forks import forget_fork, forks_of
from strandline.project.loader import declared_in
from strandline.runtime.strands import strand_origin
from strandline.savepoints.asking import running_attempt
from strandline.savepoints.publishing import has_entered
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
    for pipeline in declared_in(project).values():
        origin = strand_origin(current_checkpoint(project, pipeline.name))
        ending = origin.publishes if origin is not None else None
        if origin is None or ending is None or ending.pipeline != name:
            continue
        if not all(has_entered(project, pipeline.name, origin)):
            raise Refused(f"the publication of fork '{name}' is begun", next_command=f"strandline publish {ending.branch}")
    return forks[name]


def branched_tables(project: Project, fork: Fork) -> list[str]:
    """Tables that still have the fork's branch; others may have made one of the same name elsewhere."""
    catalog = EmbeddedCatalog(project)
    branch = fork.into.branch
    views = [catalog.load(table) for table in catalog.tables()]
    return [view.name for view in views if branch in view.refs and mark_key(fork.name, branch) in view.properties]


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
