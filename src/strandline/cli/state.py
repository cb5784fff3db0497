"""Commands that look into the state of a pipeline: what its checkpoint remembers from batch to batch. They change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, print_table, reporter
from strandline.model.sizes import human_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.evidence.state_rows import OperatorDiff, ShownState
    from strandline.evidence.states import StateList, StateSource
    from strandline.project.config import Project
    from strandline.runtime.keyed.inspecting import StateReader

PipelineArgument = Annotated[str, typer.Argument(help="Name of the pipeline.")]
StateArgument = Annotated[
    str, typer.Argument(help="A state of a keyed operator, 'timers', or one of Spark's operators, such as stateStoreSave.")
]
AtOption = Annotated[int | None, typer.Option("--at", help="After this batch; without it, after the newest.", min=0, metavar="BATCH")]
OperatorOption = Annotated[str | None, typer.Option("--operator", help="Whose state, where several have that name.", metavar="NAME")]
LimitOption = Annotated[int, typer.Option("--limit", help="Show at most so many.", min=1)]

_WIDEST = 120
"""Characters of a value on a line; --json has all of it."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="state",
        help="Look into the state of a pipeline, as its checkpoint holds it after a batch. Nothing is changed.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("list")(list_states)
    group.command()(show)
    group.command()(diff)
    group.command()(export)
    app.add_typer(group)


def list_states(pipeline: PipelineArgument, at: AtOption = None, profile: ProfileOption = None, as_json: JsonOption = False) -> None:
    """Show every operator that keeps state, its states and sizes, and how far each source was read."""
    from strandline.evidence.states import STATE_VERSION, find_state, state_list
    from strandline.ledger import ledger_of
    from strandline.project.config import load_project

    project = load_project(profile=profile)
    source = find_state(project, pipeline)
    batch = source.batch(at)
    with _reading(project, source) as reader:
        found = state_list(source, reader, ledger_of(project), batch)
    if as_json:
        print_json({"version": STATE_VERSION, **asdict(found)})
    else:
        _print_list(found)


