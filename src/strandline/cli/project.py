"""Commands about the project and the machine: init, setup, doctor, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, print_table, reporter


def register(app: typer.Typer) -> None:
    app.command()(init)
    app.command()(setup)
    app.command()(doctor)
    app.command()(demo)


def init(folder: Annotated[Path, typer.Argument(help="Folder of the new project.", metavar="DIR")] = Path()) -> None:
    """Write a new project: configuration, one example pipeline, a few orders to read."""
    from strandline.project.template import write_project

    for path in write_project(folder):
        print(path)
    where = "" if folder == Path() else f"cd {folder} && "
    print(f"\nnext: {where}strandline run order_totals --available-now")


def setup() -> None:
    """Fetch what a run needs: a Java runtime if there is none, and the locked jars."""
    from strandline.runtime.jars import ensure_jars
    from strandline.runtime.java import ensure_java

    say = reporter().say
    java = ensure_java(say)
    jars = ensure_jars(java, say)
    print(f"ready: Java {java.version} from {java.origin}, {len(jars)} jars in {jars[0].parent}")


def doctor(profile: ProfileOption = None, as_json: JsonOption = False) -> None:
    """Check Java, jars, configuration, catalog, ledger, folders, clock and versions."""
    from strandline.runtime.doctor import examine

    checks = examine(profile)
    if as_json:
        print_json(
            {
                "version": 1,
                "checks": [{"name": c.name, "ok": c.ok, "warning": c.warning, "finding": c.finding, "fix": c.fix} for c in checks],
            }
        )
    else:
        print_table(
            ["check", "result", "finding"],
            [
                [c.name, "warning" if c.warning else "ok" if c.ok else "problem", c.finding + (f" → {c.fix}" if c.fix else "")]
                for c in checks
            ],
        )
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def demo(
    keep: Annotated[Path | None, typer.Option("--keep", help="Make the project in this folder and keep it.", metavar="DIR")] = None,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="From a Kafka broker on this machine to a table and a topic; kill driver and broker.")
    ] = False,
) -> None:
    """Kill a pipeline twice in the middle of a commit, let a zombie try, and count every row."""
    from strandline.demo import kafka_story, story

    raise typer.Exit((kafka_story if kafka else story).tell(keep))
