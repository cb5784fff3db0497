"""The thin JVM adapter of the fence: Iceberg asks, the pure function in `model.fence` answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from strandline.model.fence import NEVER, Decision, Verdict
from strandline.model.stamp import Holder, Witness, decode_mark, mark_key
from strandline.tables.view import MAIN, Snapshot

Judge = Callable[[Witness | None, Witness | None], Decision]
"""(mark, newest stamp) → decision."""


class FenceValidator:
    """Implements Iceberg's `SnapshotAncestryValidator` in Python, over py4j's callback server.

    Iceberg calls it when the commit is prepared and again on every retry, each time with the refreshed ancestry;
    the mark is read in the same breath from the same refreshed metadata.
    """

    def __init__(self, judge: Judge, pipeline: str, holder: Holder, parser: Any, table: Any, branch: str = MAIN) -> None:
        self._judge = judge
        self._parser = parser
        self._branch = branch
        self._pipeline = pipeline
        self._holder = holder
        self._table = table
        self.refusal: Decision | None = None

    def validate(self, ancestry: Any) -> bool:
        """Iceberg's question. Answering no makes Iceberg delete what this commit wrote; so when the table already holds
        this very commit (an earlier try landed after all), raise instead: the outcome is looked up before anything."""
        if self._branch != MAIN and self._table.refs().get(self._branch) is None and ancestry.iterator().hasNext():
            self.refusal = Decision(
                Verdict.MOVED, f"there is no branch '{self._branch}' any more"
            )  # Iceberg would begin it with main's rows
            return False
        decision = self._judge(*witnesses(self._table, ancestry, self._pipeline, self._parser, self._branch))
        if decision.verdict is Verdict.DUPLICATE and decision.seen is not None and decision.seen.holder == self._holder:
            raise RuntimeError("this commit is already in the table")
        self.refusal = None if decision.accepted else decision
        return decision.accepted

    def errorMessage(self) -> str:  # noqa: N802 - the Java interface names it
        return self.refusal.reason if self.refusal else "accepted"

    def let_go(self) -> None:
        """Drop the Java table. It holds the transaction, which holds this validator: a circle across two processes that
        neither garbage collector can see, and one whole table metadata leaked per commit."""
        self._table = None

    class Java:
        implements = ["org.apache.iceberg.SnapshotAncestryValidator"]


def witnesses(table: Any, ancestry: Any, pipeline: str, parser: Any, branch: str = MAIN) -> tuple[Witness | None, Witness | None]:
    """(mark, newest stamp) of a pipeline on a branch, from one state of a Java table."""
    mark = decode_mark(table.properties().get(mark_key(pipeline, branch)))
    newest = newest_witness(ancestry, pipeline, parser)
    if branch != MAIN and mark is not None and newest is None and table.refs().get(branch) is None:
        return mark, NEVER  # a branch does not expire: it was dropped
    if newest is None and mark is not None and mark.snapshot_id is not None and table.snapshot(mark.snapshot_id) is not None:
        newest = NEVER  # not expired, and yet not in the history: somebody moved the table back
    return mark, newest


def newest_witness(ancestry: Any, pipeline: str, parser: Any) -> Witness | None:
    """The pipeline's newest stamp among Java snapshots, newest first. Stops there: each step is a socket round trip."""
    oldest = None
    for snapshot in each(ancestry):
        oldest = snapshot
        if snapshot.summary().get("strandline.pipeline") == pipeline:
            stamp = plain_snapshot(snapshot, parser).stamp
            return stamp.witness if stamp is not None else None
    return NEVER if oldest is not None and oldest.parentId() is None else None


def each(java_iterable: Any) -> Iterator[Any]:
    """Walk a Java collection. Python's own loop ends in a Java exception, which pyspark takes 20 ms to translate."""
    iterator = java_iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def plain_snapshot(snapshot: Any, parser: Any) -> Snapshot:
    """A Java snapshot in one round trip, by Iceberg's own JSON; reading its summary entry by entry takes 25 ms."""
    return Snapshot.parse(json.loads(parser.toJson(snapshot)))
