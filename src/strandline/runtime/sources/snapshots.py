"""A small table as a stream: whenever it changes, the whole of its newest snapshot.

Meant for control data: what a batch saw is one snapshot, and its id is the source's position, so offsets, stamp and ledger name it.
Spark's own Iceberg stream reads appended rows only; here updates and deletions count too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from strandline.checkpoints.storage import Storage
from strandline.model.definition import SnapshotsSource
from strandline.model.errors import SourceProblem
from strandline.model.positions import Position, SnapshotPosition
from strandline.project.config import Project
from strandline.runtime.sources.reader import SOURCE_OPTION, Lag, LocalReader, PositionReader, SourceRows
from strandline.state.control import SNAPSHOT
from strandline.tables.catalog import CatalogFile, EmbeddedCatalog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "strandline-snapshots"
CONTROL_GONE = "strandline-control-gone:"
"""Starts what the driver must be told when a snapshot cannot be read any more; Spark carries only text."""


class SnapshotsReader(LocalReader):
    def __init__(self, name: str, source: SnapshotsSource, project: Project) -> None:
        self.name = name
        self._table = source.table
        self._project = project

    def check(self) -> None:
        if EmbeddedCatalog(self._project).find(self._table) is None:
            raise SourceProblem(
                f"source '{self.name}' reads table '{self._table}', which does not exist",
                next_command=f"create table {self._table}, then run again",
            )

    def read(self, spark: SparkSession, origin: Position | None) -> SourceRows:
        from pyspark.sql.types import LongType

        catalog = self._project.profile.catalog.name
        schema = spark.table(f"{catalog}.{self._table}").schema.add(SNAPSHOT, LongType())
        spark.dataSource.register(TableSnapshots)
        return SourceRows(
            spark.readStream.format(FORMAT)
            .schema(schema)
            .option(SOURCE_OPTION, self.name)
            .option("catalog-file", str(self._project.catalog_file))
            .option("catalog", catalog)
            .option("table", self._table)
            .load()
        )

    def positions(self, checkpoint: Storage, index: int) -> PositionReader:
        def position(line: str) -> SnapshotPosition:
            return SnapshotPosition.from_json(json.loads(line))

        return position

    def exhausted(self, position: Position | None) -> bool:
        return self._waiting(position) == 0

    def reached(self, position: Position | None) -> bool:
        return True  # control data has no end of its own

    def lag(self, position: Position | None) -> Lag | None:
        return Lag(self._waiting(position), "snapshots")

    def _waiting(self, position: Position | None) -> int:
        view = EmbeddedCatalog(self._project).find(self._table)
        read = position.sequence if isinstance(position, SnapshotPosition) else 0
        return 0 if view is None else sum(1 for snapshot in view.ancestors() if snapshot.sequence_number > read)


class TableSnapshots(DataSource):
    """The data source as Spark sees it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _Stream(schema, dict(self.options))


class _WholeSnapshot(InputPartition):
    def __init__(self, metadata: str, snapshot: int) -> None:
        super().__init__(snapshot)
        self.metadata = metadata
        self.snapshot = snapshot


class _Stream(DataSourceStreamReader):
    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._schema = schema
        self._options = options

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"sequence": 0, "snapshot": 0}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        from pyiceberg.table import StaticTable

        current = StaticTable.from_metadata(self._metadata()).current_snapshot()
        return self.initialOffset() if current is None else {"sequence": current.sequence_number or 0, "snapshot": current.snapshot_id}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_WholeSnapshot(self._metadata(), end["snapshot"])] if end["snapshot"] and end != start else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyiceberg.table import StaticTable
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, _WholeSnapshot)
        schema = to_arrow_schema(self._schema)
        table = StaticTable.from_metadata(partition.metadata)
        if table.snapshot_by_id(partition.snapshot) is None:
            raise ValueError(
                f"{CONTROL_GONE} snapshot {partition.snapshot} of control table '{self._options['table']}' has expired, and the batch that "
                "read it must run again"
            )
        rows = table.scan(snapshot_id=partition.snapshot).to_arrow()
        if rows.num_rows == 0:  # an emptied table must be told too: a row with nothing but the snapshot
            yield pa.RecordBatch.from_pylist([{SNAPSHOT: partition.snapshot}], schema=schema)
            return
        marked = rows.append_column(SNAPSHOT, pa.array([partition.snapshot] * rows.num_rows, pa.int64()))
        yield from marked.select(schema.names).cast(schema).to_batches()

    def _metadata(self) -> str:
        options = self._options
        location = CatalogFile(Path(options["catalog-file"]), options["catalog"]).metadata_location(options["table"])
        if location is None:
            raise ValueError(f"{CONTROL_GONE} control table '{options['table']}' no longer exists")
        return location
