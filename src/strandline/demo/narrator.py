"""How the demos speak: on stderr, so that what they print can be kept."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def step(text: str) -> None:
    say(f"  • {text}")
