"""Telling late rows apart inside the plan.

Spark drops a late row silently, and only in stateful operators. To count, keep or label it we need its own rule
as an expression: *event time ≤ watermark that the batch before was planned with*. That number is known before a
batch starts, but a streaming plan is fixed; so it is read, in every batch anew, from a one-line file beside the
checkpoint, by a join with a single broadcast row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.checkpoints.storage import storage_at
from strandline.model.errors import Failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WATERMARK = "__strandline_watermark_ms"


class LateWatermark:
    """The file with the watermark that decides lateness in the next batch.

    Its length never changes: Spark lists a static file once per query and re-reads only its content.
    """

    def __init__(self, checkpoint_location: str, attempt: int) -> None:
        folder, _, name = checkpoint_location.rpartition("/")
        self._storage = storage_at(folder)
        self._name = f"{name}.late-watermark-{attempt}"  # a zombie must not write into its successor's file
        self._path = f"{folder}/{self._name}"
        self._value = 0

    def set(self, watermark_ms: int) -> None:
        """Called before the next batch is planned: at a start, and at the end of every batch."""
        self._value = watermark_ms
        self._storage.write(self._name, f"{watermark_ms:020d}\n".encode())

    def check(self, watermark_ms: int) -> None:
        """Inside a batch: was it planned with the right value? Anything else would mislabel rows."""
        if watermark_ms != self._value:
            raise Failure(
                f"the batch was planned with late watermark {self._value} instead of {watermark_ms}; it runs again with a new start"
            )

    def remove(self) -> None:
        self._storage.remove(self._name)

    def flag(self, spark: SparkSession, rows: DataFrame, event_time: str, column: str) -> DataFrame:
        """`rows` with a boolean column: was this row late when its batch was planned?"""
        from pyspark.sql import functions as F

        watermark = spark.read.text(self._path).select(F.col("value").cast("bigint").alias(_WATERMARK))
        late = F.coalesce(F.col(event_time) <= F.timestamp_millis(_WATERMARK), F.lit(False))
        return rows.join(F.broadcast(watermark), how="left").withColumn(column, late).drop(_WATERMARK)
