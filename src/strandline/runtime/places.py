"""Where Strandline keeps what it downloads: one cache folder, never the project, never elsewhere in the home."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$STRANDLINE_CACHE``, else ``$XDG_CACHE_HOME/strandline``, else ``~/.cache/strandline``."""
    if chosen := os.environ.get("STRANDLINE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "strandline"
