"""State as a checkpoint holds it, read through Spark's state data source: ours by bucket, decoded; Spark's own as rows.

A bucket is in memory at a time, never a whole operator. Spark numbers operators; the name of our state variable tells whose it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.model.errors import CheckpointDamaged
from strandline.runtime.keyed.building import OperatorRecord
from strandline.runtime.keyed.packing import BUCKET
from strandline.runtime.keyed.stores import operator_of, variable_of
from strandline.state.facts import BucketFacts
from strandline.state.keys import Keys
from strandline.state.layout import Epochs
from strandline.state.reading import BucketReader, KeyChange, changes, same_pages
from strandline.state.store import MemoryStore
from strandline.state.types import ArrayOf, MapOf, StructOf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

JOIN = "symmetricHashJoin"
SIDES = ("left", "right")
"""A join keeps the rows of each input apart."""

_ORDER = ("partition", "bucket")

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class StoredOperator:
    """A stateful operator of the checkpoint, as Spark numbers them."""

    id: int
    spark_name: str
    partitions: int
    record: OperatorRecord | None = None
    """What we know of it when it is one of ours."""
    twins: int = 1
    """Operators of the checkpoint with the same name of Spark's."""

    @property
    def name(self) -> str:
        """Ours by the name in the pipeline; Spark's by its own, with the number where that alone says too little."""
        if self.record is not None:
            return self.record.name
        return self.spark_name if self.twins == 1 else f"{self.spark_name}-{self.id}"

    @property
    def is_join(self) -> bool:
        return self.spark_name.startswith(JOIN)

    @cached_property
    def epochs(self) -> Epochs:
        assert self.record is not None
        return Epochs(self.record.layouts)

    @cached_property
    def keys(self) -> Keys:
        assert self.record is not None
        return Keys(self.record.key, self.record.single_key)


@dataclass
class KeyedSizes:
    """Sums over the buckets of one of our operators."""

    keys: int = 0
    bytes: int = 0
    entries: dict[str, int] = field(default_factory=dict)
    keys_by_partition: dict[int, int] = field(default_factory=dict)


