"""Sources: each kind is one `SourceReader`; a new kind is a new module here and one line in `reader_for`."""

from __future__ import annotations

from strandline.model.definition import FilesSource, Source
from strandline.project.config import Project
from strandline.runtime.sources.files import FilesReader
from strandline.runtime.sources.generator import GeneratorReader
from strandline.runtime.sources.reader import SourceReader


def reader_for(project: Project, name: str, source: Source) -> SourceReader:
    if isinstance(source, FilesSource):
        return FilesReader(name, source, project.source_path(source.path))
    return GeneratorReader(name, source)


__all__ = ["SourceReader", "reader_for"]
