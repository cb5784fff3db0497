"""Tables before the first batch: created as declared, or checked against what the pipeline produces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from strandline.model.definition import TableSink
from strandline.model.errors import DefinitionError, StrandlineError, TableUnavailable
from strandline.tables.jvm import java_causes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

METADATA_SETTINGS = {
    # Every commit writes a new metadata file; without this they pile up for ever.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    # Merge manifests once 100 small ones are there: planning and commits stay flat as batches add up.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "100",
    # Ten quick retries instead of four: a compaction or another writer in between is normal here.
    "commit.retry.num-retries": "10",
    "commit.retry.min-wait-ms": "50",
}
UPSERT_SETTINGS = {
    # Deletion vectors instead of rewriting whole files for a few changed rows in every batch.
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
}


def provision(spark: SparkSession, catalog: str, sink: TableSink, frame: DataFrame, birth: Mapping[str, str] | None = None) -> bool:
    """Make sure the table exists and fits. Returns True when it was created now.

    Args:
        birth: properties that a new table must have from its first moment, such as the pipeline's mark.
    """
    full = f"{catalog}.{sink.name}"
    try:
        if spark.catalog.tableExists(full):
            check_columns(sink, frame.schema, spark.table(full).schema)
            return False
        _create(spark, catalog, sink, frame, birth or {})
        _check_format(spark, full, sink)
        return True
    except StrandlineError:
        raise
    except Exception as error:
        why = java_causes(error)[-1][1] if isinstance(error, Py4JJavaError) else str(error).splitlines()[0]
        raise TableUnavailable(f"table '{sink.name}' cannot be prepared: {why}", next_command="strandline doctor") from error


def _create(spark: SparkSession, catalog: str, sink: TableSink, frame: DataFrame, birth: Mapping[str, str]) -> None:
    namespace, _, _ = sink.name.rpartition(".")
    columns = frame.columns
    for what, names in (("key", sink.key), ("order_by", (sink.order_by,) if sink.order_by else ()), ("sort_by", sink.sort_by)):
        if unknown := [name for name in names if name not in columns]:
            raise DefinitionError(f"table '{sink.name}': {what} names {unknown}, but the output has the columns {columns}")
    properties = {
        "format-version": str(sink.format_version),
        **METADATA_SETTINGS,
        **(UPSERT_SETTINGS if sink.mode == "upsert" else {}),
        **sink.properties,
        **birth,
    }
    fields = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in frame.schema.fields)
    partitioned = f" PARTITIONED BY ({', '.join(sink.partition_by)})" if sink.partition_by else ""
    listed = ", ".join(f"'{_quoted(k)}'='{_quoted(v)}'" for k, v in properties.items())
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{namespace}")
    spark.sql(f"CREATE TABLE {catalog}.{sink.name} ({fields}) USING iceberg{partitioned} TBLPROPERTIES ({listed})")
    if sink.sort_by:
        spread = "DISTRIBUTED BY PARTITION LOCALLY ORDERED" if sink.partition_by else "LOCALLY ORDERED"
        spark.sql(f"ALTER TABLE {catalog}.{sink.name} WRITE {spread} BY {', '.join(sink.sort_by)}")


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _check_format(spark: SparkSession, full: str, sink: TableSink) -> None:
    """Some catalogs silently create another format version than asked."""
    rows = spark.sql(f"SHOW TBLPROPERTIES {full} ('format-version')").collect()
    given = rows[0]["value"] if rows else "?"
    if given != str(sink.format_version):
        raise TableUnavailable(
            f"the catalog created table '{sink.name}' with format version {given} although {sink.format_version} was asked for",
            next_command=f"declare format_version={given} for '{sink.name}'",
        )


def check_columns(sink: TableSink, produced: StructType, table: StructType) -> None:
    """Name every difference at once; order does not matter, Iceberg writes by name."""
    ours = {field.name: field.dataType.simpleString() for field in produced.fields}
    theirs = {field.name: field.dataType.simpleString() for field in table.fields}
    problems = [f"column '{name}' is not in the table" for name in ours if name not in theirs]
    problems += [f"the table's column '{name}' is not produced" for name in theirs if name not in ours]
    problems += [
        f"column '{name}' is {ours[name]}, the table has {theirs[name]}" for name in ours if name in theirs and ours[name] != theirs[name]
    ]
    if problems:
        raise DefinitionError(
            f"the output does not fit table '{sink.name}': {'; '.join(problems)}",
            next_command="change the transform, or the table with ALTER TABLE",
        )
