"""The command line as a user meets it: sentences, next commands, exit codes, JSON. No engine is started here."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from strandline.ledger import ledger_of
from strandline.ledger.records import ProcessIdentity
from strandline.project.config import load_project
from strandline.testing import run_cli
from strandline.testing.projects import write_sandbox

GOOD = """
import strandline as sl

@sl.pipeline(source=sl.generator(total=10), sink=sl.table("shop.orders"))
def orders(orders):
    return orders
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_sandbox(tmp_path, GOOD)
    return tmp_path


def assert_refused(folder: Path, *arguments: str, code: int, says: str) -> str:
    finished = run_cli(folder, *arguments)
    assert finished.code == code, finished.err
    assert says in finished.err
    assert finished.err.strip().splitlines()[-1].startswith("next: ")
    assert 'strandline/cli/main.py"' not in finished.err, "our own traceback is not for users"
    return finished.err


def test_outside_a_project(tmp_path: Path) -> None:
    assert_refused(tmp_path, "status", code=2, says="no strandline.yaml in")


def test_invalid_configuration_names_file_line_and_allowed_values(project: Path) -> None:
    config = project / "strandline.yaml"
    config.write_text(config.read_text() + "    colour: red\n")

    said = assert_refused(project, "status", code=2, says="strandline.yaml is not valid")

    assert "line 11: profiles.local.colour: unknown key; allowed: catalog, checkpoints, kafka, ledger" in said


def test_unknown_pipeline_suggests_the_nearest(project: Path) -> None:
    assert_refused(project, "run", "order", code=2, says="did you mean 'orders'?")


def test_import_error_shows_the_users_traceback_and_our_sentence(project: Path) -> None:
    (project / "pipelines" / "tested.py").write_text("import strandline as sl\n\nimport not_there\n")

    said = assert_refused(project, "run", "orders", code=2, says="could not be imported: ModuleNotFoundError")

    assert 'tested.py", line 3' in said
    assert "import not_there" in said


def test_limits_exclude_each_other(project: Path) -> None:
    assert_refused(project, "run", "orders", "--available-now", "--batches", "2", code=2, says="exclude each other")


def test_a_duration_that_is_none(project: Path) -> None:
    assert_refused(project, "run", "orders", "--for", "a while", code=2, says="'a while' is not a duration")


def test_stop_of_a_pipeline_that_does_not_run(project: Path) -> None:
    assert_refused(project, "stop", "orders", code=2, says="'orders' is not running")


def test_history_of_a_table_that_does_not_exist(project: Path) -> None:
    assert_refused(project, "history", "shop.nothing", code=2, says="there is no table 'shop.nothing'")


def test_history_of_a_pipeline_that_never_ran(project: Path) -> None:
    assert_refused(project, "history", "orders", code=2, says="there is no table 'shop.orders'")


def test_status_before_the_first_run(project: Path) -> None:
    assert "no pipeline has run yet" in run_cli(project, "status").out
    assert json.loads(run_cli(project, "status", "--json").out) == {"version": 1, "pipelines": []}


def test_status_shows_a_running_attempt_whose_process_is_gone_as_dead(project: Path) -> None:
    ledger = ledger_of(load_project(project))
    from strandline.runtime.liveness import this_process

    here = this_process()
    gone = ProcessIdentity(here.host, 2**22 - 1, here.started)
    ledger.attempts.begin("orders", id="a", above=0, replaces=None, process=gone, code="src:1", tables=["shop.orders"])

    shown = json.loads(run_cli(project, "status", "--json").out)["pipelines"][0]

    assert shown["state"] == "dead"
    assert shown["attempt"] == 1


def test_a_damaged_ledger_says_what_to_do(project: Path) -> None:
    (project / ".strandline").mkdir(exist_ok=True)
    (project / ".strandline" / "ledger.db").write_text("this is not a database, and never was one" * 100)

    assert_refused(project, "status", code=1, says="is damaged")


def test_a_damaged_catalog_says_so(project: Path) -> None:
    (project / ".strandline").mkdir(exist_ok=True)
    (project / ".strandline" / "catalog.db").write_text("this is not a database, and never was one" * 100)

    assert_refused(project, "history", "shop.orders", code=1, says="the catalog")


def test_cleanup_of_a_clean_project(project: Path) -> None:
    assert run_cli(project, "cleanup").out.strip() == "nothing to clean up"
    assert json.loads(run_cli(project, "cleanup", "--json").out) == {
        "version": 1,
        "removed": 0,
        "items": [],
        "checkpoints": [],
        "savepoints": [],
    }


def test_doctor_names_each_problem_with_its_fix(project: Path) -> None:
    (project / ".strandline").mkdir(exist_ok=True)
    (project / ".strandline" / "catalog.db").write_text("broken" * 1000)

    finished = run_cli(project, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(finished.out)["checks"]}

    assert finished.code == 1
    assert not checks["catalog"]["ok"]
    assert checks["catalog"]["fix"]
    assert checks["project"]["ok"]
    assert checks["pipelines"]["finding"] == "orders"


def test_doctor_holds_no_lock_on_the_catalog(project: Path) -> None:
    (project / ".strandline").mkdir(exist_ok=True)
    file = project / ".strandline" / "catalog.db"
    sqlite3.connect(file).execute("CREATE TABLE t (n int)").connection.close()

    run_cli(project, "doctor")

    connection = sqlite3.connect(file, timeout=0.1)
    connection.execute("INSERT INTO t VALUES (1)")
    connection.close()


def test_init_writes_a_project_that_loads(tmp_path: Path) -> None:
    finished = run_cli(tmp_path, "init", "shop")

    assert finished.code == 0
    assert finished.out.strip().endswith("next: cd shop && strandline run order_totals --available-now")
    assert load_project(tmp_path / "shop").config.project == "shop"
    assert_refused(tmp_path, "init", "shop", code=2, says="nothing was written")


def test_output_has_no_colour_codes_in_a_pipe(project: Path) -> None:
    os.environ.pop("NO_COLOR", None)
    assert "\x1b[" not in run_cli(project, "status").out + run_cli(project, "--help").out


def test_every_command_has_help_and_reports_have_json(project: Path) -> None:
    listing = run_cli(project, "--help").out
    for command in ("init", "setup", "doctor", "demo", "run", "stop", "cleanup", "status", "history"):
        assert command in listing
        assert run_cli(project, command, "--help").code == 0
    for command in ("doctor", "run", "cleanup", "status", "history"):
        assert "--json" in run_cli(project, command, "--help").out
