"""What a Spark Python worker does needlessly in every task, done once."""

from __future__ import annotations

import sys
from zipimport import zipimporter


def keep_zip_directories() -> None:
    """Spark makes each task forget what is on the import path, and the directory of Spark's own zip file is then read again: some 100 ms.

    The archives that are on the path when a worker starts do not change while it lives, so they need not be forgotten.
    """
    for finder in sys.path_importer_cache.values():
        if isinstance(finder, zipimporter):
            vars(finder)["invalidate_caches"] = _nothing


def _nothing() -> None:
    """In place of reading an archive's directory again."""
