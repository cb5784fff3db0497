"""Files of a checkpoint that are laid out elsewhere: what names the old place is rewritten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from strandline.checkpoints.checkpoint import IDENTITY, Checkpoint
from strandline.checkpoints.needed import FileKind, NeededFile
from strandline.checkpoints.state_files import relocate_operator
from strandline.checkpoints.storage import Storage

Content: TypeAlias = Callable[[], bytes]
Moved: TypeAlias = Callable[[str, bytes], bytes]
"""A file, by its path, as it must be in the new place."""


@dataclass(frozen=True)
class CheckpointFiles:
    contents: Mapping[str, Content] = field(default_factory=dict)
    """By path in the checkpoint."""
    operators: frozenset[str] = frozenset()
    """Those that hold absolute paths of the checkpoint."""
    logs: frozenset[str] = frozenset()
    """Those that hold absolute paths of input files."""

    @classmethod
    def of(cls, contents: Iterable[tuple[str, str, Content]]) -> CheckpointFiles:
        """From (path, kind, content)."""
        found = list(contents)
        return cls(
            {path: content for path, _, content in found},
            frozenset(path for path, kind, _ in found if kind == FileKind.OPERATOR.value),
            frozenset(path for path, kind, _ in found if kind == FileKind.SOURCE_LOG.value),
        )

    def lay_out(self, storage: Storage, moved: Moved = lambda _path, content: content) -> None:
        for path, content in self.contents.items():
            raw = moved(path, content())
            storage.write(path, relocate_operator(raw, storage.location) if path in self.operators else raw)

    def anonymous(self) -> CheckpointFiles:
        """Without the file that says which strand it is: another one begins."""
        return replace(self, contents={path: content for path, content in self.contents.items() if path != IDENTITY})

    def read_now(self) -> CheckpointFiles:
        """With every file in memory: a running pipeline may let go of one before it is laid out."""
        held = {path: content() for path, content in self.contents.items()}
        return replace(self, contents={path: lambda raw=raw: raw for path, raw in held.items()})  # type: ignore[misc]


def files_of(checkpoint: Checkpoint, needed: Iterable[NeededFile], vanished: Callable[[str], Exception]) -> CheckpointFiles:
    """Read when they are laid out; `vanished` says what it means that one is gone by then."""

    def read(path: str) -> bytes:
        raw = checkpoint.storage.read(path)
        if raw is None:
            raise vanished(path)
        return raw

    return CheckpointFiles.of((file.path, file.kind.value, lambda path=file.path: read(path)) for file in needed)  # type: ignore[misc]
