"""Bad input gets one sentence: what is wrong, where, and the next command. Nothing written, nothing lost."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.ledger.records import AttemptStatus
from strandline.model.errors import (
    BatchTimedOut,
    CheckpointDamaged,
    CommitUnknown,
    DefinitionError,
    EnvironmentProblem,
    Failure,
    LedgerUnavailable,
    SourceProblem,
    StrandlineError,
    TableUnavailable,
    TransformFailed,
)
from strandline.project.config import Project, load_project
from strandline.runtime.options import Allowances, ForBatches
from strandline.runtime.protocol import CommitProtocol
from strandline.testing import assert_rows_once, table_rows
from strandline.testing.fixtures import Sandbox

pytestmark = pytest.mark.engine

NUMBERS = """
import strandline as sl

@sl.pipeline(source=sl.files("data", schema="n bigint", format="{format}", malformed="{malformed}"), sink=sl.table("shop.numbers"),
             checkpoint=sl.checkpoint(every="0 s"))
def numbers(numbers):
    return {body}
"""


def numbers(shop: Sandbox, *, format: str = "json", malformed: str = "stop", body: str = "numbers") -> None:
    shop.pipelines(NUMBERS.format(format=format, malformed=malformed, body=body))
    (shop.folder / "data").mkdir(exist_ok=True)


def feed(shop: Sandbox, name: str, text: str) -> Path:
    file = shop.folder / "data" / name
    file.write_text(text)
    return file


def one_sentence(error: StrandlineError) -> str:
    assert error.message
    assert "\n" not in error.message
    assert error.next_command
    return error.message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("None", "returned NoneType for 'output', not a DataFrame"),
        ("numbers.collect", "returned method"),
        ("numbers.sparkSession.range(1)", "does not come from its sources"),
        ("numbers.select('m')", "raised AnalysisException"),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_transform_that_returns_the_wrong_thing(sandbox: Sandbox, body: str, said: str) -> None:
    numbers(sandbox, body=body)

    with pytest.raises(TransformFailed) as caught:
        sandbox.run("numbers")

    assert said in one_sentence(caught.value)
    assert sandbox.ledger.attempts.latest("numbers").status is AttemptStatus.FAILED  # type: ignore[union-attr]


def test_several_sinks_need_a_dict_with_their_names(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
        import strandline as sl

        @sl.pipeline(source=sl.generator(total=10), sinks={"a": sl.table("shop.a"), "b": sl.table("shop.b")})
        def pair(orders):
            return {"a": orders}
    """)

    with pytest.raises(TransformFailed, match=r"returned the keys \['a'\]; its sinks are \['a', 'b'\]"):
        sandbox.run("pair")


def test_an_output_that_does_not_fit_its_table_names_every_difference(sandbox: Sandbox) -> None:
    numbers(sandbox)
    sandbox.sql("CREATE NAMESPACE {c}.shop")
    sandbox.sql("CREATE TABLE {c}.shop.numbers (n string, m bigint) USING iceberg")

    with pytest.raises(DefinitionError) as caught:
        sandbox.run("numbers")

    message = one_sentence(caught.value)
    assert "column 'n' is bigint, the table has string" in message
    assert "the table's column 'm' is not produced" in message


def test_a_source_folder_that_is_missing_or_a_file(sandbox: Sandbox) -> None:
    numbers(sandbox)
    (sandbox.folder / "data").rmdir()
    with pytest.raises(SourceProblem, match="data does not exist") as caught:
        sandbox.run("numbers")
    assert caught.value.next_command.startswith("mkdir")

    (sandbox.folder / "data").write_text("")
    with pytest.raises(SourceProblem, match="is a file, not a folder"):
        sandbox.run("numbers")
    assert sandbox.ledger.attempts.latest("numbers") is None, "nothing was written"


