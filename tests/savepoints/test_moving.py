"""A pipeline moves to another project with another warehouse, catalog, ledger and input folder: table and state go on as if it had stayed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.evidence.history import Kind, history_of
from strandline.model.continuity import Gap
from strandline.model.errors import ChainBroken, DataLost, NotFound, Refused, SavepointDamaged, UsageError
from strandline.model.move import Move
from strandline.model.savepoint import Savepoint
from strandline.runtime.options import Allowances
from strandline.savepoints.archive import MANIFEST, Archive, archive_of, find_archive
from strandline.savepoints.catalogue import examine, export, listed
from strandline.savepoints.input_paths import PathMap
from strandline.savepoints.moving import MOVE, export_with_tables, import_folder
from strandline.savepoints.restoring import plan_from_savepoint
from strandline.savepoints.session import SessionCatalog, SessionTags
from strandline.savepoints.table_plans import CONTINUE
from strandline.savepoints.taking import Taker, Wish
from strandline.tables.catalog import EmbeddedCatalog
from strandline.tables.relocation import TableFileKind
from strandline.testing import assert_chain_unbroken, table_rows
from strandline.testing.fixtures import Sandbox
from strandline.testing.kafka import KafkaForTests
from strandline.testing.projects import write_sandbox

from .counted import COUNTED

pytestmark = pytest.mark.engine

MOVING = COUNTED.replace('sl.files("data"', 'sl.files("{path}"').replace(
    'sl.table("shop.counted")', 'sl.table("shop.counted", partition_by=["who"])'
)

LATEST = """
import strandline as sl

@sl.pipeline(source=sl.files("{path}", format="json", schema="n bigint, who string", max_files_per_batch=1),
             sink=sl.table("shop.latest", mode="upsert", key=["who"], order_by="n", format_version={version}), checkpoint=sl.checkpoint(every="0 s"))
def latest(events):
    return events
"""

CAREFUL = """
import strandline as sl

@sl.pipeline(source=sl.files("data", format="json", schema="n bigint, who string", malformed="quarantine"),
             sink=sl.table("shop.careful"), checkpoint=sl.checkpoint(every="0 s"))
def careful(events):
    return events
"""

RELAY = """
import strandline as sl

@sl.pipeline(source=sl.kafka("{topic}", bootstrap="{bootstrap}", schema="n bigint", start="earliest"), sink=sl.table("shop.numbers"),
             checkpoint=sl.checkpoint(every="0 s"))
def relay(numbers):
    return numbers
