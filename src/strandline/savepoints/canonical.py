"""Canonical savepoints: state decoded, as Parquet files in the declared types, beside the positions it belongs to.

What they hold does not depend on Spark's files, on the number of partitions and buckets, or on the layouts that state was once written
under. Only keyed operators can be filled with it: Spark has no way to hand state to operators of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.checkpoints.checkpoint import ORIGIN, Checkpoint
from strandline.checkpoints.needed import FileKind, NeededFile
from strandline.model.errors import UsageError
from strandline.model.savepoint import SavedFile
from strandline.runtime.keyed.building import OperatorRecord
from strandline.runtime.keyed.saving import save_state
from strandline.savepoints.archive import Archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE = "state/"
"""Where the files of operators are, each in a folder of its name."""

STATE_KIND = "state"
CONTROL_KIND = "control"
CONTROL_FILE = "control.parquet"

_KINDS = (FileKind.PLAN, FileKind.COMPLETION, FileKind.SOURCE_LOG, FileKind.SOURCE)


def refuse_native_operators(pipeline: str, operators: Sequence[Mapping[str, Any]]) -> None:
    """Before anything is begun."""
    native = [str(operator["name"]) for operator in operators if operator.get("native")]
    if native:
        raise UsageError(
            f"pipeline '{pipeline}' keeps state in '{native[0]}', an operator of Spark's own, which can only go on from Spark's own files: "
            "a canonical savepoint could not be restored",
            next_command=f"take a native one: strandline savepoint create {pipeline}; to change partitions or state, read the sources again into a "
            f"branch: strandline fork {pipeline} --from start --as NAME --into branch:B",
        )


def needed_for_positions(needed: Sequence[NeededFile], batch: int) -> list[NeededFile]:
    """Of all that a restart needs, what says where the sources are."""
    older = f"offsets/{batch - 1}"
    return [file for file in needed if (file.kind in _KINDS and file.path != older) or file.path == ORIGIN]


def save_operators(
    spark: SparkSession, checkpoint: Checkpoint, batch: int, records: Mapping[str, OperatorRecord], pipeline: str, archive: Archive
) -> tuple[list[SavedFile], list[dict[str, Any]]]:
    """Write the state of every operator; its files, and what the manifest says of the operators."""
    from strandline.runtime.keyed.inspecting import StateReader

    reader = StateReader(spark, checkpoint, records, pipeline)
    files: list[SavedFile] = []
    told: list[dict[str, Any]] = []
    for operator in reader.operators(batch) if records else []:
        record = operator.record
        if record is None:
            continue
        saved = save_state(reader, operator, batch, archive.location, f"{STATE}{record.name}")
        files += [SavedFile(file.path, STATE_KIND, file.size, file.sha256) for file in saved.files]
        if saved.control:
            files.append(archive.keep(f"{STATE}{record.name}/{CONTROL_FILE}", CONTROL_KIND, _control_file(saved.control)))
        now = OperatorRecord(record.name, record.buckets, record.key, record.single_key, record.layouts[-1:])
        told.append(
            {
                **now.as_json(),
                "partitions": operator.partitions,
                "keys": saved.keys,
                "entries": dict(saved.entries),
                "timers": dict(saved.timers),
                "control": sorted(saved.control),
            }
        )
    return files, told


def _control_file(control: Mapping[str, bytes]) -> bytes:
    """A row per control table; its rows by key as msgpack, since their types are those of the source and not kept anywhere."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    columns = {"name": pa.array(list(control), pa.string()), "rows": pa.array(list(control.values()), pa.binary())}
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue().to_pybytes())
