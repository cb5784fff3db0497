"""Rows travel packed: one blob of Arrow per bucket, so that Spark moves and sorts few rows instead of many.

These functions run in Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from strandline.runtime.keyed.workers import keep_zip_directories
from strandline.state.arrow import arrow_type
from strandline.state.types import StructOf

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

BUCKET = "__bucket"
KIND = "__kind"
BLOB = "__blob"
PACKED = f"{BUCKET} int, {KIND} string, {BLOB} binary"

EVENTS = ""
"""The kind of a blob with events; other kinds are names of control data."""

ENTRIES = "entries"
"""In initial state: the kind of a blob with keys and their whole entries, as a savepoint held them."""

CONTROL = "control:"
"""In initial state: begins the kind of a blob with a control table."""

KEYLESS = "strandline-keyless-event:"
"""Begins the error of an event without a key; `failures` makes a sentence of it."""


def blob_of(batch: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def batches_in(blob: bytes) -> list[pa.RecordBatch]:
    import pyarrow as pa

    return list(pa.ipc.open_stream(pa.py_buffer(blob)))


def pack_events(by: Sequence[str], operator: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Batches with a bucket column → rows of (bucket, kind, blob)."""

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        keep_zip_directories()
        for batch in batches:
            if batch.num_rows == 0:
                continue
            _refuse_null_keys(batch, by, operator)
            buckets = batch.column(BUCKET).to_numpy(zero_copy_only=False)
            order = np.argsort(buckets, kind="stable")
            sorted_buckets = buckets[order]
            rows = batch.drop_columns([BUCKET]).take(pa.array(order))
            starts = np.flatnonzero(np.r_[True, sorted_buckets[1:] != sorted_buckets[:-1]])
            ends = np.r_[starts[1:], len(order)]
            blobs = [blob_of(rows.slice(start, end - start)) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
            yield packed(sorted_buckets[starts].tolist(), EVENTS, blobs)

    return pack


def pack_for_all(kind: str, buckets: Sequence[int]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Control rows go to every bucket."""

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield packed(buckets, kind, [blob_of(batch)] * len(buckets))

    return pack


def packed(buckets: Sequence[int], kind: str, blobs: Sequence[bytes]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = pa.array([kind] * len(blobs), pa.string())
    return pa.RecordBatch.from_arrays([pa.array(buckets, pa.int32()), kinds, pa.array(blobs, pa.binary())], names=[BUCKET, KIND, BLOB])


def unpack_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Blobs → the rows in them."""
    keep_zip_directories()
    for batch in batches:
        for blob in batch.column(0):
            yield from batches_in(blob.as_py())


def unpack_tagged(
    tags: Mapping[str, str], schemas: Mapping[str, StructOf], tag_column: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Blobs of several outputs → rows of (tag, one struct column per tag); only the struct of the own tag is filled."""

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        keep_zip_directories()
        types = {name: arrow_type(schemas[name]) for name in tags}
        for packed in batches:
            for kind, blob in zip(packed.column(0).to_pylist(), packed.column(1), strict=True):
                for batch in batches_in(blob.as_py()):
                    own = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
                    columns = {tag: own if name == kind else pa.nulls(batch.num_rows, types[name]) for name, tag in tags.items()}
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([tags[kind]] * batch.num_rows, pa.string()), *columns.values()], names=[tag_column, *columns]
                    )

    return unpack


def _refuse_null_keys(batch: pa.RecordBatch, by: Sequence[str], operator: str) -> None:
    for name in by:
        column = batch.column(name)
        if column.null_count:
            row = next(number for number in range(batch.num_rows) if not column[number].is_valid)
            record = batch.drop_columns([BUCKET]).slice(row, 1).to_pylist()[0]
            raise ValueError(f"{KEYLESS} '{operator}' got an event whose key '{name}' is null: {str(record)[:500]}")


def bucket_column(by: Sequence[str], buckets: Sequence[int]) -> Column:
    """The bucket of a row: wherever a key comes from, from its events or from saved state, it must be the same one."""
    from pyspark.sql import functions as F

    labels = F.array(*map(F.lit, buckets))
    number = F.pmod(F.hash(*(F.col(f"`{name}`") for name in by)), F.lit(len(buckets)))
    return F.element_at(labels, number + 1)


def balanced_labels(buckets: int, partitions: int) -> list[int]:
    """Bucket numbers that Spark's hash spreads evenly over the partitions: with few buckets, chance would not."""
    each = -(-buckets // partitions)
    found: dict[int, list[int]] = {number: [] for number in range(partitions)}
    label = 0
    while any(len(labels) < each for labels in found.values()):
        labels = found[_spark_hash(label) % partitions]
        if len(labels) < each:
            labels.append(label)
        label += 1
    return [labels[round] for round in range(each) for labels in found.values()][: max(buckets, partitions)]


def _spark_hash(value: int) -> int:
    """Murmur3 of a 32-bit integer with Spark's seed, as a signed number."""

    def rotate(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & 0xFFFFFFFF

    k = rotate(value * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    h = (rotate(42 ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> shift)) * factor & 0xFFFFFFFF
    h ^= h >> 16
    return h - (1 << 32) if h >= 1 << 31 else h