"""

NAMES = ("w/0 a", "w1", "w2")
"""The first must be escaped in the path of its partition."""


def add_file(folder: Path, number: int) -> None:
    """Ten events; the last repeats the first of the file before, which state remembers."""
    folder.mkdir(exist_ok=True)
    numbers = [*range(number * 10, number * 10 + 10), max(0, number * 10 - 10)]
    file = folder / f"{number:03d}.json"
    file.write_text("".join(json.dumps({"n": n, "who": NAMES[n % 3]}) + "\n" for n in numbers))
    os.utime(file, (1_800_000_000 + number,) * 2)  # Spark takes the oldest first


def assert_counted(shop: Sandbox, files: int) -> None:
    """As if computed in one go: every event once, numbered per key in the order it came."""
    rows = table_rows(shop.project, "shop.counted")
    assert sorted(row["n"] for row in rows) == list(range(files * 10))
    for name in NAMES:
        mine = sorted((row["n"], row["seen"]) for row in rows if row["who"] == name)
        assert [seen for _, seen in mine] == list(range(1, len(mine) + 1)), name


@pytest.fixture
def here(sandbox: Sandbox) -> Sandbox:
    sandbox.pipelines(MOVING.format(path="data"))
    for number in range(2):
        add_file(sandbox.folder / "data", number)
    return sandbox


Elsewhere = Callable[[str], Sandbox]


@pytest.fixture
def elsewhere(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    """Another project, with nothing in it but its pipelines."""

    def make(pipelines: str) -> Sandbox:
        folder = tmp_path_factory.mktemp("a place with a longer name")
        project = write_sandbox(folder, catalog=f"c{uuid.uuid4().hex[:8]}")
        Path(project.warehouse).mkdir()
        project.catalog_file.parent.mkdir(parents=True)
        there = Sandbox(folder, sandbox.spark, project)
        there.configure()
        there.pipelines(pipelines)
        return there

    return make


def take(shop: Sandbox, pipeline: str = "counted") -> Savepoint:
    with SessionTags(shop.project, "test", shop.heard.say, shop.spark) as tags:
        return Taker(shop.project, shop.pipeline(pipeline), shop.ledger, tags, shop.heard.say).take(Wish("me@here"))


def exported(shop: Sandbox, saved: Savepoint, folder: Path) -> Move:
    return export_with_tables(shop.project, shop.ledger, archive_of(shop.project, saved.pipeline, saved.id), str(folder), shop.heard.say)


def imported(shop: Sandbox, folder: Path) -> Savepoint:
    with SessionCatalog(shop.project, "test", shop.heard.say, shop.spark) as catalog:
        saved, _ = import_folder(shop.project, shop.ledger, str(folder), catalog, "me@there", shop.heard.say)
    return saved


def go_on(shop: Sandbox, saved: Savepoint, *rules: str) -> None:
    archive = find_archive(shop.project, saved.pipeline, saved.id)
    inputs = PathMap.parse(shop.project, rules)
    found = plan_from_savepoint(shop.project, shop.pipeline(saved.pipeline), shop.ledger, archive, CONTINUE, inputs=inputs)
    shop.run(saved.pipeline, allow=Allowances(restoration=found.restoration))


def test_a_moved_pipeline_ends_like_one_that_stayed(here: Sandbox, elsewhere: Elsewhere, tmp_path: Path) -> None:
    here.run("counted")
    saved = take(here)
    add_file(here.folder / "data", 2)
    here.run("counted")  # the old place goes on for a while: none of this moves
    move = exported(here, saved, tmp_path / "out")
    there = elsewhere(MOVING.format(path="data in"))
    for number in range(2):
        add_file(there.folder / "data in", number)
    gone = here.folder.rename(here.folder.with_name("gone"))
    shutil.copytree(gone / "out", tmp_path / "out")  # nothing of the old place is left but the export

    assert imported(there, tmp_path / "out") == saved

    view = EmbeddedCatalog(there.project).load("shop.counted")
    assert (view.uuid, view.refs) == (move.tables[0].uuid, {"main": saved.tables[0].snapshot, saved.tag: saved.tables[0].snapshot})
    assert_counted(there, 2)
    assert [(line.id, line.state) for line in listed(there.project, there.ledger, "counted")] == [(saved.id, "complete")]
    examined = examine(there.project, archive_of(there.project, "counted", saved.id))
    assert (examined.restorable, examined.tables) == (True, ())
    with pytest.raises(ChainBroken, match=f"reads {there.folder}/data in, but files were read from {here.folder}/data"):
        go_on(there, saved)
    with pytest.raises(UsageError, match="fits no file that was read"):
        go_on(there, saved, f"{here.folder}/dta=data in")

    add_file(there.folder / "data in", 2)
    go_on(there, saved, f"{here.folder}/data=data in")

    assert_counted(there, 3)
    entries = history_of("shop.counted", EmbeddedCatalog(there.project).load("shop.counted"), there.ledger)
    assert [entry.kind for entry in entries] == [Kind.BATCH, Kind.BOUNDARY, Kind.BATCH, Kind.BATCH]
    assert_chain_unbroken(there.project, "shop.counted", "counted")
    add_file(there.folder / "data in", 3)
    there.run("counted")
    assert_counted(there, 4)


@pytest.mark.parametrize(("version", "kind"), [(3, TableFileKind.VECTORS), (2, TableFileKind.POSITIONS)])
def test_deletes_and_files_of_expired_snapshots_move_too(
    sandbox: Sandbox, elsewhere: Elsewhere, tmp_path: Path, version: int, kind: TableFileKind
) -> None:
    """Iceberg's own procedure leaves files out whose snapshots have expired."""
    sandbox.pipelines(LATEST.format(path="data", version=version))
    for number in range(3):
        add_file(sandbox.folder / "data", number)
    sandbox.run("latest")
    sandbox.sql("ALTER TABLE {c}.shop.latest CREATE TAG mine")
    saved = take(sandbox, "latest")
    oldest = min(EmbeddedCatalog(sandbox.project).load("shop.latest").ancestors(), key=lambda snapshot: snapshot.sequence_number)
    sandbox.sql(f"CALL {{c}}.system.expire_snapshots(table => 'shop.latest', snapshot_ids => array({oldest.id}))")
    before = EmbeddedCatalog(sandbox.project).load("shop.latest")
    shown = {at: rows_at(sandbox, at) for at in before.snapshots}
    lineage = lineage_of(sandbox) if version > 2 else []
    move = exported(sandbox, saved, tmp_path / "out")
    there = elsewhere(LATEST.format(path="data", version=version))
    shutil.rmtree(sandbox.project.warehouse)

    imported(there, tmp_path / "out")

    assert any(file.kind == kind.value for file in move.tables[0].files)
    after = EmbeddedCatalog(there.project).load("shop.latest")
    assert oldest.id not in after.snapshots
    assert after.refs == {"main": saved.tables[0].snapshot, "mine": saved.tables[0].snapshot, saved.tag: saved.tables[0].snapshot}
    assert {at: rows_at(there, at) for at in after.snapshots} == shown
    assert version == 2 or lineage_of(there) == lineage
    for number in range(4):
        add_file(there.folder / "data", number)
    go_on(there, saved, f"{sandbox.folder}/data=data")
    rows = there.sql("SELECT who, n FROM {c}.shop.latest")
    assert {str(row["who"]): row["n"] for row in rows} == {NAMES[0]: 39, NAMES[1]: 37, NAMES[2]: 38}
    assert len(rows) == 3


