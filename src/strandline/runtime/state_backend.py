"""Settings of Spark's state store that a profile may change, and what is wrong with some of the changes."""

from __future__ import annotations

from strandline.project.config import SecretRef, SparkConfig

_PREFIX = "spark.sql.streaming.stateStore."
_PROVIDER = f"{_PREFIX}providerClass"
_CHANGELOG = f"{_PREFIX}rocksdb.changelogCheckpointing.enabled"
_FORMAT = f"{_PREFIX}checkpointFormatVersion"
_BOUNDED = f"{_PREFIX}rocksdb.boundedMemoryUsage"
_PARTITIONS = "spark.sql.shuffle.partitions"

MANY_PARTITIONS = 200
"""Spark's own default. Every partition of every stateful operator has a RocksDB with write buffers of its own."""


def state_backend_warnings(spark: SparkConfig) -> list[str]:
    """One sentence for each setting of `spark.conf` that state would suffer from."""
    on_heap = "HDFSBacked" in _text(spark, _PROVIDER)
    found = []
    if on_heap:
        found.append(
            f"{_PROVIDER} is HDFSBackedStateStoreProvider, which has no column families: pipelines with sl.keyed cannot begin, and native "
            f"operators only with {_FORMAT}=1; leave the setting out to use RocksDB"
        )
    elif _text(spark, _CHANGELOG).lower() == "false":
        found.append(f"{_CHANGELOG} is false: every batch flushes RocksDB and uploads new files instead of a log; leave the setting out")
    if _text(spark, _FORMAT) == "1":
        found.append(
            f"{_FORMAT} is 1: the checkpoint no longer names the state files of a batch, so one that another attempt wrote can be taken "
            "for its own; leave the setting out"
        )
    partitions = _text(spark, _PARTITIONS)
    if not on_heap and partitions.isdigit() and int(partitions) > MANY_PARTITIONS and _text(spark, _BOUNDED).lower() != "true":
        found.append(
            f"{_BOUNDED} is not true, and {_PARTITIONS} is {partitions}: each partition's RocksDB takes memory without a common limit; set it "
            f"to true, with {_PREFIX}rocksdb.maxMemoryUsageMB"
        )
    return found


def _text(spark: SparkConfig, key: str) -> str:
    value = spark.conf.get(key, "")
    return "" if isinstance(value, SecretRef) else str(value).strip()
