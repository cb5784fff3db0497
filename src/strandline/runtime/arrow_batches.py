"""A batch's rows on the driver, as Arrow, in bounded memory however large the batch or its partitions are.

Spark hands over whole partitions, and a partition may be as large as the batch. So the batch is computed once, in parallel,
onto the workers' disks, and fetched in slices from there. A small batch comes with the first slices: one job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

HELD = 64 << 20
"""Bytes that travel at a time. With the slice that is being fetched while another is used, twice as much is in memory."""


@dataclass(frozen=True)
class _Slice:
    """Some of a partition's Arrow batches; `next` is the number of the first one left behind, if any."""

    payloads: list[bytes]
    next: int | None


def arrow_batches(frame: DataFrame, held: int = HELD) -> Iterator[pa.RecordBatch]:
    """Every row once, partition by partition."""
    import pyarrow as pa
    from pyspark import StorageLevel
    from pyspark.core.rdd import RDD
    from pyspark.serializers import NoOpSerializer
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    context = frame.sparkSession.sparkContext
    computed = frame._jdf.toArrowBatchRdd().toJavaRDD()
    stored: RDD[Any] = RDD(computed, context, NoOpSerializer()).persist(StorageLevel.DISK_ONLY)
    partitions = stored.getNumPartitions()

    def fetch(start: int, budget: int, of: list[int] | None) -> list[_Slice]:
        return list(context.runJob(stored, _slice_from(start, budget), of))

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="strandline-rows") as ahead:
        try:
            firsts = fetch(0, held // max(1, partitions), None) if partitions else []
            while firsts:
                partition, slice = partitions - len(firsts), firsts.pop(0)
                while True:
                    coming: Future[list[_Slice]] | None = None
                    if slice.next is not None:
                        coming = ahead.submit(fetch, slice.next, held, [partition])
                    for payload in slice.payloads:
                        yield pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
                    if coming is None:
                        break
                    (slice,) = coming.result()
        finally:
            stored.unpersist()


def _slice_from(start: int, budget: int) -> Callable[[Iterable[bytes]], list[_Slice]]:
    """At least one batch, then as many as fit. It runs on the workers, where each call reads the partition from its beginning."""

    def cut(payloads: Iterable[bytes]) -> list[_Slice]:
        taken: list[bytes] = []
        size = 0
        for number, payload in enumerate(payloads):
            if number < start:
                continue
            if taken and size + len(payload) > budget:
                return [_Slice(taken, number)]
            taken.append(bytes(payload))
            size += len(payload)
        return [_Slice(taken, None)]

    return cut
