"""Making a table known to the catalog by its metadata file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.model.errors import TableUnavailable
from strandline.tables.jvm import JAVA_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, catalog: str, table: str, metadata_location: str) -> None:
    """Refused by the catalog when it knows a table of that name."""
    namespace, _, _ = table.rpartition(".")
    file = metadata_location.replace("\\", "\\\\").replace("'", "\\'")
    try:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{namespace}")
        spark.sql(f"CALL {catalog}.system.register_table(table => '{table}', metadata_file => '{file}')")
    except JAVA_ERRORS as error:
        why = str(error).strip().splitlines()[0]
        raise TableUnavailable(
            f"table '{table}' could not be registered in the catalog: {why}", next_command="strandline doctor"
        ) from error
