"""`strandline cleanup`: what killed attempts left behind."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, print_table, reporter
from strandline.model.sizes import human_bytes

if TYPE_CHECKING:
    from strandline.runtime.cleanup import CleanupItem
    from strandline.runtime.unfinished import Unfinished
    from strandline.savepoints.leftovers import HalfMade

CLEANUP_VERSION = 1


def register(app: typer.Typer) -> None:
    app.command()(cleanup)


def cleanup(
    pipeline: Annotated[str | None, typer.Argument(help="Only what this pipeline left.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what the plan lists; without it the plan is only shown.")] = False,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find what killed attempts left: staged files that no snapshot holds, unfinished checkpoints and savepoints; --remove deletes them."""
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.runtime.cleanup import apply_cleanup, plan_cleanup
    from strandline.runtime.unfinished import find_unfinished, remove_unfinished
    from strandline.savepoints.leftovers import half_made, settle
    from strandline.savepoints.session import SessionTags

    project = load_project(profile=profile)
    ledger = ledger_of(project)
    items = plan_cleanup(project, ledger, pipeline)
    checkpoints = find_unfinished(project, ledger, pipeline)
    savepoints = half_made(ledger, pipeline)
    files, folders, settled = 0, [], []
    if remove:
        files = apply_cleanup(project, ledger, items)
        folders = remove_unfinished(project, ledger, checkpoints)
        with SessionTags(project, "cleanup", reporter().say) as tags:
            settled = [found for found in savepoints if found.can_be_settled]
            for found in settled:
                settle(project, ledger, found, tags)
    if as_json:
        print_json(
            {
                "version": CLEANUP_VERSION,
                "removed": files,
                "items": [_item_json(item) for item in items],
                "checkpoints": [{**asdict(each), "removed": each in folders} for each in checkpoints],
                "savepoints": [_savepoint_json(found) | {"settled": found in settled} for found in savepoints],
            }
        )
        return
    if not (items or checkpoints or savepoints):
        print("nothing to clean up")
        return
    _print(items, checkpoints, savepoints)
    if remove:
        print(f"removed {files} files, {len(folders)} checkpoints; settled {len(settled)} savepoints")
    else:
        print("next: strandline cleanup --remove")


def _item_json(item: CleanupItem) -> dict[str, Any]:
    intent = item.intent
    told = {"pipeline": intent.pipeline, "table": intent.table, "batch": intent.batch, "attempt": intent.attempt}
    return told | {"files": [file.path for file in intent.files], "decision": item.decision}


def _savepoint_json(found: HalfMade) -> dict[str, Any]:
    record = found.record
    return {"pipeline": record.pipeline, "id": record.id, "batch": record.batch, "begun_at": record.begun_at, "decision": found.decision}


def _print(items: list[CleanupItem], checkpoints: list[Unfinished], savepoints: list[HalfMade]) -> None:
    if items:
        rows = [
            [i.intent.pipeline, i.intent.table, str(i.intent.batch), str(i.intent.attempt), str(len(i.intent.files)), i.decision]
            for i in items
        ]
        print_table(["pipeline", "table", "batch", "attempt", "files", "decision"], rows)
    if checkpoints:
        rows = [
            [c.pipeline, c.location.rpartition("/")[2], str(c.attempt), str(c.files), human_bytes(c.bytes), c.decision] for c in checkpoints
        ]
        print_table(["pipeline", "checkpoint", "attempt", "files", "size", "decision"], rows)
    if savepoints:
        rows = [[s.record.pipeline, s.record.id, str(s.record.batch), s.record.begun_at, s.decision] for s in savepoints]
        print_table(["pipeline", "savepoint", "batch", "begun", "decision"], rows)
