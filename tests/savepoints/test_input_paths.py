"""Input folders at another path: which files a rule is about, and what is refused before anything is restored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.checkpoints.file_log import logged_paths
from strandline.model.errors import ChainBroken, SavepointDamaged, UsageError
from strandline.project.config import Project
from strandline.project.loader import load_pipeline
from strandline.savepoints.input_paths import PathMap, check_inputs, folder_uri
from strandline.testing.projects import write_sandbox

PIPELINE = """
import strandline as sl

@sl.pipeline(source=sl.files("{path}", schema="n bigint"), sink=sl.table("shop.numbers"))
def numbers(rows):
    return rows
"""


def log(*paths: str) -> bytes:
    return "\n".join(["v1", *(json.dumps({"path": path, "timestamp": 1, "batchId": n}) for n, path in enumerate(paths))]).encode()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_sandbox(tmp_path, PIPELINE.format(path="data"))


def check(project: Project, logs: list[bytes], *rules: str) -> None:
    check_inputs(project, load_pipeline(project, "numbers"), logs, PathMap.parse(project, rules))


@pytest.mark.parametrize(
    ("folder", "uri"),
    [
        ("/data/in", "file:///data/in"),
        ("/data/in/", "file:///data/in"),
        ("file:/data/in", "file:///data/in"),
        ("file:///data/in", "file:///data/in"),
        ("/data/a b/50%", "file:///data/a%20b/50%25"),
        ("/data/größe/[1]", "file:///data/größe/%5B1%5D"),
        ("/data/day=1,2:@&+$;!~'()*", "file:///data/day=1,2:@&+$;!~'()*"),
        ("s3a://bucket/in/", "s3a://bucket/in"),
    ],
)
def test_a_folder_is_written_as_sparks_log_writes_it(folder: str, uri: str) -> None:
    assert folder_uri(folder) == uri


def test_a_rule_moves_the_files_of_its_folder_and_no_others(project: Project) -> None:
    rules = PathMap.parse(project, ["/old/in=data", "s3a://b/x=/new/x y"])

    moved = rules.apply(log("file:///old/in/a%20b.json", "file:///old/inner/c.json", "s3a://b/x/sub/d.json"))

    assert logged_paths(moved) == [
        f"{folder_uri(str(project.root))}/data/a%20b.json",
        "file:///old/inner/c.json",
        "file:///new/x%20y/sub/d.json",
    ]
    assert json.loads(moved.split(b"\n")[3]) == {"path": "file:///new/x%20y/sub/d.json", "timestamp": 1, "batchId": 2}


def test_without_rules_a_log_stays_byte_for_byte(project: Project) -> None:
    raw = log("file:///old/in/a.json")
    assert PathMap.parse(project, []).apply(raw) is raw


def test_the_same_folder_needs_no_rule(project: Project) -> None:
    check(project, [log(f"{folder_uri(str(project.root))}/data/a.json", f"{folder_uri(str(project.root))}/data/sub/b.json")])
    check(project, [])


def test_another_folder_without_a_rule_is_refused_with_both_paths_and_the_option(project: Project) -> None:
    with pytest.raises(ChainBroken, match="source 'rows' reads .*/data, but files were read from /old/in: .* doubled") as refused:
        check(project, [log("file:///old/in/a.json"), log("file:///old/in/sub/b.json")])
    assert f"--map-path /old/in={project.root}/data" in refused.value.next_command


def test_a_rule_that_leads_elsewhere_is_refused(project: Project) -> None:
    with pytest.raises(ChainBroken, match="files were read from /old/in"):
        check(project, [log("file:///old/in/a.json")], "/old/in=/not/what/it/reads")


@pytest.mark.parametrize("typo", ["/old/i=data", "/old/int=data", "/old/in/a=data", "file:///Old/in=data"])
def test_a_rule_that_fits_no_file_is_a_typo(project: Project, typo: str) -> None:
    with pytest.raises(UsageError, match="fits no file that was read: files were read from /old/in") as refused:
        check(project, [log("file:///old/in/a.json")], "/old/in=data", typo)
    assert "--map-path /old/in=NEW" in refused.value.next_command


def test_a_rule_where_no_file_was_read_is_refused(project: Project) -> None:
    with pytest.raises(UsageError, match="no file was read"):
        check(project, [], "/old/in=data")


@pytest.mark.parametrize("text", ["", "/old", "/old=", "=data", "old/in=data"])
def test_a_rule_must_be_old_equals_new(project: Project, text: str) -> None:
    with pytest.raises(UsageError, match="write OLD=NEW"):
        PathMap.parse(project, [text])


def test_a_source_with_wildcards_reads_below_its_fixed_part(tmp_path: Path) -> None:
    project = write_sandbox(tmp_path, PIPELINE.format(path="/in/day=*/part"))

    check(project, [log("file:///in/day=1/part/a.json")])
    with pytest.raises(ChainBroken, match="files were read from s3a://old/in/day=1"):
        check(project, [log("s3a://old/in/day=1/a.json")])


def test_a_log_that_is_none_is_damage(project: Project) -> None:
    with pytest.raises(SavepointDamaged, match="not in Spark's format"):
        check(project, [b"v9\n{}"])
