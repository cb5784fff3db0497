"""What the repositories take and give: plain values, no SQLAlchemy types."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

    Transaction = Callable[[], AbstractContextManager[Connection]]


class AttemptStatus(str, Enum):
    RUNNING = "running"
    STOPPED = "stopped"  # ended as asked
    FAILED = "failed"  # ended by an error
    FENCED = "fenced"  # ended because a newer attempt took over
    LOST = "lost"  # its process is gone or silent; a newer attempt found that out


class IntentState(str, Enum):
    STAGED = "staged"  # files exist, commit not yet tried or its end not recorded
    COMMITTED = "committed"
    DUPLICATE = "duplicate"  # the batch was in the table already; these files are not
    REFUSED = "refused"  # the fence said no; these files are not in the table
    UNKNOWN = "unknown"  # the commit may have happened: never clean up


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same pid."""

    host: str
    pid: int
    started: str


@dataclass(frozen=True)
class Attempt:
    pipeline: str
    number: int
    id: str
    status: AttemptStatus
    strand: str | None
    process: ProcessIdentity
    code: str
    tables: tuple[str, ...]
    started_at: str
    heartbeat_at: str
    ended_at: str | None
    reason: str | None
    progress: str | None


@dataclass(frozen=True)
class BatchRecord:
    pipeline: str
    strand: str
    batch: int
    attempt: int
    offsets_start: str
    offsets_end: str
    end_digest: str
    rows_by_table: dict[str, int]
    """What each table of the pipeline got from this batch; zero is a statement, not a gap."""
    completed_at: str | None = None
    evidence: dict[str, str] = field(default_factory=dict)
    """What the sources proved about this batch: topic ids, writer schemas, accepted gaps."""


@dataclass(frozen=True)
class StagedFile:
    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Intent:
    pipeline: str
    strand: str
    batch: int
    table: str
    attempt: int
    attempt_id: str
    files: tuple[StagedFile, ...]
    id: int = 0
    state: IntentState = IntentState.STAGED


@dataclass(frozen=True)
class CommitRecord:
    table: str
    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    committed_at: str
    kind: str
    pipeline: str
    strand: str
    attempt: int
    attempt_id: str
    batch_first: int
    batch: int
    offsets_start: str | None
    offsets_end: str | None
    end_digest: str
    rows: int
    late: int
    corrected: int
    replayed: int
    files: int
    manifests: int
    code: str


@dataclass(frozen=True)
class Delivery:
    """A batch that entered an output topic."""

    topic: str
    topic_id: str
    pipeline: str
    strand: str
    attempt: int
    attempt_id: str
    batch: int
    offsets_start: str
    offsets_end: str
    end_digest: str
    rows: int
    delivery: str
    code: str
    committed_at: str


@dataclass(frozen=True)
class Request:
    id: int
    pipeline: str
    kind: str
    requested_by: str
    requested_at: str
    wish: str = ""
    """What exactly is asked for, in the terms of its kind."""
    progress: str | None = None
    answer: str | None = None


@dataclass(frozen=True)
class Event:
    at: str
    pipeline: str
    attempt: int | None
    kind: str
    detail: str


@dataclass(frozen=True)
class StateSize:
    """The state of a keyed operator after a batch, over all its buckets."""

    pipeline: str
    strand: str
    batch: int
    operator: str
    keys: int
    bytes: int
    touched: int
    """Keys that had events in the batch."""
    timers_fired: int
    expired: int
    """Entries that were cleaned up because their ttl had passed."""
    entries: dict[str, int]
    """Entries by state: a value counts one, a list its elements, a map its keys."""
    oldest_at: str | None = None
    """When the oldest entry with a ttl was last touched, or later."""


class SavepointState(str, Enum):
    """From the first byte to the last; what was disposed stays in the ledger."""

    CREATING = "creating"
    COMPLETE = "complete"
    FAILED = "failed"
    DISPOSED = "disposed"


@dataclass(frozen=True)
class SavepointRecord:
    id: str
    pipeline: str
    type: str
    state: SavepointState
    strand: str
    batch: int
    location: str
    requested_by: str
    note: str
    process: ProcessIdentity
    """Who makes it."""
    begun_at: str
    ended_at: str | None = None
    manifest_sha256: str | None = None
    bytes: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class StrandRecord:
    """Where a strand comes from."""

    pipeline: str
    strand: str
    kind: str
    parent: str | None
    parent_batch: int | None
    savepoint: str | None
    attempt: int
    begun_at: str
