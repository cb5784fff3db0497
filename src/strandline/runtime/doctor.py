"""Can this machine and this project run a pipeline? One line per question, each with its fix."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from strandline.ledger import ledger_of
from strandline.messaging.cluster import Cluster
from strandline.messaging.connection import connect_to
from strandline.model.errors import ConfigError, StrandlineError
from strandline.model.kafka import KafkaAccess
from strandline.project.config import Project, load_project
from strandline.runtime.jars import digest_of, locked_jars
from strandline.runtime.java import SUPPORTED, find_java
from strandline.runtime.state_backend import state_backend_warnings

_PROVEN = {"pyspark": "4.1.3", "pyiceberg": "0.12"}


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    finding: str
    fix: str = ""
    warning: bool = False
    """It runs, but not as it should."""


def examine(profile: str | None) -> list[Check]:
    checks = [_python(), _java(), _jars(), _versions(), _clock()]
    try:
        project = load_project(profile=profile)
    except ConfigError as error:
        return [*checks, Check("project", False, error.message, error.next_command)]
    checks.append(Check("project", True, f"{project.config.project}, profile {project.profile_name}, in {project.root}"))
    checks += [_guard("pipelines", lambda: _pipelines(project)), _guard("catalog", lambda: _catalog(project))]
    checks += [_guard("ledger", lambda: _ledger(project))]
    warnings = state_backend_warnings(project.profile.spark)
    checks += [Check("state backend", True, warning, "edit strandline.yaml", warning=True) for warning in warnings]
    if not warnings:
        checks.append(Check("state backend", True, "RocksDB"))
    if project.profile.kafka is not None or project.development_broker() is not None:
        checks.append(_guard("kafka", lambda: _kafka(project)))
    checks += [_folder(name, location) for name, location in (("warehouse", project.warehouse), ("checkpoints", project.checkpoints))]
    return checks


def _guard(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except StrandlineError as error:
        return Check(name, False, error.message, error.next_command)


def _kafka(project: Project) -> str:
    cluster = Cluster(connect_to(project, KafkaAccess()))
    try:
        topics = cluster.topic_names()
    finally:
        cluster.close()
    return f"{cluster.connection.bootstrap} answers, {len(topics)} topics"


def _python() -> Check:
    ok = sys.version_info >= (3, 10)
    return Check("python", ok, sys.version.split()[0], "" if ok else "install Python 3.10 or newer")


def _java() -> Check:
    java = find_java()
    if java is None:
        return Check("java", False, f"no Java {' or '.join(map(str, SUPPORTED))} found", "strandline setup")
    return Check("java", True, f"{java.version} from {java.origin}")


def _jars() -> Check:
    for jar in locked_jars():
        if not jar.path.is_file():
            return Check("jars", False, f"{jar.file_name} is not in the cache", "strandline setup")
        if digest_of(jar.path) != jar.sha256:
            return Check("jars", False, f"{jar.path} differs from the lock file", f"rm {jar.path} && strandline setup")
    return Check("jars", True, f"{len(locked_jars())} as locked")


def _versions() -> Check:
    found, wrong = [], []
    for package, proven in _PROVEN.items():
        try:
            have = version(package)
        except PackageNotFoundError:
            have = "missing"
        found.append(f"{package} {have}")
        if have != proven and not have.startswith(f"{proven}."):
            wrong.append(f"{package}=={proven}.*" if proven.count(".") == 1 else f"{package}=={proven}")
    return Check("versions", not wrong, ", ".join(found), f"pip install {' '.join(wrong)}" if wrong else "")


def _clock() -> Check:
    """Commit times order events for people; a clock before the code was written cannot be right."""
    ok = time.time() > Path(__file__).stat().st_mtime - 86400
    return Check("clock", ok, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "" if ok else "set the system clock (NTP)")


def _pipelines(project: Project) -> str:
    from strandline.project.loader import load_pipelines

    return ", ".join(sorted(load_pipelines(project))) or "none yet"


def _catalog(project: Project) -> str:
    file = project.catalog_file
    if not file.exists():
        return f"{file} will be made by the first run"
    try:
        connection = sqlite3.connect(file, timeout=2)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StrandlineError(f"{file}: {error}", next_command=f"fuser {file}") from error
    return str(file)


def _ledger(project: Project) -> str:
    ledger = ledger_of(project)
    running = [a.pipeline for a in ledger.attempts.latest_of_all() if a.status.value == "running"]
    ledger.close()
    return project.profile.ledger.url + (f", running: {', '.join(running)}" if running else "")


def _folder(name: str, location: str) -> Check:
    if "://" in location:
        return Check(name, True, location)
    folder = Path(location)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Check(name, False, f"{nearest} is not writable", f"chmod u+wx {nearest}")
    return Check(name, True, str(folder) if folder.exists() else f"{folder} will be made by the first run")
