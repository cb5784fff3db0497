"""The records of keyed operators, kept beside the checkpoint they belong to: without them its bytes cannot be read."""

from __future__ import annotations

import json

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.model.errors import CheckpointDamaged
from strandline.runtime.keyed.building import KeyedBuild, OperatorRecord

FOLDER = "strandline-state"


def operator_records(checkpoint: Checkpoint) -> dict[str, OperatorRecord]:
    """By name."""
    found = {}
    for name in checkpoint.storage.names(FOLDER):
        if not name.endswith(".json"):
            continue
        content = checkpoint.storage.read(f"{FOLDER}/{name}")
        try:
            record = OperatorRecord.from_json(json.loads(content or b""))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(
                f"{checkpoint.location}/{FOLDER}/{name} cannot be read: {error}",
                next_command="restore the file from a copy of the checkpoint",
            ) from error
        found[record.name] = record
    return found


def keep_records(checkpoint: Checkpoint, build: KeyedBuild) -> None:
    """Before the first batch that may write under a new layout."""
    for name, record in build.made.items():
        if build.known.get(name) != record:
            checkpoint.storage.write(f"{FOLDER}/{name}.json", json.dumps(record.as_json(), indent=2).encode())
