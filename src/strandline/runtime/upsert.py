"""Upserts: MERGE on a private branch, published by compare-and-set.

Readers never see a half-merged batch, and a merge that raced with another writer is redone on top of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.model.definition import TableSink
from strandline.model.stamp import Stamp
from strandline.tables.fencing import Judge
from strandline.tables.jvm import CommitConflict, CommitRefused, JvmTable
from strandline.tables.view import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BRANCH_PREFIX = "strandline-merge-"
PUBLISH_TRIES = 5
"""Each try merges anew, so the table must be changed by others five times within one batch to exhaust this."""

_VIEW = "strandline_upsert_source"
_PROPERTY = "spark.sql.iceberg.snapshot-property."


class Upsert:
    """One batch for one upsert table. `rows` counts the newest version per key."""

    def __init__(self, table: JvmTable, sink: TableSink, frame: DataFrame, attempt: int, pipeline: str) -> None:
        self._table = table
        self._sink = sink
        self._branch = f"{BRANCH_PREFIX}{pipeline}-{attempt}"
        self.frame = _newest_per_key(frame, sink)
        self.rows = self.frame.count()

    def commit(self, stamp: Stamp, judge: Judge) -> Snapshot | None:
        """Merge and publish. None when every row was older than what the table holds."""
        for left in reversed(range(PUBLISH_TRIES)):
            self._table.refresh()
            decision = judge(*self._table.witnesses(stamp.pipeline))
            if not decision.accepted:
                raise CommitRefused(decision)
            base = self._table.head()
            assert base is not None, "an empty table takes staged files instead"
            self._table.branch_off(self._branch)
            self._merge(stamp)
            self._table.refresh()
            merged = self._table.head(self._branch)
            if merged is None or merged.id == base.id:
                self.discard()
                return None
            try:
                # The fence judged the table at `base`; publishing only from there makes that judgement still true.
                return self._table.fast_forward(self._branch, base.id, stamp.witness, stamp.pipeline)
            except CommitConflict:
                if left == 0:
                    raise
        raise AssertionError("unreachable")

    def discard(self) -> None:
        self._table.refresh()
        if self._branch in self._table.branches(self._branch):
            self._table.drop_branches([self._branch])

    def _merge(self, stamp: Stamp) -> None:
        session = self.frame.sparkSession
        properties = {_PROPERTY + key: value for key, value in stamp.to_summary().items()}
        newer = f"t.`{self._sink.order_by}` IS NULL OR s.`{self._sink.order_by}` >= t.`{self._sink.order_by}`"
        same_key = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in self._sink.key)
        self.frame.createOrReplaceTempView(_VIEW)
        try:
            for key, value in properties.items():
                session.conf.set(key, value)
            session.sql(
                f"MERGE INTO {self._table.full_name}.`branch_{self._branch}` t USING {_VIEW} s ON {same_key} "
                f"WHEN MATCHED AND ({newer}) THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
        finally:
            for key in properties:
                session.conf.unset(key)
            session.catalog.dropTempView(_VIEW)


def _newest_per_key(frame: DataFrame, sink: TableSink) -> DataFrame:
    """MERGE allows one source row per key; of several in a batch the one with the greatest `order_by` stays.

    Rows that tie there are told apart by their content, so that a replay picks the same one.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rank = "__strandline_rank"
    content = F.xxhash64(*[F.col(f"`{name}`") for name in frame.columns])
    order = Window.partitionBy(*sink.key).orderBy(F.col(str(sink.order_by)).desc_nulls_last(), content)
    return frame.withColumn(rank, F.row_number().over(order)).where(f"{rank} = 1").drop(rank)