def show(
    pipeline: PipelineArgument,
    state: StateArgument,
    operator: OperatorOption = None,
    key: Annotated[str | None, typer.Option("--key", help="Only this key; several columns as a JSON list.", metavar="KEY")] = None,
    at: AtOption = None,
    limit: LimitOption = 20,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a state holds, key by key."""
    from strandline.evidence.state_rows import state_rows
    from strandline.evidence.states import STATE_VERSION, find_state, resolve
    from strandline.project.config import load_project

    project = load_project(profile=profile)
    source = find_state(project, pipeline)
    batch = source.batch(at)
    source.check_names(state, operator)
    with _reading(project, source) as reader:
        target = resolve(pipeline, reader.operators(batch), state, operator)
        found = state_rows(source, reader, target, batch, limit, key)
    if as_json:
        print_json({"version": STATE_VERSION, "pipeline": pipeline, **asdict(found)})
    else:
        _print_rows(found, key)


def diff(
    pipeline: PipelineArgument,
    before: Annotated[int, typer.Option("--from", help="The earlier batch.", min=0, metavar="BATCH")],
    after: Annotated[int, typer.Option("--to", help="The later batch.", min=0, metavar="BATCH")],
    operator: OperatorOption = None,
    limit: LimitOption = 20,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which keys were added, removed or changed between two batches."""
    from strandline.evidence.state_rows import state_diff
    from strandline.evidence.states import STATE_VERSION, choose_operators, find_state
    from strandline.project.config import load_project

    project = load_project(profile=profile)
    source = find_state(project, pipeline)
    before, after = source.batch(before), source.batch(after)
    source.check_names(None, operator)
    with _reading(project, source) as reader:
        found = state_diff(reader, choose_operators(pipeline, reader.operators(after), operator), before, after, limit)
    if as_json:
        told = [asdict(each) for each in found]
        print_json({"version": STATE_VERSION, "pipeline": pipeline, "from": before, "to": after, "operators": told})
        return
    for each in found:
        _print_diff(each, before, after)


def export(
    pipeline: PipelineArgument,
    state: StateArgument,
    file: Annotated[Path, typer.Argument(help="The Parquet file to write; it must not exist.")],
    at: AtOption = None,
    operator: OperatorOption = None,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a state to a Parquet file, one row per key."""
    from strandline.evidence.state_export import check_target, export_state
    from strandline.evidence.states import STATE_VERSION, find_state, resolve
    from strandline.project.config import load_project

    project = load_project(profile=profile)
    source = find_state(project, pipeline)
    batch = source.batch(at)
    source.check_names(state, operator)
    check_target(file)
    with _reading(project, source) as reader:
        target = resolve(pipeline, reader.operators(batch), state, operator)
        rows = export_state(reader, target, batch, file)
    if as_json:
        told = {"pipeline": pipeline, "batch": batch, "operator": target.operator.name, "state": target.name}
        print_json({"version": STATE_VERSION, **told, "file": str(file), "rows": rows})
        return
    print(f"{rows} row{'' if rows == 1 else 's'} of '{target.name}' after batch {batch} written to {file}")


@contextmanager
def _reading(project: Project, source: StateSource) -> Iterator[StateReader]:
    from strandline.runtime.keyed.inspecting import StateReader

    with reading_session(project, source.pipeline) as spark:
        yield StateReader(spark, source.checkpoint, source.records, source.pipeline)


@contextmanager
def reading_session(project: Project, pipeline: str) -> Iterator[SparkSession]:
    """A session of its own: the pipeline may be running meanwhile."""
    from strandline.runtime.session import start_session

    say = reporter().say
    log = project.logs / f"{pipeline}-state.log"
    say(f"starting Spark, log in {log}")
    spark = start_session(project, f"{pipeline}-state", log, say)
    try:
        yield spark
    finally:
        spark.stop()


# -- for people --------------------------------------------------------------------------------------------------------


def _print_list(found: StateList) -> None:
    print(f"state of '{found.pipeline}' after batch {found.batch}")
    rows = []
    for operator in found.operators:
        size = "" if operator.bytes is None else human_bytes(operator.bytes)
        skew = f"{operator.largest_partition} / {operator.average_partition:.1f}"
        rows.append([operator.name, str(operator.id), operator.key, str(operator.keys), size, str(operator.partitions), skew])
    print_table(["operator", "id", "key", "keys", "size", "partitions", "largest / average"], rows)
    print()
    states = [
        [operator.name, state.name, state.kind, state.type_text, state.ttl_text, str(state.entries), state.oldest_touch or ""]
        for operator in found.operators
        for state in operator.states
    ]
    print_table(["operator", "state", "kind", "type", "ttl", "entries", "oldest touch"], states)
    print()
    print_table(["source", "read"], [[source.name, source.text] for source in found.sources])


def _print_rows(found: ShownState, key: str | None) -> None:
    whose = f"'{found.state}' of '{found.operator}'" if found.keys is not None else f"'{found.operator}'"
    print(f"{whose} ({found.kind} of {found.type}) after batch {found.batch}")
    if not found.rows:
        print("nothing" if key is None else f"nothing under the key {key}")
        return
    names = list(found.rows[0]["key"])
    shown = [_cells(row) for row in found.rows]
    headings = list(dict.fromkeys(heading for cells in shown for heading in cells))
    print_table(
        [*names, *headings],
        [[*_key_cells(row["key"]), *(cells.get(h, "") for h in headings)] for row, cells in zip(found.rows, shown, strict=True)],
    )
    rows = len(found.rows)
    if found.keys is None or found.kind == "timers":
        print(f"{rows} of {found.total} shown")
    elif key is None:
        print(f"{rows} keys shown; the state has {found.total} entries, '{found.operator}' has {found.keys} keys")


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """What stands beside the key."""
    if "clock" in row:
        return {"clock": row["clock"], "at": row["at"]}
    if "elements" in row:
        return {"elements": _short([e["value"] for e in row["elements"]]), **_marks(row["elements"])}
    if "entries" in row:
        entries = row["entries"]
        text_keys = all(isinstance(e["key"], str) for e in entries)
        content: Any = {e["key"]: e["value"] for e in entries} if text_keys else [[e["key"], e["value"]] for e in entries]
        return {"entries": _short(content), **_marks(entries)}
    side = {"side": row["side"]} if "side" in row else {}
    return {**side, "value": _short(row["value"]), **(_marks([row]) if "touched" in row else {})}


def _marks(elements: list[dict[str, Any]]) -> dict[str, str]:
    if not elements or "touched" not in elements[0]:
        return {}
    gone = sum(e["expired"] for e in elements)
    mark = "" if not gone else "expired" if gone == len(elements) else f"{gone} of {len(elements)} expired"
    return {"oldest touch": min(e["touched"] for e in elements), "expired": mark}


def _print_diff(found: OperatorDiff, before: int, after: int) -> None:
    print(f"'{found.operator}' from batch {before} to {after}: {found.added} added, {found.removed} removed, {found.changed} changed")
    rows = []
    for change in found.changes:
        for name, state in change["states"].items():
            rows.append([*_key_cells(change["key"]), change["change"], name, _short(state["before"]), _short(state["after"])])
    if rows:
        print_table([*found.changes[0]["key"], "change", "state", "before", "after"], rows)
    left = found.added + found.removed + found.changed - len(found.changes)
    if left:
        print(f"{len(found.changes)} keys shown, {left} more; --limit shows them")


def _key_cells(key: dict[str, Any]) -> list[str]:
    return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in key.values()]


def _short(value: Any) -> str:
    if value is None:
        return "-"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
