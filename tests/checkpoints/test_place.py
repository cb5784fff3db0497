"""Which checkpoint of a pipeline counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.checkpoints.place import current_checkpoint, empty_place, make_current
from strandline.model.errors import CheckpointDamaged
from strandline.project.config import Project
from strandline.testing.projects import write_sandbox


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_sandbox(tmp_path)


def test_the_first_strand_has_the_pipelines_name(project: Project) -> None:
    assert current_checkpoint(project, "orders").location == project.checkpoint_of("orders")


def test_a_new_strand_takes_its_place_in_one_step_and_the_old_one_stays(project: Project) -> None:
    old = current_checkpoint(project, "orders")
    first = old.give_identity()
    new = empty_place(project, "orders", 7, "a1b2")
    second = new.give_identity()

    assert current_checkpoint(project, "orders").strand() == first
    make_current(project, "orders", new)

    assert current_checkpoint(project, "orders").strand() == second
    assert old.strand() == first
    assert current_checkpoint(project, "others").location == project.checkpoint_of("others")


def test_an_attempt_number_that_was_given_twice_is_another_place(project: Project) -> None:
    first, second = empty_place(project, "orders", 7, "a1b2"), empty_place(project, "orders", 7, "c3d4")
    first.give_identity()

    assert not second.exists()


@pytest.mark.parametrize("content", ["", "{}", '{"version": 9, "folder": "orders.7-a1b2"}', '{"version": 1, "folder": "../elsewhere"}'])
def test_a_pointer_that_cannot_be_understood_is_never_a_guess(project: Project, content: str) -> None:
    folder = Path(project.checkpoints)
    folder.mkdir(exist_ok=True)
    (folder / "orders.current.json").write_text(content)

    with pytest.raises(CheckpointDamaged, match=r"orders\.current\.json does not say which checkpoint counts"):
        current_checkpoint(project, "orders")
