"""Long lists and large maps: one key with very many entries stays usable, because they are not loaded whole unless asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from strandline.state.declarations import Context, KeyedProcess, list_state, map_state, ttl, value_state
from strandline.state.store import MemoryStore

from .test_bucket import Engine


class Do(NamedTuple):
    key: str
    code: Callable[[Any], Any]


class Hoarder(KeyedProcess):
    elements = list_state("bigint")
    entries = map_state("string", "bigint")
    fresh = list_state("bigint", ttl=ttl("10 s"))
    note = value_state("string")

    def process(self, key: Any, events: list[Any], ctx: Context) -> Iterator[Any]:
        for event in events:
            yield event.code(self)


class Counting(MemoryStore):
    """Counts the bytes that are read and written."""

    read = written = 0

    def get_many(self, keys: Any) -> list[bytes | None]:
        found = super().get_many(keys)
        self.read += sum(len(value) for value in found if value)
        return found

    def put_many(self, entries: Any) -> None:
        super().put_many(entries)
        self.written += sum(len(value) for _, value in entries)


def hoard(count: int = 50_000) -> tuple[Engine, Callable[[Callable[[Any], Any]], Any], Counting]:
    engine = Engine(Hoarder(), buckets=1)
    store = Counting()
    engine.stores = [store]
    clock = iter(range(1, 1000))

    def do(code: Callable[[Any], Any]) -> Any:
        (answer,) = engine.batch([Do("k", code)], now=next(clock) * 1000)[""]
        return answer

    do(lambda p: p.elements.add_all(range(count)))
    do(lambda p: p.entries.put_all({f"e{n}": n for n in range(count)}))
    store.read = store.written = 0
    return engine, do, store


def test_adding_to_a_long_list_and_one_entry_of_a_large_map_touch_little() -> None:
    _, do, store = hoard()

    do(lambda p: p.elements.add(-1))
    do(lambda p: p.entries.put("new", -1))
    assert do(lambda p: (p.entries.get("e777"), "e778" in p.entries, "nobody" in p.entries)) == (777, True, False)
    assert do(lambda p: (len(p.elements), len(p.entries))) == (50_001, 50_001)

    assert store.read < 60_000, "of some 500 KB"
    assert store.written < 60_000


def test_the_whole_of_it_is_there_when_asked_for() -> None:
    _, do, _ = hoard(5_000)
    do(lambda p: p.elements.add(-1))
    do(lambda p: p.entries.remove("e0"))

    assert do(lambda p: p.elements.get()) == [*range(5_000), -1]
    assert do(lambda p: dict(p.entries.items())) == {f"e{n}": n for n in range(1, 5_000)}


def test_reading_may_stop_early() -> None:
    _, do, store = hoard()

    assert do(lambda p: next(iter(p.elements))) == 0
    assert do(lambda p: next(p.entries.values())) is not None
    assert store.read < 200_000, "a window of chunks and of pages, of some 1 MB"


def test_clearing_leaves_nothing_behind() -> None:
    engine, do, store = hoard(5_000)
    do(lambda p: p.elements.clear())
    do(lambda p: p.entries.clear())

    assert sorted(key[:1] for key in store.entries) == [b"m"], "only the bucket's facts"
    assert engine.measures.keys == 0
    assert engine.measures.entries == {"elements": 0, "entries": 0, "fresh": 0, "note": 0}


def test_old_elements_expire_in_front_and_new_ones_do_not_renew_them() -> None:
    engine = Engine(Hoarder(), buckets=1)

    def do(at: int, code: Callable[[Any], Any]) -> Any:
        (answer,) = engine.batch([Do("k", code)], now=at * 1000)[""]
        return answer

    do(1, lambda p: p.fresh.add_all(range(5_000)))
    do(6, lambda p: p.fresh.add_all(range(5_000, 10_000)))
    assert do(10, lambda p: len(p.fresh.get())) == 10_000
    assert do(11, lambda p: p.fresh.get()) == list(range(5_000, 10_000))
    assert engine.measures.entries["fresh"] == 5_000
    assert do(16, lambda p: p.fresh.get()) == []


def test_what_nobody_touches_expires_too_and_is_counted() -> None:
    engine = Engine(Hoarder(), buckets=1)
    engine.batch([Do(f"k{n}", lambda p: p.fresh.add(1)) for n in range(100)], now=1_000)
    assert engine.measures.keys == 100

    engine.batch([Do("other", lambda p: p.note.update("here"))], now=30_000)

    assert engine.measures.keys == 1
    assert engine.measures.expired == 100
