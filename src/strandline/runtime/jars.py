"""The jars Spark needs: exact coordinates and hashes in a lock file, fetched once by the Ivy that pyspark ships."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from strandline.model.errors import EnvironmentProblem
from strandline.runtime.java import Java
from strandline.runtime.places import cache_folder


@dataclass(frozen=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> Path:
        return cache_folder() / "jars" / self.file_name


def locked_jars() -> list[Jar]:
    text = resources.files("strandline.runtime").joinpath("jars.lock.json").read_text(encoding="utf-8")
    return [Jar(**entry) for entry in json.loads(text)["jars"]]


def missing_jars() -> list[Jar]:
    return [jar for jar in locked_jars() if not jar.path.is_file()]


def ensure_jars(java: Java, say: Callable[[str], None]) -> list[Path]:
    """Paths of all locked jars; the missing ones are fetched and checked first."""
    missing = missing_jars()
    for number, jar in enumerate(missing, start=1):
        say(f"Fetching {jar.file_name} ({number} of {len(missing)}) into {jar.path.parent}")
        _fetch(java, jar)
    return [jar.path for jar in locked_jars()]


def digest_of(path: Path) -> str:
    with path.open("rb") as stream:
        return (
            hashlib.file_digest(stream, "sha256").hexdigest()
            if hasattr(hashlib, "file_digest")
            else hashlib.sha256(stream.read()).hexdigest()
        )


def _fetch(java: Java, jar: Jar) -> None:
    jar.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.path.parent) as folder:
        command: list[str | Path] = [java.executable, *_trust(java), "-jar", _ivy()]
        command += ["-cache", cache_folder() / "ivy", "-m2compatible", "-confs", "default", "-types", "jar", "bundle"]
        command += ["-notransitive", "-dependency", jar.group, jar.artifact, jar.version]
        command += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]", "-warn"]
        answer = subprocess.run(command, capture_output=True, text=True)
        fetched = Path(folder) / jar.file_name
        if answer.returncode != 0 or not fetched.is_file():
            lines = [line for line in (answer.stdout + answer.stderr).splitlines() if line.strip(". ")]
            raise EnvironmentProblem(
                f"{jar.group}:{jar.artifact}:{jar.version} could not be fetched: {lines[-1].strip() if lines else 'Ivy gave no reason'}",
                next_command="check the network, then: strandline setup",
            )
        found = digest_of(fetched)
        if found != jar.sha256:
            raise EnvironmentProblem(
                f"{jar.file_name} has SHA-256 {found}, the lock file says {jar.sha256}: it was not kept",
                next_command="strandline setup",
            )
        os.replace(fetched, jar.path)


SYSTEM_TRUST = Path("/etc/ssl/certs/java/cacerts")


def _trust(java: Java) -> list[str]:
    """A Java from a wheel knows only public certificates; behind a company's proxy the system's own store knows more."""
    return [f"-Djavax.net.ssl.trustStore={SYSTEM_TRUST}"] if java.from_wheel and SYSTEM_TRUST.exists() else []


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
