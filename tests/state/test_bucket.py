"""The engine against the reference interpreter: the same script, the same rows, whatever the pages look like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings

from strandline.model.times import to_millis
from strandline.state import bucket as engine
from strandline.state import containers, pages
from strandline.state.arrow import row_converter
from strandline.state.bucket import MAIN, Bucket, Measures, Now
from strandline.state.codec import pack, unpack
from strandline.state.declarations import KeyedProcess
from strandline.state.layout import Epochs, layout_of
from strandline.state.store import MemoryStore
from strandline.state.types import parse_fields

from .strategies import (
    EXACT,
    LENIENT,
    ORDER_BY,
    OUTPUT,
    SIDE_OUTPUTS,
    Batch,
    Played,
    comparable,
    make_process,
    reference,
    scripts,
)


class Event(NamedTuple):
    key: str
    seq: int
    op: str
    n: int
    s: str
    at: Any


@dataclass
class Grouped:
    """Events by key, without Arrow."""

    by_key: dict[str, list[Any]]

    @property
    def keys(self) -> Sequence[bytes]:
        return [pack(key) for key in self.by_key]

    def key(self, number: int) -> Any:
        return list(self.by_key)[number]

    def events(self, number: int) -> list[Any]:
        return list(self.by_key.values())[number]


class Engine:
    """Buckets over stores in memory; every batch runs twice from the same bytes, as after a crash."""

    def __init__(self, process: KeyedProcess, buckets: int = 2) -> None:
        self.process = process
        self.stores = [MemoryStore() for _ in range(buckets)]
        self.layouts = [layout_of(process)]
        self.number = 0
        self.measures = Measures()

    def become(self, process: KeyedProcess) -> None:
        """New code over the old bytes."""
        self.process = process
        self.layouts.append(layout_of(process))

    def batch(self, events: Iterable[Any], now: int, watermark: int | None = None) -> dict[str, list[Any]]:
        by_bucket: list[dict[str, list[Any]]] = [{} for _ in self.stores]
        for event in events:
            by_bucket[crc32(event.key.encode(), 7) % len(self.stores)].setdefault(event.key, []).append(event)
        out: dict[str, list[Any]] = {}
        self.measures = Measures()
        for place, grouped in enumerate(by_bucket):
            crashed, _, _ = self._run(MemoryStore(dict(self.stores[place].entries)), grouped, now, watermark)
            rows, store, measures = self._run(self.stores[place], grouped, now, watermark)
            assert rows == crashed
            self.stores[place] = store
            self.measures = self.measures.plus(measures)
            for name, made in rows.items():
                out.setdefault(name, []).extend(made)
        self.number += 1
        return out

    def _run(
        self, store: MemoryStore, grouped: dict[str, list[Any]], now: int, watermark: int | None
    ) -> tuple[dict[str, list[Any]], MemoryStore, Measures]:
        bucket = Bucket(store, self.process, Epochs(self.layouts), unpack, Now(self.number, now, watermark))
        rows: dict[str, list[Any]] = {}
        for some in bucket.run(Grouped(grouped) if grouped else None):
            for name, made in some.items():
                rows.setdefault(name, []).extend(made)
        return rows, store, bucket.measures


to_row = row_converter(parse_fields(OUTPUT))
to_note = row_converter(parse_fields(SIDE_OUTPUTS["notes"]))


def play(variant: str, batches: Iterable[Batch]) -> list[Played]:
    run = Engine(make_process(variant))
    played = []
    for batch in batches:
        events = sorted((Event(**event) for event in batch.events), key=lambda event: getattr(event, ORDER_BY))
        mark = None if batch.watermark is None else to_millis(batch.watermark)
        rows = run.batch(events, to_millis(batch.processing_time), mark)
        played.append(comparable(map(to_row, rows.get(MAIN, ())), map(to_note, rows.get("notes", ()))))
    return played


@pytest.fixture(params=["ordinary pages", "tiny pages"], scope="module", autouse=True)
def page_size(request: pytest.FixtureRequest) -> Any:
    """Tiny ones make every path be taken: divisions, spills, chunks, pages of maps, windows, writes in between."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tiny pages":
            patch.setattr(pages, "PAGE_BYTES", 40)
            patch.setattr(engine, "SPILL_BYTES", 60)
            patch.setattr(containers, "CHUNK_BYTES", 24)
            patch.setattr(engine, "WINDOW", 2)
            patch.setattr(engine, "HELD", 1)
        yield


@pytest.mark.parametrize("variant", EXACT)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(batches=scripts())
def test_the_engine_writes_what_the_reference_writes(variant: str, batches: list[Batch]) -> None:
    assert play(variant, batches) == reference(variant, batches)


@pytest.mark.parametrize("variant", LENIENT)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(batches=scripts(many=False))
def test_with_lenient_expiry_it_runs_and_ends_without_leftovers(variant: str, batches: list[Batch]) -> None:
    play(variant, batches)
