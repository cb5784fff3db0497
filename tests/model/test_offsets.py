"""Source positions: what is the same, what comes after, and where a chain breaks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.model.offsets import ORIGIN, Break, Offsets, chain_break
from strandline.model.positions import FilesPosition, GeneratorPosition, KafkaPosition, Order, Position, chain_hash

files = st.builds(FilesPosition, log=st.integers(-1, 50), files=st.integers(0, 500), chain=st.text("0123456789abcdef", max_size=32))
generators = st.builds(GeneratorPosition, offset=st.integers(0, 10**9), timestamp=st.integers(0, 10**13))
topics = st.dictionaries(
    st.sampled_from(["a", "b"]), st.dictionaries(st.integers(0, 3), st.integers(0, 99), min_size=1, max_size=3), max_size=2
)
kafkas = topics.map(KafkaPosition.of)
positions: st.SearchStrategy[Position] = files | generators | kafkas
names = st.text(min_size=1, max_size=8)
offsets = st.dictionaries(names, st.none() | positions, max_size=4).map(Offsets.of)


def events(**reached: int | None) -> Offsets:
    return Offsets.of({name: None if n is None else GeneratorPosition(n, 0) for name, n in reached.items()})


# -- one position --------------------------------------------------------------------------------------------


def test_order_says_where_the_other_position_lies() -> None:
    here = FilesPosition(3, 12, "aa")

    assert here.order(FilesPosition(3, 12, "aa")) is Order.SAME
    assert here.order(FilesPosition(4, 13, "bb")) is Order.AFTER
    assert here.order(FilesPosition(2, 11, "bb")) is Order.BEFORE
    assert GeneratorPosition(10, 5).order(GeneratorPosition(20, 6)) is Order.AFTER
    assert GeneratorPosition(10, 5).order(GeneratorPosition(5, 4)) is Order.BEFORE


def test_kafka_positions_are_compared_partition_by_partition() -> None:
    here = KafkaPosition.of({"orders": {0: 10, 1: 5}})

    assert here.order(KafkaPosition.of({"orders": {1: 5, 0: 10}})) is Order.SAME
    assert here.order(KafkaPosition.of({"orders": {0: 12, 1: 5}})) is Order.AFTER
    assert here.order(KafkaPosition.of({"orders": {0: 10, 1: 5, 2: 0}})) is Order.AFTER, "a new partition"
    assert here.order(KafkaPosition.of({"orders": {0: 9, 1: 5}})) is Order.BEFORE
    assert here.order(KafkaPosition.of({"orders": {0: 10}})) is Order.BEFORE
    assert here.order(KafkaPosition.of({"orders": {0: 12, 1: 4}})) is Order.UNRELATED


def test_kafka_ranges_in_human_form() -> None:
    before, after = KafkaPosition.of({"orders": {0: 120, 1: 7}}), KafkaPosition.of({"orders": {0: 240, 1: 7, 2: 3}})

    assert after.human(before) == "orders[0] 120–240, orders[2] 0–3"
    assert after.human(after) == "orders at [0] 240, [1] 7, [2] 3"
    many = KafkaPosition.of({"orders": dict.fromkeys(range(20), 5)})
    assert many.human(None) == "orders: 100 offsets in 20 partitions"


@given(kafkas, kafkas)
def test_the_order_of_kafka_positions_is_mirrored(one: KafkaPosition, other: KafkaPosition) -> None:
    mirror = {Order.AFTER: Order.BEFORE, Order.BEFORE: Order.AFTER}

    assert other.order(one) is mirror.get(one.order(other), one.order(other))


def test_as_many_files_but_other_files_are_unrelated() -> None:
    """Spark's own offset is a bare counter and would call these the same."""
    assert FilesPosition(3, 12, "aa").order(FilesPosition(3, 12, "bb")) is Order.UNRELATED


def test_positions_of_different_kinds_are_unrelated() -> None:
    assert FilesPosition(3, 12, "aa").order(GeneratorPosition(3, 0)) is Order.UNRELATED
    assert GeneratorPosition(3, 0).order(FilesPosition(3, 12, "aa")) is Order.UNRELATED


@given(positions, positions)
def test_order_read_from_the_other_side_is_the_mirror(a: Position, b: Position) -> None:
    mirror = {Order.SAME: Order.SAME, Order.UNRELATED: Order.UNRELATED, Order.AFTER: Order.BEFORE, Order.BEFORE: Order.AFTER}

    assert b.order(a) is mirror[a.order(b)]
    assert a.order(a) is Order.SAME


@pytest.mark.parametrize(
    ("position", "since", "words"),
    [
        (FilesPosition(4, 5, "b"), FilesPosition(1, 2, "a"), "files 3–5"),
        (FilesPosition(4, 5, "b"), None, "files 1–5"),
        (FilesPosition(4, 5, "b"), FilesPosition(4, 5, "b"), "files at 5"),
        (GeneratorPosition(40, 0), GeneratorPosition(20, 0), "events 20–40"),
        (GeneratorPosition(40, 0), None, "events 0–40"),
    ],
)
def test_a_range_in_the_words_of_an_operator(position: Position, since: Position | None, words: str) -> None:
    assert position.human(since) == words


