"""Checks that every declaration shares: a value out of a closed list, a share, a secret that must stay a reference."""

from __future__ import annotations

import re
from typing import Any, get_args

from strandline.model.errors import DefinitionError

SECRET_NAME = re.compile(r"password|secret|token|access[._-]?key|credential|jaas", re.IGNORECASE)
"""A setting with such a name holds a secret: it is written as a reference, and never shown."""


def choice(what: str, value: str, allowed: Any) -> None:
    options = get_args(allowed)
    if value not in options:
        raise DefinitionError(f"{what} is '{value}'; allowed: {', '.join(options)}")


def share(what: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise DefinitionError(f"{what} is {value}; it is a share between 0 and 1")