@pytest.mark.parametrize(("format", "bad"), [("json", '{"n": "many"}\n'), ("json", '{"n": 3\n'), ("csv", "many\n")])
def test_a_malformed_record_stops_the_run(sandbox: Sandbox, format: str, bad: str) -> None:
    numbers(sandbox, format=format)
    good = '{"n": 1}\n' if format == "json" else "1\n"
    feed(sandbox, "a", good + bad)

    with pytest.raises(SourceProblem) as caught:
        sandbox.run("numbers")

    assert "does not fit its schema" in one_sentence(caught.value)
    assert "quarantine" in caught.value.next_command
    assert table_rows(sandbox.project, "shop.numbers") == []


@pytest.mark.parametrize(("format", "good", "bad"), [("json", '{"n": 1}\n', '{"n": "many"}\n'), ("csv", "1\n", "many\n")])
def test_a_malformed_record_is_quarantined_when_declared(sandbox: Sandbox, format: str, good: str, bad: str) -> None:
    numbers(sandbox, format=format, malformed="quarantine")
    feed(sandbox, "a", good + bad)

    sandbox.run("numbers")

    assert_rows_once(sandbox.project, "shop.numbers", "n", [1])
    (kept,) = table_rows(sandbox.project, "shop.numbers__quarantine")
    assert kept["record"] == bad.strip()
    assert kept["source"] == "numbers"
    assert kept["file"].endswith("/data/a")


def test_an_unreadable_parquet_file_stops_the_run(sandbox: Sandbox) -> None:
    numbers(sandbox, format="parquet")
    feed(sandbox, "a.parquet", "this is not Parquet")

    with pytest.raises(Failure) as caught:
        sandbox.run("numbers")

    assert "a.parquet" in one_sentence(caught.value)


@pytest.mark.parametrize("content", ["", "v1\n", "v1\n{}\nnot json", "v9\n{}\n{}", "\x00\x01"])
def test_a_damaged_offsets_file_is_named(sandbox: Sandbox, content: str) -> None:
    numbers(sandbox)
    feed(sandbox, "a", '{"n": 1}\n')
    sandbox.run("numbers")
    offsets = Path(sandbox.project.checkpoint_of("numbers")) / "offsets"
    (offsets / "0").write_text(content)
    (offsets / ".0.crc").unlink()
    feed(sandbox, "b", '{"n": 2}\n')

    with pytest.raises(CheckpointDamaged) as caught:
        sandbox.run("numbers")

    assert "offsets/0" in one_sentence(caught.value) or "reads its sources in" in caught.value.message
    assert_rows_once(sandbox.project, "shop.numbers", "n", [1])


def test_a_strand_cannot_change_its_sources(sandbox: Sandbox) -> None:
    numbers(sandbox)
    feed(sandbox, "a", '{"n": 1}\n')
    sandbox.run("numbers")

    sandbox.pipelines("""
        import strandline as sl

        @sl.pipeline(source=sl.generator(total=10), sink=sl.table("shop.numbers"))
        def numbers(orders):
            return orders.selectExpr("seq as n")
    """)
    with pytest.raises(CheckpointDamaged, match="a source changed its kind"):
        sandbox.run("numbers")

    sandbox.pipelines("""
        import strandline as sl

        more = sl.files("data", schema="n bigint")

        @sl.pipeline(sources={"numbers": more, "others": more}, sink=sl.table("shop.numbers"))
        def numbers(numbers, others):
            return numbers.union(others)
    """)
    with pytest.raises(CheckpointDamaged, match="cannot be added or removed"):
        sandbox.run("numbers")


