"""One batch of one bucket.

1. Read the bucket's facts; apply new control data.
2. Load the pages of the keys that have events, a window at a time; run `process` for each key.
3. Take the pages with due timers; run `on_timer` for each due timer.
4. Take the pages with something expired; clean them.
5. Grow the table if its pages have become too large, write what changed, and the facts last.

Nothing is kept between batches: a bucket is made of the store's bytes each time, and whatever fails leaves the store as Spark will restore it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import GeneratorType
from typing import Any, Protocol

from strandline.model.times import from_millis
from strandline.state.agenda import Agenda
from strandline.state.binding import bind
from strandline.state.codec import pack, unpack
from strandline.state.context import CLOCKS, BucketContext
from strandline.state.control import ControlTables, control_key
from strandline.state.declarations import KeyedProcess
from strandline.state.entry import Entry
from strandline.state.facts import AGENDAS, FACTS_KEY, BucketFacts
from strandline.state.layout import Epochs
from strandline.state.pages import Page, PagedTable
from strandline.state.store import Store

MAIN = ""
"""The name of the main output."""

WINDOW = 512
"""Pages that are asked for in one exchange."""

HELD = 4096
"""Pages that stay in memory before they are written and let go: some 10 MB."""

SPILL_BYTES = 8192
"""An entry larger than this moves its long lists and large maps elsewhere."""

_EXPIRY = 2
"""The place of the expiry agenda, after those of the two clocks."""


class Events(Protocol):
    """The events of a bucket's batch, grouped by key."""

    @property
    def keys(self) -> Sequence[bytes]:
        """The distinct keys, packed."""
        ...

    def key(self, number: int) -> Any: ...
    def events(self, number: int) -> list[Any]: ...


KeyReader = Callable[[bytes], Any]
"""From a packed key to the value that user code sees."""


@dataclass
class Measures:
    """What a bucket's batch did and holds afterwards."""

    keys: int = 0
    bytes: int = 0
    touched: int = 0
    timers_fired: int = 0
    expired: int = 0
    entries: dict[str, int] = field(default_factory=dict)
    """Stored elements by state."""
    oldest: int | None = None
    """No entry with a ttl was last touched before this millisecond."""

    def plus(self, other: Measures) -> Measures:
        """Of two buckets."""
        entries = {name: self.entries.get(name, 0) + other.entries.get(name, 0) for name in {**self.entries, **other.entries}}
        oldest = [at for at in (self.oldest, other.oldest) if at is not None]
        return Measures(
            self.keys + other.keys,
            self.bytes + other.bytes,
            self.touched + other.touched,
            self.timers_fired + other.timers_fired,
            self.expired + other.expired,
            entries,
            min(oldest, default=None),
        )

    def then(self, later: Measures) -> Measures:
        """Of one bucket, twice in a batch: sizes are the later ones, deeds add up."""
        return replace(
            later,
            touched=self.touched + later.touched,
            timers_fired=self.timers_fired + later.timers_fired,
            expired=self.expired + later.expired,
        )

    def at_rest(self) -> Measures:
        """Of a bucket that had nothing to do."""
        return replace(self, touched=0, timers_fired=0, expired=0)


@dataclass(frozen=True)
class Now:
    """The clocks of a batch, in milliseconds."""

    batch: int
    processing: int
    watermark: int | None


class UserCodeFailed(Exception):
    """The processor's own code raised; `__cause__` is what it raised."""

    def __init__(self, key: Any, events: Sequence[Any]) -> None:
        super().__init__(key)
        self.key = key
        self.events = events


