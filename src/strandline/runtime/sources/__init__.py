"""Sources: each kind is one `SourceReader`; a new kind is a new module here and one line in `reader_for`."""

from __future__ import annotations

from strandline.messaging.connection import connect_to
from strandline.messaging.registry import registry_of
from strandline.model.definition import FilesSource, GeneratorSource, Pipeline, SnapshotsSource
from strandline.project.config import Project
from strandline.runtime.sources.files import FilesReader
from strandline.runtime.sources.generator import GeneratorReader
from strandline.runtime.sources.kafka import KafkaReader
from strandline.runtime.sources.reader import SourceReader


def readers_of(project: Project, pipeline: Pipeline) -> dict[str, SourceReader]:
    return {name: _reader_for(project, pipeline, name) for name in pipeline.sources}


def _reader_for(project: Project, pipeline: Pipeline, name: str) -> SourceReader:
    source = pipeline.sources[name]
    if isinstance(source, FilesSource):
        return FilesReader(name, source, project.source_path(source.path), pipeline.until)
    if isinstance(source, GeneratorSource):
        return GeneratorReader(name, source, pipeline.until)
    if isinstance(source, SnapshotsSource):
        from strandline.runtime.sources.snapshots import SnapshotsReader  # needs pyspark to be imported

        return SnapshotsReader(name, source, project)
    registry = registry_of(project, source) if source.format == "avro" else None
    group = source.group or f"strandline.{pipeline.name}.{name}"
    return KafkaReader(name, source, connect_to(project, source.access), registry, group, pipeline.name, pipeline.until)


__all__ = ["KafkaReader", "SourceReader", "readers_of"]