def test_a_locked_catalog_is_a_clear_error_and_nothing_is_committed(sandbox: Sandbox) -> None:
    numbers(sandbox)
    feed(sandbox, "a", '{"n": 1}\n')
    sandbox.run("numbers")
    feed(sandbox, "b", '{"n": 2}\n')
    config = sandbox.folder / "strandline.yaml"
    name = sandbox.project.profile.catalog.name
    impatient = Sandbox(sandbox.folder, sandbox.spark, _reload(config, f"name: {name}", f"name: {name}b, busy_timeout: 1 s"))
    _rename_catalog(sandbox.project.catalog_file, name, f"{name}b")
    impatient.configure()

    with _locked(sandbox.project.catalog_file), pytest.raises(StrandlineError) as caught:
        impatient.run("numbers")

    assert isinstance(caught.value, CommitUnknown | TableUnavailable)
    assert "locked" in one_sentence(caught.value).lower() or "busy" in caught.value.message.lower()
    impatient.run("numbers")
    assert_rows_once(impatient.project, "shop.numbers", "n", [1, 2])


def _reload(config: Path, old: str, new: str) -> Project:
    config.write_text(config.read_text().replace(old, new))
    return load_project(config.parent)


def _rename_catalog(file: Path, old: str, new: str) -> None:
    connection = sqlite3.connect(file)
    for table in ("iceberg_tables", "iceberg_namespace_properties"):
        connection.execute(f"UPDATE {table} SET catalog_name = ? WHERE catalog_name = ?", (new, old))
    connection.commit()
    connection.close()


class _locked:  # noqa: N801 - reads as a statement
    """Holds SQLite's write lock."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN EXCLUSIVE")

    def __exit__(self, *_: object) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


def test_a_locked_ledger_stops_the_batch_and_nothing_is_committed_twice(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers(sandbox)
    feed(sandbox, "a", '{"n": 1}\n')
    config = sandbox.folder / "strandline.yaml"
    impatient = Sandbox(sandbox.folder, sandbox.spark, _reload(config, "    spark:", "    ledger: {busy_timeout: 500 ms}\n    spark:"))
    ledger_file = Path(sandbox.project.ledger_url.removeprefix("sqlite:///"))
    from strandline.tables.jvm import JvmTable

    append = JvmTable.append
    lock: list[_locked] = []

    def append_then_lock(self: JvmTable, *arguments: object) -> object:
        committed = append(self, *arguments)  # type: ignore[arg-type]
        lock.append(_locked(ledger_file))
        lock[0].__enter__()
        return committed

    monkeypatch.setattr(JvmTable, "append", append_then_lock)
    with pytest.raises(LedgerUnavailable, match="locked by another process"):
        impatient.run("numbers")
    lock[0].__exit__()
    monkeypatch.undo()

    impatient.run("numbers", allow=Allowances(take_over=True))  # our own process, which still lives, could not record its end

    assert_rows_once(impatient.project, "shop.numbers", "n", [1])
    assert [(record.batch, record.kind) for record in impatient.ledger.commits.of_table("shop.numbers")] == [(0, "batch"), (0, "boundary")]


def test_a_stuck_batch_fails_the_attempt_within_its_limit(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
        import time
        import strandline as sl
        from pyspark.sql import functions as F

        @F.udf("bigint")
        def slow(n):
            time.sleep(60)
            return n

        @sl.pipeline(source=sl.generator(events_per_batch=1), sink=sl.table("shop.slow"), checkpoint=sl.checkpoint(timeout="3 s"))
        def slowly(orders):
            return orders.select(slow("seq").alias("seq"))
    """)
    began = time.monotonic()

    with pytest.raises(BatchTimedOut, match="batch 0 of 'slowly' ran longer than its limit of 3 s"):
        sandbox.run("slowly", ForBatches(1))

    assert time.monotonic() - began < 30
    attempt = sandbox.ledger.attempts.latest("slowly")
    assert attempt is not None and attempt.status is AttemptStatus.FAILED
    assert "batch-timed-out" in [event.kind for event in sandbox.ledger.events.of_pipeline("slowly")]


