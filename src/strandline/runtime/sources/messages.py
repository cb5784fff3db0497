"""From a Kafka message to a row: parsing, metadata columns, and what happens to messages that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from strandline.messaging.registry import RegistryConnection
from strandline.model.kafka import KafkaSource
from strandline.model.stamp import SCHEMAS_FACT
from strandline.runtime.sources.avro import PARSED, PROBLEM, SchemaIds, decode
from strandline.runtime.sources.reader import Facts, SourceRows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

MALFORMED = "strandline-malformed:"
"""Begins the error that a message raises when malformed messages stop the run; `failures` makes a sentence of it."""

_CORRUPT = "__strandline_corrupt"
_METADATA: Mapping[str, str] = {
    "key": "cast(key as string) as kafka_key",
    "headers": "headers as kafka_headers",
    "topic": "topic as kafka_topic",
    "partition": "partition as kafka_partition",
    "offset": "offset as kafka_offset",
    "timestamp": "timestamp as kafka_timestamp",
}


def declared_schema(source: KafkaSource) -> StructType:
    """The declared columns; Spark parses them, so a session must be there."""
    from pyspark.sql.types import StructType

    return cast(StructType, StructType.fromDDL(source.schema or ""))


class MessageParser:
    """Messages of one source. The raw stream goes in, rows of the declared schema come out."""

    def __init__(self, name: str, source: KafkaSource, registry: RegistryConnection | None) -> None:
        self._name = name
        self._source = source
        self._registry = registry
        self._ids: SchemaIds | None = None

    def facts(self) -> Facts:
        """Writer schema ids of the batch just read, lowest and highest per topic."""
        seen = self._ids.take() if self._ids is not None else {}
        return {SCHEMAS_FACT: {topic: list(ids) for topic, ids in seen.items()}} if seen else {}

    def parse(self, raw: DataFrame) -> SourceRows:
        from pyspark.sql import functions as F

        metadata = [_METADATA[name] for name in self._source.metadata]
        if self._source.format in ("string", "bytes"):
            kind = "string" if self._source.format == "string" else "binary"
            return SourceRows(raw.selectExpr(f"cast(value as {kind}) as value", *metadata))
        parsed = self._json(raw) if self._source.format == "json" else self._avro(raw)
        fields = [F.col(PARSED).getField(name).alias(name) for name in declared_schema(self._source).names]
        if self._source.malformed == "stop":
            place = F.concat(F.lit(f"{MALFORMED} "), "topic", F.lit("["), "partition", F.lit("] offset "), "offset", F.lit(": "), PROBLEM)
            # A filter and not a column: a transform that drops columns must not drop the check with them.
            sound = parsed.where(F.when(F.col(PROBLEM).isNull(), True).otherwise(F.raise_error(place).cast("boolean")))
            return SourceRows(sound.select(*fields, *map(F.expr, metadata)))
        good = parsed.where(F.col(PROBLEM).isNull()).select(*fields, *map(F.expr, metadata))
        return SourceRows(good, self._malformed(parsed))

    def _json(self, raw: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructType

        declared = declared_schema(self._source)
        expected = StructType([*declared.fields]).add(_CORRUPT, StringType())
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        # Spark moves the check below the projection and would then parse every message twice, once for each. It moves nothing
        # past an expression that might change from row to row; this one is always true, and costs a comparison.
        text = F.when(F.rand(0) < 1, F.col("value").cast("string"))
        parsed = raw.withColumn(PARSED, F.from_json(text, expected, options))
        problem = F.when(F.col("value").isNull(), "the message has no value (a tombstone)").when(
            F.col(PARSED).getField(_CORRUPT).isNotNull(), "the value is not JSON of the declared schema"
        )
        for field in declared.fields:
            if not field.nullable:
                problem = problem.when(F.col(PARSED).getField(field.name).isNull(), f"field '{field.name}' is missing")
        return parsed.withColumn(PROBLEM, problem)

    def _avro(self, raw: DataFrame) -> DataFrame:
        assert self._registry is not None
        self._ids = self._ids or SchemaIds(raw.sparkSession)
        return decode(raw, "value", self._source.schema or "", self._registry, self._ids, topic="topic")

    def _malformed(self, parsed: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        record: Column = F.col("value").cast("string") if self._source.format == "json" else F.hex("value")
        return parsed.where(F.col(PROBLEM).isNotNull()).select(
            F.lit(self._name).alias("source"),
            F.col("topic"),
            F.col("partition"),
            F.col("offset"),
            F.col("key").cast("string").alias("key"),
            record.alias("record"),
            F.col(PROBLEM).alias("reason"),
        )
