"""The jars that Spark and the development broker need: exact coordinates and hashes in lock files, fetched once.

The Ivy that pyspark ships does the fetching. Both lock files name every jar, those that others would pull in too: no POM
is read, nothing is resolved, so a fetch asks one question per jar and cannot drift.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from xml.sax.saxutils import quoteattr

from strandline.model.errors import EnvironmentProblem
from strandline.runtime.java import Java
from strandline.runtime.places import cache_folder


@dataclass(frozen=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""
    """Which of an artifact's files, when it has several."""
    ext: str = "jar"

    @property
    def file_name(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{classifier}.{self.ext}"

    @property
    def path(self) -> Path:
        return cache_folder() / "jars" / self.file_name

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


def locked_jars() -> list[Jar]:
    """What every Spark session loads."""
    return _locked("jars.lock.json")


def locked_broker_jars() -> list[Jar]:
    """The class path of the development broker: never part of a Spark session, whose Kafka client is another version."""
    return _locked("broker.lock.json")


def _locked(lock_file: str) -> list[Jar]:
    text = resources.files("strandline.runtime").joinpath(lock_file).read_text(encoding="utf-8")
    return [Jar(**entry) for entry in json.loads(text)["jars"]]


def missing_jars() -> list[Jar]:
    return _missing(locked_jars())


def ensure_jars(java: Java, say: Callable[[str], None]) -> list[Path]:
    """Paths of all locked jars; the missing ones are fetched and checked first."""
    return _ensure(locked_jars(), java, say, again="strandline setup")


def ensure_broker_jars(java: Java, say: Callable[[str], None]) -> list[Path]:
    """The same for the development broker; only `strandline kafka up` and tests ask for it."""
    return _ensure(locked_broker_jars(), java, say, again="strandline kafka up")


def ensure_archive(archive: Jar, java: Java, say: Callable[[str], None], again: str) -> Path:
    """A single file that is not part of any class path."""
    return _ensure([archive], java, say, again)[0]


def digest_of(path: Path) -> str:
    with path.open("rb") as stream:
        return (
            hashlib.file_digest(stream, "sha256").hexdigest()
            if hasattr(hashlib, "file_digest")
            else hashlib.sha256(stream.read()).hexdigest()
        )


def _missing(jars: Sequence[Jar]) -> list[Jar]:
    return [jar for jar in jars if not jar.path.is_file()]


def _ensure(jars: Sequence[Jar], java: Java, say: Callable[[str], None], again: str) -> list[Path]:
    if missing := _missing(jars):
        folder = cache_folder() / "jars"
        folder.mkdir(parents=True, exist_ok=True)
        # Ivy's cache lasts as long as the fetch: two fetches at once cannot meet in it, and no jar is kept twice.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            say(f"Fetching {_count(missing)} into {folder}")
            output = _run_ivy(java, missing, Path(scratch), say)
            # What arrived whole is kept even when another jar did not: the next try has less to do.
            lost = [jar for jar in missing if not _keep(jar, Path(scratch), again)]
        if lost:
            raise EnvironmentProblem(f"{lost[0]} could not be fetched: {_reason(output)}", next_command=f"check the network, then: {again}")
    return [jar.path for jar in jars]


def _keep(jar: Jar, scratch: Path, again: str) -> bool:
    fetched = next(scratch.rglob(jar.file_name), None)
    if fetched is None:
        return False
    found = digest_of(fetched)
    if found != jar.sha256:
        raise EnvironmentProblem(
            f"{jar.file_name} has SHA-256 {found}, the lock file says {jar.sha256}: it was not kept", next_command=again
        )
    os.replace(fetched, jar.path)
    return True


SIGN_OF_LIFE = 1.0
"""Seconds between two progress lines at least: most jars take less, and 46 lines would tell nobody anything."""

_SETTINGS = """<ivysettings>
  <!-- We compare SHA-256 with the lock file; Ivy need not ask for weaker sums, nor for POMs: every jar is named. -->
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false" useMavenMetadata="false"/></resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">
  <info organisation="strandline" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""


def _run_ivy(java: Java, jars: Sequence[Jar], scratch: Path, say: Callable[[str], None]) -> list[str]:
    """Fetch all jars in one call, whose start costs more than most downloads; returns what Ivy printed."""
    settings, module = scratch / "settings.xml", scratch / "ivy.xml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    module.write_text(_MODULE.format(dependencies="".join(map(_dependency, jars))), encoding="utf-8")
    command: list[str | Path] = [java.executable, *_trust(java), "-jar", _ivy()]
    command += [
        "-settings",
        settings,
        "-ivy",
        module,
        "-cache",
        scratch / "cache",
        "-confs",
        "default",
        "-types",
        *sorted({jar.ext for jar in jars}),
    ]
    lines: list[str] = []
    begun, said_at = 0, time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            lines.append(line)
            if not (download := re.match(r"downloading \S*/(\S+\.jar)", line)):
                continue
            begun += 1
            if time.monotonic() - said_at > SIGN_OF_LIFE:
                said_at = time.monotonic()
                say(f"Fetching {download[1]} ({begun} of {len(jars)})")
    return lines


def _count(jars: Sequence[Jar]) -> str:
    return jars[0].file_name if len(jars) == 1 else f"{len(jars)} jars"


def _dependency(jar: Jar) -> str:
    where = f"org={quoteattr(jar.group)} name={quoteattr(jar.artifact)} rev={quoteattr(jar.version)}"
    if not jar.classifier:
        return f'<dependency {where} conf="default->default" transitive="false"/>'
    file = f"name={quoteattr(jar.artifact)} type={quoteattr(jar.ext)} ext={quoteattr(jar.ext)} e:classifier={quoteattr(jar.classifier)}"
    return f'<dependency {where} conf="default->default" transitive="false"><artifact {file}/></dependency>'


def _reason(output: Sequence[str]) -> str:
    """Why a fetch failed, in few words: a refused connection says more than the 'not found' that follows from it."""
    text = "".join(output)
    if refused := re.search(r"Server access error at url \S+ \((.+)\)", text):
        return refused[1]
    if unresolved := re.search(r"^\s*:: \S+: (.+)$", text, re.MULTILINE):
        return unresolved[1]
    lines = [line.strip() for line in output if line.strip(". :\n\t")]
    return lines[-1] if lines else "Ivy gave no reason"


SYSTEM_TRUST = Path("/etc/ssl/certs/java/cacerts")


def _trust(java: Java) -> list[str]:
    """A Java from a wheel knows only public certificates; behind a company's proxy the system's own store knows more."""
    return [f"-Djavax.net.ssl.trustStore={SYSTEM_TRUST}"] if java.from_wheel and SYSTEM_TRUST.exists() else []


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
