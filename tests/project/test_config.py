"""strandline.yaml: what it may hold, and how clearly a mistake in it is told."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.ledger import open_ledger
from strandline.model.errors import ConfigError, LedgerUnavailable
from strandline.project.config import CONFIG_NAME, Project, SecretRef, find_root, load_project

SECRET = "hunter2-never-shown"
Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _no_profile_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRANDLINE_PROFILE", raising=False)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a configuration into a project folder that has its pipelines folder."""
    (tmp_path / "pipelines").mkdir()

    def to(text: str) -> Path:
        (tmp_path / CONFIG_NAME).write_text(textwrap.dedent(text), encoding="utf-8")
        return tmp_path

    return to


def problem(folder: Path, profile: str | None = None) -> str:
    """The sentence a user reads; it always names the file, and what to do next."""
    with pytest.raises(ConfigError) as refused:
        load_project(folder, profile)
    assert str(folder / CONFIG_NAME) in refused.value.message
    assert refused.value.next_command
    assert refused.value.exit_code == 2
    return refused.value.message


MINIMAL = """\
version: 1
project: shop
profiles:
  local: {}
"""


# -- what is right -------------------------------------------------------------------------------------------


def test_a_minimal_project_keeps_everything_below_its_folder(write: Write) -> None:
    folder = write(MINIMAL)

    project = load_project(folder)

    assert project.config.project == "shop"
    assert project.warehouse == f"{folder}/warehouse"
    assert project.checkpoint_of("orders") == f"{folder}/checkpoints/orders"
    assert project.catalog_file == folder / ".strandline/catalog.db"
    assert project.ledger_url == f"sqlite:///{folder}/.strandline/ledger.db"
    assert project.logs == folder / ".strandline/logs"
    assert project.source_path("data") == f"{folder}/data"
    assert project.source_path("/data/orders") == "/data/orders"


def test_remote_locations_stay_as_they_are(write: Write) -> None:
    folder = write("""\
        version: 1
        project: shop
        profiles:
          local:
            warehouse: s3://lake/warehouse
            checkpoints: s3a://lake/checkpoints
            ledger: {url: "postgresql+psycopg://strandline@db/ledger"}
    """)

    project = load_project(folder)

    assert project.warehouse == "s3://lake/warehouse"
    assert project.checkpoint_of("orders") == "s3a://lake/checkpoints/orders"
    assert project.ledger_url == "postgresql+psycopg://strandline@db/ledger"


def test_the_project_is_found_from_any_folder_inside_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(MINIMAL)
    inside = folder / "pipelines" / "deep"
    inside.mkdir()

    assert find_root(inside) == folder
    monkeypatch.chdir(inside)
    assert load_project().root == folder


def test_profiles_are_chosen_by_argument_then_environment_then_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write("""\
        version: 1
        project: shop
        profile: dev
        profiles:
          dev: {warehouse: dev}
          test: {warehouse: test}
          prod: {warehouse: "s3://lake/prod"}
    """)

    assert load_project(folder).profile_name == "dev"
    monkeypatch.setenv("STRANDLINE_PROFILE", "test")
    assert load_project(folder).warehouse == f"{folder}/test"
    assert load_project(folder, "prod").warehouse == "s3://lake/prod"


