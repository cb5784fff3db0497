"""A table as its metadata file tells it: snapshots, refs, properties, and what they witness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from strandline.model.fence import NEVER
from strandline.model.stamp import MARK_PREFIX, WRITER_FACT, Stamp, Witness, decode_mark, mark_key

MAIN = "main"

FOR_EVER = 2**63 - 1
"""Milliseconds: a table may let its refs expire by age, ours only go when somebody removes them."""

Link: TypeAlias = tuple[str, int]
"""A strand, and one of its batches."""


@dataclass(frozen=True)
class Snapshot:
    id: int
    parent_id: int | None
    sequence_number: int
    timestamp_ms: int
    operation: str
    summary: dict[str, str]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Snapshot:
        """From Iceberg's JSON form, as metadata files hold it."""
        parent = raw.get("parent-snapshot-id")
        summary = {key: str(value) for key, value in raw.get("summary", {}).items()}
        return cls(
            id=int(raw["snapshot-id"]),
            parent_id=int(parent) if parent is not None else None,
            sequence_number=int(raw.get("sequence-number", 0)),
            timestamp_ms=int(raw["timestamp-ms"]),
            operation=summary.get("operation", ""),
            summary=summary,
        )

    @cached_property
    def stamp(self) -> Stamp | None:
        return Stamp.from_summary(self.summary)

    def count(self, key: str) -> int:
        return int(self.summary.get(key, 0))

    @property
    def rows_added(self) -> int:
        """Rows that it brought; a compaction writes rows anew and brings none."""
        return 0 if self.operation == "replace" else self.count("added-records")


def only_maintained(history: Iterable[Snapshot], since: int | None) -> bool:
    """Newest first: did nothing but rewrites of files happen since a snapshot?"""
    first = next((snapshot for snapshot in history if snapshot.id == since or snapshot.operation != "replace"), None)
    return first is not None and first.id == since


