"""How long a run lasts, and what its starter explicitly allows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from strandline.model.continuity import Gap
from strandline.runtime.strands import Restoration


@dataclass(frozen=True)
class Continuous:
    """Until stopped."""


@dataclass(frozen=True)
class AvailableNow:
    """Everything that is there when the run starts, then end."""


@dataclass(frozen=True)
class ForDuration:
    span: timedelta


@dataclass(frozen=True)
class ForBatches:
    count: int


@dataclass(frozen=True)
class ClaimOnly:
    """No batch: the tables enter the strand, and the next start goes on."""


RunLimit = Continuous | AvailableNow | ForDuration | ForBatches | ClaimOnly


@dataclass(frozen=True)
class Allowances:
    """Named flags for what is otherwise refused; each one used is recorded in ledger and table."""

    take_over: bool = False
    """Fence a holder that still seems alive."""
    new_strand: bool = False
    """Abandon the checkpoint: read the sources from the start, on top of what the tables hold."""
    start_tables: frozenset[str] = frozenset()
    """Tables (or topics, as ``kafka:name``) whose chain may begin at the checkpoint's position instead of the sources' origin."""
    accept_gaps: frozenset[Gap] = frozenset()
    """Records that are gone from their topic and will never be read."""
    restoration: Restoration | None = None
    """Go on from a savepoint, or from an older batch, as a new strand."""
