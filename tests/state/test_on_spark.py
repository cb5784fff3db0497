"""The operator on Spark against the reference interpreter: the same events, the clocks that Spark had, the same rows."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import DataFrame, SparkSession

from strandline.runtime.keyed.frames import keyed_outputs
from strandline.runtime.keyed.stores import Access

from .strategies import BY, EVENT, ORDER_BY, OUTPUT, SIDE_OUTPUTS, Batch, Played, comparable, harness, make_process, scripts

pytestmark = pytest.mark.engine


def play(spark: SparkSession, folder: Path, variant: str, access: Access, batches: list[Batch]) -> list[Played]:
    """One file per batch, one batch per file; a restart after every second one."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "in").mkdir(parents=True)
    found: dict[int, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))

    def keep(frame: DataFrame, number: int) -> None:
        for row in frame.collect():
            found[number][1 if row.o1 else 0].append(tuple(row.o1 or row.o0))

    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")  # a processing clock would never let the query end
    try:
        for number, batch in enumerate(batches):
            lines = [json.dumps({**event, "at": event["at"].isoformat()}) for event in batch.events]
            file = folder / "in" / f"{number:03d}.json"
            file.write_text("\n".join(lines) + "\n")
            os.utime(file, (1_700_000_000 + number,) * 2)  # Spark takes the oldest first
            if number % 2 == 0 and number + 1 < len(batches):
                continue
            events = spark.readStream.schema(EVENT).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
            out = keyed_outputs(
                events.withWatermark("at", "2 seconds"),
                BY,
                make_process(variant),
                OUTPUT,
                SIDE_OUTPUTS,
                ORDER_BY,
                access=access,
            )
            both = out.together({"": "o0", "notes": "o1"}, "tag")
            query = both.writeStream.foreachBatch(keep).outputMode("update").option("checkpointLocation", str(folder / "checkpoint"))
            query.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    return [comparable(*found[number]) for number in range(len(batches))]


def clocks(folder: Path, batch: int) -> tuple[datetime | None, datetime]:
    """What Spark wrote down as the watermark and the time of a batch."""
    facts = json.loads((folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[1])

    def instant(millis: int) -> datetime:
        return datetime.fromtimestamp(millis / 1000, timezone.utc)

    mark = facts["batchWatermarkMs"]
    return instant(mark) if mark else None, instant(facts["batchTimestampMs"])


@pytest.mark.parametrize(("variant", "access"), [("mixed", "pipelined"), ("written", "plain")])
@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(batches=scripts(keys=12, max_batches=5, max_events=60))
def test_spark_writes_what_the_reference_writes(
    spark_home: SparkSession, tmp_path: Path, variant: str, access: Access, batches: list[Batch]
) -> None:
    batches = [batch for batch in batches if batch.events]

    played = play(spark_home, tmp_path / "run", variant, access, batches)

    reference = harness(variant)
    for number, (batch, seen) in enumerate(zip(batches, played, strict=True)):
        watermark, now = clocks(tmp_path / "run", number)
        expected = reference.batch(batch.events, watermark=watermark, processing_time=now)
        assert seen == comparable(expected.rows, expected.side["notes"]), f"batch {number} of {len(batches)}"
