"""State from a canonical savepoint as the initial state of a keyed operator: read from Parquet, brought to the declared layout, packed by bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.model.errors import DefinitionError
from strandline.runtime.keyed.building import OperatorRecord, key_shape
from strandline.runtime.keyed.packing import BLOB, BUCKET, CONTROL, ENTRIES, KIND, PACKED, blob_of, bucket_column
from strandline.runtime.keyed.workers import keep_zip_directories
from strandline.state.arrow import plain_of
from strandline.state.evolution import Incompatible
from strandline.state.layout import Layout
from strandline.state.portable import KEY, STATES, TIMERS, Entries, carried_changes, portable_fields, undeclared_clocks
from strandline.state.types import StructOf

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KEY_BYTES = "__key"
ENTRY_BYTES = "__entry"

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
    spark: SparkSession, files: str | None, control: Mapping[str, bytes], saved: SavedOperator, declared: OperatorRecord, touched: int
) -> DataFrame:
    """Rows of (bucket, kind, blob) for every key and for the control data of every bucket.

    Args:
        files: a folder of Parquet files; None when there were no keys.
        touched: in milliseconds, when what was kept without a ttl counts as touched.
    """
    tables = [(label, f"{CONTROL}{name}", content) for label in declared.buckets for name, content in control.items()]
    packed = spark.createDataFrame(tables, PACKED)
    if files is None:
        return packed
    # Parquet's own calendar is meant, also for dates before Spark's calendar changed.
    rows = spark.read.option("datetimeRebaseMode", "CORRECTED").parquet(files)
    names = list(declared.key.names)
    columns = ", ".join(f"`{field.name}` {field.type.ddl}" for field in declared.key.fields)
    made = rows.mapInArrow(entry_maker(saved, declared.layouts[-1], touched), f"{columns}, {KEY_BYTES} binary, {ENTRY_BYTES} binary")
    return packed.unionByName(made.withColumn(BUCKET, bucket_column(names, declared.buckets)).mapInArrow(pack_entries, PACKED))


def entry_maker(saved: SavedOperator, declared: Layout, touched: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For a worker: rows of the table → the key's columns, the key as bytes, its entry as bytes."""

    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        keep_zip_directories()
        types = {field.name: field.type for field in portable_fields(saved.record.key, saved.layout).fields}
        key_type = types[KEY]
        assert isinstance(key_type, StructOf)
        entries = Entries(saved.record.single_key, saved.layout, declared, touched)
        for batch in batches:
            plain = {name: plain_of(batch.column(name), kind) for name, kind in types.items()}
            states = plain.get(STATES) or [None] * batch.num_rows
            keys = [entries.key(columns) for columns in plain[KEY]]
            contents = [entries.entry(held, timers) for held, timers in zip(states, plain[TIMERS], strict=True)]
            columns = batch.column(KEY).flatten()
            arrays = [*columns, pa.array(keys, pa.binary()), pa.array(contents, pa.binary())]
            yield pa.RecordBatch.from_arrays(arrays, names=[*key_type.names, KEY_BYTES, ENTRY_BYTES])

    return make


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
