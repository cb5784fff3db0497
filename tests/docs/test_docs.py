"""The documentation does what it says: every command is typed, every snippet runs, every name is explained."""

from __future__ import annotations

import functools
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import strandline
from strandline.cli.main import app
from strandline.evidence.deliveries import TopicEntry, deliveries_json
from strandline.evidence.history import HistoryEntry
from strandline.ledger.records import Delivery
from strandline.model.continuity import LossKind
from strandline.model.crash import CrashPoint
from strandline.model.definition import GeneratorSource
from strandline.model.errors import StrandlineError
from strandline.model.fence import Verdict
from strandline.model.kafka import SECURITY_KEYS
from strandline.model.marker import decode_marker
from strandline.model.offsets import ORIGIN, Offsets
from strandline.model.stamp import GAPS_FACT, PREFIX, SCHEMAS_FACT, TOPICS_FACT, Holder, Stamp, decode_mark
from strandline.project.config import KafkaConfig, RegistryConfig, load_project
from strandline.project.loader import load_pipelines

from .pages import ROOT, Block, Command, Desk, Reader, blocks, every_word, pages

WORDS = every_word()
PAGES = pages()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("docs"))


@pytest.fixture
def reader(desk: Desk, tmp_path: Path) -> Iterator[Reader]:
    desk.clear()
    someone = Reader(desk.folder, tmp_path / "screen", desk.temporary)
    try:
        yield someone
        someone.leave()
    finally:
        desk.stop_brokers()


# -- following a page ----------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("page", [page for page in PAGES if "```console" in page.read_text(encoding="utf-8")], ids=name_of)
def test_a_reader_who_follows_the_page_gets_what_it_says(page: Path, desk: Desk, reader: Reader) -> None:
    for block in blocks(page):
        if block.language == "console":
            follow(page, block, desk, reader)
        elif block.language in ("python", "yaml") and block.file_name:
            write(block, reader.folder)
        elif block.language == "python":
            code, said = reader.type(f"python - <<'BLOCK'\n{block.text}BLOCK")
            assert code == 0, f"{name_of(page)} line {block.line}: {said}"


def follow(page: Path, block: Block, desk: Desk, reader: Reader) -> None:
    for command in block.commands():
        if command.by_name_only:
            assert_exists(command)
            continue
        code, said = desk.run(command.text, reader) if command.repeatable else reader.type(command.text)
        assert code == command.exit_code, f"{name_of(page)}, block at line {block.line}: $ {command.text} gave {code}\n{said}"
        assert "Traceback" not in said, f"{name_of(page)}: $ {command.text}\n{said}"


def assert_exists(command: Command) -> None:
    program, word, *_ = command.text.split()
    if program == "make":
        assert re.search(rf"^{word}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), command.text
    elif program == "strandline":
        assert word in commands(), command.text


def write(block: Block, project: Path) -> None:
    """As the reader's editor would; a configuration or a pipeline must then load."""
    assert block.file_name is not None
    target = project / block.file_name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(block.text, encoding="utf-8")
    if block.file_name.startswith("pipelines/"):
        load_pipelines(load_project(project))


# -- every snippet ---------------------------------------------------------------------------------------------


def snippets(language: str) -> list[object]:
    found = [(page, block) for page in PAGES for block in blocks(page) if block.language == language]
    return [pytest.param(block, id=f"{name_of(page)}:{block.line}") for page, block in found]


@pytest.mark.parametrize("block", snippets("python"))
def test_python_compiles(block: Block) -> None:
    compile(block.text, "documentation", "exec")


@pytest.mark.parametrize("block", snippets("json"))
def test_json_parses(block: Block) -> None:
    assert json.loads(block.text)["version"] == 1


@pytest.mark.parametrize("block", snippets("yaml"))
def test_a_configuration_is_valid(block: Block, tmp_path: Path) -> None:
    assert block.file_name == "strandline.yaml"
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "strandline.yaml").write_text(block.text, encoding="utf-8")
    load_project(tmp_path)


def test_the_configuration_in_full_names_every_key_with_its_default(tmp_path: Path) -> None:
    """An empty profile and the one that the page writes out are the same."""
    full = next(block for block in blocks(ROOT / "docs/configuration.md") if block.language == "yaml")
    for name, text in (("full", full.text), ("short", "version: 1\nproject: shop\nprofiles: {local: {}}\n")):
        (tmp_path / name / "pipelines").mkdir(parents=True)
        (tmp_path / name / "strandline.yaml").write_text(text, encoding="utf-8")
    assert load_project(tmp_path / "full").config == load_project(tmp_path / "short").config


