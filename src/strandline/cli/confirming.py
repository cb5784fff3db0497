"""What changes much is done when somebody says so: by an answer on a terminal, elsewhere by `--yes`."""

from __future__ import annotations

import sys

import typer

from strandline.model.errors import UsageError


def confirm(question: str, refusal: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(refusal, next_command="the same command with --yes")
    typer.confirm(question, abort=True, err=True)
