"""Handing batches from Spark to Python without rebuilding the session object every time.

`DataStreamWriter.foreachBatch` wraps the batch's session anew in each batch, which resolves class names across the
whole class path: some 15 ms of a small batch. All batches of a query share one session, so it is wrapped once here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class BatchFunction:
    """Spark's `PythonForeachBatchFunction`, answered in Python over py4j."""

    def __init__(self, session: SparkSession, function: Callable[[DataFrame, int], None]) -> None:
        self._session = session
        self._function = function
        self._batch_session: SparkSession | None = None

    def call(self, java_frame: Any, batch: int) -> None:
        from pyspark.sql import DataFrame, SparkSession

        if self._batch_session is None:
            self._batch_session = SparkSession(self._session.sparkContext, java_frame.sparkSession())
        self._function(DataFrame(java_frame, self._batch_session), batch)

    class Java:
        implements = ["org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction"]


def for_each_batch(writer: DataStreamWriter, session: SparkSession, function: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    """What `writer.foreachBatch(function)` does, with the callback above."""
    helper = session._jvm.org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper  # type: ignore[union-attr]
    helper.callForeachBatch(writer._jwrite, BatchFunction(session, function))
    return writer
