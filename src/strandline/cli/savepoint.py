"""Commands about savepoints: create, list, show, verify, export, import, dispose."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, print_table, reporter
from strandline.model.errors import SavepointDamaged, UsageError
from strandline.model.sizes import human_bytes

if TYPE_CHECKING:
    from strandline.model.move import Move
    from strandline.model.savepoint import Savepoint
    from strandline.savepoints.taking import Wish

SAVEPOINTS_VERSION = 1

PipelineArgument = Annotated[str, typer.Argument(help="Name of the pipeline.")]
SavepointArgument = Annotated[str, typer.Argument(help="Id of the savepoint, or the folder it lies in.", metavar="SAVEPOINT")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="savepoint",
        help="Keep a batch as evidence that a pipeline can go on from: state, positions, code, and the tables' snapshots.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command()(create)
    group.command("list")(list_savepoints)
    group.command()(show)
    group.command()(verify)
    group.command()(export)
    group.command("import")(import_savepoint)
    group.command()(dispose)
    app.add_typer(group)


def asker() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def create(
    pipeline: PipelineArgument,
    kind: Annotated[
        str,
        typer.Option(
            "--type",
            help="native: Spark's own files, fast. canonical: state decoded to Parquet, for other partitions, buckets or state schemas.",
            metavar="native|canonical",
        ),
    ] = "native",
    note: Annotated[str, typer.Option("--note", help="Why it is taken.")] = "",
    at: Annotated[int | None, typer.Option("--at", help="Of this batch; without it, of the newest.", min=0, metavar="BATCH")] = None,
    wait: Annotated[str, typer.Option("--wait", help="How long to wait for a running pipeline.", metavar="DURATION")] = "5 minutes",
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a savepoint. A running pipeline takes it itself and goes on meanwhile; one that rests is read from its checkpoint."""
    from strandline.ledger import ledger_of
    from strandline.ledger.requests import SAVEPOINT
    from strandline.model.savepoint import SavepointType
    from strandline.model.times import parse_duration
    from strandline.project.config import load_project
    from strandline.project.loader import load_pipeline
    from strandline.savepoints.archive import find_archive
    from strandline.savepoints.asking import ask, running_attempt
    from strandline.savepoints.session import SessionTags
    from strandline.savepoints.taking import Taker, Wish

    patience = parse_duration(wait)
    if kind not in [known.value for known in SavepointType]:
        raise UsageError(
            f"--type {kind} is unknown; there are {' and '.join(known.value for known in SavepointType)}",
            next_command=f"strandline savepoint create {pipeline} --type canonical",
        )
    project = load_project(profile=profile)
    declared = load_pipeline(project, pipeline)
    ledger = ledger_of(project)
    say = reporter().say
    wish = Wish(asker(), SavepointType(kind), note, at)
    holder = running_attempt(ledger, pipeline)
    if holder is not None:
        taken = ask(ledger, holder, SAVEPOINT, wish, patience, say)
        saved = find_archive(project, pipeline, taken).read()
    else:
        with SessionTags(project, f"{pipeline}-savepoint", say) as tags:
            saved = Taker(project, declared, ledger, tags, say, engine=tags.session).take(wish)
    print_savepoint(saved, as_json)


def list_savepoints(pipeline: PipelineArgument, profile: ProfileOption = None, as_json: JsonOption = False) -> None:
    """List the savepoints of a pipeline, newest first."""
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.project.loader import load_pipeline
    from strandline.savepoints.catalogue import listed

    project = load_project(profile=profile)
    load_pipeline(project, pipeline)
    lines = listed(project, ledger_of(project), pipeline)
    if as_json:
        print_json({"version": SAVEPOINTS_VERSION, "savepoints": [asdict(line) for line in lines]})
        return
    if not lines:
        print(f"'{pipeline}' has no savepoints")
        print(f"next: strandline savepoint create {pipeline}")
        return
    rows = [
        [
            line.id,
            line.type,
            line.state,
            "" if line.batch is None else str(line.batch),
            human_bytes(line.size or 0),
            line.created_at,
            line.by,
            line.note,
        ]
        for line in lines
    ]
    print_table(["savepoint", "type", "state", "batch", "size", "taken", "by", "note"], rows)


