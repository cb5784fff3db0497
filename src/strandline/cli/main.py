"""The `strandline` command: its sub-commands, and the one place where an error becomes an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from strandline import __version__
from strandline.cli import (
    abandoned,
    checkpoint,
    cleaning,
    comparing,
    forking,
    inspecting,
    kafka,
    project,
    publishing,
    replaying,
    running,
    savepoint,
    state,
)
from strandline.cli.output import print_error
from strandline.model.errors import StrandlineError

app = typer.Typer(
    name="strandline",
    help="Stateful streaming into Iceberg tables whose every snapshot explains itself.\n\n"
    "Exit codes: 0 fine · 1 failure · 2 usage · 3 contract or trust violated · 4 refused because reality moved.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (
    project,
    running,
    cleaning,
    inspecting,
    comparing,
    checkpoint,
    savepoint,
    forking,
    publishing,
    abandoned,
    replaying,
    state,
    kafka,
):
    module.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"strandline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)] = False,
) -> None: ...


def main() -> None:
    try:
        app(standalone_mode=True)
    except StrandlineError as error:
        print_error(error)
        _leave(error.exit_code)
    except KeyboardInterrupt:
        print("stopped at once; the next start finds out how far it came", file=sys.stderr)
        _leave(130)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(0)


def _leave(code: int) -> None:
    """End without waiting for engine threads: after a failure a stuck batch could hold the interpreter for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
