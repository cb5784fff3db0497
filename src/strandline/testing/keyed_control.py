"""Control data as the harness keeps it: a table per control stream, by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from strandline.model.errors import SourceProblem
from strandline.testing.keyed_values import named_row

DELETED = "_deleted"
"""Column of a control row that says: forget this key."""


@dataclass
class ControlTable:
    """The rows of one control stream that count now: per key the one that came last."""

    name: str
    key: str
    columns: tuple[str, ...] = ()
    rows: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def copy(self) -> ControlTable:
        return ControlTable(self.name, self.key, self.columns, dict(self.rows))

    def upsert(self, row: dict[str, Any]) -> None:
        key = row.get(self.key)
        if key is None:
            raise SourceProblem(f"the key column '{self.key}' of the control data '{self.name}' is null in the record {row!r}")
        if row.get(DELETED):
            self.rows.pop(key, None)
            return
        self.columns = tuple(dict.fromkeys([*self.columns, *(column for column in row if column != DELETED)]))
        self.rows[key] = row

    def seen(self) -> Mapping[Any, Any]:
        return MappingProxyType({key: named_row("Row", self.columns, row) for key, row in self.rows.items()})
