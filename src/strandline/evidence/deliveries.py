"""The history of an output topic: every batch that entered it, as the ledger saw it."""

from __future__ import annotations

import json
from typing import Any

from strandline.ledger.records import Delivery
from strandline.model.offsets import Offsets

DELIVERIES_VERSION = 1


def offsets_of(delivery: Delivery) -> str:
    """The source range in short human form."""
    end = Offsets.from_json(json.loads(delivery.offsets_end))
    return end.human(Offsets.from_json(json.loads(delivery.offsets_start)))


def deliveries_json(topic: str, deliveries: list[Delivery]) -> dict[str, Any]:
    def plain(delivery: Delivery) -> dict[str, Any]:
        values = {key: value for key, value in vars(delivery).items() if key != "topic"}
        return {
            **values,
            "offsets_start": json.loads(delivery.offsets_start),
            "offsets_end": json.loads(delivery.offsets_end),
        }

    return {"version": DELIVERIES_VERSION, "topic": topic, "deliveries": [plain(delivery) for delivery in deliveries]}
