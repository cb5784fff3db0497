"""A state as a Parquet file: one row per key, in the types that were declared. A bucket is in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.evidence.states import Target
from strandline.model.errors import EnvironmentProblem, UsageError
from strandline.model.times import from_millis
from strandline.state.arrow import table_of
from strandline.state.layout import StateLayout
from strandline.state.reading import BucketReader, Held
from strandline.state.types import ArrayOf, Field, MapOf, Primitive, StructOf

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.runtime.keyed.inspecting import StateReader, StoredOperator

_TIMESTAMP = Primitive("timestamp")


def check_target(file: Path) -> None:
    """Before anything is read: a file that is there is someone's."""
    if file.exists():
        raise UsageError(f"{file} exists already; it is not overwritten", next_command=f"rm {file}, or name another file")
    if not file.parent.is_dir():
        raise UsageError(f"folder {file.parent} of {file.name} does not exist", next_command=f"mkdir -p {file.parent}")


def export_state(reader: StateReader, target: Target, batch: int, file: Path) -> int:
    """Write the file at once, complete or not at all; how many rows it has."""
    import pyarrow.parquet as pq

    batches = _native_tables(reader, target.operator, batch) if target.is_native else _keyed_batches(reader, target, batch)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    rows = 0
    try:
        schema, tables = batches
        with pq.ParquetWriter(unfinished, schema) as writer:
            for table in tables:
                writer.write(table)
                rows += table.num_rows
        os.replace(unfinished, file)
    except OSError as error:
        raise EnvironmentProblem(f"{file} cannot be written: {error.strerror or error}", next_command="strandline doctor") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return rows


def columns_of(keys: StructOf, state: StateLayout | None) -> StructOf:
    """The file's columns: the key's, then what the state holds, then when it was touched."""
    taken = {field.name.lower() for field in keys.fields}

    def free(name: str) -> str:
        return name if name not in taken else f"state_{name}"

    own: list[Field]
    if state is None:
        own = [Field(free("clock"), Primitive("string")), Field(free("at"), _TIMESTAMP)]
    elif state.kind == "list":
        own = [Field(free("elements"), ArrayOf(state.type))]
        own += [Field(free("touched"), ArrayOf(_TIMESTAMP))] if state.ttl else []
    elif state.kind == "map":
        assert state.key_type is not None
        own = [Field(free("entries"), MapOf(state.key_type, state.type))]
        own += [Field(free("touched"), MapOf(state.key_type, _TIMESTAMP))] if state.ttl else []
    else:
        own = [Field(free("value"), state.type)]
        own += [Field(free("touched"), _TIMESTAMP)] if state.ttl else []
    return StructOf((*keys.fields, *own))


def _keyed_batches(reader: StateReader, target: Target, batch: int) -> tuple[pa.Schema, Iterator[pa.Table]]:
    import pyarrow as pa

    fields = columns_of(target.operator.keys.fields, target.state)
    schema = table_of([], fields).schema

    def tables() -> Iterator[pa.Table]:
        for bucket in reader.buckets(target.operator, batch):
            if rows := list(_rows(bucket, target.state)):
                yield pa.Table.from_batches([table_of(rows, fields)])

    return schema, tables()


def _rows(bucket: BucketReader, state: StateLayout | None) -> Iterator[tuple[Any, ...]]:
    for found in bucket:
        if state is None:
            yield from ((*found.key, clock, from_millis(at)) for clock, at in found.timers)
        elif (held := found.states.get(state.name)) is not None:
            yield (*found.key, held.value, *([_touched(held)] if state.ttl else []))


def _touched(held: Held) -> Any:
    touched = held.touched
    if isinstance(touched, list):
        return [from_millis(at) for at in touched]
    if isinstance(touched, dict):
        return {key: from_millis(at) for key, at in touched.items()}
    return from_millis(touched)


def _native_tables(reader: StateReader, operator: StoredOperator, batch: int) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """Key and value as structs; a partition at a time."""
    rows = reader.rows(operator, batch)
    schema = rows.limit(0).toArrow().schema

    def tables() -> Iterator[pa.Table]:
        for partition in range(operator.partitions):
            here = rows.where(rows["partition_id"] == partition)
            yield reader.ask(operator, batch, here.toArrow).cast(schema)

    return schema, tables()
