"""A fork: a second strand of a pipeline, under a name of its own, that writes beside the pipeline's main and never into it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from strandline.model.definition import Pipeline, Sink, Source, TableSink, is_pipeline_name
from strandline.model.errors import UsageError
from strandline.model.kafka import KafkaSource, TopicSink
from strandline.model.until import Until

FORK_VERSION = 1

_RESERVED = "strandline-"
"""Begins the names of branches and tags that we make and remove by ourselves."""


@dataclass(frozen=True)
class Into:
    """Where a fork writes: a branch of the parent's tables, or a table of its own."""

    branch: str = ""
    table: str = ""

    def __str__(self) -> str:
        return f"branch:{self.branch}" if self.branch else f"table:{self.table}"

    @classmethod
    def parse(cls, text: str) -> Into:
        kind, _, name = text.partition(":")
        if kind == "branch":
            return cls(branch=checked_branch(name))
        if kind == "table" and re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name):
            return cls(table=name)
        raise UsageError(
            f"'{text}' says not where to write; it is branch:NAME or table:NAMESPACE.NAME", next_command="strandline fork --help"
        )


def checked_branch(name: str) -> str:
    """Branches become parts of table names in SQL; main is what forks and replays stay away from."""
    if name == "main":
        raise UsageError("main cannot be that branch: the pipeline alone writes to it", next_command="the same command with branch:NAME")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,60}", name) or name.startswith(_RESERVED):
        raise UsageError(
            f"'{name}' cannot be the name of a branch: letters, digits, '_' and '-', beginning with a letter, not with '{_RESERVED}'",
            next_command="strandline fork --help",
        )
    return name


@dataclass(frozen=True)
class Fork:
    name: str
    parent: str
    into: Into
    begins: str
    """Where it began: ``start``, a savepoint's id, or ``strand/batch``."""
    code: str | None = None
    """File with the pipeline's other code, relative to the project."""
    until: Until | None = None
    made_at: str = ""
    made_by: str = ""
    profile: str = ""

    def __post_init__(self) -> None:
        if not is_pipeline_name(self.name):
            raise UsageError(
                f"'{self.name}' cannot be the name of a fork: letters, digits, '_' and '-', beginning with a letter",
                next_command="strandline fork --help",
            )

    def of(self, parent: Pipeline) -> Pipeline:
        """The parent under the fork's name. Its topics get nothing: rows in a topic could not be told apart, nor taken back."""
        tables = [key for key, sink in parent.sinks.items() if isinstance(sink, TableSink)]
        if not tables:
            raise UsageError(
                f"pipeline '{parent.name}' writes only topics, and a fork writes to a branch or a table of its own",
                next_command=f"strandline history {parent.name}",
            )
        if self.into.table and len(tables) > 1:
            raise UsageError(
                f"pipeline '{parent.name}' writes {len(tables)} tables, so one table cannot take its fork",
                next_command=f"strandline fork {parent.name} --as {self.name} --into branch:{self.name} …",
            )
        if self.into.table in parent.tables():
            raise UsageError(
                f"table '{self.into.table}' is the one that '{parent.name}' itself writes",
                next_command=f"strandline fork {parent.name} --as {self.name} --into branch:{self.name} …",
            )
        sinks: dict[str, Sink] = {key: self._sink(sink) for key, sink in parent.sinks.items()}
        return replace(
            parent,
            name=self.name,
            sources={name: _own_group(source) for name, source in parent.sources.items()},
            sinks=sinks,
            savepoint=None,
            parent=parent.name,
            branch=self.into.branch or parent.branch,
            until=self.until,
            withheld=frozenset(key for key, sink in parent.sinks.items() if isinstance(sink, TopicSink)),
        )

    def _sink(self, sink: Sink) -> Sink:
        return replace(sink, name=self.into.table) if self.into.table and isinstance(sink, TableSink) else sink

    def to_json(self) -> dict[str, object]:
        told = {"version": FORK_VERSION, "name": self.name, "parent": self.parent, "into": str(self.into), "begins": self.begins}
        extra = {"code": self.code, "until": str(self.until) if self.until else None, "profile": self.profile}
        return {**told, **{key: value for key, value in extra.items() if value}, "made_at": self.made_at, "made_by": self.made_by}

    @classmethod
    def from_json(cls, told: Mapping[str, str]) -> Fork:
        if int(told["version"]) > FORK_VERSION:
            raise ValueError(f"it has version {told['version']}, this strandline reads up to {FORK_VERSION}")
        until = Until.parse(told["until"]) if told.get("until") else None
        return cls(
            told["name"],
            told["parent"],
            Into.parse(told["into"]),
            told["begins"],
            told.get("code"),
            until,
            told["made_at"],
            told["made_by"],
            told.get("profile", ""),
        )


def _own_group(source: Source) -> Source:
    """A declared group belongs to the parent; the fork gets one that is named after it."""
    return replace(source, group=None) if isinstance(source, KafkaSource) else source
