"""A batch's rows on the driver: every row once, whatever the slices."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from strandline.runtime.arrow_batches import HELD, arrow_batches

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("held", [HELD, 1, 400], ids=["all at once", "one Arrow batch at a time", "some at a time"])
def test_every_row_comes_once_and_in_its_partitions_order(spark_home: SparkSession, held: int) -> None:
    spark_home.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 7)
    try:
        frame = spark_home.range(0, 100, numPartitions=3).selectExpr("id", "cast(id as string) as name")

        rows = [row for batch in arrow_batches(frame, held) for row in batch.to_pylist()]
    finally:
        spark_home.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert rows == [{"id": n, "name": str(n)} for n in range(100)]


def test_an_empty_frame_has_no_rows(spark_home: SparkSession) -> None:
    assert sum(batch.num_rows for batch in arrow_batches(spark_home.range(0))) == 0


def test_one_that_is_left_early_lets_its_storage_go(spark_home: SparkSession) -> None:
    before = len(spark_home.sparkContext._jsc.getPersistentRDDs())
    batches = arrow_batches(spark_home.range(0, 100, numPartitions=2))

    next(batches)
    batches.close()  # type: ignore[attr-defined]

    assert len(spark_home.sparkContext._jsc.getPersistentRDDs()) == before
