"""A savepoint's checkpoint laid out to be read: a copy that goes when the reader is done."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.storage import storage_at
from strandline.project.config import Project
from strandline.savepoints.archive import Archive


@contextmanager
def unpacked(project: Project, archive: Archive) -> Iterator[Checkpoint]:
    """Every file is checked while it is copied. Where checkpoints are remote the copy is too: executors must reach it."""
    with tempfile.TemporaryDirectory(prefix="strandline-savepoint-") as folder:
        location = folder if "://" not in project.checkpoints else f"{project.checkpoints}/.reading-{uuid.uuid4().hex}"
        storage = storage_at(location)
        try:
            archive.checkpoint_files(archive.read()).lay_out(storage)
            yield Checkpoint(storage)
        finally:
            storage.delete_all()
