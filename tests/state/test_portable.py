"""State that went through a table is the same state: in other buckets, under another layout, with its timers and the times it was touched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.model.times import to_millis
from strandline.state import bucket as engine
from strandline.state import containers, pages
from strandline.state.arrow import plain_of, table_of
from strandline.state.bucket import MAIN, Bucket, Now
from strandline.state.codec import codec_of, unpack
from strandline.state.declarations import KeyedProcess
from strandline.state.evolution import Incompatible
from strandline.state.keys import Keys
from strandline.state.layout import Epochs, Layout, StateLayout
from strandline.state.portable import KEY, STATES, TIMERS, Entries, PortableRows, carried_changes, undeclared_clocks
from strandline.state.reading import BucketReader, Held
from strandline.state.store import MemoryStore
from strandline.state.types import Field, StructOf, parse_fields, parse_type

from .strategies import EXACT, ORDER_BY, Batch, comparable, make_process, reference, scripts
from .test_bucket import Engine, Event, to_note, to_row
from .test_codec import values_of
from .test_types import types

KEYS = parse_fields("key string")


@pytest.fixture(params=["ordinary pages", "tiny pages"], scope="module", autouse=True)
def page_size(request: pytest.FixtureRequest) -> Any:
    """Tiny ones spill every list into chunks and every map into pages of its own."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tiny pages":
            patch.setattr(pages, "PAGE_BYTES", 40)
            patch.setattr(engine, "SPILL_BYTES", 60)
            patch.setattr(containers, "CHUNK_BYTES", 24)
            patch.setattr(engine, "HELD", 1)
        yield


def table_file(stores: list[MemoryStore], layouts: list[Layout]) -> bytes:
    """All buckets as one Parquet file."""
    epochs = Epochs(layouts)
    rows = PortableRows(KEYS, True, epochs.current)
    found = [rows.row(*key) for store in stores for key in BucketReader(store, epochs, Keys(KEYS, single=True)).stored()]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([table_of(found, rows.fields)]), sink)
    return bytes(sink.getvalue().to_pybytes())


def entries_in(file: bytes, saved: Layout, declared: Layout, touched: int = 0) -> list[tuple[bytes, bytes]]:
    table = pq.read_table(pa.BufferReader(file)).combine_chunks()
    entries = Entries(True, saved, declared, touched)
    fields = {field.name: field.type for field in PortableRows(KEYS, True, saved).fields.fields}
    plain = {name: plain_of(table.column(name).combine_chunks(), kind) for name, kind in fields.items()}
    states = plain.get(STATES, [None] * table.num_rows)
    return [(entries.key(key), entries.entry(held, timers)) for key, held, timers in zip(plain[KEY], states, plain[TIMERS], strict=True)]


def moved(run: Engine, process: KeyedProcess, buckets: int, now: int) -> Engine:
    """The same state in a new engine, in two portions, as blobs arrive."""
    other = Engine(process, buckets)
    given = entries_in(table_file(run.stores, run.layouts), run.layouts[-1], other.layouts[-1])
    for portion in (given[::2], given[1::2]):
        for place, store in enumerate(other.stores):
            own = [(key, entry) for key, entry in portion if crc32(unpack(key).encode(), 7) % buckets == place]
            Bucket(store, process, Epochs(other.layouts), unpack, Now(0, now, None)).put_back(own, {})
    other.number = run.number
    return other


def keys_of(run: Engine) -> dict[Any, Any]:
    """Every key with its timers and elements; a map's have no order."""
    readers = [BucketReader(store, Epochs(run.layouts), Keys(KEYS, single=True)) for store in run.stores]
    return {found.key: (found.timers, {name: held_in(held) for name, held in found.states.items()}) for r in readers for found in r}


def held_in(held: Held) -> Any:
    return sorted(held.elements, key=repr) if held.layout.kind == "map" else held.elements


