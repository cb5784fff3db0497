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
    new = empty_place(project, "orders", 7)
    second = new.give_identity()

    assert current_checkpoint(project, "orders").strand() == first
    make_current(project, "orders", new)

    assert current_checkpoint(project, "orders").strand() == second
    assert old.strand() == first
    assert current_checkpoint(project, "others").location == project.checkpoint_of("others")


def test_what_a_killed_attempt_left_without_an_identity_is_removed(project: Project) -> None:
    half, whole = empty_place(project, "orders", 7), empty_place(project, "orders", 8)
    whole.give_identity()
    half.storage.write("offsets/0", b"x")
    other = empty_place(project, "orders2", 7)
    other.storage.write("offsets/0", b"x")

    empty_place(project, "orders", 9)

    assert not Path(half.location).exists()
    assert Path(whole.location).exists()
    assert Path(other.location).exists()


@pytest.mark.parametrize("content", ["", "{}", '{"version": 9, "folder": "orders.7"}', '{"version": 1, "folder": "../elsewhere"}'])
def test_a_pointer_that_cannot_be_understood_is_never_a_guess(project: Project, content: str) -> None:
    folder = Path(project.checkpoints)
    folder.mkdir(exist_ok=True)
    (folder / "orders.current.json").write_text(content)

    with pytest.raises(CheckpointDamaged, match=r"orders\.current\.json does not say which checkpoint counts"):
        current_checkpoint(project, "orders")