def test_user_code_that_fails_on_a_record_is_named(sandbox: Sandbox) -> None:
    sandbox.pipelines("""
        import strandline as sl
        from pyspark.sql import functions as F

        @F.udf("bigint")
        def fragile(n):
            raise ValueError(f"no {n} please")

        @sl.pipeline(source=sl.generator(events_per_batch=1, total=1), sink=sl.table("shop.fragile"))
        def fragile_one(orders):
            return orders.select(fragile("seq").alias("seq"))
    """)

    with pytest.raises(TransformFailed, match="ValueError: no 0 please") as caught:
        sandbox.run("fragile_one")

    one_sentence(caught.value)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB, where the machine lets us mount one."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _move_warehouse(sandbox: Sandbox, folder: Path) -> Sandbox:
    config = sandbox.folder / "strandline.yaml"
    name = sandbox.project.profile.catalog.name
    project = _reload(config, f"catalog: {{name: {name}}}", f"catalog: {{name: {name}w}}\n    warehouse: {folder}")
    moved = Sandbox(sandbox.folder, sandbox.spark, project)
    moved.configure()
    return moved


def test_a_full_disk_fails_the_batch_and_the_next_start_goes_on(sandbox: Sandbox, tiny_disk: Path) -> None:
    numbers(sandbox)
    shop = _move_warehouse(sandbox, tiny_disk)
    feed(shop, "a", '{"n": 1}\n')
    shop.run("numbers")
    ballast = tiny_disk / "ballast"
    with pytest.raises(OSError, match="No space"), ballast.open("wb") as stream:
        while True:
            stream.write(b"x" * 4096)
            stream.flush()
    feed(shop, "b", '{"n": 2}\n')

    with pytest.raises(Failure) as caught:
        shop.run("numbers")
    assert "the disk is full" in one_sentence(caught.value)

    ballast.unlink()
    shop.run("numbers")
    assert_rows_once(shop.project, "shop.numbers", "n", [1, 2])


def test_a_read_only_warehouse_is_named(sandbox: Sandbox, tiny_disk: Path) -> None:
    numbers(sandbox)
    shop = _move_warehouse(sandbox, tiny_disk)
    feed(shop, "a", '{"n": 1}\n')
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)

    with pytest.raises(StrandlineError) as caught:
        shop.run("numbers")

    assert isinstance(caught.value, EnvironmentProblem | TableUnavailable)
    one_sentence(caught.value)


def test_two_starts_at_once_give_one_attempt(sandbox: Sandbox) -> None:
    """In one process here; with real processes in tests/processes."""
    from strandline.ledger.records import ProcessIdentity
    from strandline.runtime.liveness import this_process

    ledger = sandbox.ledger
    got: list[object] = []

    def begin(id: str) -> None:
        identity: ProcessIdentity = this_process()
        got.append(ledger.attempts.begin("p", id=id, above=0, replaces=None, process=identity, code="c", tables=[]))

    threads = [threading.Thread(target=begin, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(attempt is not None for attempt in got) == 1


def test_a_file_that_went_away_before_its_batch_ran_again_is_never_passed_over(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads the planned batch without it and says nothing."""
    numbers(sandbox)
    file = feed(sandbox, "a.json", '{"n": 1}\n')
    feed(sandbox, "b.json", '{"n": 2}\n')

    def killed(*_: object) -> None:
        raise RuntimeError("killed after the batch was planned")

    with monkeypatch.context() as broken, pytest.raises(Failure, match="killed"):
        broken.setattr(CommitProtocol, "_stage", killed)
        sandbox.run("numbers")
    text = file.read_text()
    file.unlink()
    with pytest.raises(SourceProblem, match=r"source file .*a\.json cannot be read: it is gone") as told:
        sandbox.run("numbers")
    one_sentence(told.value)
    assert table_rows(sandbox.project, "shop.numbers") == []

    file.write_text(text)
    sandbox.run("numbers")
    assert sorted(row["n"] for row in table_rows(sandbox.project, "shop.numbers")) == [1, 2]
