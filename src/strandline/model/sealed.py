"""JSON documents that tell their version and a digest of their own words: a word that was changed by hand is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from strandline.model.errors import SavepointDamaged

TAKE_ANOTHER = "strandline savepoint list, and take another one"


def seal(content: Mapping[str, Any], version: int) -> bytes:
    told = {"version": version, **content}
    return (json.dumps({**told, "sha256": _digest(told)}, indent=1, sort_keys=True) + "\n").encode()


def unseal(raw: bytes, where: str, newest: int, next_command: str = TAKE_ANOTHER) -> dict[str, Any]:
    """The content, without version and digest. Older versions are read, a newer one is not."""
    try:
        content: dict[str, Any] = json.loads(raw)
        version = int(content.pop("version"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(where, "it cannot be read", next_command) from error
    if version > newest:
        raise SavepointDamaged(
            f"{where} has version {version}, written by a newer strandline; this one reads up to {newest}",
            next_command="pip install --upgrade strandline",
        )
    if content.pop("sha256", None) != _digest({"version": version, **content}):
        raise damaged(where, "its content is not what its digest says", next_command)
    return content


def damaged(where: str, why: str, next_command: str = TAKE_ANOTHER) -> SavepointDamaged:
    return SavepointDamaged(f"{where} is damaged: {why}", next_command=next_command)


def _digest(content: Mapping[str, Any]) -> str:
    """Over values as JSON keeps them: a tuple and a list are the same there."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
