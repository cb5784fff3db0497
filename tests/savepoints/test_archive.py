"""A savepoint's folder: complete when its manifest is there, checked file by file, and never another folder than its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strandline.ledger import ledger_of
from strandline.ledger.records import SavepointRecord, SavepointState
from strandline.model.errors import NotFound, Refused, SavepointDamaged
from strandline.model.offsets import ORIGIN
from strandline.model.savepoint import Savepoint, SavepointType
from strandline.project.config import Project
from strandline.runtime.liveness import this_process
from strandline.savepoints.archive import MANIFEST, Archive, archive_of, find_archive
from strandline.savepoints.catalogue import export, listed
from strandline.savepoints.disposing import dispose
from strandline.testing.projects import write_sandbox

ID = "sp-20260131-120000-00ff"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_sandbox(tmp_path)


class NoTags:
    def tag(self, table: str, name: str, snapshot: int) -> None: ...
    def untag(self, table: str, name: str) -> None: ...


def written(archive: Archive) -> Savepoint:
    files = (archive.keep("checkpoint/metadata", "identity", b"{}"), archive.keep("checkpoint/offsets/0", "plan", b"v1"))
    saved = Savepoint(
        ID,
        "orders",
        SavepointType.NATIVE,
        "s",
        0,
        1,
        "src:1",
        "2026-01-31T12:00:00.000Z",
        "me",
        "",
        ORIGIN,
        0,
        "/c",
        {},
        (),
        {},
        {},
        (),
        (),
        files,
    )
    archive.seal(saved)
    return saved


def test_a_folder_is_a_savepoint_when_its_manifest_is_there(project: Project) -> None:
    archive = archive_of(project, "orders", ID)
    with pytest.raises(NotFound, match=rf"has no complete savepoint '{ID}' \(there are: none\)"):
        find_archive(project, "orders", ID)

    saved = written(archive)

    assert find_archive(project, "orders", ID).read() == saved
    assert find_archive(project, "orders", archive.location).read() == saved
    assert archive.damages(saved.files) == []


def test_every_kind_of_damage_is_told(project: Project) -> None:
    archive = archive_of(project, "orders", ID)
    saved = written(archive)
    archive.storage.write("checkpoint/metadata", b"[]")
    archive.storage.remove("checkpoint/offsets/0")

    assert [(damage.path, damage.what) for damage in archive.damages(saved.files)] == [
        ("checkpoint/metadata", "its content has changed: the SHA-256 differs"),
        ("checkpoint/offsets/0", "it is missing"),
    ]
    archive.storage.write("checkpoint/offsets/0", b"longer")
    assert archive.damages(saved.files[1:])[0].what == "it has 6 bytes instead of 2"
    with pytest.raises(SavepointDamaged, match="checkpoint/metadata: its content has changed"):
        archive.content(saved.files[0])


def test_an_exported_copy_is_a_savepoint_too(project: Project, tmp_path: Path) -> None:
    archive = archive_of(project, "orders", ID)
    saved = written(archive)

    export(archive, str(tmp_path / "elsewhere"))

    assert Archive(str(tmp_path / "elsewhere")).read() == saved


@pytest.mark.parametrize(("pipeline", "savepoint"), [("orders", ".."), ("orders", "../orders"), ("..", ID), ("a/b", ID), ("orders", "")])
def test_a_name_that_leads_elsewhere_is_no_savepoint(project: Project, pipeline: str, savepoint: str) -> None:
    with pytest.raises(NotFound, match="has no savepoint"):
        dispose(project, pipeline, savepoint, ledger_of(project), NoTags(), by="me")


def test_one_that_is_being_made_is_not_disposed_of_until_its_maker_is_gone(project: Project) -> None:
    ledger = ledger_of(project)
    record = SavepointRecord(
        ID, "orders", "native", SavepointState.CREATING, "s", 0, "/sp", "me", "", this_process(), "2026-01-31T12:00:00.000Z"
    )
    ledger.savepoints.begin(record)
    with pytest.raises(Refused, match="is still being made"):
        dispose(project, "orders", ID, ledger, NoTags(), by="me")
    gone = replace(
        record, id="sp-20260131-120000-11ff", process=replace(this_process(), started=f"{this_process().started.rpartition(':')[0]}:1")
    )
    ledger.savepoints.begin(gone)

    dispose(project, "orders", gone.id, ledger, NoTags(), by="me")

    assert {line.id: line.state for line in listed(project, ledger, "orders")} == {ID: "creating", gone.id: "disposed"}


def test_folders_that_the_ledger_does_not_know_are_listed(project: Project) -> None:
    written(archive_of(project, "orders", ID))
    half = archive_of(project, "orders", "sp-20260131-130000-22ff")
    half.storage.write("checkpoint/metadata", b"{}")

    lines = listed(project, ledger_of(project), "orders")

    assert {line.id: line.state for line in lines} == {ID: "not in the ledger", "sp-20260131-130000-22ff": "incomplete"}
    assert half.storage.read(MANIFEST) is None
