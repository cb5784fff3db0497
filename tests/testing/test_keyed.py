"""What a `KeyedProcess` means, sentence by sentence, on the harness that users test theirs with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from strandline.model.errors import DefinitionError, SourceProblem
from strandline.state.codec import WrongType
from strandline.state.declarations import (
    Context,
    KeyedProcess,
    Timers,
    TtlUpdate,
    TtlVisibility,
    aggregating_state,
    list_state,
    map_state,
    reducing_state,
    ttl,
    value_state,
)
from strandline.testing.keyed import BatchOutput, KeyedHarness

T0 = datetime(2024, 1, 1, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    """So many seconds after the processing time of the first batch."""
    return T0 + timedelta(seconds=seconds)


class Pair(NamedTuple):
    a: int
    b: str


class Swapped(NamedTuple):
    b: str
    a: int


class Page(NamedTuple):
    user: str
    page: str


class Visit(NamedTuple):
    page: str
    n: int


class Doing(KeyedProcess):
    """Calls what stands in the column `do` of each event with itself and the context, and yields what comes back as a row."""

    def process(self, key: Any, events: list[Any], ctx: Context) -> Iterator[Any]:
        for event in events:
            yield event.do(self, ctx)


class DoingOnTime(Doing):
    """The same with timers on both clocks, which show themselves in the output."""

    timers: Timers | None = "both"

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterator[Any]:
        yield (key, ctx.clock, at)


class Seat:
    """A harness with one key `k`, on which single actions are done, each in a batch of its own."""

    def __init__(self, process: KeyedProcess) -> None:
        self.harness = KeyedHarness(process, by="key")

    def do(self, *actions: Any, seconds: float | None = None) -> Any:
        out = self.harness.batch(
            [{"key": "k", "do": action} for action in actions], processing_time=None if seconds is None else at(seconds)
        )
        return out.rows[-1] if actions else out.rows

    @property
    def held(self) -> dict[str, Any]:
        return self.harness.state("k")


# -- whole processors ----------------------------------------------------------------------------------------------


class RunningTotal(KeyedProcess):
    total = reducing_state("double", operator.add)

    def process(self, key: Any, events: list[Any], ctx: Context) -> Iterator[Any]:
        for event in events:
            self.total.add(event.amount)
        yield {"customer": key, "total": self.total.get()}


def test_running_totals() -> None:
    harness = KeyedHarness(RunningTotal(), by="customer", output="customer string, total double")

    first = harness.batch([{"customer": "ada", "amount": 1.0}, {"customer": "bob", "amount": 5.0}, {"customer": "ada", "amount": 2.0}])
    second = harness.batch([{"customer": "ada", "amount": 4.0}])

    assert sorted(first.rows) == [("ada", 3.0), ("bob", 5.0)]
    assert second == BatchOutput([("ada", 7.0)])
    assert harness.state("ada") == {"total": 7.0}
    assert harness.keys() == {"ada", "bob"}


class Sessions(KeyedProcess):
    """A session ends when no event came for ten seconds of event time."""

    GAP = timedelta(seconds=10)
    started = value_state("timestamp")
    ends = value_state("timestamp")
    pages = list_state("string")

    def process(self, key: Any, events: list[Any], ctx: Context) -> None:
        for event in events:
            if not self.started.exists():
                self.started.update(event.at)
            if self.ends.exists():
                ctx.delete_timer(self.ends.get())
            self.pages.add(event.page)
            self.ends.update(event.at + self.GAP)
            ctx.set_timer(event.at + self.GAP)

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> list[Any]:
        row = (key, self.started.get(), at, len(self.pages))
        for state in (self.started, self.ends, self.pages):
            state.clear()
        return [row]


def test_sessions_with_a_gap() -> None:
    harness = KeyedHarness(Sessions(), by="user", order_by="at", output="user string, started timestamp, ended timestamp, pages bigint")

    visits = [
        {"user": "ada", "at": at(4), "page": "/b"},
        {"user": "ada", "at": at(0), "page": "/a"},
        {"user": "bob", "at": at(1), "page": "/"},
    ]
    assert harness.batch(visits).rows == []
    assert harness.timers("ada") == [("event", at(14))]
    assert harness.batch(watermark=at(11)).rows == [("bob", at(1), at(11), 1)]
    assert harness.batch([{"user": "ada", "at": at(13), "page": "/c"}], watermark=at(13)).rows == []
    assert harness.batch(watermark=at(23)).rows == [("ada", at(0), at(23), 3)]
    assert harness.keys() == set()


class SmallThenLarge(KeyedProcess):
    """Someone tries a stolen card with a small payment and comes back with a large one within a minute."""

    timers = "processing"
    tried = value_state("decimal(10,2)")
    alarms = map_state("date", "bigint")

    def process(self, key: Any, events: list[Any], ctx: Context) -> Iterator[Any]:
        for event in events:
            if self.tried.exists() and event.amount > 500:
                today = ctx.processing_time.date()
                self.alarms.put(today, self.alarms.get(today, 0) + 1)
                ctx.emit("alarms", {"card": key, "small": self.tried.get(), "large": event.amount})
            if event.amount < 1:
                self.tried.update(event.amount)
                ctx.set_timer(ctx.processing_time + timedelta(minutes=1))
            else:
                self.tried.clear()
            yield (key, event.amount)

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> None:
        self.tried.clear()


def test_a_pattern_of_fraud() -> None:
    harness = KeyedHarness(
        SmallThenLarge(),
        by="card",
        order_by="n",
        output="card string, amount decimal(10,2)",
        side_outputs={"alarms": "card string, small decimal(10,2), large decimal(10,2)"},
    )

    def pay(card: str, *amounts: str) -> list[dict[str, Any]]:
        return [{"card": card, "amount": Decimal(amount), "n": n} for n, amount in enumerate(amounts)]

    caught = harness.batch([*pay("x", "0.10", "900.00"), *pay("y", "0.20"), *pay("z", "0.30", "20.00", "900.00")], processing_time=at(0))
    assert caught.side == {"alarms": [("x", Decimal("0.10"), Decimal("900.00"))]}
    assert len(caught.rows) == 6
    assert harness.state("x") == {"alarms": {date(2024, 1, 1): 1}}

    assert harness.batch(pay("y", "900.00"), processing_time=at(59)).side["alarms"] == [("y", Decimal("0.20"), Decimal("900.00"))]
    harness.batch(pay("y", "0.20"), processing_time=at(59.5))
    assert harness.batch(processing_time=at(119.5)) == BatchOutput([], {"alarms": []}), "a timer fires without events"
    assert harness.batch(pay("y", "900.00"), processing_time=at(120)).side["alarms"] == []


# -- a batch ---------------------------------------------------------------------------------------------------------


class Shows(KeyedProcess):
    def process(self, key: Any, events: list[Any], ctx: Context) -> Iterator[Any]:
        yield (key, [event.n for event in events])


def test_process_runs_once_per_key_with_all_its_events() -> None:
    rows = KeyedHarness(Shows(), by="key").batch([{"key": "a", "n": 1}, {"key": "b", "n": 2}, {"key": "a", "n": 3}]).rows

    assert sorted(rows) == [("a", [1, 3]), ("b", [2])]


def test_events_come_in_the_declared_order_nulls_first() -> None:
    harness = KeyedHarness(Shows(), by="key", order_by="n")

    assert harness.batch([{"key": "a", "n": n} for n in (3, 1, None, 2)]).rows == [("a", [None, 1, 2, 3])]
    assert harness.batch().rows == []


def test_an_order_that_no_event_has_is_refused() -> None:
    with pytest.raises(DefinitionError, match="order_by='when' is no column of the events; they have key, n"):
        KeyedHarness(Shows(), by="key", order_by="when").batch([{"key": "a", "n": 1}])


def test_events_are_named_tuples_whether_given_as_dicts_or_named_tuples() -> None:
    class Keeps(KeyedProcess):
        def process(self, key: Any, events: list[Any], ctx: Context) -> list[Any]:
            return events

    harness = KeyedHarness(Keeps(), by="user")

    assert harness.batch([Page("ada", "/")]).rows == [("ada", "/")]
    (row,) = harness.batch([{"user": "ada", "page": "/b"}]).rows
    assert (row.user, row.page, row._fields) == ("ada", "/b", ("user", "page"))
    (row,) = harness.batch([{"user": "ada"}]).rows
    assert row.page is None, "the column is known from before"
    with pytest.raises(ValueError, match="an event of a batch is a dict or a named tuple, not \\('ada', '/'\\)"):
        harness.batch([("ada", "/")])


def test_rows_may_be_returned_yielded_or_missing() -> None:
    class Returns(KeyedProcess):
        def process(self, key: Any, events: list[Any], ctx: Context) -> Any:
            return events[0].what

    harness = KeyedHarness(Returns(), by="key")

    assert harness.batch([{"key": 1, "what": None}]).rows == []
    assert harness.batch([{"key": 1, "what": [(1, 2), (3, 4)]}]).rows == [(1, 2), (3, 4)]
    assert harness.batch([{"key": 1, "what": iter([(1, 2)])}]).rows == [(1, 2)]
    for single in ({"a": 1}, "row", 5, Pair(1, "x")):
        with pytest.raises(DefinitionError, match="return a list of rows, or yield rows"):
            harness.batch([{"key": 1, "what": single}])


def test_a_batch_that_raises_raises_the_same_and_leaves_no_trace() -> None:
    class Sour(DoingOnTime):
        seen = list_state("bigint")

    def spoil(process: Any, ctx: Context) -> None:
        process.seen.add(2)
        ctx.set_timer(at(99))
        raise LookupError("mine")

    harness = KeyedHarness(Sour(), by="key", control={"rules": "id"})
    harness.batch([{"key": "k", "do": lambda p, c: p.seen.add(1)}])

    with pytest.raises(LookupError, match="mine"):
        harness.batch([{"key": "k", "do": spoil}, {"key": "new", "do": spoil}], watermark=at(5), control={"rules": [{"id": 1}]})

    assert harness.state("k") == {"seen": [1]}
    assert (harness.timers("k"), harness.keys()) == ([], {"k"})
    assert harness.batch([{"key": "k", "do": lambda p, c: (c.batch, c.watermark, c.processing_time, dict(c.control["rules"]))}]).rows == [
        (1, None, at(1), {})
    ]


def test_the_given_instance_is_not_touched_and_its_attributes_are_there() -> None:
    class Scaled(KeyedProcess):
        total = value_state("bigint", default=0)

        def __init__(self, factor: int) -> None:
            self.factor = factor

        def process(self, key: Any, events: list[Any], ctx: Context) -> Iterator[Any]:
            self.total.update(self.total.get() + self.factor * len(events))
            yield self.total.get()

    process = Scaled(10)

    assert KeyedHarness(process, by="k").batch([{"k": 1}, {"k": 1}]).rows == [20]
    assert vars(process) == {"factor": 10}


def test_a_state_speaks_of_no_key_outside_of_a_batch() -> None:
    class Leaks(Doing):
        total = value_state("bigint")

    leaked: list[Any] = []
    Seat(Leaks()).do(lambda p, c: leaked.append(p.total))

    with pytest.raises(DefinitionError, match="the state 'total' was used outside of process and on_timer"):
        leaked[0].get()


def test_only_a_processor_can_be_run() -> None:
    with pytest.raises(DefinitionError, match="an instance of a KeyedProcess"):
        KeyedHarness(Doing, by="key")  # type: ignore[arg-type]


# -- keys ------------------------------------------------------------------------------------------------------------


def test_one_column_makes_a_plain_key_and_several_a_named_tuple() -> None:
    class Keys(KeyedProcess):
        seen = value_state("bigint")

        def process(self, key: Any, events: list[Any], ctx: Context) -> Iterator[Any]:
            assert ctx.key == key
            self.seen.update(len(events))
            yield key

    assert KeyedHarness(Keys(), by="customer").batch([{"country": "at", "customer": 7}]).rows == [7]

    harness = KeyedHarness(Keys(), by=["country", "customer"])
    rows = harness.batch([{"customer": 7, "country": country} for country in ("at", "de", "at")]).rows
    assert sorted(rows) == [("at", 7), ("de", 7)]
    assert {(key.country, key.customer) for key in rows} == {("at", 7), ("de", 7)}
    assert harness.state(("at", 7)) == {"seen": 2}
    assert harness.keys() == {("at", 7), ("de", 7)}


@pytest.mark.parametrize("by", ["customer", ["country", "customer"]])
def test_a_null_in_a_key_is_an_error_that_names_the_record(by: Any) -> None:
    harness = KeyedHarness(Shows(), by=by)

    with pytest.raises(SourceProblem, match="the key column 'customer' is null in the record {'country': 'at', 'customer': None, 'n': 17}"):
        harness.batch([{"country": "at", "customer": None, "n": 17}])
    with pytest.raises(SourceProblem, match="'customer' is null in the record {'country': 'at'}"):
        harness.batch([{"country": "at"}])


# -- time ------------------------------------------------------------------------------------------------------------


class Clocks(KeyedProcess):
    def process(self, key: Any, events: list[Any], ctx: Context) -> Iterator[Any]:
        assert ctx.clock is None
        yield (ctx.batch, ctx.processing_time, ctx.watermark)


def test_clocks_are_utc_aware_and_in_milliseconds() -> None:
    harness = KeyedHarness(Clocks(), by="key")
    event = {"key": 1}
    cet = timezone(timedelta(hours=1))

    assert harness.batch([event]).rows == [(0, at(0), None)]
    assert harness.batch([event]).rows == [(1, at(1), None)]
    assert harness.batch([event], watermark=at(-5)).rows == [(2, at(2), at(-5))]
    assert harness.batch([event], processing_time=datetime(2024, 1, 1, 2), watermark=datetime(2024, 1, 1, 1, 0, 0, 1999, cet)).rows == [
        (3, at(7200), at(0.001))
    ]
    (row,) = harness.batch([event]).rows
    assert row == (4, at(7201), at(0.001))
    assert row[1].tzinfo is row[2].tzinfo is timezone.utc


def test_no_clock_goes_back() -> None:
    harness = KeyedHarness(Clocks(), by="key")
    harness.batch(watermark=at(10), processing_time=at(20))

    harness.batch(watermark=at(10), processing_time=at(20))
    with pytest.raises(ValueError, match="the watermark of a batch cannot go back from 2024-01-01 00:00:10"):
        harness.batch(watermark=at(9))
    with pytest.raises(ValueError, match="the processing time of a batch cannot go back from 2024-01-01 00:00:20"):
        harness.batch(processing_time=at(19))


# -- timers ----------------------------------------------------------------------------------------------------------


def timed(*actions: Any) -> KeyedHarness:
    """A harness after a first batch (processing time 0, no watermark) in which the key `k` did that."""
    harness = KeyedHarness(DoingOnTime(), by="key")
    harness.batch([{"key": "k", "do": action} for action in actions])
    return harness


def test_a_timer_is_due_when_its_clock_shows_its_time_or_later() -> None:
    harness = timed(lambda p, c: c.set_timer(at(5)), lambda p, c: c.set_timer(at(7), clock="processing"))

    assert harness.timers("k") == [("event", at(5)), ("processing", at(7))]
    assert harness.batch(processing_time=at(6.999)).rows == [], "there is no watermark"
    assert harness.batch(processing_time=at(6.999), watermark=at(4.999)).rows == []
    assert harness.batch(processing_time=at(6.999), watermark=at(5)).rows == [("k", "event", at(5))]
    assert harness.batch(processing_time=at(7)).rows == [("k", "processing", at(7))]
    assert harness.batch(processing_time=at(99), watermark=at(99)).rows == []
    assert harness.keys() == set()


def test_timers_fire_in_order_of_time_and_event_time_first_on_a_tie() -> None:
    harness = timed(
        *(lambda p, c, n=n: c.set_timer(at(n), clock="processing") for n in (3, 1, 2)),
        *(lambda p, c, n=n: c.set_timer(at(n), clock="event") for n in (2, 1.5)),
    )

    fired = harness.batch(processing_time=at(10), watermark=at(10)).rows

    assert [(clock, when) for _, clock, when in fired] == [
        ("processing", at(1)),
        ("event", at(1.5)),
        ("event", at(2)),
        ("processing", at(2)),
        ("processing", at(3)),
    ]


def test_there_is_one_timer_per_key_clock_and_millisecond() -> None:
    harness = timed(
        lambda p, c: c.set_timer(at(1)),
        lambda p, c: c.set_timer(at(1)),
        lambda p, c: c.set_timer(at(1) + timedelta(microseconds=999)),
        lambda p, c: c.set_timer(at(1).replace(tzinfo=None)),
        lambda p, c: c.set_timer(at(1).astimezone(timezone(timedelta(hours=-8)))),
        lambda p, c: c.set_timer(at(1.001)),
        lambda p, c: c.set_timer(at(1), clock="processing"),
    )
    harness.batch([{"key": "other", "do": lambda p, c: c.set_timer(at(1))}], processing_time=at(0))

    assert harness.timers("k") == [("event", at(1)), ("processing", at(1)), ("event", at(1.001))]
    assert harness.timers("other") == [("event", at(1))]
    assert harness.timers("nobody") == []
    assert len(harness.batch(processing_time=at(2), watermark=at(2)).rows) == 4


def test_timers_are_listed_sorted_and_per_clock() -> None:
    harness = timed(*(lambda p, c, n=n: c.set_timer(at(n)) for n in (30, 10, 20)), lambda p, c: c.set_timer(at(15), clock="processing"))

    rows = harness.batch([{"key": "k", "do": lambda p, c: (c.timers(), c.timers(clock="processing"))}]).rows

    assert rows == [([at(10), at(20), at(30)], [at(15)])]
    assert rows[0][0][0].tzinfo is timezone.utc


def test_a_timer_that_is_set_by_an_event_may_fire_in_the_same_batch() -> None:
    harness = timed()

    rows = harness.batch([{"key": "k", "do": lambda p, c: c.set_timer(at(-5), clock="processing")}]).rows

    assert rows == [None, ("k", "processing", at(-5))]


def test_timers_fire_for_keys_without_events_beside_keys_with_events() -> None:
    harness = timed(lambda p, c: c.set_timer(at(5)))

    rows = harness.batch([{"key": "other", "do": lambda p, c: ("event",)}], watermark=at(5)).rows

    assert sorted(rows, key=len) == [("event",), ("k", "event", at(5))]


def test_a_deleted_timer_does_not_fire() -> None:
    harness = timed(lambda p, c: c.set_timer(at(5)), lambda p, c: c.set_timer(at(6)), lambda p, c: c.set_timer(at(5), clock="processing"))

    harness.batch([{"key": "k", "do": lambda p, c: c.delete_timer(at(5))}, {"key": "k", "do": lambda p, c: c.delete_timer(at(4))}])
    assert harness.timers("k") == [("processing", at(5)), ("event", at(6))]

    due_but_deleted = harness.batch([{"key": "k", "do": lambda p, c: c.delete_timer(at(6))}], watermark=at(9), processing_time=at(3))
    assert due_but_deleted.rows == [None]


class Chain(KeyedProcess):
    """What a timer does is told by the events: {seconds of the timer: what to do}."""

    def __init__(self, **on: Any) -> None:
        self.on = {float(name.removeprefix("at_")): action for name, action in on.items()}

    def process(self, key: Any, events: list[Any], ctx: Context) -> None:
        for event in events:
            ctx.set_timer(at(event.sets))

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterator[Any]:
        seconds = (at - T0).total_seconds()
        self.on.get(seconds, lambda ctx: None)(ctx)
        yield (seconds, ctx.timers())


def chain(sets: list[float], **on: Any) -> tuple[KeyedHarness, list[Any]]:
    """The harness and the rows of the batch in which all these timers are due."""
    harness = KeyedHarness(Chain(**on), by="key")
    return harness, harness.batch([{"key": "k", "sets": seconds} for seconds in sets], watermark=at(50)).rows


def test_a_timer_is_gone_when_it_fires_and_others_still_wait() -> None:
    _, rows = chain([1, 2, 90])

    assert rows == [(1, [at(2), at(90)]), (2, [at(90)])]


def test_a_timer_that_a_timer_sets_fires_in_the_next_batch_at_the_earliest() -> None:
    harness, rows = chain([1], at_1=lambda ctx: [ctx.set_timer(at(1)), ctx.set_timer(at(3)), ctx.set_timer(at(60))])

    assert rows == [(1, [at(1), at(3), at(60)])]
    assert [row[0] for row in harness.batch().rows] == [1, 3], "without events, and though the watermark stands still"
    assert harness.timers("k") == [("event", at(1)), ("event", at(60))]


def test_a_timer_that_an_earlier_timer_deletes_does_not_fire() -> None:
    harness, rows = chain([1, 2, 3], at_1=lambda ctx: ctx.delete_timer(at(2)))

    assert [row[0] for row in rows] == [1, 3]
    assert harness.timers("k") == []


def test_a_timer_deleted_and_set_by_a_timer_is_a_new_one() -> None:
    harness, rows = chain([1, 2], at_1=lambda ctx: [ctx.delete_timer(at(2)), ctx.set_timer(at(2))])

    assert [row[0] for row in rows] == [1]
    assert [row[0] for row in harness.batch().rows] == [2]


def test_setting_a_timer_that_waits_already_changes_nothing() -> None:
    harness, rows = chain([1, 2], at_1=lambda ctx: ctx.set_timer(at(2)))

    assert [row[0] for row in rows] == [1, 2]
    assert harness.batch().rows == []


def test_the_default_clock_is_the_only_one_that_is_declared() -> None:
    class OnProcessing(DoingOnTime):
        timers = "processing"

    harness = KeyedHarness(OnProcessing(), by="key")
    harness.batch([{"key": "k", "do": lambda p, c: c.set_timer(at(5))}])

    assert harness.timers("k") == [("processing", at(5))]
    for use in (lambda c: c.set_timer(at(1), clock="event"), lambda c: c.delete_timer(at(1), clock="event"), lambda c: c.timers("event")):
        with pytest.raises(DefinitionError, match="a timer of the clock 'event', but declares 'processing'"):
            harness.batch([{"key": "k", "do": lambda p, c, use=use: use(c)}])


def test_on_timer_alone_declares_event_time_and_nothing_declares_none() -> None:
    class Alone(Doing):
        def on_timer(self, key: Any, at: datetime, ctx: Context) -> None: ...

    harness = KeyedHarness(Alone(), by="key")
    harness.batch([{"key": "k", "do": lambda p, c: c.set_timer(at(5))}])
    assert harness.timers("k") == [("event", at(5))]
    with pytest.raises(DefinitionError, match="a timer of the clock 'processing', but declares 'event'"):
        harness.batch([{"key": "k", "do": lambda p, c: c.set_timer(at(5), clock="processing")}])
    with pytest.raises(DefinitionError, match="a timer of the clock 'event', but declares none"):
        KeyedHarness(Doing(), by="key").batch([{"key": "k", "do": lambda p, c: c.set_timer(at(5))}])


def test_a_time_is_a_datetime() -> None:
    with pytest.raises(ValueError, match="a time is a datetime, not 5"):
        timed(lambda p, c: c.set_timer(5))


# -- each kind of state ----------------------------------------------------------------------------------------------


def test_value_state() -> None:
    class One(Doing):
        it = value_state("bigint")
        other = value_state("bigint", default=7)

    seat = Seat(One())

    assert seat.do(lambda p, c: (p.it.get(), p.it.exists(), p.other.get(), p.other.exists())) == (None, False, 7, False)
    assert seat.held == {}, "a default is not kept"
    seat.do(lambda p, c: (p.it.update(3), p.other.update(4)))
    assert seat.do(lambda p, c: (p.it.get(), p.it.exists(), p.other.get(), p.other.exists())) == (3, True, 4, True)
    assert seat.held == {"it": 3, "other": 4}
    seat.do(lambda p, c: (p.it.update(None), p.other.clear()))
    assert seat.do(lambda p, c: (p.it.get(), p.it.exists(), p.other.get(), p.other.exists())) == (None, False, 7, False)
    assert seat.harness.keys() == set()


def test_list_state() -> None:
    class Many(Doing):
        them = list_state("string")

    seat = Seat(Many())

    assert seat.do(lambda p, c: (p.them.get(), len(p.them), list(p.them), p.them.exists())) == ([], 0, [], False)
    seat.do(lambda p, c: (p.them.add("a"), p.them.add_all(x for x in ["b", None, "b"])))
    assert seat.do(lambda p, c: (p.them.get(), len(p.them), list(p.them), p.them.exists())) == (
        ["a", "b", None, "b"],
        4,
        ["a", "b", None, "b"],
        True,
    )
    assert seat.held == {"them": ["a", "b", None, "b"]}
    seat.do(lambda p, c: p.them.update(x.upper() for x in p.them if x))
    assert seat.held == {"them": ["A", "B", "B"]}
    seat.do(lambda p, c: p.them.update([]))
    assert seat.held == {}
    seat.do(lambda p, c: (p.them.add("z"), p.them.clear()))
    assert seat.held == {}


def test_map_state() -> None:
    class Table(Doing):
        it = map_state("string", "bigint")

    def look(p: Any, c: Context) -> Any:
        return (sorted(p.it.keys()), dict(p.it.items()), len(list(p.it.values())), len(p.it), p.it.exists(), "a" in p.it, p.it.get("a"))

    seat = Seat(Table())

    assert seat.do(look) == ([], {}, 0, 0, False, False, None)
    assert seat.do(lambda p, c: (p.it.get("a", -1), p.it.remove("a"))) == (-1, None)
    seat.do(lambda p, c: (p.it.put("a", 1), p.it.put_all({"b": 2, "n": None}), p.it.put("a", 10)))
    assert seat.do(look) == (["a", "b", "n"], {"a": 10, "b": 2, "n": None}, 3, 3, True, True, 10)
    assert seat.do(lambda p, c: ("n" in p.it, p.it.get("n", -1))) == (True, None), "it is there, and it is null"
    seat.do(lambda p, c: p.it.remove("b"))
    assert seat.held == {"it": {"a": 10, "n": None}}
    seat.do(lambda p, c: [p.it.remove(key) for key in p.it.keys()])  # noqa: SIM118
    assert seat.held == {}
    seat.do(lambda p, c: (p.it.put("a", 1), p.it.clear()))
    assert seat.held == {}


def test_reducing_state() -> None:
    class Highest(Doing):
        high = reducing_state("bigint", max)

    seat = Seat(Highest())

    assert seat.do(lambda p, c: (p.high.get(), p.high.exists())) == (None, False)
    seat.do(*(lambda p, c, n=n: p.high.add(n) for n in (3, 9, 4)))
    assert seat.do(lambda p, c: (p.high.get(), p.high.exists())) == (9, True)
    assert seat.held == {"high": 9}
    seat.do(lambda p, c: p.high.clear())
    assert seat.do(lambda p, c: (p.high.get(), p.high.exists())) == (None, False)


def test_aggregating_state() -> None:
    class Average(Doing):
        mean = aggregating_state(
            "struct<n: bigint, total: double>",
            create=lambda: (0, 0.0),
            add=lambda acc, value: (acc[0] + 1, acc[1] + value),
            result=lambda acc: acc.total / acc.n,
        )
        raw = aggregating_state("array<bigint>", create=list, add=lambda acc, value: [*acc, value])

    seat = Seat(Average())

    assert seat.do(lambda p, c: (p.mean.get(), p.mean.exists(), p.raw.get(), p.raw.exists())) == (None, False, None, False)
    seat.do(*(lambda p, c, n=n: (p.mean.add(n), p.raw.add(n)) for n in (1, 2, 6)))
    assert seat.do(lambda p, c: (p.mean.get(), p.mean.exists(), p.raw.get(), p.raw.exists())) == (3.0, True, [1, 2, 6], True)
    assert seat.held == {"mean": (3, 9.0), "raw": [1, 2, 6]}
    seat.do(lambda p, c: (p.mean.clear(), p.raw.clear()))
    assert seat.held == {}


def test_states_belong_to_their_key() -> None:
    class Counter(KeyedProcess):
        n = value_state("bigint", default=0)
        seen = list_state("bigint")

        def process(self, key: Any, events: list[Any], ctx: Context) -> None:
            self.n.update(self.n.get() + len(events))
            self.seen.add(ctx.batch)

    harness = KeyedHarness(Counter(), by="key")
    harness.batch([{"key": 1}, {"key": 2}, {"key": 1}])
    harness.batch([{"key": 2}])

    assert harness.state(1) == {"n": 2, "seen": [0]}
    assert harness.state(2) == {"n": 2, "seen": [0, 1]}
    assert harness.state(3) == {}


def test_what_was_put_in_and_what_came_out_are_nobodys_way_in() -> None:
    class Nested(Doing):
        it = value_state("array<bigint>", default=[])
        them = list_state("map<string, bigint>")

    def mutate(p: Any, c: Context) -> None:
        p.it.get().append(99)
        given, entry = [1], {"a": 1}
        p.it.update(given)
        p.them.add(entry)
        given.append(2)
        entry["b"] = 2
        p.it.get().append(3)
        p.them.get()[0]["c"] = 3
        p.them.get().append({})

    seat = Seat(Nested())
    seat.do(mutate)

    assert seat.held == {"it": [1], "them": [{"a": 1}]}
    seat.held["it"].append(4)
    assert seat.held == {"it": [1], "them": [{"a": 1}]}
    seat.do(lambda p, c: p.it.clear())
    assert seat.do(lambda p, c: p.it.get()) == [], "the default is still empty"


def test_values_are_plain_python_and_structs_named_tuples() -> None:
    class Kinds(Doing):
        when = value_state("timestamp")
        local = value_state("timestamp_ntz")
        day = map_state("date", "decimal(10,2)")
        visit = value_state("struct<page: string, n: bigint>")

    seat = Seat(Kinds())
    seat.do(lambda p, c: (p.when.update(at(1)), p.local.update(datetime(2024, 5, 5)), p.day.put(date(2024, 1, 1), Decimal("1.50"))))

    assert seat.held == {"when": at(1), "local": datetime(2024, 5, 5), "day": {date(2024, 1, 1): Decimal("1.50")}}
    assert seat.held["when"].tzinfo is not None
    for visit in (("/", 1), {"page": "/", "n": 1}, Visit("/", 1)):
        seat.do(lambda p, c, visit=visit: p.visit.update(visit))
        assert seat.do(lambda p, c: (p.visit.get().page, p.visit.get().n)) == ("/", 1)


def test_what_does_not_fit_its_type_is_refused() -> None:
    class Typed(Doing):
        value = value_state("bigint")
        elements = list_state("bigint")
        entries = map_state("string", "bigint")
        reduced = reducing_state("bigint", max)
        aggregated = aggregating_state("bigint", create=int, add=lambda acc, value: value)

    seat = Seat(Typed())
    seat.do(lambda p, c: p.elements.add(1))

    for wrong in (
        lambda p, c: p.value.update("x"),
        lambda p, c: p.value.update(1.5),
        lambda p, c: p.value.update(2**63),
        lambda p, c: p.elements.add("x"),
        lambda p, c: p.elements.add_all([2, "x"]),
        lambda p, c: p.elements.update([3, "x"]),
        lambda p, c: p.entries.put("a", "x"),
        lambda p, c: p.entries.put(1, 1),
        lambda p, c: p.entries.put(None, 1),
        lambda p, c: p.entries.put_all({"a": 1, None: 2}),
        lambda p, c: p.reduced.add("x"),
        lambda p, c: p.aggregated.add("x"),
    ):
        with pytest.raises(WrongType):
            seat.do(wrong)
    assert seat.held == {"elements": [1]}


def test_a_refused_addition_adds_nothing_even_if_the_processor_goes_on() -> None:
    class Stubborn(Doing):
        elements = list_state("bigint")
        entries = map_state("string", "bigint")

    def try_it(p: Any, c: Context) -> None:
        attempts: list[Callable[[], None]] = [
            lambda: p.elements.add_all([2, "x"]),
            lambda: p.elements.update([2, "x"]),
            lambda: p.entries.put_all({"a": 1, "b": "x"}),
        ]
        for attempt in attempts:
            with pytest.raises(WrongType):
                attempt()

    seat = Seat(Stubborn())
    seat.do(lambda p, c: p.elements.add(1), try_it)

    assert seat.held == {"elements": [1]}


def test_a_fold_to_none_empties_the_state() -> None:
    class Fading(Doing):
        reduced = reducing_state("bigint", lambda old, added: None)
        aggregated = aggregating_state("bigint", create=int, add=lambda acc, value: value)

    seat = Seat(Fading())
    seat.do(lambda p, c: (p.reduced.add(1), p.aggregated.add(1)))
    assert seat.held == {"reduced": 1, "aggregated": 1}
    seat.do(lambda p, c: (p.reduced.add(1), p.aggregated.add(None)))
    assert seat.held == {}


# -- TTL -------------------------------------------------------------------------------------------------------------

UPDATES: list[TtlUpdate] = ["create_and_write", "read_and_write"]
VISIBILITIES: list[TtlVisibility] = ["never_return_expired", "return_expired_if_not_cleaned_up"]


def lasting(update: TtlUpdate = "create_and_write", visibility: TtlVisibility = "never_return_expired") -> Seat:
    """All kinds of state, each filled at second 0 and lasting ten seconds."""
    ten = ttl("10 s", update, visibility)

    class Lasting(Doing):
        value = value_state("bigint", default=-1, ttl=ten)
        elements = list_state("bigint", ttl=ten)
        entries = map_state("string", "bigint", ttl=ten)
        reduced = reducing_state("bigint", operator.add, ttl=ten)
        aggregated = aggregating_state("bigint", create=int, add=operator.add, ttl=ten)

    def fill(p: Any, c: Context) -> None:
        p.value.update(1)
        p.elements.add(1)
        p.entries.put("a", 1)
        p.reduced.add(1)
        p.aggregated.add(1)

    seat = Seat(Lasting())
    seat.do(fill, seconds=0)
    return seat


FULL = {"value": 1, "elements": [1], "entries": {"a": 1}, "reduced": 1, "aggregated": 1}


def read(p: Any, c: Context) -> Any:
    return (p.value.get(), p.elements.get(), p.entries.get("a"), p.reduced.get(), p.aggregated.get())


def ask(p: Any, c: Context) -> Any:
    """Questions about presence, which read nothing."""
    states = (p.value, p.elements, p.entries, p.reduced, p.aggregated)
    return (*(state.exists() for state in states), len(p.elements), len(p.entries), "a" in p.entries)


ALL_THERE = (True, True, True, True, True, 1, 1, True)
NONE_THERE = (False, False, False, False, False, 0, 0, False)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_an_entry_is_expired_from_its_last_touch_plus_the_ttl_on(update: TtlUpdate, visibility: TtlVisibility) -> None:
    seat = lasting(update, visibility)

    assert seat.do(ask, seconds=9.999) == ALL_THERE
    assert seat.held == FULL
    seat.do(seconds=10)
    assert seat.held == {}, "seen from outside, also before it is cleaned up"
    assert seat.harness.keys() == set()


@pytest.mark.parametrize("update", UPDATES)
def test_what_is_expired_is_as_if_gone(update: TtlUpdate) -> None:
    seat = lasting(update)

    assert seat.do(ask, read, seconds=10) == (-1, [], None, None, None)
    assert lasting(update).do(ask, seconds=10) == NONE_THERE
    assert lasting(update).do(
        lambda p, c: (list(p.elements), *map(list, (p.entries.keys(), p.entries.values(), p.entries.items()))), seconds=10
    ) == (
        [],
        [],
        [],
        [],
    )


@pytest.mark.parametrize("update", UPDATES)
def test_what_is_expired_may_be_returned_until_the_end_of_a_batch_with_the_key(update: TtlUpdate) -> None:
    seat = lasting(update, "return_expired_if_not_cleaned_up")

    seat.do(seconds=20)  # a batch without the key cleans nothing up here
    assert seat.do(read, ask, seconds=30) == ALL_THERE
    assert seat.held == {}
    assert seat.do(ask, read, seconds=30) == (-1, [], None, None, None), "cleaned up; reading did not revive it"


def test_a_timer_cleans_up_as_an_event_does() -> None:
    class Timed(DoingOnTime):
        it = value_state("bigint", ttl=ttl("1 s", visibility="return_expired_if_not_cleaned_up"))

    def show(p: Any, c: Context) -> Any:
        return p.it.get()

    seat = Seat(Timed())
    seat.do(lambda p, c: (p.it.update(1), c.set_timer(at(5), clock="processing")), seconds=0)
    seat.do(seconds=4)
    seat.do(seconds=5)
    assert seat.do(show, seconds=5) is None


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_writing_keeps_alive(visibility: TtlVisibility) -> None:
    def write(p: Any, c: Context) -> None:
        p.value.update(2)
        p.elements.update([2])
        p.entries.put("a", 2)
        p.reduced.add(2)
        p.aggregated.add(2)

    seat = lasting(visibility=visibility)
    seat.do(write, seconds=6)
    seat.do(seconds=15.999)
    assert seat.held == {"value": 2, "elements": [2], "entries": {"a": 2}, "reduced": 3, "aggregated": 3}
    seat.do(seconds=16)
    assert seat.held == {}


@pytest.mark.parametrize("visibility", VISIBILITIES)
@pytest.mark.parametrize("update", UPDATES)
def test_reading_keeps_alive_only_if_declared(update: TtlUpdate, visibility: TtlVisibility) -> None:
    seat = lasting(update, visibility)
    seat.do(read, seconds=6)
    seat.do(seconds=10)

    assert seat.held == (FULL if update == "read_and_write" else {})
    seat.do(seconds=15.999)
    assert seat.held == (FULL if update == "read_and_write" else {})
    seat.do(seconds=16)
    assert seat.held == {}


@pytest.mark.parametrize(
    "reading",
    [
        lambda p, c: (list(p.elements), list(p.entries.keys())),
        lambda p, c: (p.elements.get(), list(p.entries.values())),
        lambda p, c: (p.elements.get(), list(p.entries.items())),
    ],
)
def test_iterating_reads_all(reading: Any) -> None:
    seat = lasting("read_and_write")
    seat.do(reading, seconds=6)
    seat.do(seconds=15)

    assert seat.held == {"elements": [1], "entries": {"a": 1}}


def test_asking_whether_something_is_there_does_not_read_it() -> None:
    seat = lasting("read_and_write")
    assert seat.do(ask, seconds=6) == ALL_THERE
    seat.do(seconds=10)

    assert seat.held == {}


def test_lists_expire_per_element_and_maps_per_entry() -> None:
    seat = lasting()
    seat.do(lambda p, c: (p.elements.add(2), p.entries.put("b", 2)), seconds=6)

    assert seat.do(lambda p, c: (p.elements.get(), len(p.elements), dict(p.entries.items()), len(p.entries)), seconds=10) == (
        [2],
        1,
        {"b": 2},
        1,
    )
    assert seat.held == {"elements": [2], "entries": {"b": 2}}


def test_reading_one_entry_of_a_map_keeps_only_that_alive() -> None:
    seat = lasting("read_and_write")
    seat.do(lambda p, c: p.entries.put("b", 2), seconds=0)
    seat.do(lambda p, c: p.entries.get("b"), seconds=6)
    seat.do(seconds=10)

    assert seat.held == {"entries": {"b": 2}}


@pytest.mark.parametrize(("visibility", "folded"), [("never_return_expired", 5), ("return_expired_if_not_cleaned_up", 6)])
def test_a_fold_goes_on_from_what_get_would_return(visibility: TtlVisibility, folded: int) -> None:
    seat = lasting(visibility=visibility)
    seat.do(lambda p, c: (p.reduced.add(5), p.aggregated.add(5)), seconds=10)

    assert seat.held == {"reduced": folded, "aggregated": folded}


def test_within_a_batch_nothing_expires() -> None:
    class Brief(Doing):
        it = value_state("bigint", ttl=ttl("1 ms"))

    seat = Seat(Brief())

    assert seat.do(lambda p, c: p.it.update(1), lambda p, c: p.it.get()) == 1
    assert seat.held == {"it": 1}
    seat.do(seconds=0.001)
    assert seat.held == {}


def test_states_without_ttl_live_beside_those_with() -> None:
    class Both(Doing):
        brief = value_state("bigint", ttl=ttl("1 s"))
        lasting = value_state("bigint")

    seat = Seat(Both())
    seat.do(lambda p, c: (p.brief.update(1), p.lasting.update(1)), seconds=0)
    seat.do(seconds=1e6)

    assert seat.held == {"lasting": 1}


# -- rows ------------------------------------------------------------------------------------------------------------


def rows_as(output: str, *given: Any) -> list[Any]:
    process = Doing()
    return KeyedHarness(process, by="key", output=output).batch([{"key": 1, "do": lambda p, c, row=row: row} for row in given]).rows


def test_rows_go_by_position_or_by_name() -> None:
    assert rows_as("a bigint, b string", (1, "x"), [1, "x"], {"b": "x", "a": 1}, {"a": 1}, Pair(1, "x"), Swapped("x", 1), (None, None)) == [
        (1, "x"),
        (1, "x"),
        (1, "x"),
        (1, None),
        (1, "x"),
        (1, "x"),
        (None, None),
    ]
    assert all(type(row) is tuple for row in rows_as("a bigint", (1,), {"a": 1}))


@pytest.mark.parametrize("row", [(1,), (1, "x", 2), ("x", 1), {"a": "x"}, {"c": 1}, None, 5, "ab"])
def test_rows_that_do_not_fit_are_refused(row: Any) -> None:
    with pytest.raises(WrongType):
        rows_as("a bigint, b string", row)


def test_without_a_schema_rows_stay_as_they_are() -> None:
    process = Doing()
    harness = KeyedHarness(process, by="key")

    assert harness.batch([{"key": 1, "do": lambda p, c: {"any": "thing"}}]).rows == [{"any": "thing"}]


def test_side_outputs() -> None:
    def emit(p: Any, c: Context) -> Any:
        c.emit("late", {"n": 1})
        c.emit("late", (2,))
        c.emit("loose", "anything")
        return ()

    harness = KeyedHarness(Doing(), by="key", side_outputs={"late": "n bigint", "loose": None, "idle": "n bigint"})

    assert harness.batch([{"key": 1, "do": emit}]).side == {"late": [(1,), (2,)], "loose": ["anything"], "idle": []}
    assert harness.batch().side == {"late": [], "loose": [], "idle": []}
    with pytest.raises(DefinitionError, match="there is no side output 'lost'; declared: late, loose, idle"):
        harness.batch([{"key": 1, "do": lambda p, c: c.emit("lost", (1,))}])
    with pytest.raises(WrongType):
        harness.batch([{"key": 1, "do": lambda p, c: c.emit("late", ("x",))}])
    assert KeyedHarness(Doing(), by="key", side_outputs=["loose"]).batch([{"key": 1, "do": lambda p, c: c.emit("loose", 1)}]).side == {
        "loose": [1]
    }
    with pytest.raises(DefinitionError, match="there is no side output 'late'; declared: none"):
        KeyedHarness(Doing(), by="key").batch([{"key": 1, "do": lambda p, c: c.emit("late", (1,))}])


def test_a_timer_writes_to_both_outputs() -> None:
    class Reminds(KeyedProcess):
        def process(self, key: Any, events: list[Any], ctx: Context) -> None:
            ctx.set_timer(at(1))

        def on_timer(self, key: Any, at: datetime, ctx: Context) -> list[Any]:
            ctx.emit("reminders", (key,))
            return [(key, at)]

    harness = KeyedHarness(Reminds(), by="key", output="key string, at timestamp", side_outputs={"reminders": "key string"})
    harness.batch([{"key": "k"}])

    assert harness.batch(watermark=at(1)) == BatchOutput([("k", at(1))], {"reminders": [("k",)]})


# -- control data ----------------------------------------------------------------------------------------------------


class Limited(KeyedProcess):
    def process(self, key: Any, events: list[Any], ctx: Context) -> Iterator[Any]:
        rules = ctx.control["rules"]
        for event in events:
            rule = rules.get(event.kind)
            yield (key, event.kind, None if rule is None else event.amount > rule.limit)


def test_control_rows_count_before_any_event_of_their_batch_and_stay() -> None:
    harness = KeyedHarness(Limited(), by="customer", control={"rules": "kind"})
    book = {"customer": "ada", "kind": "book", "amount": 50}

    assert harness.batch([book]).rows == [("ada", "book", None)]
    assert harness.batch([book], control={"rules": [{"kind": "book", "limit": 20}, {"kind": "car", "limit": 9}]}).rows == [
        ("ada", "book", True)
    ]
    assert harness.batch([book]).rows == [("ada", "book", True)]
    assert harness.batch([book], control={"rules": [{"kind": "book", "limit": 1}, {"kind": "book", "limit": 99}]}).rows == [
        ("ada", "book", False)
    ]
    assert harness.batch([book], control={"rules": [{"kind": "car", "limit": 1, "_deleted": False}]}).rows == [("ada", "book", False)]
    assert harness.batch([book], control={"rules": [{"kind": "book", "_deleted": True}, {"kind": "no", "_deleted": True}]}).rows == [
        ("ada", "book", None)
    ]


def test_control_data_is_read_only_and_seen_by_timers() -> None:
    class Curious(DoingOnTime):
        def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterator[Any]:
            yield {name: dict(rows) for name, rows in ctx.control.items()}

    harness = KeyedHarness(Curious(), by="key", control={"rules": "id", "other": "id"})
    harness.batch([{"key": "k", "do": lambda p, c: c.set_timer(at(1))}], control={"rules": [{"id": 1, "_deleted": None}]})

    (row,) = harness.batch(watermark=at(1), control={"rules": [{"id": 2}]}).rows
    assert row == {"rules": {1: (1,), 2: (2,)}, "other": {}}
    assert row["rules"][1]._fields == ("id",)
    for change in (lambda c: c.control.update(x=1), lambda c: c.control["rules"].clear()):
        with pytest.raises(AttributeError):
            harness.batch([{"key": "k", "do": lambda p, c, change=change: change(c)}])


def test_control_data_that_is_not_declared_or_has_no_key_is_refused() -> None:
    harness = KeyedHarness(Limited(), by="customer", control={"rules": "kind"})

    with pytest.raises(DefinitionError, match="there is no control data named 'laws'; declared: rules"):
        harness.batch(control={"laws": []})
    with pytest.raises(SourceProblem, match="the key column 'kind' of the control data 'rules' is null in the record {'limit': 3}"):
        harness.batch(control={"rules": [{"limit": 3}]})
