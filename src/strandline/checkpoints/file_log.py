"""The file source's log: which files each log entry brought in.

Spark keeps one small file per entry under ``sources/<i>/`` and every tenth time a ``.compact`` file with all
entries so far.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from strandline.checkpoints.storage import Storage
from strandline.model.errors import CheckpointDamaged
from strandline.model.positions import FilesPosition, chain_hash

_REMEMBERED = 1000
"""Positions kept in memory: more than any checkpoint retains batches."""


class FileLog:
    """Turns Spark's bare counters into positions that name the very files read. Remembers where it was."""

    def __init__(self, storage: Storage, source_index: int) -> None:
        self._storage = storage
        self._folder = f"sources/{source_index}"
        self._known: dict[int, FilesPosition] = {-1: FilesPosition(-1, 0, "")}
        self._last = -1
        self._newest: list[str] = []
        """Files of the last entry that was looked at: a batch asks for them right after its position."""

    def position(self, log: int) -> FilesPosition:
        """Position after log entry `log`, computed once per entry and then remembered."""
        if log not in self._known:
            if log <= self._last:  # forgotten meanwhile: start over
                self._known, self._last = {-1: FilesPosition(-1, 0, "")}, -1
            self._extend(log)
        return self._known[log]

    def files(self, after: int, up_to: int) -> list[str]:
        """Locations of the files that the entries after one, up to another, brought in."""
        if up_to <= after:
            return []
        entries = {up_to: self._newest} if (after + 1, up_to) == (self._last, self._last) else self._entries(after + 1, up_to)
        return [path.rpartition("|")[0] for _, files in sorted(entries.items()) for path in files]

    def _extend(self, log: int) -> None:
        entries = self._entries(self._last + 1, log)
        for batch in range(self._last + 1, log + 1):
            before = self._known[batch - 1]
            files = entries.get(batch, [])
            self._known[batch] = FilesPosition(batch, before.files + len(files), chain_hash(before.chain, files))
        self._last, self._newest = log, entries.get(log, [])
        for old in [batch for batch in self._known if -1 < batch < log - _REMEMBERED]:
            del self._known[old]

    def _entries(self, first: int, last: int) -> dict[int, list[str]]:
        """Files by log entry for entries first…last; from single files where they are there, else from a compaction."""
        found: dict[int, list[str]] = {}
        missing = []
        for batch in range(first, last + 1):
            raw = self._storage.read(f"{self._folder}/{batch}")
            if raw is None:
                missing.append(batch)
            else:
                found[batch] = [path for entry, path in self._parse(raw, str(batch)) if entry == batch]
        if missing:
            wanted = set(missing)
            for entry, path in self._compacted(missing[-1]):
                if entry in wanted:
                    found.setdefault(entry, []).append(path)
        return found

    def _compacted(self, at_least: int) -> list[tuple[int, str]]:
        ends = sorted(int(name.removesuffix(".compact")) for name in self._storage.names(self._folder) if name.endswith(".compact"))
        for end in (e for e in ends if e >= at_least):
            raw = self._storage.read(f"{self._folder}/{end}.compact")
            if raw is not None:
                return self._parse(raw, f"{end}.compact")
        raise CheckpointDamaged(
            f"checkpoint folder {self._storage.location}/{self._folder} has lost log entry {at_least}: the files already read are unknown",
            next_command="restore the checkpoint from a copy, or: strandline run PIPELINE --new-strand",
        )

    def _parse(self, raw: bytes, name: str) -> list[tuple[int, str]]:
        try:
            return [(int(record["batchId"]), f"{record['path']}|{record['timestamp']}") for record in _records(raw)]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(
                f"checkpoint file {self._storage.location}/{self._folder}/{name} is damaged: it is not in Spark's format",
                next_command="restore the file from a copy, or: strandline run PIPELINE --new-strand",
            ) from error


def logged_paths(raw: bytes) -> list[str]:
    """The files that a log, single or compacted, names: as URIs."""
    return [str(record["path"]) for record in _records(raw)]


def relocate_log(raw: bytes, moved: Callable[[str], str]) -> bytes:
    """The same log for input files that lie elsewhere now. Spark knows a file by its path alone."""
    lines = [json.dumps({**r, "path": moved(r["path"])}, separators=(",", ":"), ensure_ascii=False) for r in _records(raw)]
    return "\n".join(["v1", *lines]).encode()


def _records(raw: bytes) -> list[dict[str, Any]]:
    version, *lines = raw.decode("utf-8").split("\n")
    if version != "v1":
        raise ValueError(f"format '{version[:20]}' is not v1")
    return [json.loads(line) for line in lines if line]
