"""The operator that runs in Spark's workers: from blobs of a bucket to a batch of `state.Bucket`, and its rows back as blobs."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from strandline.runtime.keyed.grouping import GroupedEvents
from strandline.runtime.keyed.packing import BLOB, CONTROL, ENTRIES, EVENTS, KIND, batches_in, blob_of
from strandline.runtime.keyed.stores import PipelinedStore, PlainStore, variable_of
from strandline.runtime.keyed.workers import keep_zip_directories
from strandline.state.arrow import row_converter, rows_of, table_of
from strandline.state.bucket import MAIN, Bucket, Measures, Now, UserCodeFailed
from strandline.state.codec import WrongType
from strandline.state.control import ControlTable, ControlTables
from strandline.state.declarations import KeyedProcess
from strandline.state.keys import Keys
from strandline.state.layout import Epochs
from strandline.state.types import StructOf

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

USER_CODE = "strandline-user-code:"
"""Begins the error of a processor's own code; `failures` makes a sentence of it."""

Tell: TypeAlias = Callable[[int, Measures], None]


@dataclass
class OperatorSpec:
    """All that a worker needs to know; it travels pickled."""

    name: str
    process: KeyedProcess
    epochs: Epochs
    key_fields: StructOf
    single_key: bool
    order_by: str | None
    outputs: Mapping[str, StructOf]
    control: Mapping[str, tuple[str, StructOf]]
    access: Literal["pipelined", "plain"]
    tell: Tell | None = None
    """Takes the measures of a bucket's batch to the driver."""
    seeded: Sequence[str] = field(default_factory=tuple)

    @cached_property
    def keys(self) -> Keys:
        return Keys(self.key_fields, self.single_key)

    @cached_property
    def converters(self) -> dict[str, Callable[[Any], tuple[Any, ...]]]:
        return {name: row_converter(fields) for name, fields in self.outputs.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("keys", "converters")}


