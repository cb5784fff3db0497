"""What is read from a bucket's bytes is what the reference interpreter says the processor holds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings

from strandline.model.times import to_millis
from strandline.state import bucket as engine
from strandline.state import containers, pages
from strandline.state.bucket import Bucket, Now
from strandline.state.codec import pack
from strandline.state.declarations import Context, KeyedProcess, list_state, map_state, ttl, value_state
from strandline.state.keys import Keys
from strandline.state.layout import Epochs, layout_of
from strandline.state.reading import BucketReader, KeyState, changes, same_pages
from strandline.state.store import MemoryStore
from strandline.state.types import parse_fields

from .strategies import EXACT, ORDER_BY, Batch, harness, make_process, scripts
from .test_bucket import Engine, Event

KEY = Keys(parse_fields("key string"), single=True)
NOW = 1_000_000


@pytest.fixture(params=["ordinary pages", "tiny pages"], scope="module", autouse=True)
def page_size(request: pytest.FixtureRequest) -> Any:
    """Tiny ones spill every list into chunks and every map into pages of its own."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tiny pages":
            patch.setattr(pages, "PAGE_BYTES", 40)
            patch.setattr(engine, "SPILL_BYTES", 60)
            patch.setattr(containers, "CHUNK_BYTES", 24)
        yield


def alive(found: KeyState) -> dict[str, Any]:
    """Without what has expired, as the harness shows it."""
    shown: dict[str, Any] = {}
    for name, held in found.states.items():
        elements = [element for element in held.elements if not element.expired]
        if elements and held.layout.kind == "list":
            shown[name] = [element.value for element in elements]
        elif elements and held.layout.kind == "map":
            shown[name] = {element.map_key: element.value for element in elements}
        elif elements:
            shown[name] = elements[0].value
    return shown


@pytest.mark.parametrize("variant", EXACT)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(batches=scripts())
def test_reads_what_the_reference_holds(variant: str, batches: list[Batch]) -> None:
    run, reference = Engine(make_process(variant)), harness(variant)
    now = 0
    for batch in batches:
        reference.batch(batch.events, watermark=batch.watermark, processing_time=batch.processing_time)
        now = to_millis(batch.processing_time)
        events = sorted((Event(**event) for event in batch.events), key=lambda event: getattr(event, ORDER_BY))
        run.batch(events, now, None if batch.watermark is None else to_millis(batch.watermark))
    before = [dict(store.entries) for store in run.stores]

    readers = [BucketReader(store, Epochs(run.layouts), KEY, now) for store in run.stores]
    found = {each.key[0]: each for reader in readers for each in reader}

    for key in reference.keys() | found.keys():
        each = found.get(key)
        assert ({} if each is None else alive(each)) == reference.state(key)
        assert list(() if each is None else each.timers) == [(clock, to_millis(at)) for clock, at in reference.timers(key)]
        if each is not None:
            assert each in [reader.find((key,)) for reader in readers]
    assert sum(reader.facts.keys for reader in readers) == len(found)
    for state in run.layouts[-1].states:
        held = [each.states[state.name] for each in found.values() if state.name in each.states]
        assert sum(reader.facts.entries.get(state.name, 0) for reader in readers) == sum(len(one.elements) for one in held)
        touches = [element.touched for one in held for element in one.elements if element.touched is not None]
        told = [at for reader in readers if (at := reader.oldest_touches().get(state.name)) is not None]
        assert min(told, default=None) == min(touches, default=None)
    assert [store.entries for store in run.stores] == before, "reading writes nothing"


# -- touches, expiry, changes ------------------------------------------------------------------------------------------


class Remember(KeyedProcess):
    notes = list_state("string", ttl=ttl("1 s"))
    prices = map_state("string", "double")
    when = value_state("timestamp", ttl=ttl("10 s"))

    def process(self, key: Any, events: list[Any], ctx: Context) -> None:
        for name, price in events:
            self.notes.add(name)
            if price is None:
                self.prices.remove(name)
            else:
                self.prices.put(name, price)
        self.when.update(ctx.processing_time)


class Given(NamedTuple):
    by_key: dict[Any, list[Any]]

    @property
    def keys(self) -> list[bytes]:
        return [pack(list(key)) if isinstance(key, tuple) else pack(key) for key in self.by_key]

    def key(self, number: int) -> Any:
        return list(self.by_key)[number]

    def events(self, number: int) -> list[Any]:
        return list(self.by_key.values())[number]


def after(store: MemoryStore, at: int, events: dict[Any, list[Any]]) -> MemoryStore:
    """A copy of the bucket one batch later."""
    copied = MemoryStore(dict(store.entries))
    list(Bucket(copied, Remember(), Epochs([layout_of(Remember())]), lambda packed: packed, Now(0, at, None)).run(Given(events)))
    return copied


def reader(store: MemoryStore, now: int | None = None, keys: Keys = KEY) -> BucketReader:
    return BucketReader(store, Epochs([layout_of(Remember())]), keys, now)


