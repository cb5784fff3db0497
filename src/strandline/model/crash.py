"""Named points of the protocol where a test may kill the process.

`reach` does nothing unless ``STRANDLINE_TESTING=1``; then ``STRANDLINE_CRASH_AT=point[@batch]`` makes the
process kill itself with SIGKILL at that point: no `finally`, no flush, as a power cut would.
``STRANDLINE_PAUSE_AT`` stops it with SIGSTOP instead: that is how a zombie is made.
"""

from __future__ import annotations

import os
import signal
import time
from enum import Enum


class CrashPoint(str, Enum):
    """The protocol's lines, in order. A crash at any of them must lose and double nothing."""

    BATCH_PLANNED = "batch-planned"  # offsets/N is on disk, nothing else happened
    LOOKED = "looked"  # table and ledger were consulted
    STAGED = "staged"  # data files written, nobody knows of them
    INTENT_RECORDED = "intent-recorded"  # the ledger knows the files
    COMMITTING = "committing"  # inside the table commit, fence passed, catalog not yet swapped
    COMMITTED = "committed"  # the table moved, the ledger does not know
    OUTCOME_RECORDED = "outcome-recorded"  # ledger and table agree; another table may be missing
    TOPIC_BEGUN = "topic-begun"  # tables done; an output topic's transaction is open and holds rows
    TOPIC_SENT = "topic-sent"  # all rows and the marker are sent, the transaction is not committed
    TOPIC_COMMITTED = "topic-committed"  # the topic moved, the ledger does not know
    BATCH_RETURNING = "batch-returning"  # every table done, commits/N not yet written
    CHECKPOINT_COMPLETE = "checkpoint-complete"  # commits/N exists, follow-up work not done
    GROUPS_COMMITTED = "groups-committed"  # Kafka group offsets tell the complete checkpoint
    CLAIMING = "claiming"  # inside the boundary commit of a takeover
    CLAIMED = "claimed"  # a boundary is in one table, others may follow
    STRAND_BUILT = "strand-built"  # the checkpoint of a new strand is whole, the old one still counts
    STRAND_PLACED = "strand-placed"  # the new checkpoint counts, no table knows of it
    SAVEPOINT_BEGUN = "savepoint-begun"  # the ledger knows that one is being made
    SAVEPOINT_TAGGED = "savepoint-tagged"  # the tables' snapshots are named
    SAVEPOINT_COPIED = "savepoint-copied"  # every file is there, the manifest is not
    SAVEPOINT_SEALED = "savepoint-sealed"  # complete, but the ledger does not know
    SAVEPOINT_UNSEALED = "savepoint-unsealed"  # disposing: the manifest is gone
    SAVEPOINT_UNTAGGED = "savepoint-untagged"  # disposing: the tags are gone, bytes are left
    EXPORT_COPIED = "export-copied"  # every file of an export is there, its manifests are not
    IMPORT_LANDED = "import-landed"  # the tables' files are in the warehouse, the catalog does not know
    IMPORT_REGISTERED = "import-registered"  # the catalog knows the tables, the savepoint is not complete
    SEED_BEGUN = "seed-begun"  # a strand from a canonical savepoint: its batch 0 is planned, without input
    SEED_LOADED = "seed-loaded"  # the state is in and batch 0 completed, the sources' position is not there yet
    SEED_POSITIONED = "seed-positioned"  # the position is there too, what it was made of is not removed yet


def reach(point: CrashPoint, batch: int | None = None) -> None:
    """Die or freeze here if a test armed this point (for this batch, when one is named)."""
    if os.environ.get("STRANDLINE_TESTING") != "1":
        return
    for variable, sig in (("STRANDLINE_CRASH_AT", signal.SIGKILL), ("STRANDLINE_PAUSE_AT", signal.SIGSTOP)):
        armed = os.environ.get(variable)
        if not armed:
            continue
        name, _, at = armed.partition("@")
        if name == point.value and (not at or (batch is not None and int(at) == batch)):
            if sig == signal.SIGSTOP:
                os.environ.pop(variable)  # freeze once: a resumed zombie runs on
            os.kill(os.getpid(), sig)
            time.sleep(0.5)  # another thread may take the signal; this one must not run on meanwhile