class BucketRunner:
    """Runs batches of buckets for the operator, whichever way Spark calls it."""

    def __init__(self, spec: OperatorSpec, handle: StatefulProcessorHandle) -> None:
        keep_zip_directories()
        self._spec = spec
        self._handle = handle
        variable = variable_of(spec.name)
        state = handle.getMapState(variable, "k binary", "v binary")
        self._store = PipelinedStore(handle, variable) if spec.access == "pipelined" else PlainStore(state)

    def run(self, label: int, blobs: Iterable[Any], now: Now) -> Iterator[tuple[str, bytes]]:
        """One batch of one bucket; rows as blobs by output."""
        events, arrived = self._sorted_out(blobs)
        bucket = self._bucket(now, arrived)
        before = bucket.wake
        grouped = GroupedEvents(events, self._spec.keys, self._spec.order_by) if events else None
        try:
            for rows in bucket.run(grouped):
                for output, given in rows.items():
                    yield output, self._blob(output, given)
        except UserCodeFailed as failed:
            raise ValueError(explain(self._spec, failed)) from failed
        self._wake(before, bucket.wake)
        if self._spec.tell is not None:
            self._spec.tell(label, bucket.measures)

    def seed(self, blob: Any, now: Now) -> None:
        """Initial state that a user gives, or that a savepoint held."""
        if blob[KIND] == EVENTS:
            self._seed_given(blob, now)
        elif blob[KIND] == ENTRIES:
            columns = [column.to_pylist() for batch in batches_in(blob[BLOB]) for column in batch.columns]
            self._put_back(now, zip(*columns, strict=True), {})
        else:
            self._put_back(now, (), {blob[KIND].removeprefix(CONTROL): bytes(blob[BLOB])})

    def _put_back(self, now: Now, entries: Iterable[tuple[bytes, bytes]], control: Mapping[str, bytes]) -> None:
        bucket = self._bucket(now, {})
        before = bucket.wake
        bucket.put_back(entries, control)
        self._wake(before, bucket.wake)

    def _wake(self, before: int | None, after: int | None) -> None:
        """Tell Spark when the bucket wants to be woken."""
        if after != before:
            if before is not None:
                self._handle.deleteTimer(before)
            if after is not None:
                self._handle.registerTimer(after)

    def _seed_given(self, blob: Any, now: Now) -> None:
        events, _ = self._sorted_out([blob])
        rows = [row for batch in events for row in rows_of(batch)]
        keys = self._spec.keys
        given = []
        for row in rows:
            key = keys.of_columns([getattr(row, name) for name in keys.names])
            given.append((keys.pack(key), {name: getattr(row, name) for name in self._spec.seeded}))
        bucket = self._bucket(now, {})
        bucket.seed(given)

    def now(self, processing: int, watermark: int) -> Now:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if processing < 0 and self._spec.access == "pipelined":  # Spark tells the time only to those who have timers
            client: Any = self._handle._statefulProcessorApiClient
            processing, watermark = client._get_batch_timestamp(), client._get_watermark_timestamp()
        elif processing < 0:
            processing = int(time.time() * 1000)
        return Now(int(number or 0), processing, watermark if watermark > 0 else None)

    def _bucket(self, now: Now, arrived: Mapping[str, list[Any]]) -> Bucket:
        spec = self._spec
        control = ControlTables([ControlTable(name, key, fields) for name, (key, fields) in spec.control.items()], arrived)
        return Bucket(self._store, spec.process, spec.epochs, spec.keys.unpack, now, control)

    def _sorted_out(self, blobs: Iterable[Any]) -> tuple[list[Any], dict[str, list[Any]]]:
        events: list[Any] = []
        arrived: dict[str, list[Any]] = {}
        for row in blobs:
            batches = batches_in(row[BLOB])
            if row[KIND] == EVENTS:
                events.extend(batches)
            else:
                arrived.setdefault(row[KIND], []).extend(found for batch in batches for found in rows_of(batch))
        return events, arrived

    def _blob(self, output: str, rows: list[Any]) -> bytes:
        spec = self._spec
        if output not in spec.outputs:
            known = ", ".join(f"'{name}'" for name in spec.outputs if name != MAIN) or "none is declared"
            raise ValueError(
                f"{USER_CODE} {type(spec.process).__name__} of '{spec.name}' emits to '{output}', which is no side output ({known})"
            )
        convert = spec.converters[output]
        try:
            return blob_of(table_of([convert(row) for row in rows], spec.outputs[output]))
        except WrongType as wrong:
            where = f"side output '{output}'" if output != MAIN else "its output"
            raise ValueError(
                f"{USER_CODE} {type(spec.process).__name__} of '{spec.name}' made a row that does not fit {where}: {wrong}"
            ) from wrong


def explain(spec: OperatorSpec, failed: UserCodeFailed) -> str:
    """Key, event and the user's own line, in one sentence."""
    error = failed.__cause__
    assert error is not None
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/strandline/state/" not in frame.filename and "/strandline/runtime/" not in frame.filename]
    line = f" at {own[-1].filename.rpartition('/')[2]}:{own[-1].lineno} ({own[-1].line})" if own else ""
    event = _event_at_hand(error, failed.events)
    shown = f", event {str(event)[:300]}" if event is not None else ""
    what = str(error) if isinstance(error, WrongType) else f"{type(error).__name__}: {error}"
    said = f"{USER_CODE} {type(spec.process).__name__} of '{spec.name}' failed for key {failed.key!r}{shown}{line}: {what}"
    return " ".join(said.split())  # one line, whatever the error's own text looks like


def _event_at_hand(error: BaseException, events: Sequence[Any]) -> Any:
    """The event that the user's loop was looking at: a local variable that is one of them."""
    known = {id(event) for event in events}
    trace = error.__traceback__
    found = None
    while trace is not None:
        for value in list(trace.tb_frame.f_locals.values()):
            if id(value) in known:
                found = value
        trace = trace.tb_next
    return found if found is not None else (events[0] if len(events) == 1 else None)
