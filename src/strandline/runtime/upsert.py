"""Upserts: MERGE on a private branch, published by compare-and-set.

Readers never see a half-merged batch, and a merge that raced with another writer is redone on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandline.model.definition import TableSink
from strandline.model.stamp import Stamp
from strandline.tables.fencing import Judge
from strandline.tables.jvm import CommitConflict, CommitRefused, JvmTable
from strandline.tables.view import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
        self.frame = newest_per_key(frame, sink)
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
        merge_into(self._table.on_branch(self._branch), self.frame, self._sink, stamp.to_summary())


def merge_into(target: str, newest: DataFrame, sink: TableSink, summary: Mapping[str, str]) -> None:
    """MERGE rows, one for each key, into a table or a branch of it; `summary` goes into the snapshot's.

    What it does to a row is what `outcome` says.
    """
    session = newest.sparkSession
    properties = {_PROPERTY + key: value for key, value in summary.items()}
    newer = f"t.`{sink.order_by}` IS NULL OR s.`{sink.order_by}` >= t.`{sink.order_by}`"
    same_key = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in sink.key)
    newest.createOrReplaceTempView(_VIEW)
    try:
        for key, value in properties.items():
            session.conf.set(key, value)
        session.sql(
            f"MERGE INTO {target} t USING {_VIEW} s ON {same_key} "
            f"WHEN MATCHED AND ({newer}) THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
    finally:
        for key in properties:
            session.conf.unset(key)
        session.catalog.dropTempView(_VIEW)


def outcome(newest: DataFrame, before: DataFrame, sink: TableSink) -> tuple[DataFrame, DataFrame]:
    """What `merge_into` makes of a table, without doing it: rows that enter it, and rows of it that stay as they are."""
    from pyspark.sql import functions as F

    order = f"`{sink.order_by}`"
    held = before.select(*_keys(sink), F.col(order).alias("__held"), F.lit(True).alias("__there"))
    met = newest.join(held, _same_key(sink), "left")
    entering = met.where(f"__there is null or __held is null or {order} >= __held").select(*[f"`{name}`" for name in newest.columns])
    return entering, before.join(keys_of(entering, sink), _same_key(sink), "left_anti")


def keys_of(rows: DataFrame, sink: TableSink) -> DataFrame:
    """Which keys they have, to be given to `with_keys`."""
    return rows.select(*_keys(sink))


def with_keys(rows: DataFrame, keys: DataFrame, sink: TableSink) -> DataFrame:
    return rows.join(keys, _same_key(sink), "left_semi")


def _keys(sink: TableSink) -> list[Column]:
    """The key columns under names that no table has, so that they can stand beside its own."""
    from pyspark.sql import functions as F

    return [F.col(f"`{name}`").alias(f"__key_{place}") for place, name in enumerate(sink.key)]


def _same_key(sink: TableSink) -> Column:
    from pyspark.sql import functions as F

    return F.expr(" and ".join(f"`{name}` <=> __key_{place}" for place, name in enumerate(sink.key)))


def newest_per_key(frame: DataFrame, sink: TableSink) -> DataFrame:
    """MERGE allows one source row per key; of several in a batch the one with the greatest `order_by` stays.

    Rows that tie there are told apart by their content, so that a replay picks the same one.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rank = "__strandline_rank"
    content = F.xxhash64(*[F.col(f"`{name}`") for name in frame.columns])
    order = Window.partitionBy(*sink.key).orderBy(F.col(str(sink.order_by)).desc_nulls_last(), content)
    return frame.withColumn(rank, F.row_number().over(order)).where(f"{rank} = 1").drop(rank)
