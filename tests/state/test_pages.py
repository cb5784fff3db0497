"""A hash table of pages: whatever is put in is found again, and nobody pays for what others stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandline.state.codec import pack
from strandline.state.pages import PAGE_BYTES, PagedTable, page_number
from strandline.state.store import MemoryStore


def table(store: MemoryStore, like: PagedTable | None = None) -> PagedTable:
    facts = (like.pages, like.count, like.size) if like else (1, 0, 0)
    return PagedTable(store, lambda number: b"p%d" % number, *facts)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5000))
def test_growth_by_one_page_moves_an_entry_only_into_the_new_page(hashed: int, count: int) -> None:
    before, after = page_number(hashed, count), page_number(hashed, count + 1)

    assert 0 <= before < count
    assert after in (before, count)


@given(st.lists(st.tuples(st.sampled_from(["put", "remove", "flush", "grow"]), st.integers(0, 60)), max_size=120))
def test_it_holds_what_a_dict_holds(steps: list[tuple[str, int]]) -> None:
    store = MemoryStore()
    subject = table(store)
    model: dict[bytes, bytes] = {}
    for step, number in steps:
        key = b"key-%d" % number
        if step == "put":
            model[key] = b"x" * (number * 7)
            subject.put(subject.page_of(key), key, model[key])
        elif step == "remove":
            model.pop(key, None)
            subject.remove(subject.page_of(key), key)
        elif step == "grow":
            subject.grow()
        else:
            subject.flush()
            subject = table(store, subject)

    assert {key: entry for page in subject.everything() for key, entry in page.entries.items()} == model
    assert subject.count == len(model)
    assert subject.size == sum(len(key) + len(entry) for key, entry in model.items())
    assert all(subject.page_of(key).entries.get(key) == entry for key, entry in model.items())


def test_pages_keep_their_size_while_the_table_grows() -> None:
    subject = table(MemoryStore())
    for number in range(20_000):
        key = b"key-%d" % number
        subject.put(subject.page_of(key), key, b"x" * 50)
        if number % 500 == 0:
            subject.grow()
    subject.grow()

    sizes = [sum(map(len, page.entries.values())) for page in subject.everything()]
    assert PAGE_BYTES / 2 < sum(sizes) / len(sizes) < PAGE_BYTES * 1.2
    assert max(sizes) < 4 * PAGE_BYTES


def test_touching_few_of_many_keys_moves_few_pages() -> None:
    store = MemoryStore()
    subject = table(store)
    subject.expect(50_000)
    for number in range(50_000):
        key = b"key-%d" % number
        subject.put(subject.page_of(key), key, b"x" * 50)
    subject.flush()
    subject = table(store, subject)
    asked: list[bytes] = []
    plain = store.get_many
    store.get_many = lambda keys: asked.extend(keys) or plain(keys)  # type: ignore[func-returns-value, method-assign]

    subject.load(subject.number_of(b"key-%d" % number) for number in range(10))

    assert len(asked) <= 10


def test_a_page_of_an_unknown_format_is_refused() -> None:
    store = MemoryStore({b"p0": pack([99, 0, [], {}])})

    try:
        table(store).load([0])
    except ValueError as refused:
        assert str(refused) == "this state was written in format 99; this version of Strandline reads format 1"
    else:
        raise AssertionError("it was read")