def test_the_mark_that_the_page_shows_can_be_read() -> None:
    shown = next(block for block in blocks(ROOT / "docs/design/commit-protocol.md") if block.language == "json")
    mark = decode_mark(shown.text)
    assert mark is not None
    assert mark.end is not None
    assert mark.end_digest == mark.end.digest


def test_the_marker_and_the_origin_that_the_page_shows_can_be_read() -> None:
    shown = [json.loads(block.text) for block in blocks(ROOT / "docs/design/commit-protocol.md") if block.language == "json"]
    marker = next(found for found in shown if "rows" in found)
    origin = next(found for found in shown if "sources" in found)
    read = decode_marker("large-orders", marker["batch"] + 2, json.dumps(marker))
    assert read.end is not None
    assert (read.end.digest, read.rows) == (marker["end_sha256"], marker["rows"])
    assert Offsets.from_json(origin["sources"]).human(None) == "orders at [0] 0, [1] 0"


def test_the_history_that_the_page_shows_has_every_key() -> None:
    table, topic = [json.loads(block.text) for block in blocks(ROOT / "docs/history.md") if block.language == "json"]
    assert list(table["snapshots"][0]) == list(HistoryEntry.__dataclass_fields__)
    (shown,) = topic["deliveries"]
    values = {
        **{key: value for key, value in shown.items() if key != "gaps"},
        "topic": topic["topic"],
        "offsets_start": json.dumps(shown["offsets_start"]),
        "offsets_end": json.dumps(shown["offsets_end"]),
    }
    assert deliveries_json(topic["topic"], [TopicEntry(Delivery(**values), shown["gaps"])]) == topic
    assert Offsets.from_json(shown["offsets_end"]).digest == shown["end_digest"]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.is_file(), f"{name_of(page)} links to {target}"
        headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in {anchor_of(heading) for heading in headings}, f"{name_of(page)} links to {target}"


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# -- nothing is left out ---------------------------------------------------------------------------------------


def commands() -> list[str]:
    group = typer.main.get_group(app)
    return sorted(group.commands)


def whole_commands() -> list[str]:
    """With the second word of those that are groups, such as ``kafka up``."""
    group = typer.main.get_group(app)
    below = {name: sorted(getattr(command, "commands", {})) for name, command in group.commands.items()}
    return sorted(f"{name} {word}".strip() for name, words in below.items() for word in words or [""])