class StateReader:
    """The state of one checkpoint after its batches."""

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint, records: Mapping[str, OperatorRecord], pipeline: str) -> None:
        spark.streams.active  # noqa: B018 - Spark's coordinator of state stores begins with its query manager, also for readers
        self._spark = spark
        self._checkpoint = checkpoint
        self._records = records
        self._pipeline = pipeline

    # -- operators -------------------------------------------------------------------------------------------------

    def operators(self, batch: int) -> list[StoredOperator]:
        """Every stateful operator of the checkpoint, ours by their names."""
        with self._explained(batch, "the checkpoint's operators"):
            rows = self._spark.read.format("state-metadata").load(self._checkpoint.location).collect()
        by_id = {row["operatorId"]: row for row in rows}  # a join has a row for each of its stores
        found: list[StoredOperator] = []
        for number, row in sorted(by_id.items()):
            properties = json.loads(row["operatorProperties"] or "{}")
            variables = [operator_of(variable["stateName"]) for variable in properties.get("stateVariables", ())]
            record = next((self._records.get(name) for name in variables if name is not None), None)
            twins = sum(other["operatorName"] == row["operatorName"] for other in by_id.values()) if record is None else 1
            found.append(StoredOperator(number, row["operatorName"], row["numPartitions"], record, twins))
        return found

    # -- ours ------------------------------------------------------------------------------------------------------

    def sizes(self, operator: StoredOperator, batch: int) -> KeyedSizes:
        """From the facts of every bucket alone."""
        total = KeyedSizes(keys_by_partition=dict.fromkeys(range(operator.partitions), 0))
        total.entries = {state.name: 0 for state in operator.epochs.current.states}
        with self._explained(batch, f"'{operator.name}'"):
            entries = self._entries(operator, batch)
            rows = entries.where("k = X'6D'").collect()
        for row in rows:
            facts = BucketFacts.decode(bytes(row["v"]))
            total.keys += facts.keys
            total.bytes += facts.size
            total.keys_by_partition[row["partition"]] = total.keys_by_partition.get(row["partition"], 0) + facts.keys
            for name in total.entries:
                total.entries[name] += facts.entries.get(name, 0)
        return total

    def buckets(
        self, operator: StoredOperator, batch: int, now: int | None = None, key: Sequence[Any] | None = None
    ) -> Iterator[BucketReader]:
        """One bucket after the other; with a key only the one that it would be in."""
        where = None if key is None else self._bucket_of(operator, key)
        for _, entries in self._stores(operator, batch, where):
            yield BucketReader(MemoryStore(entries), operator.epochs, operator.keys, now)

    def differences(self, operator: StoredOperator, before: int, after: int) -> Iterator[KeyChange]:
        """Keys that are not the same after two batches. Both are read side by side, a bucket of each in memory."""
        for old, new in _side_by_side(self._stores(operator, before), self._stores(operator, after)):
            if old == new:
                continue
            same = same_pages(old, new)
            readers = [BucketReader(MemoryStore(entries), operator.epochs, operator.keys) for entries in (old, new)]
            yield from changes(readers[0].keys(same), readers[1].keys(same))

    def _stores(
        self, operator: StoredOperator, batch: int, bucket: int | None = None
    ) -> Iterator[tuple[tuple[int, int], dict[bytes, bytes]]]:
        """((partition, bucket), its entries), in that order."""
        with self._explained(batch, f"'{operator.name}'"):
            entries = self._entries(operator, batch)
            if bucket is not None:
                entries = entries.where(entries["bucket"] == bucket)
            held: dict[bytes, bytes] = {}
            at: tuple[int, int] | None = None
            for row in entries.sortWithinPartitions(*_ORDER).toLocalIterator():
                place = (row["partition"], row["bucket"])
                if at is not None and place != at:
                    yield at, held
                    held = {}
                at = place
                held[bytes(row["k"])] = bytes(row["v"])
            if at is not None:
                yield at, held

    def sorted_entries(self, operator: StoredOperator, batch: int) -> DataFrame:
        """Partition, bucket, and the store's keys and values; a bucket's follow each other, in one partition of Spark's."""
        with self._explained(batch, f"'{operator.name}'"):
            return self._entries(operator, batch).sortWithinPartitions(*_ORDER)

    def _bucket_of(self, operator: StoredOperator, key: Sequence[Any]) -> int | None:
        """As `frames` distributes keys; None when that cannot be said here, and every bucket must be looked at."""
        from pyspark.sql import functions as F

        assert operator.record is not None
        fields, buckets = operator.record.key.fields, operator.record.buckets
        if any(isinstance(field.type, ArrayOf | MapOf | StructOf) for field in fields):
            return None
        columns = [_literal(value).cast(field.type.ddl) for field, value in zip(fields, key, strict=True)]
        (row,) = self._spark.range(1).select(F.pmod(F.hash(*columns), F.lit(len(buckets))).alias("n")).collect()
        return buckets[int(row["n"])]

    def _entries(self, operator: StoredOperator, batch: int) -> DataFrame:
        """Our one map state of Spark's: partition, bucket, and the store's keys and values."""
        rows = self._load(operator, batch, stateVarName=variable_of(operator.name))
        return rows.selectExpr("partition_id as partition", f"key.`{BUCKET}` as bucket", "user_map_key.k as k", "user_map_value.v as v")

    # -- Spark's own -----------------------------------------------------------------------------------------------

    def rows(self, operator: StoredOperator, batch: int) -> DataFrame:
        """The rows of a native operator: key and value as structs, the partition, and the side of a join."""
        from pyspark.sql import functions as F

        with self._explained(batch, f"'{operator.name}'"):
            if not operator.is_join:
                return self._load(operator, batch)
            sides = [self._load(operator, batch, joinSide=side).withColumn("side", F.lit(side)) for side in SIDES]
            return sides[0].unionByName(sides[1], allowMissingColumns=True)

    def ask(self, operator: StoredOperator, batch: int, question: Callable[[], _Found]) -> _Found:
        """Whatever Spark reads only now."""
        with self._explained(batch, f"'{operator.name}'"):
            return question()

    def _load(self, operator: StoredOperator, batch: int, **options: str) -> DataFrame:
        reader = self._spark.read.format("statestore").option("operatorId", operator.id).option("batchId", batch)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load(self._checkpoint.location)

    @contextmanager
    def _explained(self, batch: int, what: str) -> Iterator[None]:
        """Spark has many words for a file that is not there."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            yield
        except (PySparkException, Py4JJavaError) as error:
            raise CheckpointDamaged(
                f"the state of {what} after batch {batch} cannot be read from {self._checkpoint.location}: {_first_cause(error)}",
                next_command=f"strandline state list {self._pipeline}",
                detail="files of that state are missing or damaged; another batch may still be readable (--at BATCH)",
            ) from error


def _first_cause(error: Exception) -> str:
    """The deepest line that says something, in one sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    said = (causes[-1] if causes else lines[0]) if lines else type(error).__name__
    return said[:300]


def _literal(value: Any) -> Column:
    from pyspark.sql import functions as F

    return (
        F.lit(value)
        if isinstance(value, bool | bytes | int | float)
        else F.lit(value.isoformat() if hasattr(value, "isoformat") else str(value))
    )


_Store = tuple[tuple[int, int], dict[bytes, bytes]]


def _side_by_side(before: Iterator[_Store], after: Iterator[_Store]) -> Iterator[tuple[dict[bytes, bytes], dict[bytes, bytes]]]:
    """Two walks in the same order, joined; a bucket that only one of them has is empty in the other."""
    old, new = next(before, None), next(after, None)
    while old is not None or new is not None:
        place = min(found[0] for found in (old, new) if found is not None)
        here: list[dict[bytes, bytes]] = [found[1] if found is not None and found[0] == place else {} for found in (old, new)]
        yield here[0], here[1]
        if old is not None and old[0] == place:
            old = next(before, None)
        if new is not None and new[0] == place:
            new = next(after, None)


def skew(by_partition: Mapping[int, int]) -> tuple[int, float]:
    """Rows of the largest partition, and of the average one."""
    counts = by_partition.values()
    return max(counts, default=0), sum(counts) / len(counts) if counts else 0.0
