"""Stamps: the evidence written into a snapshot's summary, and the high-water mark beside it.

Both are durable formats. Keys and versions are a promise; readers of old versions stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from strandline.model.errors import TableUnavailable, TrustViolation
from strandline.model.offsets import ORIGIN, Offsets

STAMP_VERSION = 1
MARK_VERSION = 1
PREFIX = "strandline."
MARK_PREFIX = "strandline.mark."

TOPICS_FACT = "topics"
SCHEMAS_FACT = "schemas"
GAPS_FACT = "gaps"
UNTIL_FACT = "until"
WRITER_FACT = "writer"
"""In the boundary of a publication: the pipeline that wrote what is below it."""
"""Extra keys of a batch read from Kafka: the id of each topic, the lowest and highest writer schema of each, and what
was accepted as lost inside the batch's range."""

OFFSETS_INLINE_LIMIT = 4096
"""Longer offsets stay in the ledger and only their digest enters the summary: summaries are re-read and
re-written with every commit of the table, and 4 KB already holds some 150 Kafka partitions."""


class StampKind(str, Enum):
    BATCH = "batch"
    BOUNDARY = "boundary"


@dataclass(frozen=True)
class Holder:
    """Who commits: the attempt number fences, the id tells two starts with the same number apart."""

    attempt: int
    id: str


@dataclass(frozen=True)
class Witness:
    """What a table says about one pipeline: how far its chain reaches, and who took it there."""

    strand: str
    holder: Holder
    batch: int
    """Last batch of the strand in the table; -1 before the first."""
    end_digest: str
    end: Offsets | None = None
    """Positions in full, when they were short enough to keep."""
    snapshot_id: int | None = field(default=None, compare=False)
    """The snapshot that holds it, as a mark remembers it; not part of what it says."""

    @property
    def rank(self) -> tuple[int, int]:
        """Attempts ever grow, batches grow within a strand: a later witness has a higher rank."""
        return (self.holder.attempt, self.batch)


@dataclass(frozen=True)
class Stamp:
    """One batch (or boundary) of one pipeline, as its snapshot tells it."""

    pipeline: str
    strand: str
    holder: Holder
    batch: int
    batch_first: int
    start: Offsets | None
    end: Offsets | None
    start_digest: str
    end_digest: str
    code: str
    kind: StampKind = StampKind.BATCH
    rows: int = 0
    late: int = 0
    corrected: int = 0
    replayed: int = 0
    savepoint: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def witness(self) -> Witness:
        return Witness(self.strand, self.holder, self.batch, self.end_digest, self.end)

    def to_summary(self) -> dict[str, str]:
        """Summary properties, all strings, `strandline.`-prefixed. Empty facts are left out."""
        facts = {
            "version": str(STAMP_VERSION),
            "pipeline": self.pipeline,
            "strand": self.strand,
            "attempt": str(self.holder.attempt),
            "attempt-id": self.holder.id,
            "batch": str(self.batch),
            "batch-first": str(self.batch_first),
            "kind": self.kind.value,
            "offsets-sha256": f"{self.start_digest}:{self.end_digest}",
            "code": self.code,
            "rows": str(self.rows),
            "late": str(self.late),
            "corrected": str(self.corrected),
            "replayed": str(self.replayed),
            "savepoint": self.savepoint,
            **self.extra,
        }
        for key, offsets in (("offsets-start", self.start), ("offsets-end", self.end)):
            text = offsets.canonical() if offsets is not None else ""
            if 0 < len(text) <= OFFSETS_INLINE_LIMIT:
                facts[key] = text
        return {PREFIX + key: value for key, value in facts.items() if value != ""}

    @classmethod
    def from_summary(cls, summary: Mapping[str, str]) -> Stamp | None:
        """The stamp in a summary; None when the snapshot carries none of ours."""
        if PREFIX + "version" not in summary:
            return None
        facts = {k.removeprefix(PREFIX): v for k, v in summary.items() if k.startswith(PREFIX)}
        version = int(facts["version"])
        if version > STAMP_VERSION:
            raise _too_new("stamp", version, STAMP_VERSION)
        start_digest, _, end_digest = facts["offsets-sha256"].partition(":")
        return cls(
            pipeline=facts["pipeline"],
            strand=facts["strand"],
            holder=Holder(int(facts["attempt"]), facts["attempt-id"]),
            batch=int(facts["batch"]),
            batch_first=int(facts["batch-first"]),
            start=_offsets(facts.get("offsets-start"), start_digest),
            end=_offsets(facts.get("offsets-end"), end_digest),
            start_digest=start_digest,
            end_digest=end_digest,
            code=facts.get("code", ""),
            kind=StampKind(facts["kind"]),
            rows=int(facts.get("rows", 0)),
            late=int(facts.get("late", 0)),
            corrected=int(facts.get("corrected", 0)),
            replayed=int(facts.get("replayed", 0)),
            savepoint=facts.get("savepoint", ""),
            extra={k: v for k, v in facts.items() if k not in _STAMP_KEYS},
        )


_STAMP_KEYS = frozenset(
    [
        "version",
        "pipeline",
        "strand",
        "attempt",
        "attempt-id",
        "batch",
        "batch-first",
        "kind",
        "offsets-start",
        "offsets-end",
        "offsets-sha256",
        "code",
        "rows",
        "late",
        "corrected",
        "replayed",
        "savepoint",
    ]
)


def _offsets(text: str | None, digest: str) -> Offsets | None:
    if text is not None:
        return Offsets.from_json(json.loads(text))
    return ORIGIN if digest == ORIGIN.digest else None


def _too_new(what: str, version: int, known: int) -> TableUnavailable:
    return TableUnavailable(
        f"the table carries a {what} of version {version}, written by a newer strandline; this one reads up to {known}",
        next_command="pip install --upgrade strandline",
    )


def mark_key(pipeline: str, branch: str = "main") -> str:
    """The table property that remembers a pipeline's high-water mark; one per branch it writes to."""
    return f"{MARK_PREFIX}{pipeline}" if branch == "main" else f"{MARK_PREFIX}{pipeline}@{branch}"


def encode_mark(witness: Witness) -> str:
    inline = witness.end.canonical() if witness.end is not None else ""
    return json.dumps(
        {
            "version": MARK_VERSION,
            "strand": witness.strand,
            "attempt": witness.holder.attempt,
            "attempt_id": witness.holder.id,
            "batch": witness.batch,
            "end_sha256": witness.end_digest,
            **({"snapshot_id": witness.snapshot_id} if witness.snapshot_id is not None else {}),
            **({"end": json.loads(inline)} if 0 < len(inline) <= OFFSETS_INLINE_LIMIT else {}),
        },
        sort_keys=True,
        separators=(",", ":"),
    )


def decode_mark(text: str | None) -> Witness | None:
    if text is None:
        return None
    try:
        data = json.loads(text)
        if data["version"] > MARK_VERSION:
            raise _too_new("mark", data["version"], MARK_VERSION)
        digest = data["end_sha256"]
        return Witness(
            strand=data["strand"],
            holder=Holder(data["attempt"], data["attempt_id"]),
            batch=data["batch"],
            end_digest=digest,
            end=Offsets.from_json(data["end"]) if "end" in data else (ORIGIN if digest == ORIGIN.digest else None),
            snapshot_id=data.get("snapshot_id"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise TrustViolation(
            f"a table property {MARK_PREFIX}* was changed by hand and cannot be read: {text[:80]}", next_command="strandline status"
        ) from error
