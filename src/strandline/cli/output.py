"""One place that prints: results on stdout, everything else on stderr, colour and bars only on a terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from strandline.model.errors import StrandlineError
from strandline.model.times import rfc3339, utc_now

if TYPE_CHECKING:
    from strandline.runtime.reporting import Progress


def colour(stream: Any) -> bool:
    return bool(stream.isatty()) and "NO_COLOR" not in os.environ


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Plain aligned columns: readable on a terminal, greppable in a pipe."""
    widths = [max(len(heading), *(len(row[i]) for row in rows)) if rows else len(heading) for i, heading in enumerate(headings)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    head = line(headings)
    print(f"\x1b[1m{head}\x1b[0m" if colour(sys.stdout) else head)
    for row in rows:
        print(line(row))


def print_error(error: StrandlineError) -> None:
    if error.detail:
        print(error.detail.rstrip(), file=sys.stderr)
    label = "\x1b[31merror:\x1b[0m" if colour(sys.stderr) else "error:"
    print(f"{label} {error.message}", file=sys.stderr)
    print(f"next: {error.next_command}", file=sys.stderr)


class PlainReporter:
    """One log line per sentence and batch, with the time, for files and log collectors."""

    def say(self, text: str) -> None:
        print(f"{rfc3339(utc_now())} {text}", file=sys.stderr, flush=True)

    def progress(self, progress: Progress) -> None:
        self.say(progress.line())


class LiveReporter:
    """A single line that moves, on a terminal."""

    _CLEAR = "\r\x1b[2K"

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._live = False

    def say(self, text: str) -> None:
        lead = self._CLEAR if self._live else ""
        print(f"{lead}{text}", file=sys.stderr, flush=True)
        self._live = False

    def progress(self, progress: Progress) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
        text = f"{minutes:02d}:{seconds:02d} · {progress.line()}"[:width]
        print(f"{self._CLEAR}{text}", end="", file=sys.stderr, flush=True)
        self._live = True

    def finish(self) -> None:
        if self._live:
            print(file=sys.stderr, flush=True)


def reporter() -> PlainReporter | LiveReporter:
    return LiveReporter() if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" else PlainReporter()
