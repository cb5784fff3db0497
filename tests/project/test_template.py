"""`strandline init`: a project that loads as it is written, and never over someone's work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.model.errors import UsageError
from strandline.project.config import load_project
from strandline.project.loader import load_pipelines
from strandline.project.template import FILES, write_project


@pytest.fixture(autouse=True)
def _no_profile_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRANDLINE_PROFILE", raising=False)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_written_project_loads_and_its_pipeline_is_declared_correctly(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "shop"

    written = write_project(folder)

    assert written == [folder / name for name in FILES]
    assert set(everything(folder)) == set(FILES)
    project = load_project(folder)
    assert project.config.project == "shop"
    pipeline = load_pipelines(project)["order_totals"]
    assert pipeline.tables() == ["shop.order_totals"]


def test_the_example_data_is_there_to_be_read(tmp_path: Path) -> None:
    write_project(tmp_path / "shop")

    lines = [line for file in (tmp_path / "shop" / "data" / "orders").iterdir() for line in file.read_text().splitlines()]
    assert {"order_id", "customer", "amount", "placed_at"} <= set(json.loads(lines[0]))


@pytest.mark.parametrize("name", ["shop", "2026 orders", "my.shop", "été", "no", "null", "on", ".hidden", "²", "- x: y #"])
def test_any_folder_name_gives_a_valid_project(tmp_path: Path, name: str) -> None:
    write_project(tmp_path / name)

    assert load_project(tmp_path / name).config.project


@pytest.mark.parametrize("taken", sorted(FILES))
def test_an_existing_file_is_never_overwritten_and_nothing_else_is_written(tmp_path: Path, taken: str) -> None:
    mine = tmp_path / taken
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")

    with pytest.raises(UsageError, match="already holds .*; nothing was written") as refused:
        write_project(tmp_path)

    assert taken in refused.value.message
    assert everything(tmp_path) == {taken: b"mine"}


def test_a_folder_with_other_files_is_fine(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")

    write_project(tmp_path)

    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("mine")

    with pytest.raises(UsageError, match="cannot be made: File exists"):
        write_project(tmp_path / "shop")
