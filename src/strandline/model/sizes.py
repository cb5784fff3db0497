"""Sizes as people read them."""

from __future__ import annotations


def human_bytes(count: int) -> str:
    return f"{count / 1_000_000:.1f} MB" if count >= 100_000 else f"{count / 1000:.1f} kB"
