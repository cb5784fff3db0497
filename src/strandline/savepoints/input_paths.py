"""Input folders that have another path where a savepoint is restored.

Spark remembers by its path which input file it has read. If the folder is elsewhere now and nobody says so, every file in it counts as new.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from strandline.checkpoints.file_log import logged_paths, relocate_log
from strandline.model.definition import FilesSource, Pipeline
from strandline.model.errors import ChainBroken, SavepointDamaged, UsageError
from strandline.project.config import Project

OPTION = "--map-path"

_LEFT_BY_JAVA = "/:@&=+$,;!~'()*-._"
"""What Java leaves as it is in the path of a URI, beside letters and digits."""


@dataclass(frozen=True)
class PathRule:
    """One folder, as URIs without a slash at the end."""

    old: str
    new: str
    said: str
    """As it was typed."""

    def moved(self, uri: str) -> str | None:
        return self.new + uri.removeprefix(self.old) if _lies_in(uri, self.old) else None


@dataclass(frozen=True)
class PathMap:
    rules: tuple[PathRule, ...] = ()

    @classmethod
    def parse(cls, project: Project, texts: Sequence[str]) -> PathMap:
        """``OLD=NEW``, repeated. A relative NEW is relative to the project, as the path of a source is."""
        rules = []
        for text in texts:
            old, equals, new = text.partition("=")
            if not (old and equals and new) or not ("://" in old or old.startswith("/")):
                raise UsageError(
                    f"{OPTION} {text} is not understood; write OLD=NEW, where OLD is the whole path of the folder as it was",
                    next_command=f"the same command with {OPTION} /old/folder=/new/folder",
                )
            rules.append(PathRule(folder_uri(old), folder_uri(project.source_path(new)), text))
        return cls(tuple(rules))

    def moved(self, uri: str) -> str:
        """The first rule that fits counts."""
        return next((found for rule in self.rules if (found := rule.moved(uri)) is not None), uri)

    def human(self) -> list[str]:
        return [f"input files: {_shown(rule.old)} is {_shown(rule.new)} here" for rule in self.rules]

    def apply(self, log: bytes) -> bytes:
        return relocate_log(log, self.moved) if self.rules else log


AS_THEY_ARE = PathMap()


def folder_uri(location: str) -> str:
    """A folder as Spark's file log writes it: ``file:///a%20b`` for ``/a b``, object stores as they are."""
    location = re.sub(r"^file:/+", "/", location)
    if "://" in location:
        scheme, _, rest = location.partition("://")
        return f"{scheme}://{_encoded(rest)}".rstrip("/")
    return f"file://{_encoded(os.path.normpath(location))}".rstrip("/")


def _encoded(path: str) -> str:
    return re.sub(r"[\x00-\x7f]+", lambda plain: quote(plain.group(), safe=_LEFT_BY_JAVA), path)


def _lies_in(uri: str, folder: str) -> bool:
    return uri == folder or uri.startswith(f"{folder}/")


def check_inputs(project: Project, pipeline: Pipeline, logs: Sequence[bytes], inputs: PathMap) -> None:
    """Every file that was read must lie in a folder that the pipeline still reads, and every rule must be about some of them."""
    try:
        read = sorted({path for log in logs for path in logged_paths(log)})
    except (ValueError, KeyError, TypeError) as error:
        raise SavepointDamaged(
            "the log of a file source is not in Spark's format", next_command=f"strandline savepoint list {pipeline.name}, and use another"
        ) from error
    for rule in inputs.rules:
        if not any(rule.moved(path) is not None for path in read):
            known = f"files were read from {_common(read)}" if read else "no file was read"
            raise UsageError(
                f"{OPTION} {rule.said} fits no file that was read: {known}",
                next_command=f"the same command with {OPTION} {_common(read)}=NEW" if read else f"the same command without {OPTION}",
            )
    folders = {
        name: project.source_path(source.path) for name, source in sorted(pipeline.sources.items()) if isinstance(source, FilesSource)
    }
    lost = [path for path in read if not any(_lies_in(inputs.moved(path), _fixed_part(folder)) for folder in folders.values())]
    if lost and folders:
        named = ", ".join(f"source '{name}' reads {folder}" for name, folder in folders.items())
        raise ChainBroken(
            f"{named}, but files were read from {_common(lost)}: whatever is in the folder now would be read again, and its rows doubled",
            next_command=f"if it is the same folder at another path: add {OPTION} {_common(lost)}={next(iter(folders.values()))}",
        )


def _fixed_part(location: str) -> str:
    """Of a path with wildcards, the folders before the first."""
    parts = location.split("/")
    wild = next((number for number, part in enumerate(parts) if re.search(r"[*?\[{]", part)), len(parts))
    return folder_uri("/".join(parts[:wild]))


def _common(uris: Sequence[str]) -> str:
    """The folder that all files lie in, as a person writes it."""
    return _shown(re.sub(r":/+", "://", os.path.commonpath([os.path.dirname(uri) for uri in uris]), count=1)) if uris else ""


def _shown(uri: str) -> str:
    return unquote(re.sub(r"^file:/+", "/", uri))
