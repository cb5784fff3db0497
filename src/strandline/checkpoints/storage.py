"""Bytes at a location, local or remote, behind one small interface."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyarrow import fs


class Storage(Protocol):
    """A folder of files addressed by relative paths."""

    location: str

    def read(self, path: str) -> bytes | None:
        """Content, or None when there is no such file."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names in a folder, hidden ones left out; empty when there is no such folder."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Replace a file at once: a reader sees the old content or the new, never a part."""
        ...

    def remove(self, path: str) -> None:
        """Remove one file, if it is there."""
        ...

    def set_aside(self, location: str) -> None:
        """Move the whole folder to another location of the same store."""
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

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._root / folder) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def write(self, path: str, content: bytes) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        temporary.write_bytes(content)
        os.replace(temporary, target)

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def set_aside(self, location: str) -> None:
        os.rename(self._root, location)

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

    def names(self, folder: str) -> list[str]:
        from pyarrow import fs

        try:
            found = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True))
        except NotADirectoryError:
            return []
        return sorted(info.base_name for info in found if not info.base_name.startswith("."))

    def write(self, path: str, content: bytes) -> None:
        self._fs.create_dir(f"{self._root}/{path}".rsplit("/", 1)[0], recursive=True)
        with self._fs.open_output_stream(f"{self._root}/{path}") as stream:
            stream.write(content)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.delete_file(f"{self._root}/{path}")

    def set_aside(self, location: str) -> None:
        from pyarrow import fs

        self._fs.move(self._root, fs.FileSystem.from_uri(location)[1])

    def delete_all(self) -> None:
        try:
            self._fs.delete_dir(self._root)
        except FileNotFoundError:
            pass


def storage_at(location: str) -> Storage:
    return ArrowStorage(location) if "://" in location else LocalStorage(location)