class TableView:
    """Immutable: one metadata file, seen from one branch. Load again to see later commits."""

    def __init__(self, name: str, metadata: dict[str, Any], branch: str = MAIN) -> None:
        self.name = name
        self.branch = branch
        self._metadata = metadata

    def on(self, branch: str) -> TableView:
        return TableView(self.name, self._metadata, branch)

    @property
    def head(self) -> int | None:
        """The newest snapshot of the branch; None while it does not exist, or the table is empty."""
        return self.refs.get(self.branch)

    @property
    def location(self) -> str:
        return str(self._metadata["location"])

    @property
    def uuid(self) -> str:
        return str(self._metadata["table-uuid"])

    @property
    def format_version(self) -> int:
        return int(self._metadata["format-version"])

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._metadata.get("properties", {}))

    @property
    def partition_transforms(self) -> list[str]:
        """Transforms of the current partition spec, such as ``day(placed_at)``."""
        current = self._metadata["default-spec-id"]
        spec = next(spec for spec in self._metadata["partition-specs"] if spec["spec-id"] == current)
        schema = next(s for s in self._metadata["schemas"] if s["schema-id"] == self._metadata["current-schema-id"])
        names = {field["id"]: field["name"] for field in schema["fields"]}
        return [f"{field['transform']}({names[field['source-id']]})" for field in spec["fields"]]

    @property
    def refs(self) -> dict[str, int]:
        return {name: int(ref["snapshot-id"]) for name, ref in self._metadata.get("refs", {}).items()}

    @property
    def branches(self) -> list[str]:
        """Those beside main that people made or forks write to; our own working branches are not among them."""
        found = [name for name, ref in self._metadata.get("refs", {}).items() if ref.get("type") == "branch"]
        return sorted(name for name in found if name != MAIN and not name.startswith("strandline-"))

    @cached_property
    def snapshots(self) -> dict[int, Snapshot]:
        return {s.id: s for s in map(Snapshot.parse, self._metadata.get("snapshots", []))}

    def ancestors(self) -> Iterator[Snapshot]:
        """Newest first, until the first expired parent."""
        return self.lineage(self.head)

    def lineage(self, at: int | None) -> Iterator[Snapshot]:
        """A snapshot and those it stands on."""
        while at is not None and at in self.snapshots:
            snapshot = self.snapshots[at]
            yield snapshot
            at = snapshot.parent_id

    def only_maintained_since(self, snapshot: int | None) -> bool:
        return only_maintained(self.ancestors(), snapshot)

    def schema_id_of(self, snapshot: int) -> int | None:
        """The schema that a snapshot was written with; None when its metadata does not say."""
        found: Mapping[str, Any] = next((raw for raw in self._metadata.get("snapshots", []) if int(raw["snapshot-id"]) == snapshot), {})
        return int(found["schema-id"]) if "schema-id" in found else None

    def column_names(self, snapshot: int | None = None) -> tuple[str, ...]:
        """Top-level columns of a snapshot's schema, or of the table's present one."""
        wanted = self.schema_id_of(snapshot) if snapshot is not None else None
        wanted = self._metadata["current-schema-id"] if wanted is None else wanted
        schema = next(schema for schema in self._metadata["schemas"] if schema["schema-id"] == wanted)
        return tuple(field["name"] for field in schema["fields"])

    def writers_of(self, pipeline: str) -> set[str]:
        """Under which names the pipeline's own rows were written: what was published is its own, whoever wrote it."""
        stamps = (snapshot.stamp for snapshot in self.ancestors())
        return {pipeline, *(s.extra[WRITER_FACT] for s in stamps if s is not None and s.pipeline == pipeline and WRITER_FACT in s.extra)}

    def since_batch(self, pipeline: str, links: Sequence[Link]) -> list[Snapshot]:
        """Snapshots on top of the table as it was after a batch of a strand and before the next one, newest first.

        The strand's parents count as it does, each up to the batch where it was left: a table may not have entered the strand yet.

        Compactions and foreign commits in between belong to the table after the batch, until the pipeline's own next commit.
        """
        above: list[Snapshot] = []
        found: list[Snapshot] = []
        ours = self.writers_of(pipeline)
        for snapshot in self.ancestors():
            stamp = snapshot.stamp
            if stamp is not None and stamp.pipeline in ours:
                if any(stamp.strand == strand and stamp.batch <= batch for strand, batch in links):
                    break
                above, found = [], [*found, *above, snapshot]
            else:
                above.append(snapshot)
        return found

    def after_batch(self, pipeline: str, links: Sequence[Link]) -> int | None:
        """The snapshot that shows the table after a batch of a strand and before the next; None when it was empty then."""
        later = self.since_batch(pipeline, links)
        return later[-1].parent_id if later else self.head

    def mark(self, pipeline: str) -> Witness | None:
        return decode_mark(self.properties.get(mark_key(pipeline, self.branch)))

    def newest_stamp(self, pipeline: str) -> Witness | None:
        """The pipeline's newest stamp; `NEVER` when the whole history is there and holds none."""
        oldest = None
        for snapshot in self.ancestors():
            oldest = snapshot
            if snapshot.stamp is not None and snapshot.stamp.pipeline == pipeline:
                return snapshot.stamp.witness
        mark = self.mark(pipeline)
        if self.branch != MAIN and self.head is None:
            return NEVER if mark is not None else None  # a branch does not expire: it was dropped
        moved_back = mark is not None and mark.snapshot_id in self.snapshots
        return NEVER if moved_back or (oldest is not None and oldest.parent_id is None) else None

    def highest_attempt(self, pipeline: str) -> int:
        """Over every mark and stamp still there, so that a lost ledger never hands out an old number again."""
        stamps = (s.stamp for s in self.snapshots.values())
        numbers = [stamp.holder.attempt for stamp in stamps if stamp is not None and stamp.pipeline == pipeline]
        for key, value in self.properties.items():
            if key == mark_key(pipeline) or key.startswith(f"{MARK_PREFIX}{pipeline}@"):
                mark = decode_mark(value)
                numbers.append(mark.holder.attempt if mark else 0)
        return max(numbers, default=0)