def test_environment_variables_expand_anywhere_with_defaults(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", "s3://lake")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("LEDGER_HOST", raising=False)
    folder = write("""\
        version: 1
        project: shop
        profiles:
          local:
            warehouse: ${LAKE}/warehouse/${LAKE_PART:-main}${EMPTY}
            ledger: {url: "postgresql+psycopg://me@${LEDGER_HOST:-localhost}/ledger"}
            spark: {conf: {spark.app.path: "${LAKE}"}}
    """)

    project = load_project(folder)

    assert project.warehouse == "s3://lake/warehouse/main"
    assert project.ledger_url == "postgresql+psycopg://me@localhost/ledger"
    assert project.profile.spark.conf == {"spark.app.path": "s3://lake"}


# -- what is wrong -------------------------------------------------------------------------------------------


def test_no_project_anywhere_above(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"no {CONFIG_NAME} in .* or above it") as refused:
        load_project(tmp_path)

    assert refused.value.next_command == "strandline init my-project"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- a\n- b\n", "just words\n"])
def test_a_file_that_is_no_mapping(write: Write, text: str) -> None:
    assert "is empty or not a mapping" in problem(write(text))


def test_bad_yaml_is_reported_with_its_line(write: Write) -> None:
    assert "line 3 is not valid YAML" in problem(write("version: 1\nproject: shop\n\tprofiles: {}\n"))


def test_a_file_in_another_encoding_is_reported_with_its_line(write: Write) -> None:
    folder = write(MINIMAL)
    (folder / CONFIG_NAME).write_bytes("version: 1\nproject: café\n".encode("latin-1"))

    assert "line 2 is not UTF-8 text" in problem(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "wharehouse: x",
            "line 6: profiles.local.wharehouse: unknown key; allowed: catalog, checkpoints, kafka, ledger, savepoints, spark, warehouse",
        ),
        ("spark: {mastr: local}", "line 6: profiles.local.spark.mastr: unknown key; allowed: conf, driver_memory, master"),
        ("ledger: {pasword: x}", "line 6: profiles.local.ledger.pasword: unknown key; allowed: busy_timeout, password, url"),
        ("catalog: {kind: rest}", "line 6: profiles.local.catalog.kind: unknown key; allowed: busy_timeout, file, name, type"),
        ("ledger: {password: {envv: X}}", "line 6: profiles.local.ledger.password.envv: unknown key; allowed: env, file"),
        ("spark: {conf: {a.secret: {envv: X}}}", "line 6: profiles.local.spark.conf.a.secret.envv: unknown key; allowed: env, file"),
        ("catalog: {type: rest}", "line 6: profiles.local.catalog.type: Input should be 'embedded'"),
        ("catalog: {name: my catalog}", "line 6: profiles.local.catalog.name: String should match pattern"),
        ("warehouse: 5", "line 6: profiles.local.warehouse: Input should be a valid string"),
        ("spark: local", "line 6: profiles.local.spark: must be a mapping; allowed keys: conf, driver_memory, master"),
        ("spark: {driver_memory: lots}", r"line 6: profiles.local.spark.driver_memory: String should match pattern '^\d+[kmgKMG]$'"),
        ("ledger: {busy_timeout: soon}", "line 6: profiles.local.ledger.busy_timeout: 'soon' is not a duration; write a number and a unit"),
        (
            "catalog: {busy_timeout: soon}",
            "line 6: profiles.local.catalog.busy_timeout: 'soon' is not a duration; write a number and a unit",
        ),
        (
            "ledger: {url: 'mysql://me@db/x'}",
            "line 6: profiles.local.ledger.url: allowed: sqlite:///file.db, postgresql+psycopg://user@host/database",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_its_path_and_what_is_allowed(write: Write, text: str, expected: str) -> None:
    folder = write(f"version: 1\nproject: shop\nprofiles:\n  local:\n    checkpoints: here\n    {text}\n")

    assert expected in problem(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version: 2\nproject: shop\nprofiles: {local: {}}\n", "line 1: version: Input should be 1"),
        ("version: 1\nproject: 5 shops\nprofiles: {local: {}}\n", "line 2: project: String should match pattern"),
        ("version: 1\nproject: shop\n", "profiles: Field required"),
        ("version: 1\nproject: shop\nprofiles: {local: {}}\npipeline: x\n", "line 4: pipeline: unknown key; allowed: pipelines, profile"),
        ("version: 1\nproject: shop\nprofiles:\n  local:\n", "line 4: profiles.local: must be a mapping; allowed keys: catalog"),
    ],
)
def test_mistakes_at_the_top_of_the_file(write: Write, text: str, expected: str) -> None:
    assert expected in problem(write(text))


def test_a_missing_environment_variable_is_a_problem_of_its_line(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKE", raising=False)
    folder = write("version: 1\nproject: shop\nprofiles:\n  local:\n    warehouse: ${LAKE}/warehouse\n")

    assert "line 5: environment variable LAKE is not set (write ${LAKE:-default} to give a default)" in problem(folder)


def test_all_mistakes_are_told_at_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKE", raising=False)
    folder = write("""\
        version: 1
        project: shop
        pipelins: code
        profiles:
          local:
            warehouse: ${LAKE}
            checkpoints: 7
            spark:
              driver_memory: lots
    """)

    message = problem(folder)

    assert [f"line {line}:" in message for line in (3, 6, 7, 9)] == [True] * 4


def test_an_unknown_profile_is_told_with_those_there_are(write: Write) -> None:
    folder = write("version: 1\nproject: shop\nprofiles:\n  local: {}\n  prod: {}\n")

    message = problem(folder, "production")

    assert "line 3: there is no profile 'production'; allowed: local, prod" in message


def test_a_missing_pipelines_folder_is_told_with_its_path(write: Write) -> None:
    folder = write("version: 1\nproject: shop\npipelines: code\nprofiles: {local: {}}\n")

    with pytest.raises(ConfigError, match="line 3: the pipelines folder") as refused:
        load_project(folder)

    assert refused.value.next_command == f"mkdir {folder / 'code'}"


# -- secrets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"spark: {{conf: {{spark.hadoop.fs.s3a.secret.key: {SECRET}}}}}",
        f"spark: {{conf: {{spark.hadoop.fs.s3a.access.key: {SECRET}}}}}",
        f"spark: {{conf: {{my.password: {SECRET}}}}}",
        f"spark: {{conf: {{my.authToken: {SECRET}}}}}",
        f"spark: {{conf: {{my.password: [{SECRET}]}}}}",
        f"ledger: {{password: {SECRET}}}",
        f"ledger: {{password: {{env: A, file: {SECRET}}}}}",
        f"ledger: {{url: 'postgresql+psycopg://me:{SECRET}@db/ledger'}}",
        f"ledger: {{url: 'postgresql+psycopg://me@db/ledger?password={SECRET}'}}",
        f"warehouse: 's3://key:{SECRET}@lake/warehouse'",
        f"checkpoints: 's3a://key:{SECRET}@lake/checkpoints'",
    ],
)
def test_a_literal_secret_is_refused_and_not_repeated(write: Write, text: str) -> None:
    folder = write(f"version: 1\nproject: shop\nprofiles:\n  local:\n    {text}\n")

    message = problem(folder)

    assert "line 5: " in message
    assert "env" in message
    assert SECRET not in message


