"""A directory of files as a source: Spark's own file stream, with its counters made into evidence."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from strandline.checkpoints.file_log import FileLog
from strandline.checkpoints.storage import Storage
from strandline.model.definition import FilesSource
from strandline.model.errors import SourceProblem
from strandline.model.positions import FilesPosition, Position
from strandline.model.times import utc_now
from strandline.model.until import Until
from strandline.runtime.sources.reader import SOURCE_OPTION, Facts, Lag, LocalReader, PositionReader, SourceRows, moment_of
from strandline.tables.catalog import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CORRUPT = "_corrupt_record"
_FILE = "__strandline_file"


class FilesReader(LocalReader):
    def __init__(self, name: str, source: FilesSource, location: str, until: Until | None = None) -> None:
        self.name = name
        self._until = moment_of(name, until)
        self._quarantines = source.malformed == "quarantine"
        self._source = source
        self._location = location
        self._logs: dict[int, FileLog] = {}
        """Which files each batch read, once a checkpoint is known, by the source's number; one that is read twice has two."""

    def check(self) -> None:
        if "://" in self._location:
            return
        folder = Path(self._location)
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "does not exist"
            raise SourceProblem(f"source '{self.name}': {folder} {what}", next_command=f"mkdir -p {folder}")
        if not os.access(folder, os.R_OK | os.X_OK):
            raise SourceProblem(f"source '{self.name}': {folder} cannot be read by this user", next_command=f"chmod u+rx {folder}")

    def read(self, spark: SparkSession, origin: Position | None) -> SourceRows:
        schema = self._source.schema
        reader = spark.readStream.format(self._source.format).option(SOURCE_OPTION, self.name)
        if self._source.format in ("json", "csv"):
            if self._quarantines:
                schema = f"{schema}, {_CORRUPT} string"
                reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", _CORRUPT)
            else:
                reader = reader.option("mode", "FAILFAST")
        if self._source.max_files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", self._source.max_files_per_batch)
        rows = reader.schema(schema).options(**self._source.options).load(self._location)
        if self._until is not None:
            rows = rows.where(f"_metadata.file_modification_time < timestamp'{self._until.isoformat()}'")
        # Asked for here and not where it is used: Spark would take the two branches for two sources otherwise.
        if not self._quarantines:
            return SourceRows(rows)
        rows = rows.selectExpr("*", f"_metadata.file_path as {_FILE}")
        return SourceRows(rows.where(f"{_CORRUPT} is null").drop(_CORRUPT, _FILE), self._malformed(rows))

    def _malformed(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        parsed = F.struct(*[F.col(f"`{name}`") for name in rows.columns if name not in (_CORRUPT, _FILE)])
        return rows.where(f"{_CORRUPT} is not null").select(
            F.lit(self.name).alias("source"),
            F.col(_FILE).alias("file"),
            F.col(_CORRUPT).alias("record"),
            F.to_json(parsed).alias("understood"),  # what could be parsed; Spark also refuses to read the corrupt column alone
        )

    def positions(self, checkpoint: Storage, index: int) -> PositionReader:
        log = FileLog(checkpoint, index)
        self._logs[index] = log
        return lambda line: log.position(int(json.loads(line)["logOffset"]))

    def prove(self, start: Position | None, end: Position | None) -> Facts:
        """Spark passes over a file that went away after the batch was planned, without a word."""
        if not isinstance(end, FilesPosition) or not self._logs:
            return {}
        log = self._logs[min(self._logs)]  # the one that positions under the source's own name are counted in
        if gone := _missing(log.files(start.log if isinstance(start, FilesPosition) else -1, end.log)):
            more = f" (and {len(gone) - 1} more)" if len(gone) > 1 else ""
            raise SourceProblem(
                f"source file {gone[0]}{more} cannot be read: it is gone; nothing of this batch entered the table",
                next_command="put the file back, then the same command again",
            )
        return {}

    def exhausted(self, position: Position | None) -> bool:
        return True  # Spark's own available-now trigger reads every file that is there

    def reached(self, position: Position | None) -> bool:
        """Every file that lies there has been read. Folders that cannot be listed here never tell; `--available-now` ends such a run."""
        if self._until is None or utc_now() < self._until or "://" in self._location or not self._logs:
            return False
        last = position.log if isinstance(position, FilesPosition) else -1
        read = {local_path(location).name for location in self._logs[min(self._logs)].files(-1, last)}
        return read.issuperset(self._names())

    def lag(self, position: Position | None) -> Lag | None:
        if "://" in self._location:
            return None
        there = len(self._names())
        read = position.files if isinstance(position, FilesPosition) else 0
        return Lag(max(0, there - read), "files")

    def _names(self) -> list[str]:
        """Files that Spark would read."""
        return [entry.name for entry in os.scandir(self._location) if entry.is_file() and entry.name[0] not in "._"]


def _missing(locations: Sequence[str]) -> list[str]:
    local = [location for location in locations if urlsplit(location).scheme in ("", "file")]
    gone = [location for location in local if not local_path(location).exists()]
    if remote := [location for location in locations if location not in set(local)]:
        from pyarrow import fs

        store, _ = fs.FileSystem.from_uri(remote[0])
        found = store.get_file_info([fs.FileSystem.from_uri(location)[1] for location in remote])
        gone += [location for location, info in zip(remote, found, strict=True) if info.type == fs.FileType.NotFound]
    return gone
