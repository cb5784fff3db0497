"""The event generator: orders computed from their number alone.

Spark's `rate-micro-batch` source counts; every column is arithmetic on CRC-32 of the number, which any language
can repeat. `strandline.testing.generated_orders` does so in plain Python and is the oracle of the tests.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from strandline.checkpoints.storage import Storage
from strandline.model.definition import GeneratorSource
from strandline.model.positions import GeneratorPosition, Position
from strandline.model.until import Until
from strandline.runtime.sources.reader import SOURCE_OPTION, Lag, LocalReader, PositionReader, SourceRows, moment_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WHOLE = 2**32
"""CRC-32 is uniform over this many values: a share p of events is those with a hash below p × 2³²."""


class GeneratorReader(LocalReader):
    def __init__(self, name: str, source: GeneratorSource, until: Until | None = None) -> None:
        self.name = name
        moment = moment_of(name, until)
        self._limit = None if moment is None else int((moment.timestamp() * 1000 - source.start_ms) * source.rate / 1000)
        """Events that the generator's clock makes before the end."""
        self._source = source

    def check(self) -> None:
        """Nothing outside this process is needed."""

    def read(self, spark: SparkSession, origin: Position | None) -> SourceRows:
        s = self._source
        counted = (
            spark.readStream.format("rate-micro-batch")
            .option(SOURCE_OPTION, self.name)
            .option("rowsPerBatch", s.events_per_batch)
            .option("startTimestamp", s.start_ms)
            .load()
        )
        if s.total is not None:
            counted = counted.where(f"value < {s.total}")
        if self._limit is not None:
            counted = counted.where(f"value < {self._limit}")

        def chance(salt: str, of: str) -> str:
            return f"crc32(concat('{s.seed}:{salt}:', {of}))"

        repeats = f"value > 0 and {chance('duplicate', 'value')} < {int(s.duplicates * _WHOLE)}"
        reach = f"1 + {chance('distance', 'value')} % least(value, {s.DUPLICATE_REACH})"
        event = counted.selectExpr("value as seq", f"if({repeats}, value - ({reach}), value) as n")
        lateness = f"if({chance('late', 'n')} < {int(s.late * _WHOLE)}, {int(s.late_by.total_seconds() * 1000)}, 0)"
        jitter = f"if({chance('order', 'n')} < {int(s.out_of_order * _WHOLE)}, {chance('jitter', 'n')} % {s.JITTER_MS}, 0)"
        orders = event.selectExpr(
            "seq",
            "concat('o-', lpad(cast(n as string), 9, '0')) as order_id",
            f"concat('c-', lpad(cast({chance('customer', 'n')} % {s.CUSTOMERS} as string), 3, '0')) as customer",
            f"({chance('amount', 'n')} % 100000) / 100d as amount",
            f"timestamp_millis({s.start_ms} + cast(floor(n * {1000 / s.rate}d) as bigint) - {lateness} - {jitter}) as placed_at",
        )
        return SourceRows(orders)

    def positions(self, checkpoint: Storage, index: int) -> PositionReader:
        def position(line: str) -> GeneratorPosition:
            value = json.loads(line)
            return GeneratorPosition(int(value["offset"]), int(value["timestamp"]))

        return position

    def exhausted(self, position: Position | None) -> bool:
        if self._source.total is None:
            return True
        return isinstance(position, GeneratorPosition) and position.offset >= self._source.total

    def reached(self, position: Position | None) -> bool:
        return self._limit is not None and isinstance(position, GeneratorPosition) and position.offset >= self._limit

    def lag(self, position: Position | None) -> Lag | None:
        if self._source.total is None:
            return None
        read = position.offset if isinstance(position, GeneratorPosition) else 0
        return Lag(max(0, self._source.total - read), "events")
