"""`strandline replay` as a user meets it, where it is refused before Spark starts. What it shows is followed on its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.testing import run_cli
from strandline.testing.projects import write_sandbox

PIPELINE = """
import strandline as sl

@sl.pipeline(source=sl.generator(), sink=sl.table("shop.orders"))
def orders(rows):
    return rows
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["orders", "--batch", "1", "--into", "main"], "--into main: a replay can only go into a branch"),
        (["orders", "--batch", "1"], "pipeline 'orders' has completed no batch yet"),
        (["others", "--batch", "1"], "others"),
        (["orders"], "--batch"),
    ],
)
def test_what_cannot_be_replayed_is_told_at_once(tmp_path: Path, arguments: list[str], words: str) -> None:
    write_sandbox(tmp_path, PIPELINE)

    finished = run_cli(tmp_path, "replay", *arguments)

    assert finished.code == 2
    assert words in finished.err
    assert "starting Spark" not in finished.err
