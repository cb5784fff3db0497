"""The exact set of files that a restart from a batch needs: a copy of them alone, and no less, goes on with the same state.

Spark reads back: its query id, the plans of the batch and of the one before it, the batch's completion, what the sources and the
stateful operators kept. Nothing older is opened, and checksum files beside others are only compared where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from strandline.checkpoints.batch_files import CompletedBatch, PlannedBatch, parse_commit, parse_plan
from strandline.checkpoints.checkpoint import IDENTITY, ORIGIN, Checkpoint
from strandline.checkpoints.needed import FileKind, Look, NeededFile, Problem
from strandline.checkpoints.source_needs import source_needs
from strandline.checkpoints.state_needs import OUR_RECORDS, state_needs
from strandline.checkpoints.unreadable import Unreadable

_Content = TypeVar("_Content")


def needed_by(checkpoint: Checkpoint, batch: int, look: Look | None = None) -> tuple[NeededFile, ...]:
    """Sorted by path, each once; those that are missing are among them, with `problem` set.

    `look` shares one listing between several batches. Without it the checkpoint is looked at afresh.
    A file whose `kind` is `OPERATOR` may hold absolute paths: a copy elsewhere must be rewritten with `relocate_operator`.
    """
    look = look or Look(checkpoint)
    found = [look.need(IDENTITY, FileKind.IDENTITY, "identity of the strand: without it Spark begins a new one and rows are doubled")]
    plan = _plan(look, batch, "what the batch read", found)
    if batch > 0:
        _plan(look, batch - 1, "where the batch began: Spark refuses to start without the plan before the last", found)
    completed = _completion(look, batch, found)
    if plan is not None:
        found += source_needs(look, plan)
    if completed is not None:
        found += state_needs(look, completed)
    own = [path for path in (ORIGIN, *look.below(OUR_RECORDS)) if path in look]
    found += [look.need(path, FileKind.OURS, "where the strand began" if path == ORIGIN else "layout of keyed state") for path in own]
    by_path = {file.path: file for file in reversed(found)}
    return tuple(by_path[path] for path in sorted(by_path))


def _plan(look: Look, batch: int, why: str, found: list[NeededFile]) -> PlannedBatch | None:
    return _understood(look, look.need(f"offsets/{batch}", FileKind.PLAN, why), lambda raw: parse_plan(batch, raw), found)


def _completion(look: Look, batch: int, found: list[NeededFile]) -> CompletedBatch | None:
    why = "that the batch was completed, and with which state"
    return _understood(look, look.need(f"commits/{batch}", FileKind.COMPLETION, why), lambda raw: parse_commit(batch, raw), found)


def _understood(look: Look, file: NeededFile, parse: Callable[[bytes], _Content], found: list[NeededFile]) -> _Content | None:
    """What a file says that leads to others; the file itself goes to the found ones, with what is wrong with it."""
    content = None
    raw = look.read(file.path)
    if raw is None:
        file = file.with_problem(Problem.MISSING, "it is not there")
    else:
        try:
            content = parse(raw)
        except Unreadable as error:
            file = file.unreadable(error)
    found.append(file)
    return content
