"""What the code of a pipeline declares, found out by building its query without starting it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.model.definition import Pipeline
from strandline.model.offsets import ORIGIN
from strandline.project.config import Project
from strandline.runtime.dataflow import SourceLine, build
from strandline.runtime.keyed.building import KeyedBuild, OperatorRecord
from strandline.runtime.lateness import LateWatermark
from strandline.runtime.sources import KafkaReader, readers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Rehearsal:
    operators: Mapping[str, OperatorRecord]
    """Keyed operators by name, as they would be made now."""
    partitions: int
    """That state would be kept in."""
    source_lines: tuple[SourceLine, ...]
    """The sources in the order in which the query names them."""


def rehearse(spark: SparkSession, project: Project, pipeline: Pipeline) -> Rehearsal:
    """Call the transform, and write nothing that lasts."""
    readers = readers_of(project, pipeline)
    lateness = LateWatermark(f"{project.checkpoints}/{pipeline.name}.rehearsal", os.getpid())
    keyed = KeyedBuild()
    try:
        for reader in readers.values():
            reader.check()
        lateness.set(0)
        dataflow = build(spark, pipeline, readers, ORIGIN, lateness, keyed)
    finally:
        lateness.remove()
        for reader in readers.values():
            if isinstance(reader, KafkaReader):
                reader.close()
    return Rehearsal(keyed.made, int(spark.conf.get("spark.sql.shuffle.partitions") or 1), dataflow.source_lines)