@functools.cache
def help_of(command: str) -> str:
    words = [sys.executable, "-m", "strandline.cli.main", *command.split(), "--help"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_every_command_is_explained_in_the_readme_and_every_option_in_the_docs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in commands():
        assert f"`strandline {command}`" in readme
    for command in whole_commands():
        assert f"| `strandline {command}" in WORDS
        options = set(re.findall(r"^\s+(--[a-z-]+)", help_of(command), re.MULTILINE)) - {"--help"}
        missing = [option for option in sorted(options) if f"strandline {command} {option}" not in WORDS]
        assert not missing, f"strandline {command}: {missing}"
    assert "`--help`" in WORDS
    assert "strandline --version" in WORDS


def test_every_option_that_the_docs_name_exists() -> None:
    for words, option in set(re.findall(r"`strandline ([a-z]+[^`\n]*) (--[a-z-]+)", WORDS)):
        command = next(known for known in whole_commands() if f"{words} ".startswith(f"{known} "))
        assert option in help_of(command), f"strandline {command} {option}"


@pytest.mark.parametrize("point", CrashPoint, ids=lambda point: point.value)
def test_every_crash_point_is_in_the_table(point: CrashPoint) -> None:
    assert f"| `{point.name}` | `{point.value}` |" in WORDS


@pytest.mark.parametrize("verdict", Verdict, ids=lambda verdict: verdict.value)
def test_every_verdict_is_in_the_table(verdict: Verdict) -> None:
    assert f"| `{verdict.value}` |" in WORDS


def test_every_stamp_key_is_in_the_table() -> None:
    digest = ORIGIN.digest
    stamp = Stamp("p", "s", Holder(1, "a"), 0, 0, ORIGIN, ORIGIN, digest, digest, "c", savepoint="sp", extra={"reason": "r", "parent": "p"})
    for key in stamp.to_summary():
        assert f"| `{key}` |" in WORDS
    source = (ROOT / "src/strandline/model/stamp.py").read_text(encoding="utf-8")
    known = re.search(r"_STAMP_KEYS = frozenset\((.*?)\)", source, re.DOTALL)
    assert known is not None
    for key in re.findall(r"[a-z][a-z0-9-]+", known.group(1).replace(".split", "")):
        assert f"| `{PREFIX}{key}` |" in WORDS
    for key in (TOPICS_FACT, SCHEMAS_FACT, GAPS_FACT):
        assert f"| `{PREFIX}{key}` |" in WORDS


@pytest.mark.parametrize("kind", LossKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("page", ["kafka.md", "when-a-start-is-refused.md"])
def test_every_way_to_lose_records_is_in_the_tables(kind: LossKind, page: str) -> None:
    assert f"| `{kind.value}` |" in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_every_setting_of_a_cluster_is_in_the_tables() -> None:
    for key in SECURITY_KEYS:
        assert f"| `{key}` |" in WORDS
    for key in [*KafkaConfig.model_fields, *(f"registry.{name}" for name in RegistryConfig.model_fields)]:
        assert f"| `kafka.{key}` |" in WORDS


def test_every_exit_code_is_in_the_readme() -> None:
    def codes(kind: type[StrandlineError]) -> set[int]:
        return {kind.exit_code}.union(*(codes(below) for below in kind.__subclasses__()))

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for code in codes(StrandlineError) | {0, 130}:
        assert f"| `{code}` |" in readme


@pytest.mark.parametrize("call", ["pipeline", "files", "generator", "kafka", "registry", "secret", "table", "topic", "checkpoint"])
def test_every_argument_of_a_declaration_is_in_the_tables(call: str) -> None:
    text = (ROOT / "docs/pipelines.md").read_text(encoding="utf-8")
    heading = "| argument |" if call == "pipeline" else f"| `sl.{call}` argument |"
    table = text[text.index(heading) :].partition("\n\n")[0]
    for name, parameter in inspect.signature(getattr(strandline, call)).parameters.items():
        row = re.search(rf"^\| [^|]*`{name}(?:={{name: …}})?`[^|]* \| ([^|]*) \|", table, re.MULTILINE)
        assert row, f"sl.{call}({name}=…)"
        default = parameter.default
        if default not in (inspect.Parameter.empty, None):
            assert str(default) in row.group(1), f"sl.{call}({name}={default!r}), the page says {row.group(1)}"
    assert GeneratorSource.SCHEMA in text


@pytest.mark.parametrize("call", ["keyed", "ttl", "dedupe", "tumbling", "sliding", "sessions", "join_streams"])
def test_every_argument_of_what_a_transform_calls_is_in_the_tables(call: str) -> None:
    text = (ROOT / "docs/keyed-state.md").read_text(encoding="utf-8")
    table = text[text.index(f"| `sl.{call}` argument |") :].partition("\n\n")[0]
    for name, parameter in inspect.signature(getattr(strandline, call)).parameters.items():
        row = re.search(rf"^\| [^|]*`{name}`[^|]* \| ([^|]*) \|", table, re.MULTILINE)
        assert row, f"sl.{call}({name}=…)"
        if parameter.default is inspect.Parameter.empty:
            assert row.group(1) == "required", f"sl.{call}({name}=…)"
        elif parameter.default is not None:
            assert str(parameter.default) in row.group(1), f"sl.{call}({name}={parameter.default!r}), the page says {row.group(1)}"


def test_every_kind_of_state_is_in_the_table_as_it_is_declared() -> None:
    text = (ROOT / "docs/keyed-state.md").read_text(encoding="utf-8")
    for kind in ("value_state", "list_state", "map_state", "reducing_state", "aggregating_state"):
        parameters = inspect.signature(getattr(strandline, kind)).parameters.values()
        shown = ", ".join(p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default}" for p in parameters)
        assert f"| `sl.{kind}({shown})` |" in text


def test_every_test_that_the_docs_name_exists() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    for name in set(re.findall(r"`(test_\w+)`", WORDS)):
        assert f"def {name}(" in code, name
    for file in set(re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs/design/commit-protocol.md").read_text(encoding="utf-8"))):
        assert (ROOT / file).is_file(), file


def test_the_pages_name_no_machine() -> None:
    """No folder of the machine they were written on."""
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        assert not re.search(r"(?<![\w.$~…])/(home|tmp|work|root|Users)/", page.read_text(encoding="utf-8")), name_of(page)
