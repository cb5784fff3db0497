"""Bytes at a location, local or remote, behind one small interface."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from strandline.model.times import from_millis

if TYPE_CHECKING:
    from pyarrow import fs


@dataclass(frozen=True)
class StoredFile:
    """A file as a listing tells it."""

    path: str
    """Relative to the storage."""
    size: int
    modified: datetime | None
    """When it was put there, if the store knows."""


class Storage(Protocol):
    """A folder of files addressed by relative paths."""

    location: str

    def read(self, path: str) -> bytes | None:
        """Content, or None when there is no such file."""
        ...

    def read_start(self, path: str, length: int) -> bytes | None:
        """The first bytes alone: a header is worth a small request, not the whole file."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names in a folder, hidden ones left out; empty when there is no such folder."""
        ...

    def walk(self, folder: str) -> list[StoredFile]:
        """Every file below a folder, hidden ones too, sorted; what vanishes meanwhile is left out."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Replace a file at once: a reader sees the old content or the new, never a part."""
        ...

    def remove(self, path: str) -> None:
        """Remove one file, if it is there."""
        ...

    def delete_all(self) -> None:
        """Remove the folder with everything in it."""
        ...


class LocalStorage:
    def __init__(self, location: str) -> None:
        self.location = location
        self._root = Path(location)

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_start(self, path: str, length: int) -> bytes | None:
        try:
            with (self._root / path).open("rb") as stream:
                return stream.read(length)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._root / folder) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self, folder: str) -> list[StoredFile]:
        found = []
        for parent, _, names in os.walk(self._root / folder):
            for name in names:
                with suppress(FileNotFoundError):
                    facts = os.stat(os.path.join(parent, name))
                    path = os.path.relpath(os.path.join(parent, name), self._root).replace(os.sep, "/")
                    found.append(StoredFile(path, facts.st_size, from_millis(facts.st_mtime_ns // 1_000_000)))
        return sorted(found, key=lambda file: file.path)

    def write(self, path: str, content: bytes) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        temporary.write_bytes(content)
        os.replace(temporary, target)

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def delete_all(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)


class ArrowStorage:
    """Object stores and HDFS through pyarrow; a put of one object is atomic there."""

    def __init__(self, location: str) -> None:
        from pyarrow import fs

        self.location = location
        self._fs: fs.FileSystem
        self._fs, self._root = fs.FileSystem.from_uri(location)

    def read(self, path: str) -> bytes | None:
        try:
            with self._fs.open_input_file(f"{self._root}/{path}") as stream:
                return bytes(stream.read())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_start(self, path: str, length: int) -> bytes | None:
        try:
            with self._fs.open_input_file(f"{self._root}/{path}") as stream:
                return bytes(stream.read(length))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        from pyarrow import fs

        try:
            found = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True))
        except NotADirectoryError:
            return []
        return sorted(info.base_name for info in found if not info.base_name.startswith("."))

    def walk(self, folder: str) -> list[StoredFile]:
        from pyarrow import fs

        below = f"{self._root}/{folder}".rstrip("/")
        try:
            listed = self._fs.get_file_info(fs.FileSelector(below, allow_not_found=True, recursive=True))
        except NotADirectoryError:
            return []
        root = f"{self._root.rstrip('/')}/"
        found = [
            StoredFile(info.path.removeprefix(root), info.size, None if info.mtime_ns is None else from_millis(info.mtime_ns // 1_000_000))
            for info in listed
            if info.type == fs.FileType.File
        ]
        return sorted(found, key=lambda file: file.path)

    def write(self, path: str, content: bytes) -> None:
        self._fs.create_dir(f"{self._root}/{path}".rsplit("/", 1)[0], recursive=True)
        with self._fs.open_output_stream(f"{self._root}/{path}") as stream:
            stream.write(content)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.delete_file(f"{self._root}/{path}")

    def delete_all(self) -> None:
        try:
            self._fs.delete_dir(self._root)
        except FileNotFoundError:
            pass


def storage_at(location: str) -> Storage:
    return ArrowStorage(location) if "://" in location else LocalStorage(location)