# -- all sources of a pipeline -------------------------------------------------------------------------------


@given(offsets)
def test_offsets_survive_json(value: Offsets) -> None:
    assert Offsets.from_json(json.loads(json.dumps(value.to_json()))) == value


@given(offsets)
def test_the_canonical_form_has_the_same_digest_when_read_back(value: Offsets) -> None:
    again = Offsets.from_json(json.loads(value.canonical()))

    assert again.digest == value.digest
    assert again.canonical() == value.canonical()


@given(st.dictionaries(names, positions, max_size=4), names)
def test_the_digest_depends_on_what_was_read_not_on_how_it_is_written_down(sources: dict[str, Position], never_read: str) -> None:
    backwards = dict(reversed(sources.items()))

    assert Offsets.of(backwards).digest == Offsets.of(sources).digest
    assert Offsets.of({never_read: None, **sources}).digest == Offsets.of(sources).digest


def test_the_origin_is_the_same_whatever_the_sources_are() -> None:
    untouched = events(orders=None, users=None)

    assert untouched.is_origin
    assert ORIGIN.is_origin
    assert untouched.digest == ORIGIN.digest
    assert not events(orders=0).is_origin, "reading nothing of a source is not the same as never having looked"


def test_the_digest_never_changes() -> None:
    """Digests are compared across releases: the canonical form is a durable format."""
    value = Offsets.of({"orders": FilesPosition(2, 5, "00ff"), "clicks": GeneratorPosition(40, 1767225604000), "users": None})

    assert value.canonical() == (
        '{"clicks":{"kind":"generator","offset":40,"timestamp":1767225604000},"orders":{"chain":"00ff","files":5,"kind":"files","log":2}}'
    )
    assert value.digest == "a3e7b6584e9c388c6f15ecc3ccc8db14ed0f9f7057dc0bd50acd48628388a534"
    assert ORIGIN.digest == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_one_source_is_shown_bare_and_several_by_name() -> None:
    assert events(orders=30).human(events(orders=10)) == "events 10–30"
    assert events(orders=30, users=5, rates=None).human(events(orders=10)) == "orders events 10–30, users events 0–5"
    assert ORIGIN.human(None) == "nothing read"


# -- chains --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_end", "next_start", "expected"),
    [
        (events(a=10), events(a=10), None),
        (ORIGIN, events(a=None), None),
        (events(a=10), events(a=12), Break.GAP),
        (events(a=10), events(a=8), Break.OVERLAP),
        (ORIGIN, events(a=8), Break.GAP),
        (events(a=8), ORIGIN, Break.OVERLAP),
        (events(a=10, b=5), events(a=12, b=5), Break.GAP),
        (events(a=10, b=5), events(a=12, b=4), Break.OVERLAP),
        (events(a=10, b=5), events(a=10), Break.OVERLAP),
        (events(a=10), Offsets.of({"a": GeneratorPosition(10, 99)}), Break.UNRELATED),
        (events(a=10, b=5), Offsets.of({"a": FilesPosition(1, 1, "x"), "b": GeneratorPosition(9, 0)}), Break.UNRELATED),
    ],
)
def test_how_a_chain_breaks(last_end: Offsets, next_start: Offsets, expected: Break | None) -> None:
    assert chain_break(last_end, next_start) is expected


@given(offsets, offsets)
def test_a_chain_is_whole_exactly_when_the_digests_are_the_same(a: Offsets, b: Offsets) -> None:
    assert (chain_break(a, b) is None) == (a.digest == b.digest)
    assert chain_break(a, a) is None


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_a_gap_one_way_is_an_overlap_the_other_way(a: int, b: int) -> None:
    mirror = {None: None, Break.GAP: Break.OVERLAP, Break.OVERLAP: Break.GAP}

    assert chain_break(events(s=b), events(s=a)) is mirror[chain_break(events(s=a), events(s=b))]


# -- the hash chain over file names --------------------------------------------------------------------------

file_names = st.lists(st.text("abc/.", min_size=1, max_size=6), min_size=1, max_size=5, unique=True)


@given(file_names)
def test_the_order_of_files_inside_one_log_entry_does_not_matter(entries: list[str]) -> None:
    assert chain_hash("", reversed(entries)) == chain_hash("", entries)


@given(file_names, file_names)
def test_other_files_give_another_chain(a: list[str], b: list[str]) -> None:
    assert (chain_hash("", a) == chain_hash("", b)) == (sorted(a) == sorted(b))


def test_the_order_of_log_entries_does_matter() -> None:
    assert chain_hash(chain_hash("", ["a"]), ["b"]) != chain_hash(chain_hash("", ["b"]), ["a"])
    assert chain_hash(chain_hash("", ["a"]), ["b"]) != chain_hash("", ["a", "b"])
