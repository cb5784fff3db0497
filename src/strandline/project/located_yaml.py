"""YAML with line numbers, so that an error can say where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from strandline.model.errors import ConfigError

Loc = tuple[str | int, ...]


class LocatedYaml:
    """A parsed document and the line of every path in it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            text = file.read_text(encoding="utf-8")
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            self.data: Any = yaml.safe_load(text)
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}", next_command="strandline init") from error
        except UnicodeDecodeError as error:
            at = error.object.count(b"\n", 0, error.start) + 1
            raise ConfigError(f"{file} line {at} is not UTF-8 text", next_command="strandline doctor") from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f" line {mark.line + 1}" if mark else ""
            problem = getattr(error, "problem", None) or str(error)
            raise ConfigError(f"{file}{line} is not valid YAML: {problem}", next_command="strandline doctor") from error
        self._lines: dict[Loc, int] = {}
        if node is not None:
            self._walk(node, ())

    def _walk(self, node: yaml.Node, at: Loc) -> None:
        self._lines.setdefault(at, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._lines[(*at, key.value)] = key.start_mark.line + 1
                self._walk(value, (*at, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._walk(value, (*at, index))

    def line(self, loc: Loc) -> int:
        """Line of a path, or of its nearest parent that is written down."""
        while loc and loc not in self._lines:
            loc = loc[:-1]
        return self._lines.get(loc, 1)