def show(pipeline: PipelineArgument, savepoint: SavepointArgument, profile: ProfileOption = None, as_json: JsonOption = False) -> None:
    """Show what a savepoint says of itself."""
    from strandline.project.config import load_project
    from strandline.savepoints.archive import find_archive

    print_savepoint(find_archive(load_project(profile=profile), pipeline, savepoint).read(), as_json)


def verify(pipeline: PipelineArgument, savepoint: SavepointArgument, profile: ProfileOption = None, as_json: JsonOption = False) -> None:
    """Compute every digest again, and look whether the tables still hold their snapshots. Exit code 3 when it cannot be restored."""
    from strandline.project.config import load_project
    from strandline.savepoints.archive import find_archive
    from strandline.savepoints.catalogue import examine

    project = load_project(profile=profile)
    found = examine(project, find_archive(project, pipeline, savepoint))
    if as_json:
        print_json(
            {
                "version": SAVEPOINTS_VERSION,
                "savepoint": found.savepoint.id,
                "restorable": found.restorable,
                "files": len(found.savepoint.files),
                "damages": [asdict(damage) for damage in found.damages],
                "tables": [asdict(damage) for damage in found.tables],
            }
        )
    else:
        print(f"{found.savepoint.id}: {len(found.savepoint.files)} files, {human_bytes(found.savepoint.size)}")
        print(f"restorable: {'yes' if found.restorable else 'no'}")
        for damage in (*found.damages, *found.tables):
            print(f"  {damage.path}: {damage.what}")
    if not found.restorable:
        raise SavepointDamaged(
            f"savepoint {found.savepoint.id} is damaged: {found.damages[0].path}: {found.damages[0].what}",
            next_command=f"strandline savepoint list {pipeline}, and use another",
        )