def test_a_secret_that_came_in_by_expansion_is_a_literal_too(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    folder = write("version: 1\nproject: shop\nprofiles:\n  local:\n    spark: {conf: {db.password: '${DB_PASSWORD}'}}\n")

    message = problem(folder)

    assert "'db.password' is a secret; write it as {env: NAME} or {file: path}" in message
    assert SECRET not in message


@pytest.fixture
def project_with_secrets(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("LEDGER_PASSWORD", SECRET)
    (tmp_path / "s3.key").write_text(f"{SECRET}\n")
    return load_project(
        write(f"""\
        version: 1
        project: shop
        profiles:
          local:
            ledger: {{url: "postgresql+psycopg://me@127.0.0.1:1/ledger", password: {{env: LEDGER_PASSWORD}}}}
            spark: {{conf: {{spark.hadoop.fs.s3a.secret.key: {{file: {tmp_path}/s3.key}}}}}}
    """)
    )


def test_secrets_are_resolved_where_they_are_used(project_with_secrets: Project) -> None:
    profile = project_with_secrets.profile
    key = profile.spark.conf["spark.hadoop.fs.s3a.secret.key"]

    assert profile.ledger.password is not None
    assert profile.ledger.password.resolve() == SECRET
    assert isinstance(key, SecretRef)
    assert key.resolve() == SECRET, "the line end of a secret file is not part of the secret"


def test_nothing_that_a_project_prints_holds_a_secret(project_with_secrets: Project) -> None:
    project = project_with_secrets
    assert project.profile.ledger.password is not None
    project.profile.ledger.password.resolve()

    shown = [
        *(show(thing) for show in (str, repr) for thing in (project, project.config, project.profile, project.profile.ledger)),
        *(show(project.profile.spark.conf) for show in (str, repr)),
        project.config.model_dump_json(),
        str(vars(project)),
        project.ledger_url,
    ]

    assert not [text for text in shown if SECRET in text]


def test_a_ledger_that_cannot_be_reached_does_not_tell_its_password(project_with_secrets: Project) -> None:
    with pytest.raises(LedgerUnavailable) as failed:
        open_ledger(project_with_secrets.ledger_url, password=SECRET)

    assert "postgresql+psycopg://me@127.0.0.1:1/ledger" in failed.value.message
    error: BaseException | None = failed.value
    while error is not None:
        assert SECRET not in f"{error!s}{error!r}"
        error = error.__cause__ or error.__context__


def test_a_secret_that_is_not_there_is_told_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)

    with pytest.raises(ConfigError, match="the secret in environment variable NOT_SET is not set"):
        SecretRef(env="NOT_SET").resolve()
    with pytest.raises(ConfigError, match=r"the secret file .*/missing cannot be read: No such file or directory"):
        SecretRef(file=str(tmp_path / "missing")).resolve()


def test_a_secret_has_exactly_one_place(write: Write) -> None:
    folder = write("version: 1\nproject: shop\nprofiles:\n  local:\n    ledger:\n      password: {}\n")

    assert "line 6: profiles.local.ledger.password: a secret is either {env: NAME} or {file: path}" in problem(folder)
