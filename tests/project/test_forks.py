"""Forks of a project: declared in files beside its pipelines, and loaded like them."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.model.errors import ConfigError, NotFound
from strandline.model.fork import Fork, Into
from strandline.project.config import CONFIG_NAME, Project, load_project
from strandline.project.forks import declare_fork, forget_fork, forks_of
from strandline.project.loader import load_pipeline, load_pipelines

ORDERS = """
import strandline as sl

@sl.pipeline(source=sl.generator(), sink=sl.table("shop.orders"))
def orders(orders):
    return orders
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "orders.py").write_text(ORDERS)
    (tmp_path / CONFIG_NAME).write_text("version: 1\nproject: shop\nprofiles: {local: {}, prod: {}}\n")
    return load_project(tmp_path)


def fork(name: str = "trial", **more: str) -> Fork:
    return Fork(name, "orders", Into(branch="b"), "start", profile="local", **more)  # type: ignore[arg-type]


def test_a_declared_fork_is_loaded_as_a_pipeline_until_it_is_forgotten(project: Project) -> None:
    file = declare_fork(project, fork())

    assert file == project.root / "forks" / "trial.yaml"
    assert sorted(load_pipelines(project)) == ["orders", "trial"]
    assert (load_pipeline(project, "trial").parent, load_pipeline(project, "trial").branch) == ("orders", "b")
    forget_fork(project, "trial")
    assert not forks_of(project)


def test_a_fork_belongs_to_the_profile_it_was_made_under(project: Project) -> None:
    declare_fork(project, fork())

    assert not forks_of(load_project(project.root, profile="prod"))


def test_a_fork_may_run_other_code(project: Project) -> None:
    (project.root / "drafts").mkdir()
    (project.root / "drafts" / "orders.py").write_text(ORDERS.replace("return orders", "return orders.limit(1)"))
    declare_fork(project, fork(code="drafts/orders.py"))

    assert load_pipeline(project, "trial").file == project.root / "drafts" / "orders.py"
    assert load_pipeline(project, "orders").file == project.root / "pipelines" / "orders.py"


def test_a_fork_without_its_parent_or_code_says_so(project: Project) -> None:
    declare_fork(project, fork(code="drafts/gone.py"))
    with pytest.raises(NotFound, match="the code of fork 'trial'"):
        load_pipeline(project, "trial")
    assert load_pipeline(project, "orders").parent is None, "others are not held up by it"
    declare_fork(project, fork())
    (project.root / "pipelines" / "orders.py").unlink()
    with pytest.raises(NotFound, match="no longer has"):
        load_pipeline(project, "trial")


def test_a_file_that_declares_no_fork_is_named(project: Project) -> None:
    declare_fork(project, fork()).write_text("version: 1\nname: trial\n")
    with pytest.raises(ConfigError, match=r"trial\.yaml does not declare a fork"):
        forks_of(project)
