"""Markdown pages as what they ask a reader to do: commands to type, files to write, texts to read."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from strandline.runtime.broker import Broker

ROOT = Path(__file__).parents[2]

BY_NAME_ONLY = ("make demo", "make test", "make bench", "pip install", "strandline demo")
"""Commands that are too long, or change the machine: their existence is checked, they are not run."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"\s+# exit (\d+)$")
_FILE_NAME = re.compile(r"# ([\w./-]+\.\w+)\n")

COMMAND_SECONDS = 150.0
"""Ten times what a start of Spark takes on a quiet machine."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int

    @property
    def file_name(self) -> str | None:
        """``# path/of/file`` in the first line: the reader writes the block there."""
        found = _FILE_NAME.match(self.text)
        return found.group(1) if found else None

    def commands(self) -> list[Command]:
        found = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                text = line.removeprefix("$ ")
                expected = _EXIT.search(text)
                found.append(Command(_EXIT.sub("", text), int(expected.group(1)) if expected else 0))
        return found


@dataclass(frozen=True)
class Command:
    text: str
    exit_code: int

    @property
    def by_name_only(self) -> bool:
        return self.text.startswith(BY_NAME_ONLY)

    @property
    def repeatable(self) -> bool:
        """A run that reads what is there and ends: on the same files it does the same."""
        return self.text.startswith("strandline run") and self.text.endswith("--available-now") and self.exit_code == 0


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^```", text, re.MULTILINE)) % 2 == 0, f"{page}: a fence is left open"
    return [Block(m.group(1), m.group(2), text.count("\n", 0, m.start()) + 1) for m in _FENCE.finditer(text)]


def every_word() -> str:
    """All pages as one text."""
    return "\n".join(page.read_text(encoding="utf-8") for page in [*pages(), ROOT / "CHANGELOG.md"])


class Reader:
    """Someone at a terminal: one bash in an empty folder, where `cd`, `export` and `&` mean what they always mean."""

    def __init__(self, folder: Path, screen: Path, temporary: Path) -> None:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "NO_COLOR": "1",
            "TMPDIR": str(temporary),
            # Short-lived JVMs spend their time compiling; the first tier is enough for them.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        environment.pop("STRANDLINE_PROFILE", None)
        self.folder = folder
        self._screen = screen
        self._typed = 0
        with screen.open("wb") as output:
            self._shell = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def type(self, command: str) -> tuple[int, str]:
        """Exit code and output of one command; afterwards `folder` is where the shell is."""
        self._typed += 1
        mark = f"@@{self._typed}@@"
        before = self._screen.stat().st_size
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n%s %s %s\\n' '{mark}' $? \"$PWD\"\n")
        self._shell.stdin.flush()
        deadline = time.monotonic() + COMMAND_SECONDS
        said = ""
        while time.monotonic() < deadline:
            said = self._screen.read_bytes()[before:].decode("utf-8", errors="replace")
            if found := re.search(rf"\n{mark} (\d+) (.*)\n", said):
                self.folder = Path(found.group(2))
                return int(found.group(1)), said[: found.start()]
            time.sleep(0.05)
        raise AssertionError(f"'{command}' did not end within {COMMAND_SECONDS:.0f} s: {said}")

    def leave(self) -> None:
        """Close the terminal; what the page left running ends with it, also a command that does not end by itself."""
        try:
            self._shell.communicate("jobs -p | xargs -r kill -9; exit\n", timeout=20)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._shell.pid, signal.SIGKILL)


class Desk:
    """The one folder where all pages are read, cleared for each; so the same run on the same files happens once.

    Tables name their files by absolute path: what a run leaves behind can only be put back where it was made.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "desk"
        self.temporary = root / "temporary"
        self.temporary.mkdir()
        self._root = root
        self._kept: dict[str, Path] = {}

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()

    def run(self, command: str, reader: Reader) -> tuple[int, str]:
        """Type a `strandline run`, or put back what it made when another page typed it on the same files."""
        if any(self.folder.rglob(".strandline/kafka/bootstrap")):
            return reader.type(command)  # a running broker cannot be put back, and its files change while they are copied
        key = f"{command} in {reader.folder} on {self._content()}"
        if key in self._kept:
            self.clear()
            shutil.copytree(self._kept[key], self.folder, dirs_exist_ok=True)
            return reader.type(f"cd '{reader.folder}'")
        code, said = reader.type(command)
        if code == 0:
            self._kept[key] = self._root / f"kept-{len(self._kept)}"
            shutil.copytree(self.folder, self._kept[key])
        return code, said

    def stop_brokers(self) -> None:
        """A broker outlives the terminal where it was started; whatever became of the page, none stays behind."""
        for settings in [*self.folder.rglob("server.properties"), *self.temporary.rglob("server.properties")]:
            Broker(settings.parent).down()

    def _content(self) -> str:
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        if not any(path.name == "catalog.db" for path in files):
            files = [path for path in files if not path.name.startswith("ledger.db")]  # an empty one, made by a look
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.relative_to(self.folder)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()
