"""Finding tables in the embedded catalog: a SQLite file as Iceberg's Java catalog makes it, read without Iceberg."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from strandline.model.errors import NotFound, TableUnavailable
from strandline.project.config import CONFIG_NAME, Project, load_project
from strandline.tables.catalog import EmbeddedCatalog, local_path

METADATA = {"format-version": 3, "location": "file:/w/shop/orders", "snapshots": [], "refs": {}, "properties": {"comment": "ours"}}


def make_project(folder: Path) -> Project:
    (folder / "pipelines").mkdir(parents=True)
    (folder / ".strandline").mkdir()
    (folder / CONFIG_NAME).write_text("version: 1\nproject: shop\nprofiles: {local: {}}\n")
    return load_project(folder)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def register(project: Project, *tables: tuple[str, str, str], catalog: str = "local") -> None:
    """Rows (namespace, name, metadata location) in the layout of JdbcCatalog's schema V1."""
    connection = sqlite3.connect(project.catalog_file)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, "
        "table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), "
        "iceberg_type VARCHAR(5), PRIMARY KEY (catalog_name, table_namespace, table_name))"
    )
    connection.executemany("INSERT INTO iceberg_tables VALUES (?, ?, ?, ?, NULL, 'TABLE')", [(catalog, *table) for table in tables])
    connection.commit()
    connection.close()


def write_metadata(file: Path, content: bytes | None = None) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if content is not None else json.dumps(METADATA).encode())
    return f"file:{file}"


def test_a_table_is_read_from_the_metadata_file_that_the_catalog_names(project: Project, tmp_path: Path) -> None:
    register(project, ("shop", "orders", write_metadata(tmp_path / "w" / "00001.metadata.json")))

    table = EmbeddedCatalog(project).load("shop.orders")

    assert (table.name, table.format_version, table.properties) == ("shop.orders", 3, {"comment": "ours"})


def test_compressed_metadata_is_read_too(project: Project, tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(METADATA).encode())
    register(project, ("shop", "orders", write_metadata(tmp_path / "w" / "00001.gz.metadata.json", packed)))

    assert EmbeddedCatalog(project).load("shop.orders").location == "file:/w/shop/orders"


def test_tables_are_listed_by_name_and_only_of_this_catalog(project: Project) -> None:
    register(project, ("shop", "orders", "x"), ("a.b", "c", "x"), ("shop", "customers", "x"))
    register(project, ("shop", "others", "x"), catalog="elsewhere")

    assert EmbeddedCatalog(project).tables() == ["a.b.c", "shop.customers", "shop.orders"]


def test_before_the_first_run_there_are_no_tables(project: Project) -> None:
    catalog = EmbeddedCatalog(project)

    assert catalog.tables() == []
    assert catalog.find("shop.orders") is None
    assert not project.catalog_file.exists(), "looking makes nothing"


def test_a_catalog_file_that_no_engine_has_filled_yet_has_no_tables(project: Project) -> None:
    sqlite3.connect(project.catalog_file).close()

    assert EmbeddedCatalog(project).tables() == []


def test_an_unknown_table_is_told_with_those_there_are(project: Project) -> None:
    register(project, ("shop", "orders", "x"))

    with pytest.raises(NotFound, match=r"there is no table 'shop.order' in the catalog \(tables: shop.orders\)"):
        EmbeddedCatalog(project).load("shop.order")


def test_a_lost_metadata_file_is_told_by_its_name(project: Project, tmp_path: Path) -> None:
    register(project, ("shop", "orders", f"file:{tmp_path}/gone.metadata.json"))

    with pytest.raises(TableUnavailable, match=r"gone\.metadata\.json of table 'shop\.orders' cannot be read"):
        EmbeddedCatalog(project).find("shop.orders")


@pytest.mark.parametrize("content", [b"", b"{", b"\x1f\x8bnot really gzip", gzip.compress(b'{"format-version": 3}')[:-6]])
def test_a_torn_metadata_file_is_told_by_its_name(project: Project, tmp_path: Path, content: bytes) -> None:
    register(project, ("shop", "orders", write_metadata(tmp_path / "torn.metadata.json", content)))

    with pytest.raises(TableUnavailable, match=r"torn\.metadata\.json of table 'shop\.orders' cannot be read"):
        EmbeddedCatalog(project).find("shop.orders")


def test_a_damaged_catalog_is_told_by_its_name(project: Project) -> None:
    project.catalog_file.write_bytes(b"not a database" * 100)

    with pytest.raises(TableUnavailable, match=r"catalog\.db is damaged"):
        EmbeddedCatalog(project).tables()


def test_a_reader_does_not_wait_for_a_writer(project: Project, tmp_path: Path) -> None:
    register(project, ("shop", "orders", write_metadata(tmp_path / "00001.metadata.json")))
    writer = sqlite3.connect(project.catalog_file, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE iceberg_tables SET metadata_location = 'half done'")

    assert EmbeddedCatalog(project).load("shop.orders").format_version == 3

    writer.close()


@pytest.mark.parametrize("name", ["with space", "a#b", "50%20", "what?"])
def test_the_project_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    project = make_project(tmp_path / name)
    register(project, ("shop", "orders", "x"))

    assert EmbeddedCatalog(project).tables() == ["shop.orders"]


def test_locations_become_paths() -> None:
    assert local_path("/w/shop") == Path("/w/shop")
    assert local_path("file:/w/shop") == Path("/w/shop")
    assert local_path("file:///w/my%20shop") == Path("/w/my shop")