def lineage_of(shop: Sandbox) -> list[tuple[object, ...]]:
    rows = shop.sql("SELECT _row_id, _last_updated_sequence_number, n FROM {c}.shop.latest ORDER BY n")
    return [tuple(row.values()) for row in rows]


def test_a_side_table_without_rows_moves_too(sandbox: Sandbox, elsewhere: Elsewhere, tmp_path: Path) -> None:
    sandbox.pipelines(CAREFUL)
    add_file(sandbox.folder / "data", 0)
    sandbox.run("careful")
    saved = take(sandbox, "careful")
    assert [(table.name, table.snapshot is None) for table in saved.tables] == [("shop.careful", False), ("shop.careful__quarantine", True)]
    exported(sandbox, saved, tmp_path / "out")
    there = elsewhere(CAREFUL)

    imported(there, tmp_path / "out")

    add_file(there.folder / "data", 1)
    with (there.folder / "data" / "001.json").open("a") as file:
        file.write("no json\n")
    os.utime(file.name, (1_800_000_001,) * 2)  # Spark leaves out what is a week older than what it has read
    go_on(there, saved, f"{sandbox.folder}/data=data")
    assert sorted({row["n"] for row in table_rows(there.project, "shop.careful")}) == list(range(20))
    assert [row["record"] for row in table_rows(there.project, "shop.careful__quarantine")] == ["no json"]


def rows_at(shop: Sandbox, snapshot: int) -> list[tuple[object, object]]:
    return [(row["who"], row["n"]) for row in shop.sql(f"SELECT who, n FROM {{c}}.shop.latest VERSION AS OF {snapshot} ORDER BY n")]


def test_a_topic_of_another_cluster_is_refused_until_its_offsets_are_vouched_for(
    sandbox: Sandbox, elsewhere: Elsewhere, kafka: KafkaForTests, tmp_path: Path
) -> None:
    """A topic made again under its name stands for the other cluster: another id."""
    topic = kafka.create_topic(kafka.topic("numbers"), partitions=1)
    sandbox.pipelines(RELAY.format(topic=topic, bootstrap=kafka.bootstrap))
    kafka.produce(topic, numbers(0, 10), partition=0)
    sandbox.run("relay")
    saved = take(sandbox, "relay")
    exported(sandbox, saved, tmp_path / "out")
    there = elsewhere(RELAY.format(topic=topic, bootstrap=kafka.bootstrap))
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=1)
    kafka.produce(topic, numbers(0, 15), partition=0)  # a mirror that keeps offsets, and goes on
    imported(there, tmp_path / "out")

    with pytest.raises(DataLost, match="another id than the one that was read: .* or lies on another cluster") as refused:
        go_on(there, saved)

    assert f"--accept-gap {topic}:0:0-10" in refused.value.next_command
    assert sorted(row["n"] for row in table_rows(there.project, "shop.numbers")) == list(range(10))
    there.run("relay", allow=Allowances(accept_gaps=frozenset([Gap(topic, 0, 0, 10)])))
    assert sorted(row["n"] for row in table_rows(there.project, "shop.numbers")) == list(range(15))


