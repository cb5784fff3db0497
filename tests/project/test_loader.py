"""Finding pipelines in a project's files, and naming the code that they are."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.model.errors import DefinitionError, NotFound, PipelineImportError
from strandline.project.config import CONFIG_NAME, Project, load_project
from strandline.project.loader import code_fingerprint, load_pipeline, load_pipelines

ORDERS = """
import strandline as sl

@sl.pipeline(source=sl.generator(), sink=sl.table("shop.orders"))
def orders(orders):
    return orders
"""

Write = Callable[..., Project]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes pipeline files by name and loads the project around them."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / CONFIG_NAME).write_text("version: 1\nproject: shop\nprofiles: {local: {}}\n")

    def to(**files: str) -> Project:
        for name, text in files.items():
            (tmp_path / "pipelines" / f"{name}.py").write_text(textwrap.dedent(text))
        return load_project(tmp_path)

    return to


@pytest.fixture(autouse=True)
def _no_git_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that runs the tests names its own repository in the environment."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)


# -- finding -------------------------------------------------------------------------------------------------


def test_every_pipeline_of_every_file_is_found_by_its_name(write: Write) -> None:
    project = write(orders=ORDERS, others=ORDERS.replace("def orders", "def returns") + ORDERS.replace("def orders", "def refunds"))

    found = load_pipelines(project)

    assert sorted(found) == ["orders", "refunds", "returns"]
    assert found["orders"].file == project.pipelines_folder / "orders.py"
    assert load_pipeline(project, "refunds").name == "refunds"


def test_an_edited_file_is_read_again(write: Write) -> None:
    assert load_pipeline(write(orders=ORDERS), "orders").tables() == ["shop.orders"]

    assert load_pipeline(write(orders=ORDERS.replace("shop.orders", "shop.all_orders")), "orders").tables() == ["shop.all_orders"]


def test_a_second_name_for_a_pipeline_is_not_a_second_pipeline(write: Write) -> None:
    project = write(orders=ORDERS + "\nalias = orders\n")

    assert list(load_pipelines(project)) == ["orders"]


def test_an_unknown_pipeline_is_told_with_those_there_are_and_a_guess(write: Write) -> None:
    project = write(orders=ORDERS, returns=ORDERS.replace("def orders", "def returns"))

    with pytest.raises(NotFound) as refused:
        load_pipeline(project, "order")

    assert refused.value.message == (
        f"there is no pipeline 'order' in {project.pipelines_folder} (pipelines: orders, returns); did you mean 'orders'?"
    )
    assert refused.value.next_command == "strandline run orders"


def test_an_unknown_pipeline_that_resembles_none(write: Write) -> None:
    with pytest.raises(NotFound, match=r"\(pipelines: orders\)$") as refused:
        load_pipeline(write(orders=ORDERS), "zzz")

    assert refused.value.next_command == "strandline run orders"


def test_a_project_without_pipelines(write: Write) -> None:
    with pytest.raises(NotFound, match=r"\(pipelines: none\)$"):
        load_pipeline(write(), "orders")


def test_two_pipelines_with_one_name_are_told_with_both_files(write: Write) -> None:
    project = write(a=ORDERS, b=ORDERS)

    with pytest.raises(DefinitionError) as refused:
        load_pipelines(project)

    folder = project.pipelines_folder
    assert refused.value.message == f"two pipelines are named 'orders': {folder / 'a.py'} and {folder / 'b.py'}"


# -- files that cannot be imported -----------------------------------------------------------------------------


def test_the_users_own_error_is_shown_with_the_users_own_lines_and_none_of_ours(write: Write) -> None:
    project = write(
        broken="""
        def price(rate):
            return 1 / rate

        price(0)
        """
    )

    with pytest.raises(PipelineImportError) as failed:
        load_pipelines(project)

    file = project.pipelines_folder / "broken.py"
    assert failed.value.message == f"{file} could not be imported: ZeroDivisionError: division by zero"
    assert failed.value.next_command == f"python {file}"
    assert "return 1 / rate" in failed.value.detail
    assert f'{file}", line 5' in failed.value.detail
    assert "loader.py" not in failed.value.detail
    assert "importlib" not in failed.value.detail


def test_a_syntax_error_is_shown_with_its_line(write: Write) -> None:
    project = write(broken="def f(:\n    pass\n")

    with pytest.raises(PipelineImportError, match=r"broken\.py could not be imported: SyntaxError") as failed:
        load_pipelines(project)

    assert "line 1" in failed.value.detail


def test_a_missing_package_is_named(write: Write) -> None:
    with pytest.raises(PipelineImportError, match="ModuleNotFoundError: No module named 'not_installed_here'"):
        load_pipelines(write(broken="import not_installed_here\n"))


def test_a_wrong_declaration_is_told_with_its_file(write: Write) -> None:
    project = write(wrong=ORDERS.replace("shop.orders", "orders"))

    with pytest.raises(DefinitionError) as refused:
        load_pipelines(project)

    assert (
        refused.value.message
        == f"{project.pipelines_folder / 'wrong.py'}: table name 'orders' must be namespace.table, such as shop.orders"
    )
    assert refused.value.detail == "", "no traceback for what is only a wrong word"


# -- which code it is ----------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    answer = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def test_outside_of_git_the_code_is_the_hash_of_its_file(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    code = code_fingerprint(load_pipeline(write(orders=ORDERS), "orders"))
    changed = code_fingerprint(load_pipeline(write(orders=ORDERS + "# changed\n"), "orders"))

    kind, _, digest = code.partition(":")
    assert (kind, len(digest)) == ("src", 12)
    assert changed != code


def test_inside_of_git_the_code_names_the_commit_and_a_changed_work_tree_shows(write: Write, tmp_path: Path) -> None:
    project = write(orders=ORDERS)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")

    clean = code_fingerprint(load_pipeline(project, "orders"))
    dirty = code_fingerprint(load_pipeline(write(orders=ORDERS + "# changed\n"), "orders"))

    commit = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert clean.startswith(f"git:{commit}+src:")
    assert dirty.startswith(f"git:{commit}+src:")
    assert dirty != clean


def test_without_a_git_program_the_hash_is_enough(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert code_fingerprint(load_pipeline(write(orders=ORDERS), "orders")).startswith("src:")
