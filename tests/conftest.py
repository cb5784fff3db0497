"""Fixtures of the whole suite; the public ones come from `strandline.testing`, as users get them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.state_files import relocate_operator
from strandline.checkpoints.storage import LocalStorage
from strandline.testing.plain_tables import PlainTables, plain_tables

pytest_plugins = ["strandline.testing.fixtures"]

WrittenBySpark = Callable[[str, Path], Checkpoint]


@pytest.fixture
def written_by_spark() -> WrittenBySpark:
    """A checkpoint that Spark wrote, unpacked into a folder, for tests that need no Spark.

    "totals": keyed state after dedupe, batches 0–4 and a planned 5th, snapshots in batch 2; "pairs": a join, batches 0–1; "numbers": files without state, batches 0–4.
    """

    def unpack(pipeline: str, folder: Path) -> Checkpoint:
        with zipfile.ZipFile(Path(__file__).parent / "fixtures" / "checkpoints-spark-4.1.3.zip") as archive:
            for name in archive.namelist():
                if name.startswith(f"{pipeline}/"):
                    target = folder / name.removeprefix(f"{pipeline}/")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
        for metadata in folder.glob("state/*/_metadata/v2/[0-9]*"):
            metadata.write_bytes(relocate_operator(metadata.read_bytes(), str(folder)))
            (metadata.parent / f".{metadata.name}.crc").unlink()
        return Checkpoint(LocalStorage(str(folder)))

    return unpack


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[PlainTables]:
    """A project with a namespace `shop` and no tables yet."""
    with plain_tables(tmp_path) as made:
        yield made