@pytest.mark.parametrize("variant", EXACT)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(batches=scripts(), at=st.integers(0, 3), buckets=st.integers(1, 5))
def test_a_script_goes_on_in_other_buckets_as_if_nothing_had_happened(variant: str, batches: list[Batch], at: int, buckets: int) -> None:
    run = Engine(make_process(variant))
    played = []
    for number, batch in enumerate(batches):
        now = to_millis(batch.processing_time)
        if number == at:
            before, run = keys_of(run), moved(run, make_process(variant), buckets, now)
            assert keys_of(run) == before
            assert sum(BucketReader(s, Epochs(run.layouts), Keys(KEYS, single=True)).facts.keys for s in run.stores) == len(before)
        events = sorted((Event(**event) for event in batch.events), key=lambda event: getattr(event, ORDER_BY))
        rows = run.batch(events, now, None if batch.watermark is None else to_millis(batch.watermark))
        played.append(comparable(map(to_row, rows.get(MAIN, ())), map(to_note, rows.get("notes", ()))))

    assert played == reference(variant, batches)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_values_of_any_type_come_back_as_they_were_stored(data: st.DataObject) -> None:
    kind = data.draw(types)
    plain = [codec_of(kind).to_plain(value) for value in data.draw(st.lists(values_of(kind), min_size=1, max_size=4))]
    batch = table_of([[value] for value in plain], StructOf((Field("v", kind),)))

    found = plain_of(batch.column(0), kind)

    assert repr(found) == repr(plain)  # in which NaN equals itself


# -- another layout ------------------------------------------------------------------------------------------------------


def state(name: str, kind: str, ddl: str, ttl: int | None = None, key: str | None = None) -> StateLayout:
    return StateLayout.from_json({"name": name, "kind": kind, "type": ddl, "key_type": key, "ttl_ms": ttl})


def carried_over(old: StateLayout, new: StateLayout, held: Any) -> Any:
    entries = Entries(True, Layout((old,)), Layout((new,)), touched=7)
    return unpack(entries.entry([held], None))[1]


def test_a_ttl_begins_and_ends() -> None:
    mortal, immortal = state("s", "value", "bigint", 1000), state("s", "value", "bigint")

    assert carried_over(immortal, mortal, 5) == [5, 7], "counted from the savepoint"
    assert carried_over(mortal, immortal, [5, 99_000]) == 5
    assert carried_over(mortal, mortal, [5, 99_000]) == [5, 99]
    assert carried_over(state("s", "list", "bigint"), state("s", "list", "bigint", 1000), [1, None]) == [[1, 7], [None, 7]]


def test_fields_are_added_to_every_element() -> None:
    old = state("s", "map", "struct<a: int>", key="string")
    new = state("s", "map", "struct<a: bigint, b: string DEFAULT 'x'>", key="string")

    cell = carried_over(old, new, [["k", [1]], [None, None]])

    assert {unpack(key): value for key, value in cell.items()} == {"k": [1, "x"], None: None}


def test_states_are_matched_by_name() -> None:
    saved = Layout((state("gone", "value", "string"), state("kept", "value", "int")))
    declared = Layout((state("new", "list", "int"), state("kept", "value", "bigint")))

    assert unpack(Entries(True, saved, declared, 0).entry(["x", 3], None)) == [None, None, 3]
    assert carried_changes(saved, declared) == [
        "state 'new' begins empty",
        "state 'kept' widens the value from int to bigint",
        "state 'gone' is dropped",
    ]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (state("s", "value", "string"), state("s", "value", "int"), "field 's' changes from string to int"),
        (state("s", "value", "string"), state("s", "list", "string"), "field 's' changes from value state to list state"),
        (state("s", "map", "int", key="int"), state("s", "map", "int", key="string"), "field 's' changes the type of its keys"),
    ],
)
def test_what_cannot_be_carried_over_is_refused(old: StateLayout, new: StateLayout, sentence: str) -> None:
    with pytest.raises(Incompatible) as refused:
        carried_changes(Layout((old,)), Layout((new,)))

    assert str(refused.value) == sentence


def test_timers_of_a_clock_that_is_not_used_any_more_are_told_and_left_out() -> None:
    hour = int(timedelta(hours=1).total_seconds() * 1_000_000)
    saved, declared = Layout((), frozenset(["event", "processing"])), Layout((), frozenset(["processing"]))

    assert undeclared_clocks(declared, {"event": 2, "processing": 1}) == ["event"]
    assert unpack(Entries(True, saved, declared, 0).entry(None, [[hour], [2 * hour]])) == [[[], [7_200_000]]]
    assert unpack(Entries(True, saved, declared, 0).entry(None, [[hour], []])) == [None]


def test_the_types_are_those_that_were_declared() -> None:
    layout = Layout((state("total", "reducing", "decimal(10,2)"), state("seen", "list", "struct<at: timestamp NOT NULL>", 1000)))

    fields = PortableRows(parse_fields("who string NOT NULL, day date"), False, layout).fields

    assert fields == parse_type(
        "struct<key: struct<who: string, day: date>, states: struct<total: decimal(10,2), seen: array<struct<value: struct<at: timestamp>, "
        "touched: timestamp>>>, timers: struct<event: array<timestamp>, processing: array<timestamp>>>"
    )