def test_what_expired_is_shown_with_a_mark_and_nothing_is_hidden() -> None:
    store = after(after(MemoryStore(), NOW, {"ada": [("tea", 1.0)]}), NOW + 500, {"ada": [("milk", 2.0)]})

    plain, marked = reader(store).find(("ada",)), reader(store, NOW + 1200).find(("ada",))

    assert plain is not None and marked is not None
    assert [(e.value, e.touched, e.expired) for e in plain.states["notes"].elements] == [("tea", NOW, False), ("milk", NOW + 500, False)]
    assert [e.expired for e in marked.states["notes"].elements] == [True, False]
    assert (marked.states["notes"].expired, marked.states["when"].expired) == (1, 0)
    assert marked.states["prices"].value == {"tea": 1.0, "milk": 2.0}
    assert marked.states["prices"].touched is None
    assert marked.states["when"].touched == NOW + 500
    assert marked.states["when"].value == datetime.fromisoformat("1970-01-01T00:00:00+00:00") + timedelta(milliseconds=NOW + 500)
    assert reader(store).oldest_touches() == {"notes": NOW, "when": NOW + 500}


def test_changes_are_added_removed_and_changed_keys_and_a_touch_is_none() -> None:
    everyone = {f"k{number}": [("tea", 1.0)] for number in range(50)}
    old = after(MemoryStore(), NOW, everyone)
    new = after(old, NOW + 100, {"k7": [("milk", 2.0)], "new": [("tea", 1.0)]})
    gone = after(MemoryStore(), NOW, {key: value for key, value in everyone.items() if key != "k3"})

    def told(before: MemoryStore, later: MemoryStore, quick: bool) -> list[tuple[str, str]]:
        same = same_pages(before.entries, later.entries) if quick else set()
        return sorted((change.key[0], change.kind) for change in changes(reader(before).keys(same), reader(later).keys(same)))

    for quick in (False, True):
        assert told(old, new, quick) == [("k7", "changed"), ("new", "added")]
        assert told(old, gone, quick) == [("k3", "removed")]
        assert told(old, old, quick) == []


def test_a_change_in_a_large_map_is_seen_although_the_keys_entry_stays_the_same() -> None:
    many = [(f"p{number:04}", 1.0) for number in range(600)]
    old = after(MemoryStore(), NOW, {"ada": many, "bob": [("tea", 1.0)]})
    new = MemoryStore(dict(old.entries))
    (packed,) = [key for key, value in old.entries.items() if key[:1] == b"q" and b"p0042" in value]
    page = pages.decode_page(old.entries[packed])
    page.entries[pack("p0042")] = pack([5.0])
    new.entries[packed] = pack([pages.FORMAT, page.epoch, page.scheduled, page.entries])

    same = same_pages(old.entries, new.entries)
    (change,) = changes(reader(old).keys(same), reader(new).keys(same))

    assert change.before is not None and change.after is not None
    assert (change.before.states["prices"].value["p0042"], change.after.states["prices"].value["p0042"]) == (1.0, 5.0)


@pytest.mark.parametrize(
    ("fields", "stored", "columns"),
    [
        ("key string", "ada", ("ada",)),
        ("key string", ("ada",), ("ada",)),
        ("country string, n bigint", ("DE", 7), ("DE", 7)),
    ],
)
def test_keys_are_columns_however_the_pipeline_wrote_by(fields: str, stored: Any, columns: tuple[Any, ...]) -> None:
    store = after(MemoryStore(), NOW, {stored: [("tea", 1.0)]})

    keys = Keys(parse_fields(fields), single=isinstance(stored, str))

    assert [found.key for found in reader(store, keys=keys)] == [columns]
    assert reader(store, keys=keys).find(columns) is not None
    assert reader(store, keys=keys).find((*columns[:-1], 8 if len(columns) > 1 else "bob")) is None


def test_a_state_that_came_later_is_empty_and_one_that_is_gone_is_not_shown() -> None:
    class Later(KeyedProcess):
        prices = map_state("string", "double")
        seen = value_state("bigint")

        def process(self, key: Any, events: list[Any], ctx: Context) -> None:
            self.seen.update(len(events))

    store = after(MemoryStore(), NOW, {"ada": [("tea", 1.0)]})
    later = BucketReader(store, Epochs([layout_of(Remember()), layout_of(Later())]), KEY)

    (found,) = later

    assert {name: held.value for name, held in found.states.items()} == {"prices": {"tea": 1.0}}


def test_an_empty_bucket_and_a_format_of_the_future() -> None:
    def nobody() -> Iterator[KeyState]:
        return iter(reader(MemoryStore()))

    assert list(nobody()) == []
    with pytest.raises(ValueError, match="written in format 9"):
        reader(MemoryStore({b"m": pack([9, 1, 0, 0, [], {}, None])}))
