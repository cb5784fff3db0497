"""Random programs for keyed state: a processor that does what its events say, and scripts of batches for it to do.

Whatever the processor reads it also writes into its output, so two interpreters that disagree about a state, a timer or an
expiry disagree about rows. Reading is an operation of its own and not done in passing, because with ``read_and_write`` it
changes what lives on.

`reference` plays a script on the harness; play the same script on an engine, pass its rows through `comparable`, and compare::

    @given(scripts())
    def test_engine(batches):
        for variant in EXACT:
            assert play_on_engine(make_process(variant), batches) == reference(variant, batches)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from hypothesis import strategies as st

from strandline.state.declarations import (
    Clock,
    Context,
    KeyedProcess,
    Ttl,
    TtlVisibility,
    aggregating_state,
    list_state,
    map_state,
    reducing_state,
    ttl,
    value_state,
)
from strandline.testing.keyed import KeyedHarness

EVENT = "key string, seq bigint, op string, n bigint, s string, at timestamp"
OUTPUT = "key string, what string, seq bigint, seen string"
SIDE_OUTPUTS = {"notes": "key string, seq bigint, note string"}
BY = "key"
ORDER_BY = "seq"
BASE = datetime(2024, 1, 1, tzinfo=timezone.utc)
"""When the clocks of a script start."""
BACKWARDS: tuple[Clock, Clock] = ("processing", "event")
MANY = 400
"""Elements that one operation may put into a list or a map, so that they outgrow a page."""


# -- the processor -------------------------------------------------------------------------------------------------


def mix(old: int, added: int) -> int:
    """A reduction in which order and number of the additions both show."""
    return (old * 31 + added) % 1_000_003


def nothing_yet() -> tuple[int, int]:
    return (0, 0)


def count_and_mix(accumulator: Any, value: int) -> tuple[int, int]:
    return (accumulator[0] + 1, mix(accumulator[1], value))


def as_text(accumulator: Any) -> str:
    return f"{accumulator[0]} additions: {accumulator[1]}"


class Scripted(KeyedProcess):
    """Does what the column `op` of each event says; one state of each kind, and both clocks."""

    timers = "both"

    value = value_state("struct<n: bigint, s: string>")
    number = value_state("bigint", default=7)
    elements = list_state("bigint")
    entries = map_state("string", "bigint")
    reduced = reducing_state("bigint", mix)
    aggregated = aggregating_state("struct<additions: bigint, mixed: bigint>", nothing_yet, count_and_mix, as_text)

    def process(self, key: Any, events: list[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        for event in events:
            yield (key, event.op, event.seq, _text(OPERATIONS[event.op](self, event, ctx)))

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterator[tuple[Any, ...]]:
        """What a timer does follows from its time, so every behaviour occurs when times vary."""
        millis = (at - BASE) // timedelta(milliseconds=1)
        before = _timers(ctx)
        done = ON_TIMER[millis % len(ON_TIMER)](self, at, ctx)
        yield (key, f"on_timer {ctx.clock}", millis, _text([done, before, _timers(ctx), *_clocks(ctx)]))


def _set_again(process: Scripted, at: datetime, ctx: Context) -> Any:
    """The time has come already, so this one fires in the next batch."""
    if not process.number.exists():
        process.number.update(0)
    if process.number.get() < 12:  # not for ever
        process.number.update(process.number.get() + 1)
        ctx.set_timer(at, ctx.clock)
    return "again"


def _set_later(process: Scripted, at: datetime, ctx: Context) -> Any:
    ctx.set_timer(at + timedelta(seconds=2.5), ctx.clock)
    return "later"


def _set_on_the_other_clock(process: Scripted, at: datetime, ctx: Context) -> Any:
    ctx.set_timer(at + timedelta(milliseconds=1), "processing" if ctx.clock == "event" else "event")
    return "other"


def _delete_the_next(process: Scripted, at: datetime, ctx: Context) -> Any:
    """Which is perhaps due in this very batch."""
    for clock in BACKWARDS:
        for waiting in ctx.timers(clock)[:1]:
            ctx.delete_timer(waiting, clock)
    return "deleted"


def _delete_and_set_the_next(process: Scripted, at: datetime, ctx: Context) -> Any:
    """It is a new one then, set by `on_timer`."""
    for waiting in ctx.timers("event")[:1]:
        ctx.delete_timer(waiting, "event")
        ctx.set_timer(waiting, "event")
    return "renewed"


def _set_all_again(process: Scripted, at: datetime, ctx: Context) -> Any:
    """They are set already, so this changes nothing."""
    for waiting in ctx.timers("event"):
        ctx.set_timer(waiting, "event")
    return "same"


def _write(process: Scripted, at: datetime, ctx: Context) -> Any:
    process.elements.add(at.second)
    process.entries.put("timer", at.second)
    process.reduced.add(at.second)
    return "wrote"


def _look(process: Scripted, at: datetime, ctx: Context) -> Any:
    return [process.value.get(), process.reduced.get(), process.aggregated.get(), process.entries.get("a"), len(process.elements)]


def _forget(process: Scripted, at: datetime, ctx: Context) -> Any:
    process.value.clear()
    process.elements.clear()
    process.entries.clear()
    return "forgot"


ON_TIMER: list[Callable[[Scripted, datetime, Context], Any]] = [
    _look,
    _set_again,
    _delete_the_next,
    _write,
    _set_later,
    _delete_and_set_the_next,
    _set_all_again,
    _forget,
    _set_on_the_other_clock,
]


def _fill(process: Scripted, event: Any) -> None:
    process.entries.put_all({f"{event.s}{number}": number for number in range(event.n % MANY)})


def _empty(process: Scripted, event: Any) -> None:
    for number in range(0, event.n % MANY, 2):
        process.entries.remove(f"{event.s}{number}")


def _lengthen(process: Scripted, event: Any) -> None:
    process.elements.add_all(range(event.n % MANY))


def _everything(process: Scripted, ctx: Context) -> Any:
    return [
        process.value.get(),
        process.number.get(),
        process.elements.get(),
        sorted(process.entries.items(), key=_first),
        process.reduced.get(),
        process.aggregated.get(),
        _timers(ctx),
        *_clocks(ctx),
    ]


def _set_both(event: Any, ctx: Context) -> None:
    """A tie, once both clocks have come that far."""
    for clock in BACKWARDS:
        ctx.set_timer(event.at, clock)


def _delete_all(ctx: Context) -> None:
    for clock in BACKWARDS:
        for at in ctx.timers(clock):
            ctx.delete_timer(at, clock)


def _note(event: Any, ctx: Context) -> None:
    ctx.emit("notes", {"seq": event.seq, "key": ctx.key} if event.n % 2 else (ctx.key, event.seq, event.s))


def _none_if(divisible: int, by: int, value: Any) -> Any:
    return None if divisible % by == 0 else value


OPERATIONS: Mapping[str, Callable[[Scripted, Any, Context], Any]] = {
    "value.get": lambda p, e, c: p.value.get(),
    "value.update": lambda p, e, c: p.value.update(_none_if(e.n, 5, {"n": e.n, "s": e.s})),
    "value.update partly": lambda p, e, c: p.value.update((None, e.s)),
    "value.exists": lambda p, e, c: p.value.exists(),
    "value.clear": lambda p, e, c: p.value.clear(),
    "number.get": lambda p, e, c: p.number.get(),
    "number.increase": lambda p, e, c: p.number.update(p.number.get() + e.n),
    "number.exists": lambda p, e, c: p.number.exists(),
    "number.clear": lambda p, e, c: p.number.update(None),
    "elements.get": lambda p, e, c: p.elements.get(),
    "elements.iterate": lambda p, e, c: list(iter(p.elements)),
    "elements.len": lambda p, e, c: len(p.elements),
    "elements.add": lambda p, e, c: p.elements.add(_none_if(e.n, 5, e.n)),
    "elements.add_all": lambda p, e, c: p.elements.add_all([e.n, None, -e.n]),
    "elements.add many": lambda p, e, c: _lengthen(p, e),
    "elements.update": lambda p, e, c: p.elements.update(range(e.n % 4)),
    "elements.exists": lambda p, e, c: p.elements.exists(),
    "elements.clear": lambda p, e, c: p.elements.clear(),
    "entries.get": lambda p, e, c: p.entries.get(e.s),
    "entries.get default": lambda p, e, c: p.entries.get(e.s, -1),
    "entries.put": lambda p, e, c: p.entries.put(e.s, _none_if(e.n, 5, e.n)),
    "entries.put_all": lambda p, e, c: p.entries.put_all({e.s: e.n, "b": None, "c": 3}),
    "entries.fill": lambda p, e, c: _fill(p, e),
    "entries.empty": lambda p, e, c: _empty(p, e),
    "entries.remove": lambda p, e, c: p.entries.remove(e.s),
    "entries.in": lambda p, e, c: e.s in p.entries,
    "entries.keys": lambda p, e, c: sorted(p.entries.keys()),
    "entries.values": lambda p, e, c: sorted(p.entries.values(), key=_nulls_first),
    "entries.items": lambda p, e, c: sorted(p.entries.items(), key=_first),
    "entries.len": lambda p, e, c: len(p.entries),
    "entries.exists": lambda p, e, c: p.entries.exists(),
    "entries.clear": lambda p, e, c: p.entries.clear(),
    "reduced.add": lambda p, e, c: p.reduced.add(e.n),
    "reduced.get": lambda p, e, c: p.reduced.get(),
    "reduced.exists": lambda p, e, c: p.reduced.exists(),
    "reduced.clear": lambda p, e, c: p.reduced.clear(),
    "aggregated.add": lambda p, e, c: p.aggregated.add(e.n),
    "aggregated.get": lambda p, e, c: p.aggregated.get(),
    "aggregated.exists": lambda p, e, c: p.aggregated.exists(),
    "aggregated.clear": lambda p, e, c: p.aggregated.clear(),
    "set event timer": lambda p, e, c: c.set_timer(e.at),
    "set processing timer": lambda p, e, c: c.set_timer(e.at, clock="processing"),
    "set both timers": lambda p, e, c: _set_both(e, c),
    "delete event timer": lambda p, e, c: c.delete_timer(e.at, clock="event"),
    "delete processing timer": lambda p, e, c: c.delete_timer(e.at, clock="processing"),
    "delete all timers": lambda p, e, c: _delete_all(c),
    "timers": lambda p, e, c: _timers(c),
    "note": lambda p, e, c: _note(e, c),
    "clocks": lambda p, e, c: _clocks(c),
    "everything": lambda p, e, c: _everything(p, c),
}
"""What an event can ask for: (processor, event, context) → what was seen."""


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, value)


def _timers(ctx: Context) -> list[list[datetime]]:
    return [ctx.timers("event"), ctx.timers("processing")]


def _clocks(ctx: Context) -> list[Any]:
    return [ctx.watermark, ctx.processing_time, ctx.batch, ctx.clock]


def _text(seen: Any) -> str:
    return json.dumps(seen, default=lambda at: at.isoformat(timespec="milliseconds"))


# -- variants --------------------------------------------------------------------------------------------------------


def _variant(name: str, *, value: Ttl, elements: Ttl, entries: Ttl, folded: Ttl) -> type[Scripted]:
    """A `Scripted` whose states expire; it is kept in this module under its name, so that it can be pickled."""
    states = {
        "value": value_state("struct<n: bigint, s: string>", ttl=value),
        "number": value_state("bigint", default=7, ttl=value),
        "elements": list_state("bigint", ttl=elements),
        "entries": map_state("string", "bigint", ttl=entries),
        "reduced": reducing_state("bigint", mix, ttl=folded),
        "aggregated": aggregating_state("struct<additions: bigint, mixed: bigint>", nothing_yet, count_and_mix, as_text, ttl=folded),
    }
    return type(name, (Scripted,), {**states, "__module__": __name__, "__qualname__": name})


_LENIENT: TtlVisibility = "return_expired_if_not_cleaned_up"

Written = _variant("Written", value=ttl("2 s"), elements=ttl("1500 ms"), entries=ttl("1 s"), folded=ttl("5 s"))
Touched = _variant(
    "Touched",
    value=ttl("2 s", "read_and_write"),
    elements=ttl("1500 ms", "read_and_write"),
    entries=ttl("1 s", "read_and_write"),
    folded=ttl("5 s", "read_and_write"),
)
Mixed = _variant(
    "Mixed", value=ttl("1 ms"), elements=ttl("1 s", "read_and_write"), entries=ttl("10 s"), folded=ttl("3 s", "read_and_write")
)
WrittenLenient = _variant(
    "WrittenLenient",
    value=ttl("2 s", visibility=_LENIENT),
    elements=ttl("3 s", visibility=_LENIENT),
    entries=ttl("1 s", visibility=_LENIENT),
    folded=ttl("5 s", visibility=_LENIENT),
)
TouchedLenient = _variant(
    "TouchedLenient",
    value=ttl("2 s", "read_and_write", _LENIENT),
    elements=ttl("3 s", "read_and_write", _LENIENT),
    entries=ttl("1 s", "read_and_write", _LENIENT),
    folded=ttl("5 s", "read_and_write", _LENIENT),
)

_CLASSES: Mapping[str, type[Scripted]] = {
    "forever": Scripted,
    "written": Written,
    "touched": Touched,
    "mixed": Mixed,
    "written, lenient": WrittenLenient,
    "touched, lenient": TouchedLenient,
}
EXACT = ("forever", "written", "touched", "mixed")
"""The variants whose output is the same on every engine."""
LENIENT = ("written, lenient", "touched, lenient")
"""The variants that may return what has expired: an engine may clean keys up that the harness does not, and then returns less."""
VARIANTS = (*EXACT, *LENIENT)


def make_process(variant: str = "forever") -> Scripted:
    return _CLASSES[variant]()


# -- scripts ---------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """What one batch is given. Clocks never go back; the watermark is `None` before the first."""

    events: tuple[dict[str, Any], ...]
    watermark: datetime | None
    processing_time: datetime


def _group(operation: str) -> str:
    """The state that it is about, or `timers`, or `other`."""
    return operation.split(".")[0] if "." in operation else "timers" if "timer" in operation else "other"


_STATES = ("value", "number", "elements", "entries", "reduced", "aggregated")
_LARGE = ("elements.add many", "entries.fill", "entries.empty")
_SETS = ("set event timer", "set processing timer", "set both timers")
_PACES = ((500, 0, 1000, 500, 1500), (1000, 500, 0, 2000, 3000, 5000, 10_000))
"""Milliseconds from batch to batch. The slow pace lets several batches pass before a TTL has."""
_BESIDE = (0, 0, 0, 0, 1, 499)
"""Clocks mostly show times at which something is due, and now and then a bit more."""


@st.composite
def scripts(draw: st.DrawFn, *, keys: int = 4, max_batches: int = 10, max_events: int = 12, many: bool = True) -> list[Batch]:
    """A list of batches. `many=False` leaves the operations out that fill lists and maps with hundreds of elements.

    Operations drawn from all there are would seldom meet on the same state of the same key, and nothing would come of them. So a
    script is about few states, with or without timers, and sometimes few keys; and it ends with a batch that looks at everything.
    """
    groups = [
        *draw(st.lists(st.sampled_from(_STATES), min_size=1, max_size=2, unique=True)),
        *draw(st.sampled_from([["timers", "other"], []])),
    ]
    operations = [name for name in OPERATIONS if _group(name) in groups and (many or name not in _LARGE)]
    if "timers" in groups:
        operations += _SETS * 3
    names = [f"k{number}" for number in range(draw(st.integers(1, keys)))]
    command = st.tuples(
        st.sampled_from(names),
        st.sampled_from(operations),
        st.integers(-3, 20) if not many else st.one_of(st.integers(-3, 20), st.integers(-3, MANY)),
        st.sampled_from("abcd"),
        st.one_of(st.integers(0, 16).map(_half_seconds), st.integers(0, 16).map(_half_seconds), st.integers(0, 8000)),
    )
    step, beside = st.sampled_from(draw(st.sampled_from(_PACES))), st.sampled_from(_BESIDE)
    look = [(name, "everything", 0, "a", 0) for name in names]
    looks_always = draw(st.booleans())
    batches: list[Batch] = []
    seq, count = 0, draw(st.integers(1, max_batches))
    now, mark = _Hand(), _Hand()
    has_mark = draw(st.booleans())
    for number in range(count + 1):
        commands = draw(st.lists(command, max_size=max_events)) if number < count else []
        if looks_always or number == count:
            commands = [*commands, *look]
        events = []
        for name, op, n, s, at in commands:
            events.append({"key": name, "seq": seq, "op": op, "n": n, "s": s, "at": BASE + timedelta(milliseconds=at)})
            seq += 1
        if draw(st.booleans()):
            events.reverse()  # `order_by` puts them right
        has_mark = has_mark or draw(st.booleans())
        shown = now.moved(draw(step), draw(beside))
        batches.append(Batch(tuple(events), mark.moved(draw(step), draw(beside)) if has_mark else None, shown))
    return batches


def _half_seconds(number: int) -> int:
    return number * 500


@dataclass
class _Hand:
    """The hand of a clock, which never goes back."""

    even: int = 0
    shown: int = 0

    def moved(self, by: int, beside: int) -> datetime:
        self.even += by
        self.shown = max(self.shown, self.even + beside)
        return BASE + timedelta(milliseconds=self.shown)


# -- comparing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """What a batch wrote, in an order that does not depend on who played it."""

    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[tuple[Any, ...], ...]


def comparable(rows: Iterable[Iterable[Any]], notes: Iterable[Iterable[Any]] = ()) -> Played:
    """Sorted, because between keys there is no order."""
    return Played(*(tuple(sorted((tuple(row) for row in each), key=repr)) for each in (rows, notes)))


def harness(variant: str) -> KeyedHarness:
    return KeyedHarness(make_process(variant), by=BY, order_by=ORDER_BY, output=OUTPUT, side_outputs=SIDE_OUTPUTS)


def reference(variant: str, batches: Iterable[Batch]) -> list[Played]:
    """The script as the harness plays it, batch by batch."""
    run = harness(variant)
    outputs = [run.batch(batch.events, watermark=batch.watermark, processing_time=batch.processing_time) for batch in batches]
    return [comparable(output.rows, output.side["notes"]) for output in outputs]
