"""The shape of the package: which room knows which, what is public, what every error carries."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import strandline
import strandline.testing
from strandline.model import errors
from strandline.model.errors import StrandlineError

PACKAGE = Path(strandline.__file__).parent

ROOMS = [
    "model",
    "state",
    "project",
    "ledger",
    "messaging",
    "tables",
    "checkpoints",
    "runtime",
    "savepoints",
    "evidence",
    "testing",
    "demo",
    "cli",
]
"""Bottom to top: a room imports only from itself and from rooms below it."""

FRONT_DOOR = "api"
"""`strandline` itself and `strandline.api`: what users import. Above `model`, below nobody."""

MAY_USE_FRONT_DOOR = {"testing", "demo"}
"""Rooms that act as a user would."""


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    room: str
    """Who imports."""
    target: str
    """Full name of what is imported, such as ``strandline.model.errors.Fenced``."""

    @property
    def from_room(self) -> str:
        part = [*self.target.split("."), ""][1]
        return part if part in ROOMS else FRONT_DOOR

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


def room_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else FRONT_DOOR


def imports_of(file: Path) -> Iterator[Import]:
    """Every import of ours in a file, also those inside functions and under TYPE_CHECKING."""
    shown, room = str(file.relative_to(PACKAGE)), room_of(file)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{shown}:{node.lineno}: relative imports hide the room"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(shown, node.lineno, room, name) for name in names)


FILES = sorted(PACKAGE.rglob("*.py"))
IMPORTS = [found for file in FILES for found in imports_of(file)]
OURS = [found for found in IMPORTS if found.target.split(".")[0] == "strandline"]


# -- import direction ----------------------------------------------------------------------------------------


def test_every_folder_is_a_known_room() -> None:
    folders = {room_of(file) for file in FILES} - {FRONT_DOOR}

    assert folders <= set(ROOMS)
    assert {"model", "project", "ledger", "tables", "checkpoints", "runtime", "savepoints", "evidence", "testing", "cli"} <= folders


def test_a_room_imports_only_from_rooms_below_it() -> None:
    upward = [
        str(found)
        for found in OURS
        if found.room in ROOMS and found.from_room in ROOMS and ROOMS.index(found.from_room) > ROOMS.index(found.room)
    ]

    assert upward == []


def test_the_front_door_knows_only_declarations_and_what_a_transform_calls() -> None:
    known = {found.target for found in OURS if found.room == FRONT_DOOR and found.from_room not in {"model", FRONT_DOOR}}

    assert {target.rpartition(".")[0] for target in known} <= {
        "strandline.state.declarations",
        "strandline.runtime.keyed.frames",
        "strandline.runtime.native",
    }


def test_only_those_who_act_as_users_come_in_by_the_front_door() -> None:
    """The CLI may read the version there; everybody else imports from the room that a thing lives in."""
    wrong = [
        str(found)
        for found in OURS
        if found.from_room == FRONT_DOOR
        and found.room not in {FRONT_DOOR, *MAY_USE_FRONT_DOOR}
        and not (found.room == "cli" and found.target == "strandline.__version__")
    ]

    assert wrong == []


def test_the_model_knows_nothing_but_the_standard_library() -> None:
    foreign = [str(f) for f in IMPORTS if f.room == "model" and f.target.split(".")[0] not in {*sys.stdlib_module_names, "strandline"}]

    assert foreign == []


def test_tests_of_users_are_not_needed_to_run() -> None:
    """pytest is imported by the fixtures alone, which only pytest loads."""
    assert {found.file for found in IMPORTS if found.target.split(".")[0] in ("pytest", "hypothesis")} <= {"testing/fixtures.py"}


@pytest.mark.parametrize("room", sorted({room_of(file) for file in FILES} - {FRONT_DOOR}))
def test_every_room_says_what_lives_there(room: str) -> None:
    docstring = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8")))

    assert docstring, f"{room}/__init__.py has no docstring"


@pytest.mark.parametrize("file", [str(file.relative_to(PACKAGE)) for file in FILES])
def test_every_module_says_what_it_is_for(file: str) -> None:
    assert ast.get_docstring(ast.parse((PACKAGE / file).read_text(encoding="utf-8")))


# -- what is public ------------------------------------------------------------------------------------------


def test_the_public_surface_is_pinned() -> None:
    assert sorted(strandline.__all__) == [
        "Context",
        "KeyedProcess",
        "Pipeline",
        "StrandlineError",
        "__version__",
        "aggregating_state",
        "checkpoint",
        "dedupe",
        "files",
        "generator",
        "join_streams",
        "kafka",
        "keyed",
        "list_state",
        "map_state",
        "pipeline",
        "reducing_state",
        "registry",
        "savepoint",
        "secret",
        "sessions",
        "sliding",
        "snapshots",
        "table",
        "topic",
        "ttl",
        "tumbling",
        "value_state",
    ]
    assert all(hasattr(strandline, name) for name in strandline.__all__)


def test_the_public_surface_of_the_testing_helpers_is_pinned() -> None:
    assert sorted(strandline.testing.__all__) == [
        "BatchOutput",
        "CrashPoint",
        "Finished",
        "KeyedHarness",
        "Order",
        "assert_chain_unbroken",
        "assert_rows_once",
        "committed_batches",
        "generated_orders",
        "run_cli",
        "start_cli",
        "table_rows",
    ]
    assert all(hasattr(strandline.testing, name) for name in strandline.testing.__all__)


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert version("strandline") == strandline.__version__


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after one statement."""
    code = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(answer.stdout.split())


