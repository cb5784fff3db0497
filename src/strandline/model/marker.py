"""Markers: what an output topic says about the pipeline that writes it, as a table's mark does for a table.

A marker is the committed offset of a consumer group that nobody reads with: Kafka commits it in the same transaction as
the rows, so it is there exactly when they are. It is a durable format: readers of old versions stay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from strandline.model.errors import DefinitionError, EnvironmentProblem, TrustViolation
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.stamp import Holder, Witness

MARKER_VERSION = 1

MARKER_LIMIT = 4096
"""Brokers refuse longer metadata by default (`offset.metadata.max.bytes`). Long positions are left out, their digest stays."""

_FIRST_OFFSET = 2
"""Offset of batch 0. A claim before any batch (-1) gets 1, so that no marker is at 0, where tools put a group that they reset."""


@dataclass(frozen=True)
class Marker:
    """The last batch of one pipeline in one topic, and who took it there."""

    pipeline: str
    strand: str
    holder: Holder
    batch: int
    """-1: claimed before any batch."""
    end_digest: str
    rows: int = 0
    """Rows that this batch put into the topic."""
    end: Offsets | None = None
    """Positions in full, when they were short enough to keep."""

    @classmethod
    def before_any(cls, pipeline: str, strand: str, holder: Holder) -> Marker:
        return cls(pipeline, strand, holder, -1, ORIGIN.digest, end=ORIGIN)

    def taken_over(self, strand: str, holder: Holder) -> Marker:
        """The same place in the chain in new hands: what a claim writes."""
        return replace(self, strand=strand, holder=holder)

    @property
    def witness(self) -> Witness:
        return Witness(self.strand, self.holder, self.batch, self.end_digest, self.end)

    @property
    def offset(self) -> int:
        """The committed offset that carries this marker. It says no more than the batch does; the metadata is what is read."""
        return self.batch + _FIRST_OFFSET


def encode_marker(marker: Marker) -> str:
    facts = {
        "version": MARKER_VERSION,
        "pipeline": marker.pipeline,
        "strand": marker.strand,
        "attempt": marker.holder.attempt,
        "attempt_id": marker.holder.id,
        "batch": marker.batch,
        "end_sha256": marker.end_digest,
        "rows": marker.rows,
    }
    if marker.end is not None and not marker.end.is_origin:
        whole = _dump({**facts, "end": json.loads(marker.end.canonical())})
        if len(whole) <= MARKER_LIMIT:
            return whole
    text = _dump(facts)
    if len(text) > MARKER_LIMIT:
        raise DefinitionError(
            f"the name '{marker.pipeline[:40]}…' is too long for a pipeline that writes to Kafka: its marker has {len(text)} bytes, "
            f"a broker takes {MARKER_LIMIT}",
            next_command="give the pipeline a shorter name",
        )
    return text


def decode_marker(topic: str, offset: int, text: str | None) -> Marker:
    """The marker in a committed offset. Keys that a later release added are ignored."""
    try:
        data = json.loads(text or "")
        if data["version"] > MARKER_VERSION:
            raise EnvironmentProblem(
                f"topic '{topic}' carries a marker of version {data['version']}, written by a newer strandline; this one reads up to "
                f"{MARKER_VERSION}",
                next_command="pip install --upgrade strandline",
            )
        digest = str(data["end_sha256"])
        marker = Marker(
            pipeline=str(data["pipeline"]),
            strand=str(data["strand"]),
            holder=Holder(int(data["attempt"]), str(data["attempt_id"])),
            batch=int(data["batch"]),
            end_digest=digest,
            rows=int(data.get("rows", 0)),
            end=Offsets.from_json(data["end"]) if "end" in data else (ORIGIN if digest == ORIGIN.digest else None),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _tampered(topic, f"offset {offset} with {text[:80] if text else 'nothing beside it'}") from error
    if marker.offset != offset:
        raise _tampered(topic, f"offset {offset} beside batch {marker.batch}")
    return marker


def _tampered(topic: str, found: str) -> TrustViolation:
    return TrustViolation(
        f"the marker of topic '{topic}' was changed by hand and cannot be read: it holds {found}", next_command="strandline status"
    )


def _dump(facts: dict[str, object]) -> str:
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))
