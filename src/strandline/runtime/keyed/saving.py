"""The state of a keyed operator as Parquet files: each worker decodes and writes the partitions it reads, and tells what it wrote.

Nothing but names, sizes and digests comes to the driver. A bucket is in a worker's memory at a time, and a file until it is full.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strandline.checkpoints.storage import storage_at
from strandline.runtime.keyed.building import OperatorRecord
from strandline.runtime.keyed.workers import keep_zip_directories
from strandline.state.arrow import arrow_schema, table_of
from strandline.state.context import CLOCKS
from strandline.state.control import control_name
from strandline.state.keys import Keys
from strandline.state.layout import Epochs
from strandline.state.portable import PortableRows
from strandline.state.reading import BucketReader
from strandline.state.store import MemoryStore

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.runtime.keyed.inspecting import StateReader, StoredOperator

FULL = 64_000_000
"""Bytes after which a file is closed and the next one begun."""

_ROWS = 8192
"""Rows that become Arrow at a time."""

_TOLD = "path string, size bigint, sha256 string, counts string, control string, content binary"


@dataclass(frozen=True)
class WrittenFile:
    path: str
    """Relative to the savepoint."""
    size: int
    sha256: str


@dataclass
class SavedState:
    """What was written of one operator."""

    files: list[WrittenFile] = field(default_factory=list)
    keys: int = 0
    entries: Counter[str] = field(default_factory=Counter)
    """Elements by state."""
    timers: Counter[str] = field(default_factory=Counter)
    """By clock."""
    control: dict[str, bytes] = field(default_factory=dict)
    """Control data, which every bucket holds alike."""


def save_state(reader: StateReader, operator: StoredOperator, batch: int, location: str, folder: str) -> SavedState:
    """Write the operator's state after a batch below `folder` of a storage."""
    assert operator.record is not None
    write = bucket_writer(operator.record, location, folder)
    entries = reader.sorted_entries(operator, batch)
    rows = reader.ask(operator, batch, entries.mapInArrow(write, _TOLD).collect)
    saved = SavedState()
    for row in sorted(rows, key=lambda row: row["path"] or ""):
        if row["control"] is not None:
            saved.control.setdefault(row["control"], bytes(row["content"]))
            continue
        counts = json.loads(row["counts"])
        saved.files.append(WrittenFile(row["path"], row["size"], row["sha256"]))
        saved.keys += counts["keys"]
        saved.entries.update(counts["entries"])
        saved.timers.update(counts["timers"])
    return saved


def bucket_writer(record: OperatorRecord, location: str, folder: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For a worker: a partition's entries in the order of its buckets → what was written of them."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_zip_directories()
        epochs, keys = Epochs(record.layouts), Keys(record.key, record.single_key)
        rows_of = PortableRows(record.key, record.single_key, epochs.current)
        names = [state.name for state in epochs.current.states]
        part: _Part | None = None
        control: dict[str, bytes] = {}
        for (partition, _), entries in _stores(batches):
            for key, content in entries.items():
                if (name := control_name(key)) is not None:
                    control.setdefault(name, content)
            if part is not None and part.partition != partition:
                yield part.close()
                part = None
            rows: list[Any] = []
            for packed, timers, states in BucketReader(MemoryStore(entries), epochs, keys).stored():
                part = part or _Part(rows_of, partition, location, folder)
                rows.append(rows_of.row(packed, timers, states))
                part.count(names, states, timers)
                if len(rows) == _ROWS:
                    part.add(rows)
                    rows = []
                    if part.size > FULL:
                        yield part.close()
                        part = part.next()
            if rows and part is not None:
                part.add(rows)
        if part is not None and part.keys:
            yield part.close()
        for name, content in control.items():
            yield _told(control=name, content=content)

    return write


def _stores(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[tuple[int, int], dict[bytes, bytes]]]:
    at: tuple[int, int] | None = None
    held: dict[bytes, bytes] = {}
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "bucket", "k", "v")]
        for partition, bucket, key, value in zip(*columns, strict=True):
            if (partition, bucket) != at:
                if at is not None:
                    yield at, held
                at, held = (partition, bucket), {}
            held[key] = value
    if at is not None:
        yield at, held


class _Part:
    """One Parquet file in the making."""

    def __init__(self, rows_of: PortableRows, partition: int, location: str, folder: str, number: int = 0) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._rows_of, self.partition, self._location, self._folder, self._number = rows_of, partition, location, folder, number
        self._sink = pa.BufferOutputStream()
        self._writer: Any = pq.ParquetWriter(self._sink, arrow_schema(rows_of.fields), compression="zstd")
        self.keys = 0
        self._entries: Counter[str] = Counter()
        self._timers: Counter[str] = Counter()

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def count(self, names: list[str], states: list[Any], timers: Any) -> None:
        self.keys += 1
        for name, elements in zip(names, states, strict=True):
            self._entries[name] += len(elements)
        for clock, times in zip(CLOCKS, timers or (), strict=False):
            self._timers[clock] += len(times)

    def add(self, rows: list[Any]) -> None:
        self._writer.write_batch(table_of(rows, self._rows_of.fields))

    def next(self) -> _Part:
        return _Part(self._rows_of, self.partition, self._location, self._folder, self._number + 1)

    def close(self) -> pa.RecordBatch:
        self._writer.close()
        content = self._sink.getvalue().to_pybytes()
        path = f"{self._folder}/part-{self.partition:05d}-{self._number:04d}.parquet"
        storage_at(self._location).write(path, content)
        counts = json.dumps({"keys": self.keys, "entries": self._entries, "timers": self._timers})
        return _told(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest(), counts=counts)


def _told(**given: Any) -> pa.RecordBatch:
    import pyarrow as pa

    types: Mapping[str, Any] = {"size": pa.int64(), "content": pa.binary()}
    names = [column.split(" ")[0] for column in _TOLD.split(", ")]
    arrays = [pa.array([given.get(name)], types.get(name, pa.string())) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)
