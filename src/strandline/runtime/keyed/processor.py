"""Spark's side of the operator: what `transformWithState` calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from strandline.runtime.keyed.operator import BucketRunner, OperatorSpec
from strandline.runtime.keyed.packing import BLOB, KIND

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

PRODUCED = f"{KIND} string, {BLOB} binary"


class KeyedProcessor(StatefulProcessor):
    """Spark groups by bucket; a bucket's batch is one call, and so is a bucket that only a timer wakes."""

    def __init__(self, spec: OperatorSpec) -> None:
        self._spec = spec

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._runner = BucketRunner(self._spec, handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's names
        return self._run(key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's names
        return self._run(key, (), timerValues)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803 - Spark's names
        self._runner.seed(initialState, self._now(timerValues))

    def close(self) -> None:
        """Nothing is kept between batches."""

    def _run(self, key: Any, blobs: Any, timer_values: Any) -> Iterator[Any]:
        for output, blob in self._runner.run(int(key[0]), blobs, self._now(timer_values)):
            yield Row(**{KIND: output, BLOB: blob})

    def _now(self, timer_values: Any) -> Any:
        return self._runner.now(timer_values.getCurrentProcessingTimeInMs(), timer_values.getCurrentWatermarkInMs())