def numbers(first: int, last: int) -> list[str]:
    return [json.dumps({"n": n}) for n in range(first, last)]


def test_what_is_not_whole_is_refused_and_nothing_is_written(here: Sandbox, elsewhere: Elsewhere, tmp_path: Path) -> None:
    here.run("counted")
    saved = take(here)
    move = exported(here, saved, tmp_path / "out")
    there = elsewhere(MOVING.format(path="data"))

    def refused(change: Callable[[Path], object]) -> str:
        copy = tmp_path / uuid.uuid4().hex
        shutil.copytree(tmp_path / "out", copy)
        change(copy)
        with pytest.raises(SavepointDamaged) as error:
            imported(there, copy)
        assert EmbeddedCatalog(there.project).tables() == []
        assert list(Path(there.project.warehouse).iterdir()) == [] and not Path(there.project.savepoints_of("counted")).exists()
        return error.value.message

    def rewritten(change: Callable[[str], str]) -> Callable[[Path], object]:
        """By somebody who knows how digests are made."""

        def apply(folder: Path) -> None:
            told = json.loads(change((folder / MOVE).read_text()))
            del told["version"], told["sha256"]
            (folder / MOVE).write_bytes(sealed(told))

        return apply

    for file in {file.kind: file for file in move.files}.values():  # one of each kind
        assert file.path in refused(lambda folder, path=file.path: flip(folder / path))  # type: ignore[misc]
    assert "it is missing" in refused(lambda folder: (folder / move.files[-1].path).unlink())
    assert "without its tables" in refused(lambda folder: (folder / MOVE).unlink())
    assert "holds no complete savepoint" in refused(lambda folder: (folder / MANIFEST).unlink())
    assert "its content is not what its digest says" in refused(lambda folder: edit(folder / MOVE, "shop.counted", "shop.other"))
    assert "written by a newer strandline" in refused(lambda folder: edit(folder / MOVE, '"version": 1', '"version": 2'))
    assert "leads out of its folder" in refused(rewritten(lambda text: text.replace('"ledger.json"', '"../ledger.json"')))
    assert "is no name of a table" in refused(rewritten(lambda text: text.replace('"name": "shop.counted"', '"name": "../x.counted"')))


def sealed(told: dict[str, object]) -> bytes:
    content = {"version": 1, **told}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}).encode()


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_an_import_replaces_nothing(here: Sandbox, elsewhere: Elsewhere, tmp_path: Path) -> None:
    here.run("counted")
    saved = take(here)
    exported(here, saved, tmp_path / "out")
    with pytest.raises(Refused, match=f"savepoint {saved.id} of 'counted' is here already"):
        imported(here, tmp_path / "out")
    with pytest.raises(Refused, match="already holds a savepoint"):
        exported(here, saved, tmp_path / "out")
    there = elsewhere(MOVING.format(path="data"))
    there.sql("CREATE NAMESPACE {c}.shop")
    there.sql("CREATE TABLE {c}.shop.counted (n bigint) USING iceberg")

    with pytest.raises(Refused, match=r"table 'shop.counted' exists here already; an import never replaces a table"):
        imported(there, tmp_path / "out")
    there.sql("DROP TABLE {c}.shop.counted")
    imported(there, tmp_path / "out")
    with pytest.raises(Refused, match="is here already"):
        imported(there, tmp_path / "out")
    assert_counted(there, 2)


def test_a_table_that_was_made_again_is_not_exported(here: Sandbox, tmp_path: Path) -> None:
    here.run("counted")
    saved = take(here)
    archive = archive_of(here.project, "counted", saved.id)
    here.sql("DROP TABLE {c}.shop.counted")
    with pytest.raises(NotFound, match=r"no table 'shop.counted'"):
        exported(here, saved, tmp_path / "out")
    here.sql("CREATE TABLE {c}.shop.counted (n bigint) USING iceberg")
    with pytest.raises(NotFound, match="dropped and made again"):
        exported(here, saved, tmp_path / "out")

    assert not (tmp_path / "out" / MANIFEST).exists()
    export(archive, str(tmp_path / "out"))
    assert Archive(str(tmp_path / "out")).read() == saved, "without its tables it can be exported all the same"
