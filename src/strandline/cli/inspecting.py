"""Commands that only look: status, history. No JVM."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, print_table
from strandline.model.kafka import TOPIC_PREFIX
from strandline.model.sizes import human_bytes

if TYPE_CHECKING:
    from strandline.evidence.history import HistoryEntry
    from strandline.ledger import Ledger
    from strandline.project.config import Project


def register(app: typer.Typer) -> None:
    app.command()(status)
    app.command()(history)


def status(
    pipeline: Annotated[str | None, typer.Argument(help="Only this pipeline.")] = None,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Which pipelines run, where, how far; and how the others ended."""
    from strandline.evidence.states import states_without_ttl
    from strandline.evidence.status import STATUS_VERSION, status_of_all
    from strandline.ledger import ledger_of
    from strandline.model.errors import NotFound
    from strandline.project.config import load_project

    project = load_project(profile=profile)
    found = status_of_all(ledger_of(project), pipeline, partial(states_without_ttl, project))
    if pipeline is not None and not found:
        raise NotFound(f"pipeline '{pipeline}' has never run here", next_command=f"strandline run {pipeline}")
    if as_json:
        print_json({"version": STATUS_VERSION, "pipelines": [asdict(entry) for entry in found]})
        return
    if not found:
        print("no pipeline has run yet")
        print("next: strandline run PIPELINE")
        return
    rows = []
    for s in found:
        where = f"{s.host}:{s.pid}" if s.state == "running" else ""
        batch = str(s.progress.get("batch", ""))
        reason = "" if s.state == "running" else (s.reason or "")
        rows.append([s.pipeline, s.state, str(s.attempt), where, batch, str(s.progress.get("lag") or ""), s.heartbeat_at, reason])
    print_table(["pipeline", "state", "attempt", "where", "batch", "lag", "last sign of life", "reason"], rows)
    sizes = [[s.pipeline, o.operator, str(o.keys), human_bytes(o.bytes), str(o.batch)] for s in found for o in s.states]
    if sizes:
        print()
        print_table(["pipeline", "operator", "keys", "size", "after batch"], sizes)
    for warning in (told for s in found for told in s.warnings):
        print(f"warning: {warning}")


def history(
    name: Annotated[
        str, typer.Argument(help="A pipeline, a table as namespace.table, or kafka:TOPIC.", metavar="PIPELINE|TABLE|kafka:TOPIC")
    ],
    limit: Annotated[int, typer.Option("--limit", help="Newest snapshots to show; 0 shows all.", min=0)] = 50,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every snapshot of a table with the batch, offsets, attempt and code that made it; expired ones included."""
    from strandline.evidence.history import history_json, history_of
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project
    from strandline.tables.catalog import EmbeddedCatalog

    project = load_project(profile=profile)
    ledger = ledger_of(project)
    catalog = EmbeddedCatalog(project)
    documents = []
    for table in [name] if "." in name or name.startswith(TOPIC_PREFIX) else _outputs_of(project, ledger, name):
        if table.startswith(TOPIC_PREFIX):
            documents += _topic_history(ledger, table, limit, as_json)
            continue
        view = catalog.find(table)
        entries = history_of(table, view, ledger)
        if view is None and not entries:
            catalog.load(table)  # raises, with the tables there are
        entries = entries[:limit] if limit else entries
        if as_json:
            documents.append(history_json(table, entries))
        else:
            print(table)
            _print_history(entries)
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"version": 1, "tables": documents})


def _topic_history(ledger: Ledger, topic: str, limit: int, as_json: bool) -> list[dict[str, Any]]:
    from strandline.evidence.deliveries import deliveries_json, deliveries_of
    from strandline.model.errors import NotFound

    found = deliveries_of(topic, ledger)
    if not found and not any(topic in attempt.tables for attempt in ledger.attempts.latest_of_all()):
        raise NotFound(f"no pipeline of this project has written to '{topic}'", next_command="strandline status")
    found = found[:limit] if limit else found
    if as_json:
        return [deliveries_json(topic, found)]
    print(topic)
    if not found:
        print("nothing delivered yet")
        return []
    rows = []
    for entry in found:
        d = entry.delivery
        rows.append([d.committed_at, f"{d.strand[:8]}/{d.batch}", entry.offsets, str(d.rows), d.delivery, str(d.attempt), d.code])
    print_table(["committed", "strand/batch", "offsets", "rows", "delivery", "attempt", "code"], rows)
    return []


def _outputs_of(project: Project, ledger: Ledger, pipeline: str) -> list[str]:
    """The ledger knows what a pipeline writes; its code is only imported when it never ran."""
    attempt = ledger.attempts.latest(pipeline)
    if attempt is not None:
        return list(attempt.tables)
    from strandline.project.loader import load_pipeline

    return load_pipeline(project, pipeline).outputs()


def _print_history(entries: list[HistoryEntry]) -> None:
    if not entries:
        print("no snapshots yet")
        return
    rows = []
    for e in entries:
        batches = "" if e.batch is None else (str(e.batch) if e.batch_first in (e.batch, None) else f"{e.batch_first}–{e.batch}")
        rows.append(
            [
                str(e.snapshot_id),
                e.committed_at,
                e.label,
                f"{e.strand[:8]}/{batches}" if e.strand else "",
                e.offsets,
                str(e.rows),
                str(e.files),
                "" if e.attempt is None else str(e.attempt),
                e.code or "",
            ]
        )
    print_table(["snapshot", "committed", "kind", "strand/batch", "offsets", "rows", "files", "attempt", "code"], rows)