def test_importing_strandline_loads_no_engine() -> None:
    heavy = {"pyspark", "py4j", "pyiceberg", "sqlalchemy", "pyarrow", "pandas", "pydantic", "yaml", "typer", "rich"}

    assert loaded_by("import strandline") & heavy == set()


def test_no_command_needs_what_only_tests_need() -> None:
    """pytest is not a dependency of the installed package."""
    assert loaded_by("import strandline.cli.main, strandline.demo.story, strandline.testing") & {"pytest", "hypothesis"} == set()


def test_looking_loads_no_engine() -> None:
    """`status` and `history` answer from files and the ledger."""
    statement = "import strandline.cli.main, strandline.evidence.history, strandline.evidence.status, strandline.tables.catalog"

    assert loaded_by(statement) & {"pyspark", "py4j", "pyiceberg", "pyarrow", "pandas"} == set()


# -- errors --------------------------------------------------------------------------------------------------


def every_error() -> list[type[StrandlineError]]:
    def below(parent: type[StrandlineError]) -> Iterator[type[StrandlineError]]:
        yield parent
        for child in parent.__subclasses__():
            yield from below(child)

    return list(below(StrandlineError))


def drawn_tree() -> dict[str, str | None]:
    """Parent by error, as the docstring of the module draws them."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ((?:│   |    )*)(├── |└── )?([A-Z]\w+)(?:\s{2,}|$)", line)
        if found is None:
            continue
        depth = len(found.group(1)) // 4 + (1 if found.group(2) else 0)
        path = [*path[:depth], found.group(3)]
        parents[found.group(3)] = path[-2] if depth else None
    return parents


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    real = {error.__name__: (error.__bases__[0].__name__ if error is not StrandlineError else None) for error in every_error()}

    assert drawn_tree() == real


def test_every_error_lives_in_the_tree() -> None:
    """Also those that no imported module has defined yet."""
    known = {error.__name__ for error in every_error()}
    strays = [
        f"{file.relative_to(PACKAGE)}:{node.lineno} {node.name}"
        for file in FILES
        if file != PACKAGE / "model" / "errors.py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and {base.id for base in node.bases if isinstance(base, ast.Name)} & known
    ]

    assert strays == []
    assert {error.__module__ for error in every_error()} == {errors.__name__}


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_every_error_has_an_exit_code_a_sentence_and_a_next_command(error: type[StrandlineError]) -> None:
    raised = error("one sentence")

    assert raised.exit_code in (1, 2, 3, 4)
    assert (str(raised), raised.message, raised.detail) == ("one sentence", "one sentence", "")
    assert raised.next_command


def test_the_exit_codes_are_those_that_the_tree_promises() -> None:
    promised = dict(re.findall(r"(\w+)\s+exit (\d)", errors.__doc__ or ""))

    assert promised == {"UsageError": "2", "TrustViolation": "3", "Refused": "4", "Failure": "1"}
    for name, code in promised.items():
        branch: type[StrandlineError] = getattr(importlib.import_module(errors.__name__), name)
        assert {error.exit_code for error in every_error() if issubclass(error, branch)} == {int(code)}


def test_the_command_line_tells_the_same_exit_codes() -> None:
    from strandline.cli.main import app

    assert "0 fine · 1 failure · 2 usage · 3 contract or trust violated · 4 refused" in (app.info.help or "")
