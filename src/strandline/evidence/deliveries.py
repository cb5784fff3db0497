"""The history of an output topic: every batch that entered it, as the ledger saw it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from strandline.ledger import Ledger
from strandline.ledger.records import Delivery
from strandline.model.offsets import Offsets

DELIVERIES_VERSION = 1


@dataclass(frozen=True)
class TopicEntry:
    """One batch in an output topic."""

    delivery: Delivery
    gaps: str | None
    """Records inside its source range that were accepted as lost."""

    @property
    def offsets(self) -> str:
        """The source range in short human form."""
        end = Offsets.from_json(json.loads(self.delivery.offsets_end))
        range_ = end.human(Offsets.from_json(json.loads(self.delivery.offsets_start)))
        return f"{range_} (without {self.gaps})" if self.gaps else range_


def deliveries_of(topic: str, ledger: Ledger) -> list[TopicEntry]:
    """Newest first."""
    found = ledger.deliveries.of_topic(topic)
    accepted = {key: ledger.gaps.of_strand(*key) for key in {(delivery.pipeline, delivery.strand) for delivery in found}}

    def entry(delivery: Delivery) -> TopicEntry:
        gaps = [str(gap) for batch, gap in accepted[delivery.pipeline, delivery.strand] if batch == delivery.batch]
        return TopicEntry(delivery, ", ".join(gaps) or None)

    return [entry(delivery) for delivery in reversed(found)]


def deliveries_json(topic: str, entries: list[TopicEntry]) -> dict[str, Any]:
    def plain(entry: TopicEntry) -> dict[str, Any]:
        values = {key: value for key, value in vars(entry.delivery).items() if key != "topic"}
        return {
            **values,
            "offsets_start": json.loads(entry.delivery.offsets_start),
            "offsets_end": json.loads(entry.delivery.offsets_end),
            "gaps": entry.gaps,
        }

    return {"version": DELIVERIES_VERSION, "topic": topic, "deliveries": [plain(entry) for entry in entries]}
