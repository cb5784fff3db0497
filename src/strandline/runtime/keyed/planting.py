"""State from a canonical savepoint as the initial state of a keyed operator: read from Parquet, brought to the declared layout, packed by bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.checkpoints.storage import storage_at
from strandline.model.errors import DefinitionError
from strandline.runtime.keyed.building import OperatorRecord, key_shape
from strandline.runtime.keyed.packing import BLOB, BUCKET, CONTROL, ENTRIES, KIND, PACKED, blob_of, bucket_column
from strandline.runtime.keyed.workers import keep_zip_directories
from strandline.state.arrow import plain_of
from strandline.state.evolution import Incompatible
from strandline.state.layout import Layout
from strandline.state.portable import KEY, STATES, TIMERS, Entries, carried_changes, portable_fields, undeclared_clocks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KEY_BYTES = "__key"
ENTRY_BYTES = "__entry"

_ROWS = 8192
"""Rows that are looked at together."""

FULL = 32_000_000
"""Bytes that a worker gathers before it makes blobs of them: a bucket writes its pages anew for every blob."""


@dataclass(frozen=True)
class SavedOperator:
    """A keyed operator as a canonical savepoint tells of it."""

    record: OperatorRecord
    """With the one layout that its rows are in."""
    keys: int
    timers: Mapping[str, int]
    control: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def layout(self) -> Layout:
        return self.record.layouts[-1]

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> SavedOperator:
        return cls(OperatorRecord.from_json(told), told["keys"], told["timers"], tuple(told["control"]))

    def as_json(self) -> dict[str, Any]:
        return {**self.record.as_json(), "keys": self.keys, "timers": dict(self.timers), "control": list(self.control)}


def fitting(saved: SavedOperator, declared: OperatorRecord, without_timers: bool) -> list[str]:
    """What happens to the state on its way into the declared operator, in clauses; refused when it cannot be carried over."""
    now, then = key_shape(declared.key, declared.single_key), key_shape(saved.record.key, saved.record.single_key)
    if now != then:
        raise DefinitionError(
            f"'{saved.name}' is keyed by {now} now, its state by {then}; state cannot change its key",
            next_command="give the operator another name=… to begin with empty state, or keep the key",
        )
    try:
        changes = carried_changes(saved.layout, declared.layouts[-1])
    except Incompatible as wrong:
        raise DefinitionError(
            f"the state of '{saved.name}' cannot be read as it is declared now: {wrong}",
            next_command="keep the declaration, or declare the new form under a new state name",
        ) from wrong
    for clock in undeclared_clocks(declared.layouts[-1], saved.timers):
        if not without_timers:
            raise DefinitionError(
                f"'{saved.name}' has {saved.timers[clock]} timers on the {clock} clock, which it does not use any more",
                next_command=f"keep the timers, or let them go: add --allow-dropped-state {saved.name}.timers",
            )
        changes.append(f"{saved.timers[clock]} timers on the {clock} clock are dropped")
    return changes


def initial_state(
    spark: SparkSession,
    location: str,
    files: Sequence[str],
    control: Mapping[str, bytes],
    saved: SavedOperator,
    declared: OperatorRecord,
    touched: int,
) -> DataFrame:
    """Rows of (bucket, kind, blob) for every key and for the control data of every bucket.

    Args:
        files: Parquet files in the storage at `location`. Workers open them themselves: Spark would hand over nested rows one by one.
        touched: in milliseconds, when what was kept without a ttl counts as touched.
    """
    tables = [(label, f"{CONTROL}{name}", content) for label in declared.buckets for name, content in control.items()]
    packed = spark.createDataFrame(tables, PACKED)
    if not files:
        return packed
    paths = spark.createDataFrame(spark.sparkContext.parallelize([(path,) for path in files], len(files)), "path string")
    columns = ", ".join(f"`{field.name}` {field.type.ddl}" for field in declared.key.fields)
    maker = entry_maker(location, saved, declared.layouts[-1], touched)
    made = paths.mapInArrow(maker, f"{columns}, {KEY_BYTES} binary, {ENTRY_BYTES} binary")
    placed = made.select(bucket_column(declared.key.names, declared.buckets).alias(BUCKET), KEY_BYTES, ENTRY_BYTES)
    return packed.unionByName(placed.mapInArrow(pack_entries, PACKED))


def entry_maker(
    location: str, saved: SavedOperator, declared: Layout, touched: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For a worker: names of files → of each key its columns, the key as bytes, its entry as bytes."""

    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        keep_zip_directories()
        types = {field.name: field.type for field in portable_fields(saved.record.key, saved.layout).fields}
        entries = Entries(saved.record.single_key, saved.layout, declared, touched)
        for path in (path for batch in batches for path in batch.column(0).to_pylist()):
            for rows in _rows_in(location, path):
                plain = {name: plain_of(rows.column(name), kind) for name, kind in types.items()}
                states = plain.get(STATES) or [None] * rows.num_rows
                keys = [entries.key(columns) for columns in plain[KEY]]
                contents = [entries.entry(held, timers) for held, timers in zip(states, plain[TIMERS], strict=True)]
                arrays = [*rows.column(KEY).flatten(), pa.array(keys, pa.binary()), pa.array(contents, pa.binary())]
                yield pa.RecordBatch.from_arrays(arrays, names=[*saved.record.key.names, KEY_BYTES, ENTRY_BYTES])

    return make


def _rows_in(location: str, path: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = storage_at(location).read(path)
    if content is None:
        raise FileNotFoundError(f"{location}/{path} is gone")
    yield from pq.ParquetFile(pa.BufferReader(content)).iter_batches(_ROWS)


def pack_entries(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For a worker: rows with a bucket → few blobs, each with many entries of one bucket."""
    gathered: dict[int, tuple[list[bytes], list[bytes]]] = {}
    size = 0
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in (BUCKET, KEY_BYTES, ENTRY_BYTES)]
        for bucket, key, entry in zip(*columns, strict=True):
            keys, contents = gathered.setdefault(bucket, ([], []))
            keys.append(key)
            contents.append(entry)
            size += len(key) + len(entry)
        if size > FULL:
            yield from _blobs(gathered)
            gathered, size = {}, 0
    yield from _blobs(gathered)


def _blobs(gathered: Mapping[int, tuple[list[bytes], list[bytes]]]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for bucket, (keys, contents) in gathered.items():
        blob = blob_of(pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(contents, pa.binary())], names=["k", "v"]))
        arrays = [pa.array([bucket], pa.int32()), pa.array([ENTRIES], pa.string()), pa.array([blob], pa.binary())]
        yield pa.RecordBatch.from_arrays(arrays, names=[BUCKET, KIND, BLOB])
