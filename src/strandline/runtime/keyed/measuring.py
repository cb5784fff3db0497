"""From the workers to the driver: how large each bucket's state is, and what a batch did to it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

from pyspark.accumulators import AccumulatorParam

from strandline.ledger.records import StateSize
from strandline.model.times import from_millis, rfc3339
from strandline.state.bucket import Measures

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

    from strandline.runtime.keyed.operator import Tell

Told = dict[tuple[str, int], Measures]
"""By operator and bucket."""


class _Collect(AccumulatorParam[Told]):
    def zero(self, value: Told) -> Told:
        return {}

    def addInPlace(self, value1: Told, value2: Told) -> Told:  # noqa: N802 - Spark's name
        """A bucket that was woken after its events reports again: the later report has the last word on sizes."""
        for place, measures in value2.items():
            value1[place] = value1[place].then(measures) if place in value1 else measures
        return value1


class KeyedMeasures:
    """What the buckets of a run told since the last `take`, and the last known size of each."""

    def __init__(self, spark: SparkSession) -> None:
        collect = cast("AccumulatorParam[Told]", _Collect())
        self._accumulator: Accumulator[Told] = spark.sparkContext.accumulator({}, collect)
        self._known: Told = {}
        self._buckets: dict[str, int] = {}

    def expect(self, operator: str, buckets: int, empty: bool) -> None:
        """How many buckets must tell before the operator's size is known; none when it begins with empty state."""
        self._buckets[operator] = 0 if empty else buckets

    def teller(self, operator: str) -> Tell:
        """What a worker calls; it travels with the operator."""
        accumulator = self._accumulator

        def tell(bucket: int, measures: Measures) -> None:
            accumulator.add({(operator, bucket): measures})

        return tell

    def take(self, pipeline: str, strand: str, batch: int) -> list[StateSize]:
        """To be called between batches. Buckets without events keep the size they had; after a restart the sizes of some are not known
        until they have had events again, and until then there is nothing to tell."""
        told, self._accumulator.value = self._accumulator.value, {}
        self._known = {place: measures.at_rest() for place, measures in self._known.items()} | told
        totals: dict[str, Measures] = {}
        heard: Counter[str] = Counter()
        for (operator, _), measures in self._known.items():
            totals[operator] = totals[operator].plus(measures) if operator in totals else measures
            heard[operator] += 1
        return [
            StateSize(
                pipeline,
                strand,
                batch,
                operator,
                total.keys,
                total.bytes,
                total.touched,
                total.timers_fired,
                total.expired,
                total.entries,
                rfc3339(from_millis(total.oldest)) if total.oldest is not None else None,
            )
            for operator, total in totals.items()
            if heard[operator] >= self._buckets.get(operator, 0)
        ]
