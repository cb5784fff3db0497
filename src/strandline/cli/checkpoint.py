"""Commands that read a checkpoint without an engine: which batches it has, and whether a pipeline can be restarted from them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, print_table
from strandline.model.sizes import human_bytes

if TYPE_CHECKING:
    from strandline.checkpoints.needed import NeededFile
    from strandline.checkpoints.verification import Verification
    from strandline.evidence.checkpoints import BatchCard, BatchEntry, CheckpointSource, CheckpointView
    from strandline.project.config import Project

PipelineArgument = Annotated[str, typer.Argument(help="Name of the pipeline.")]
BatchArgument = Annotated[int | None, typer.Argument(help="The batch; without it, the newest complete one.", min=0, metavar="BATCH")]

NOT_RESTARTABLE = 3
"""Exit code, that of broken trust: the checkpoint does not hold what it promises."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="checkpoint",
        help="Look at the checkpoint of a pipeline, and whether it can be restarted from. Starts no Spark; nothing is changed.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("list")(list_batches)
    group.command()(show)
    group.command()(verify)
    app.add_typer(group)


def list_batches(
    pipeline: PipelineArgument,
    limit: Annotated[int, typer.Option("--limit", help="Newest batches to show; 0 shows all.", min=0)] = 20,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the batches that the checkpoint still has: what each read, when, and which snapshots it made."""
    from strandline.evidence.checkpoints import CHECKPOINT_VERSION, find_checkpoint
    from strandline.evidence.retention import batches_retained
    from strandline.project.config import load_project

    project = load_project(profile=profile)
    source = find_checkpoint(project, pipeline)
    retain = batches_retained(project, pipeline)
    entries = _view(project, source, retain).entries(limit)
    if as_json:
        told = {"version": CHECKPOINT_VERSION, **_head(source), "retain": retain}
        print_json({**told, "batches": [asdict(entry) for entry in entries]})
    else:
        _print_entries(entries)


def show(pipeline: PipelineArgument, batch: BatchArgument = None, profile: ProfileOption = None, as_json: JsonOption = False) -> None:
    """Show one batch: what it read and made, and the state files that a restart from it needs."""
    from strandline.evidence.checkpoints import CHECKPOINT_VERSION, find_checkpoint
    from strandline.evidence.retention import batches_retained
    from strandline.project.config import load_project

    project = load_project(profile=profile)
    source = find_checkpoint(project, pipeline)
    wanted = source.batch(batch, complete=False)
    card = _view(project, source, batches_retained(project, pipeline)).card(wanted)
    if as_json:
        told = {**asdict(card.entry), "next_watermark": card.next_watermark, "stores": [asdict(store) for store in card.stores]}
        print_json({"version": CHECKPOINT_VERSION, **_head(source), **told, "files": [_file(file) for file in card.files]})
    else:
        _print_card(source, card)


def verify(pipeline: PipelineArgument, batch: BatchArgument = None, profile: ProfileOption = None, as_json: JsonOption = False) -> None:
    """Check every file that a restart from a batch would read. Exit code 0: it can be restarted; 3: it cannot, or nobody knows."""
    from strandline.checkpoints.verification import Answer, newest_restartable
    from strandline.checkpoints.verification import verify as verify_batch
    from strandline.evidence.checkpoints import CHECKPOINT_VERSION, find_checkpoint
    from strandline.project.config import load_project

    source = find_checkpoint(load_project(profile=profile), pipeline)
    found = verify_batch(source.checkpoint, source.batch(batch))
    sound = found.answer is Answer.YES
    newest = found.batch if sound and batch is None else newest_restartable(source.checkpoint)
    if as_json:
        told: dict[str, Any] = {"version": CHECKPOINT_VERSION, **_head(source), "batch": found.batch, "restartable": found.answer.value}
        told |= {"because": found.because or None, "newest_restartable": newest, "files": len(found.files), "bytes": found.bytes}
        print_json({**told, "checked": found.checked, "troubles": [_file(file) for file in found.troubles]})
    else:
        _print_verification(source, found, newest)
    if not sound:
        raise typer.Exit(NOT_RESTARTABLE)


def _view(project: Project, source: CheckpointSource, retain: int | None) -> CheckpointView:
    from strandline.evidence.checkpoints import CheckpointView
    from strandline.ledger import ledger_of
    from strandline.tables.catalog import EmbeddedCatalog

    return CheckpointView(source, ledger_of(project), EmbeddedCatalog(project), retain)


# -- for programs ------------------------------------------------------------------------------------------------------


def _head(source: CheckpointSource) -> dict[str, Any]:
    return {"pipeline": source.pipeline, "strand": source.strand, "location": source.checkpoint.location}


def _file(file: NeededFile) -> dict[str, Any]:
    problem = None if file.problem is None else file.problem.value
    told = {"path": file.path, "kind": file.kind.value, "size": file.size, "expected": file.expected, "why": file.why}
    return {**told, "problem": problem, "detail": file.detail or None}


# -- for people --------------------------------------------------------------------------------------------------------


def _print_entries(entries: list[BatchEntry]) -> None:
    rows = [
        [
            str(entry.batch),
            entry.planned_at or "",
            _took(entry),
            entry.offsets,
            entry.watermark or "",
            "" if entry.state_bytes is None else human_bytes(entry.state_bytes),
            ", ".join(f"{made.table} {made.snapshot_id}" for made in entry.snapshots),
            "" if entry.until is None or not entry.complete else f"batch {entry.until}",
        ]
        for entry in entries
    ]
    print_table(["batch", "planned", "took", "offsets", "watermark", "state", "snapshots", "kept until"], rows)


def _took(entry: BatchEntry) -> str:
    from strandline.model.times import human_duration

    if not entry.complete:
        return "not complete"
    return "" if entry.duration_ms is None else human_duration(timedelta(milliseconds=entry.duration_ms))


def _print_card(source: CheckpointSource, card: BatchCard) -> None:
    entry = card.entry
    made = ", ".join(f"{made.table} {made.snapshot_id} ({made.rows} row{'' if made.rows == 1 else 's'})" for made in entry.snapshots)
    state = f"{len(card.stores)} store{'' if len(card.stores) == 1 else 's'}, {human_bytes(sum(store.bytes for store in card.stores))}"
    lines = {
        "strand": source.strand or "unknown",
        "checkpoint": source.checkpoint.location,
        "complete": "yes" if entry.complete else "no",
        "planned": entry.planned_at,
        "finished": entry.finished_at if entry.complete else None,
        "took": _took(entry) if entry.complete else None,
        "offsets": entry.offsets,
        "watermark": entry.watermark and f"{entry.watermark}, then {card.next_watermark or 'none'}",
        "snapshots": made or ("none" if entry.complete else None),
        "kept until": None if entry.until is None or not entry.complete else f"batch {entry.until}",
        "a restart needs": f"{len(card.files)} files, {human_bytes(sum(file.size or 0 for file in card.files))}" if card.files else None,
        "state": state if card.stores else ("none" if entry.complete else None),
    }
    print(f"batch {entry.batch} of '{source.pipeline}'")
    width = max(len(name) for name in lines)
    for name, value in lines.items():
        if value:
            print(f"{name.ljust(width)}  {value}")
    if card.stores:
        print()
        cells = [
            [
                f"{s.operator} {s.operator_name}",
                str(s.partition),
                s.store,
                str(s.version),
                s.state_id or "",
                str(s.files),
                human_bytes(s.bytes),
            ]
            for s in card.stores
        ]
        print_table(["operator", "partition", "store", "version", "state id", "files", "size"], cells)


def _print_verification(source: CheckpointSource, found: Verification, newest: int | None) -> None:
    print(f"restartable: {found.answer.value}" + (f", because {found.because}" if found.because else ""))
    files = f"{len(found.files)} files, {human_bytes(found.bytes)}"
    print(f"batch {found.batch} of '{source.pipeline}' needs {files}; {found.checked} compared with a checksum")
    if found.troubles:
        print()
        print_table(["problem", "file", "detail", "needed for"], [_trouble(file) for file in found.troubles])
        print()
    if newest is None:
        print("no batch of this checkpoint can be restarted from")
        print(f"next: restore the files from a copy, or: strandline run {source.pipeline} --new-strand")
    elif newest != found.batch:
        print(f"newest restartable batch: {newest}")


def _trouble(file: NeededFile) -> list[str]:
    return ["" if file.problem is None else file.problem.value, file.path, file.detail, file.why]