def export(
    pipeline: PipelineArgument,
    savepoint: SavepointArgument,
    destination: Annotated[str, typer.Argument(help="A folder, or a location such as s3://…", metavar="DESTINATION")],
    with_tables: Annotated[
        bool, typer.Option("--with-tables", help="Also its tables, as they were then, for `savepoint import` on another cluster.")
    ] = False,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a savepoint elsewhere, every file checked. `run --from-savepoint DESTINATION` works from there."""
    from strandline.project.config import load_project
    from strandline.savepoints.archive import find_archive
    from strandline.savepoints.catalogue import export as copy

    project = load_project(profile=profile)
    archive = find_archive(project, pipeline, savepoint)
    if not with_tables:
        saved = copy(archive, destination)
        if as_json:
            print_json(
                {"version": SAVEPOINTS_VERSION, "savepoint": saved.id, "destination": destination, "files": len(saved.files), "tables": []}
            )
            return
        print(f"{saved.id}: {len(saved.files)} files, {human_bytes(saved.size)} in {destination}")
        return
    from strandline.ledger import ledger_of
    from strandline.savepoints.moving import export_with_tables

    move = export_with_tables(project, ledger_of(project), archive, destination, reporter().say)
    saved = archive.read()
    if as_json:
        files = len(saved.files) + len(move.files)
        print_json(
            {"version": SAVEPOINTS_VERSION, "savepoint": saved.id, "destination": destination, "files": files, "tables": _moved_json(move)}
        )
        return
    print(f"{saved.id}: {len(saved.files)} files, {human_bytes(saved.size)} in {destination}")
    _print_moved(move)
    print(f"next: where it goes on: strandline savepoint import {destination}")


def import_savepoint(
    folder: Annotated[str, typer.Argument(help="What `savepoint export --with-tables` wrote.", metavar="FOLDER")],
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring an export with its tables into this project: every byte checked, paths rewritten, tables registered in the catalog."""
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.savepoints.moving import import_folder
    from strandline.savepoints.session import SessionCatalog

    project = load_project(profile=profile)
    say = reporter().say
    with SessionCatalog(project, "savepoint-import", say) as catalog:
        saved, move = import_folder(project, ledger_of(project), folder, catalog, asker(), say)
    if as_json:
        print_json({"version": SAVEPOINTS_VERSION, "savepoint": saved.id, "pipeline": saved.pipeline, "tables": _moved_json(move)})
        return
    print(f"{saved.id}: batch {saved.batch} of '{saved.pipeline}' is here")
    _print_moved(move)
    print(f"next: strandline run {saved.pipeline} --from-savepoint {saved.id} --tables continue")


def _moved_json(move: Move) -> list[dict[str, Any]]:
    return [
        {"name": table.name, "snapshot": table.snapshot, "files": len(table.files), "size": sum(file.size for file in table.files)}
        for table in move.tables
    ]


def _print_moved(move: Move) -> None:
    for table in move.tables:
        at = f"at snapshot {table.snapshot}" if table.snapshot is not None else "empty"
        print(f"  table      {table.name} {at}, {len(table.files)} files, {human_bytes(sum(file.size for file in table.files))}")


def dispose(
    pipeline: PipelineArgument,
    savepoint: Annotated[str, typer.Argument(help="Id of the savepoint.", metavar="SAVEPOINT")],
    even_if_needed: Annotated[
        bool,
        typer.Option(
            "--even-if-needed", help="Also when it is being made, or a strand that began from it has completed no batch of its own."
        ),
    ] = False,
    profile: ProfileOption = None,
) -> None:
    """Remove a savepoint: its files, and the tags that kept its table snapshots. The ledger keeps its record."""
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.savepoints.disposing import dispose as let_go
    from strandline.savepoints.session import SessionTags

    project = load_project(profile=profile)
    say = reporter().say
    with SessionTags(project, f"{pipeline}-savepoint", say) as tags:
        let_go(project, pipeline, savepoint, ledger_of(project), tags, by=asker(), even_if_needed=even_if_needed)
    print(f"{savepoint} is disposed of")


def stop_wish() -> Wish:
    from strandline.savepoints.taking import Wish

    return Wish(asker(), note="stop with savepoint")


def _operator(told: Mapping[str, Any]) -> str:
    return f"{told['name']} ({told['keys']} keys)" if "keys" in told else str(told["name"])


def print_savepoint(saved: Savepoint, as_json: bool) -> None:
    if as_json:
        facts: dict[str, Any] = asdict(saved)
        print_json(
            {**facts, "version": SAVEPOINTS_VERSION, "type": saved.type.value, "positions": saved.positions.to_json(), "size": saved.size}
        )
        return
    print(f"{saved.id}: batch {saved.batch} of '{saved.pipeline}', strand {saved.strand}")
    facts_ = [
        ("taken", f"{saved.created_at} by {saved.created_by}" + (f": {saved.note}" if saved.note else "")),
        ("sources", f"after {saved.positions.human(None)}"),
        ("state", f"{saved.type.value}, {len(saved.files)} files, {human_bytes(saved.size)}"),
        ("operators", ", ".join(map(_operator, saved.operators))),
        ("code", saved.code),
        ("versions", ", ".join(f"{name} {number}" for name, number in sorted(saved.versions.items()))),
    ]
    for label, text in facts_:
        if text:
            print(f"  {label:<10} {text}")
    for table in saved.tables:
        at = f"at snapshot {table.snapshot}" if table.snapshot is not None else "was empty"
        now = "" if table.current == table.snapshot else f"; {table.current} was current when it was taken"
        print(f"  table      {table.name} {at}{now}")
    for topic in saved.topics:
        print(f"  topic      {topic.name} up to batch {topic.batch}")
    print(f"next: strandline run {saved.pipeline} --from-savepoint {saved.id} --tables rollback")