class Bucket:
    def __init__(
        self, store: Store, process: KeyedProcess, epochs: Epochs, key_of: KeyReader, now: Now, control: ControlTables | None = None
    ) -> None:
        self._store = store
        self._epochs = epochs
        self._key_of = key_of
        self._now = now
        self._entry = Entry(store, epochs)
        self._entry.now = now.processing
        self._process, self._handles = bind(process, self._entry)
        self._empty: list[Any] = [None] * (len(self._handles) + 1)
        self._nothing = pack(self._empty)
        self._mortal = [handle for handle, state in zip(self._handles, epochs.current.states, strict=True) if state.ttl is not None]
        self._containers = [h for h, state in zip(self._handles, epochs.current.states, strict=True) if state.kind in ("list", "map")]
        self._names = [state.name for state in epochs.current.states]
        self._rows: dict[str, list[Any]] = {}
        self._context = BucketContext(self._entry, epochs.current.clocks, self._take, type(process).__name__)
        self._context.batch = now.batch
        self._context.processing_time = from_millis(now.processing)
        self._context.watermark = None if now.watermark is None else from_millis(now.watermark)
        self._control = control or ControlTables()
        self.wake: int | None = None
        """When to look again without events, on the clock that wakes us; None before `run`, unless an earlier batch asked for it."""
        self.measures = Measures()
        self._read_facts()

    # -- one batch -------------------------------------------------------------------------------------------------

    def run(self, events: Events | None) -> Iterator[Mapping[str, list[Any]]]:
        """Everything that is due in this batch; rows by output, some at a time."""
        self._context.control = self._control.read(self._store)
        if events is not None and events.keys:
            yield from self._process_events(events)
        yield from self._fire_timers()
        yield from self._hand_over(0)
        self._clean_up()
        self._write()

    def seed(self, rows: Iterable[tuple[bytes, Mapping[str, Any]]]) -> None:
        """Initial state: values by state name, for keys that are not here yet."""
        by_key = dict(rows)
        self._table.expect(len(by_key))
        for packed, values in by_key.items():
            page = self._table.page_of(packed)
            before = self._open(packed, page)
            for name, handle in zip(self._names, self._handles, strict=True):
                if values.get(name) is not None:
                    handle.fill(values[name])
            self._close(self._table.number_of(packed), page, before)
            if len(self._table.loaded) > HELD:
                self._let_go()
        self._write()

    def put_back(self, entries: Iterable[tuple[bytes, bytes]], control: Mapping[str, bytes]) -> None:
        """State that was saved: keys with their whole entries under the present layout, and control data. Nothing is judged or cleaned."""
        table, by_key = self._table, dict(entries)
        table.expect(table.count + len(by_key))
        by_page: dict[int, list[bytes]] = {}
        for packed in by_key:
            by_page.setdefault(table.number_of(packed), []).append(packed)
        for number, page in self._visit(dict.fromkeys(by_page)):
            for packed in by_page[number]:
                before = self._open(packed, page)
                self._entry.cells = unpack(by_key[packed])
                self._entry.dirty = True
                self._keep(number, page, before)
        if control:
            self._store.put_many([(control_key(name), content) for name, content in control.items()])
        self._write()

    def _next_wake(self) -> int | None:
        """The next moment worth a look, on the processing clock if the processor uses it, else on the event clock.

        Never one that is past: the batch that is running would wake us again. Event timers of a processor that uses
        both clocks are looked at in every batch, because only one clock can wake us.
        """
        event, processing = self._agendas[0].next_due(), self._agendas[1].next_due()
        if "processing" in self._epochs.current.clocks:
            soon = self._now.processing + 1
            return soon if event is not None else None if processing is None else max(processing, soon)
        return None if event is None else max(event, (self._now.watermark or 0) + 1)

    def _process_events(self, events: Events) -> Iterator[Mapping[str, list[Any]]]:
        """The hot loop: what it does per key, it does for every key of every batch."""
        table, entry, context = self._table, self._entry, self._context
        process, close, empty = self._process.process, self._close, self._empty
        table.expect(len(events.keys))
        by_page: dict[int, list[int]] = {}
        for number, packed in enumerate(events.keys):
            by_page.setdefault(table.number_of(packed), []).append(number)
        pages = iter(by_page.items())
        while window := list(islice(pages, WINDOW)):
            table.load(page for page, _ in window)
            rows = self._rows.setdefault(MAIN, [])
            for page_number, numbers in window:
                page = table.loaded[page_number]
                for number in numbers:
                    entry.key = packed = events.keys[number]
                    stored = page.entries.get(packed)
                    entry.cells = cells = unpack(stored) if stored is not None else empty.copy()
                    entry.dirty = False
                    before = self._present(cells)
                    context.key = events.key(number)
                    own = events.events(number)
                    try:
                        made = process(context.key, own, context)
                        if made is not None:
                            rows.extend(made if type(made) in _SEVERAL else _rows(made))
                    except Exception as error:
                        raise UserCodeFailed(context.key, own) from error
                    close(page_number, page, before)
                self.measures.touched += len(numbers)
            yield from self._hand_over(_ROWS)
            if len(table.loaded) > HELD:
                self._let_go()

    def _fire_timers(self) -> Iterator[Mapping[str, list[Any]]]:
        nows = (self._now.watermark, self._now.processing)
        due: dict[int, None] = {}
        for agenda, now in zip(self._agendas, nows, strict=False):
            if now is not None:
                due.update(dict.fromkeys(agenda.take_due(now)))
        for number, page in self._visit(due):
            for packed in list(page.entries):
                before = self._open(packed, page)
                if self._entry.cells[0] is not None and self._fire(packed, nows):
                    self._close(number, page, before)
            self._reschedule(number, page, (0, 1))
            yield from self._hand_over(_ROWS)

    def _fire(self, packed: bytes, nows: tuple[int | None, int | None]) -> bool:
        """Fire the due timers of the key at hand; False when there are none."""
        timers = self._entry.cells[0]
        due = sorted(
            (at, clock) for clock, (times, now) in enumerate(zip(timers, nows, strict=True)) if now is not None for at in times if at <= now
        )
        if not due:
            return False
        self._context.key = key = self._key_of(packed)
        self._context.deleted.clear()
        for at, clock in due:
            if (at, clock) in self._context.deleted:
                continue
            self._entry.cells[0][clock].remove(at)
            self._entry.dirty = True
            self._context.clock = CLOCKS[clock]
            try:
                self._rows.setdefault(MAIN, []).extend(_rows(self._process.on_timer(key, from_millis(at), self._context)))
            except Exception as error:
                raise UserCodeFailed(key, ()) from error
            self.measures.timers_fired += 1
        self._context.clock = None
        return True

    def _clean_up(self) -> None:
        for number, page in self._visit(dict.fromkeys(self._agendas[_EXPIRY].take_due(self._now.processing))):
            for packed in list(page.entries):
                self._close(number, page, self._open(packed, page))
            self._reschedule(number, page, (_EXPIRY,))

    def _visit(self, due: dict[int, None]) -> Iterator[tuple[int, Page]]:
        numbers = iter(due)
        while window := list(islice(numbers, WINDOW)):
            self._table.load(window)
            for number in window:
                yield number, self._table.loaded[number]
            if len(self._table.loaded) > HELD:
                self._let_go()

    # -- one key ---------------------------------------------------------------------------------------------------

    def _open(self, packed: bytes, page: Page) -> Any:
        stored = page.entries.get(packed)
        entry = self._entry
        entry.key = packed
        entry.cells = unpack(stored) if stored is not None else self._empty.copy()
        entry.dirty = False
        return self._present(entry.cells)

    def _present(self, cells: list[Any]) -> Any:
        """What to compare with when the key is closed: elements by state, or with single values only, which are there."""
        if self._containers:
            return [handle.count() for handle in self._handles]
        return [cell is None for cell in cells]

    def _close(self, number: int, page: Page, before: Any) -> None:
        for handle in self._mortal:
            self.measures.expired += handle.clean()
        self._keep(number, page, before)

    def _keep(self, number: int, page: Page, before: Any) -> None:
        entry = self._entry
        for handle in self._containers:
            handle.close()
        cells = entry.cells
        timers = cells[0]
        if timers is not None and not any(timers):
            cells[0] = timers = None
        if entry.dirty:
            after = self._present(cells)
            if after != before:
                self._count(before, after)
            content = pack(cells)
            if len(content) > SPILL_BYTES and self._containers:
                for handle in self._containers:
                    handle.spill()
                content = pack(entry.cells)
            if content != self._nothing:
                self._table.put(page, entry.key, content)
            else:
                self._table.remove(page, entry.key)
        if timers is not None or self._mortal:
            self._schedule(number, page)

    def _count(self, before: list[Any], after: list[Any]) -> None:
        entries = self.measures.entries
        if self._containers:
            for name, old, new in zip(self._names, before, after, strict=True):
                entries[name] += new - old
        else:
            for name, was_missing, is_missing in zip(self._names, before[1:], after[1:], strict=True):
                entries[name] += was_missing - is_missing

    # -- agendas ---------------------------------------------------------------------------------------------------

    def _dues(self) -> tuple[int | None, ...]:
        """When the entry at hand is due on each agenda."""
        timers = self._entry.cells[0] or ((), ())
        expiries = [at for handle in self._mortal if (at := handle.expires()) is not None]
        return (timers[0][0] if timers[0] else None, timers[1][0] if timers[1] else None, min(expiries) if expiries else None)

    def _schedule(self, number: int, page: Page) -> None:
        for place, at in enumerate(self._dues()):
            planned = page.scheduled[place]
            if at is not None and (planned is None or at < planned):
                self._agendas[place].schedule(number, at)
                page.scheduled[place] = at
                page.dirty = True

    def _reschedule(self, number: int, page: Page, places: Sequence[int]) -> None:
        """A page that was taken from the agenda returns to it for what it still holds."""
        earliest: list[int | None] = [None] * AGENDAS
        for packed, content in page.entries.items():
            self._entry.key, self._entry.cells = packed, unpack(content)
            for place, at in enumerate(self._dues()):
                if at is not None and (earliest[place] is None or at < earliest[place]):  # type: ignore[operator]
                    earliest[place] = at
        for place in places:
            page.scheduled[place] = earliest[place]
            page.dirty = True
            if (at := earliest[place]) is not None:
                self._agendas[place].schedule(number, at)

    def _divided(self, number: int, page: Page) -> None:
        for place, at in enumerate(page.scheduled):
            if at is not None:
                self._agendas[place].schedule(number, at)

    # -- rows and bytes --------------------------------------------------------------------------------------------

    def _take(self, output: str, row: Any) -> None:
        self._rows.setdefault(output, []).append(row)

    def _hand_over(self, enough: int) -> Iterator[Mapping[str, list[Any]]]:
        if self._rows and sum(map(len, self._rows.values())) >= enough:
            rows, self._rows = self._rows, {}
            yield {output: made for output, made in rows.items() if made}

    def _read_facts(self) -> None:
        facts = BucketFacts.decode(self._store.get_many([FACTS_KEY])[0])
        self._table = PagedTable(
            self._store,
            page_key,
            facts.pages,
            facts.keys,
            facts.size,
            self._epochs.number,
            self._upgrade,
            agendas=AGENDAS,
            on_divide=self._divided,
        )
        self._agendas = [Agenda.restore(bytes([number]), self._store, known) for number, known in enumerate(facts.agendas)]
        self.measures.entries = {name: facts.entries.get(name, 0) for name in self._names}
        self.wake = facts.wake

    def _upgrade(self, epoch: int) -> Callable[[bytes], bytes] | None:
        change = self._epochs.entry(epoch)
        return None if change is None else lambda content: pack(change(unpack(content)))

    def _let_go(self) -> None:
        self._table.flush()
        self._entry.store.flush()

    def _write(self) -> None:
        self._table.grow()
        self._let_go()
        for agenda in self._agendas:
            agenda.save()
        self._control.save(self._store)
        table, self.wake = self._table, self._next_wake()
        agendas = tuple(agenda.facts() for agenda in self._agendas)
        facts = BucketFacts(table.pages, table.count, table.size, agendas, self.measures.entries, self.wake)
        self._store.put_many([(FACTS_KEY, facts.encode())])
        self.measures.keys, self.measures.bytes = table.count, table.size
        if (first := self._agendas[_EXPIRY].next_due()) is not None:
            self.measures.oldest = first - max(state.ttl.milliseconds for state in self._epochs.current.states if state.ttl)


_SEVERAL = (GeneratorType, list)


def _rows(made: Any) -> Iterable[Any]:
    """What a processor returned, as rows; a single row is a mistake that would otherwise be taken apart."""
    if made is None:
        return ()
    if isinstance(made, (dict, str, bytes)) or hasattr(made, "_fields") or not isinstance(made, Iterable):
        raise TypeError(f"it returned {type(made).__name__}, not rows; yield the row, or return [row]")
    return made


_ROWS = 4096
"""Rows that are handed over at a time."""


def page_key(number: int) -> bytes:
    """The store's key of a page of keys."""
    return b"p" + number.to_bytes(4, "big")
