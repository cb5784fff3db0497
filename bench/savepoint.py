"""What savepoints cost: the pause of a stream while one is made, making, verifying and restoring it, and how that grows with state.

    python bench/savepoint.py [--quick] [--json FILE] [--only PART]

Everything runs in one session with a run's settings. Two pipelines read Parquet files: large ones first, which bring every key once, then
small ones, one per batch, which touch the same few keys again and again.

* `keyed`: `sl.keyed` with a value state, a row out for every event. Native savepoints, beside an ordinary start from the checkpoint.
* `aggregation`: Spark's own windowed aggregation, whose window never closes. The same; it has no canonical savepoints.
* `canonical`: `keyed` again, with state decoded to Parquet, in three sizes.

What is measured:

* create, hot: asked through the ledger, as `strandline savepoint create` does, of a pipeline that runs one batch after the other. The
  *pause* is the longest gap between two completed batches while the savepoint is made, minus the median gap while none is made;
* create, at rest: the work alone;
* verify: every digest again;
* restore: from the command to the first completed batch. The plan is in it (code built, files checked), the new checkpoint, the tables
  rolled back, the boundary. The session is there already, for an ordinary start too.

Rounds of restores and ordinary starts alternate. Small pipelines go through all of it before anything counts.

The bench cannot lie about what was restored: after every restore and start, rows and sums in the table, keys in the state and the position of
the source must be what the files that were read give. It ends without figures when they are not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import functions as F

import strandline as sl
from strandline.checkpoints.place import current_checkpoint
from strandline.ledger import ledger_of
from strandline.ledger.requests import SAVEPOINT, STOP
from strandline.model.definition import Pipeline
from strandline.model.offsets import Offsets
from strandline.model.positions import FilesPosition
from strandline.model.savepoint import Savepoint, SavepointType
from strandline.project.config import Project, load_project
from strandline.project.template import write_project
from strandline.runtime.keyed.inspecting import StateReader
from strandline.runtime.keyed.records import operator_records
from strandline.runtime.options import Allowances, Continuous, ForBatches, RunLimit
from strandline.runtime.rehearsal import rehearse
from strandline.runtime.reporting import Progress
from strandline.runtime.run import run_pipeline
from strandline.runtime.session import start_session
from strandline.savepoints.archive import archive_of, find_archive
from strandline.savepoints.asking import ask, running_attempt
from strandline.savepoints.attending import savepoint_keeper
from strandline.savepoints.catalogue import examine
from strandline.savepoints.restoring import plan_from_savepoint
from strandline.savepoints.session import SessionTags
from strandline.savepoints.table_plans import ROLLBACK
from strandline.savepoints.taking import Taker, Wish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.runtime.attending import Hire

KEYED, AGGREGATION, CANONICAL = "keyed", "aggregation", "canonical"
NATIVE = SavepointType.NATIVE
ME = "bench"
SCHEMA = "key string, v bigint, at timestamp"
FIRST_EVENT = datetime(2026, 1, 1, tzinfo=timezone.utc)
FILL = 250_000
"""Keys that a batch brings while the state is filled."""
TOUCHED = 200
"""Events of a small batch."""
WARM_BATCHES, QUIET_BATCHES, BETWEEN = 4, 9, 4
"""Of a run in which savepoints are taken: left out, with none being made, and between two of them."""
LOOK_EVERY = 0.2
PATIENCE = timedelta(minutes=10)
FLINK = {"native": (2.5, 3.9), "canonical": (4.1, 13.4)}
"""Seconds for 1,000,000 keys to create, and to be running again, of Flink on a loaded machine; not measured here."""


class Counting(sl.KeyedProcess):
    """How often each key was seen."""

    seen = sl.value_state("bigint", default=0)

    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> Any:
        for _ in events:
            self.seen.update(self.seen.get() + 1)
            yield key, self.seen.get()


class Silent:
    def say(self, text: str) -> None: ...

    def progress(self, progress: Progress) -> None: ...


class WrongResult(Exception):
    """What was restored is not what was saved: no figure counts."""


BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", file=sys.stderr, flush=True)


# -- pipelines and their files ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A pipeline with so many keys, and what can be asked of it."""

    spark: SparkSession
    project: Project
    kind: str
    keys: int
    small: int
    """Small files that wait behind the ones that fill the state."""

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.keys}"

    @property
    def table(self) -> str:
        return f"bench.{self.name}"

    @property
    def fills(self) -> int:
        return -(-self.keys // FILL)

    @property
    def pipeline(self) -> Pipeline:
        source = sl.files(self.name, schema=SCHEMA, format="parquet", max_files_per_batch=1)
        declare = sl.pipeline(
            name=self.name,
            source=source,
            sink=sl.table(self.table),
            event_time="at" if self.kind == AGGREGATION else None,
            checkpoint=sl.checkpoint(every="0 s"),
        )
        return declare(aggregated if self.kind == AGGREGATION else counted)

    def write_files(self) -> None:
        folder = self.project.root / self.name
        folder.mkdir()
        for number, keys in enumerate(np.array_split(np.random.default_rng(1).permutation(self.keys), self.fills)):
            self._write(folder, number, keys.tolist())
        touched = np.linspace(0, self.keys - 1, TOUCHED).astype(int).tolist()
        self._write(folder, self.fills, touched)
        for number in range(self.fills + 1, self.fills + self.small):
            shutil.copy(folder / f"{self.fills:05d}.parquet", folder / f"{number:05d}.parquet")
            _date(folder, number)

    def _write(self, folder: Path, number: int, keys: list[int]) -> None:
        at = pa.scalar(FIRST_EVENT, pa.timestamp("us", "UTC"))
        rows = {"key": [f"user-{key:08d}" for key in keys], "v": np.arange(len(keys)) % 97, "at": pa.repeat(at, len(keys))}
        parquet.write_table(pa.table(rows), folder / f"{number:05d}.parquet")
        _date(folder, number)

    def run(self, limit: RunLimit, allow: Allowances | None = None, hire: list[Hire] | None = None) -> None:
        run_pipeline(self.project, self.pipeline, limit, Silent(), allow=allow, session=self.spark, hire=hire or ())

    def fill(self) -> None:
        say(f"{self.name}: filling")
        self.write_files()
        self.run(ForBatches(self.fills + 1))
        self.check(self.fills + 1)

    def files_read(self) -> int:
        checkpoint = current_checkpoint(self.project, self.name)
        ledger = ledger_of(self.project)
        strand = checkpoint.strand()
        assert strand is not None
        record = ledger.batches.get(self.name, strand, checkpoint.completed()[-1])
        assert record is not None
        return files_in(Offsets.from_json(json.loads(record.offsets_end)))

    def completed_at(self) -> dict[int, float]:
        """Batches of the checkpoint that counts now, with the moment their completion was written."""
        return completions(Path(current_checkpoint(self.project, self.name).location) / "commits")

    def check(self, files: int) -> None:
        """Everything that so many files give is there, once."""
        small = files - self.fills
        expected: tuple[int, ...]
        found: tuple[int, ...]
        if self.kind == AGGREGATION:
            expected = (files, self.keys, self.keys + TOUCHED * small)
            found = (self.files_read(), *self._aggregated())
        else:
            seen = self.keys + TOUCHED * (small + small * (small + 1) // 2)  # the n-th small file sees its keys for the n+1-th time
            expected = (files, self.keys, self.keys + TOUCHED * small, seen)
            found = (self.files_read(), self._keys(), *self._counted())
        if found != expected:
            raise WrongResult(f"{self.name}: files, keys and sums are {found} instead of {expected}")

    def _reader(self) -> tuple[StateReader, int]:
        checkpoint = current_checkpoint(self.project, self.name)
        return StateReader(self.spark, checkpoint, operator_records(checkpoint), self.name), checkpoint.completed()[-1]

    def _keys(self) -> int:
        reader, batch = self._reader()
        return sum(reader.sizes(operator, batch).keys for operator in reader.operators(batch))

    def _aggregated(self) -> tuple[int, int]:
        reader, batch = self._reader()
        (operator,) = reader.operators(batch)
        (row,) = reader.rows(operator, batch).agg(F.count("*"), F.sum("value.count")).collect()
        return row[0], row[1]

    def _counted(self) -> tuple[int, int]:
        (row,) = self.spark.table(f"local.{self.table}").agg(F.count("*"), F.sum("seen")).collect()
        return row[0], row[1]


def counted(rows: DataFrame) -> DataFrame:
    return sl.keyed(rows, by="key", process=Counting(), output="key string, seen bigint")


def aggregated(rows: DataFrame) -> DataFrame:
    window = F.window("at", "1 hour").alias("window")
    return rows.groupBy(window, "key").agg(F.count("*").alias("seen")).select("key", "seen")


def _date(folder: Path, number: int) -> None:
    os.utime(folder / f"{number:05d}.parquet", (FIRST_EVENT.timestamp() + number,) * 2)  # Spark takes the oldest first


def files_in(positions: Offsets) -> int:
    ((_, position),) = positions.sources
    assert isinstance(position, FilesPosition)
    return position.files


def completions(folder: Path) -> dict[int, float]:
    found = {}
    for file in folder.glob("[0-9]*"):
        try:
            found[int(file.name)] = file.stat().st_mtime
        except FileNotFoundError:
            continue  # Spark keeps the newest only
    return found


# -- a running stream ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Making:
    """A savepoint of a running stream."""

    savepoint: str
    began: float
    ended: float


@dataclass
class Stream:
    """Asks a running pipeline for savepoints, and notes when its batches complete."""

    subject: Subject
    wishes: list[SavepointType]
    folder: Path
    """Where completions of the strand that runs are written."""
    times: dict[int, float] = field(default_factory=dict)
    made: list[Making] = field(default_factory=list)
    trouble: Exception | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        before = set(completions(self.folder))
        while not self._over.wait(LOOK_EVERY):
            self.times.update({batch: at for batch, at in completions(self.folder).items() if batch not in before})

    def ask(self) -> None:
        ledger, name = ledger_of(self.subject.project), self.subject.name
        try:
            self._wait_for(WARM_BATCHES + QUIET_BATCHES)
            attempt = running_attempt(ledger, name)
            assert attempt is not None
            for wish in self.wishes:
                began = time.time()
                savepoint = ask(ledger, attempt, SAVEPOINT, Wish(ME, wish), PATIENCE, lambda text: None)
                self.made.append(Making(savepoint, began, time.time()))
                self._wait_for(BETWEEN)
            ledger.requests.ask(name, attempt.number, STOP, ME)
        except Exception as error:  # noqa: BLE001 - told by the one who waits
            self.trouble = error
            running = running_attempt(ledger, name)
            if running is not None:
                ledger.requests.ask(name, running.number, STOP, ME)

    def run(self) -> None:
        threads = [threading.Thread(target=work, daemon=True) for work in (self.watch, self.ask)]
        for thread in threads:
            thread.start()
        try:
            self.subject.run(Continuous(), hire=[savepoint_keeper(self.subject.project, ledger_of(self.subject.project), Silent())])
        finally:
            threads[1].join()
            self._over.set()
            threads[0].join()
        if self.trouble is not None:
            raise self.trouble
        if (read := self.subject.files_read()) >= self.subject.fills + self.subject.small:
            raise WrongResult(f"{self.subject.name}: all {read} files were read, and the stream rested: gaps say nothing")

    def _wait_for(self, more: int) -> None:
        reached, deadline = len(self.times) + more, time.monotonic() + PATIENCE.total_seconds()
        while len(self.times) < reached:
            if time.monotonic() > deadline:
                raise WrongResult(f"{self.subject.name} does not go on")
            time.sleep(LOOK_EVERY)

    def gaps(self) -> list[tuple[float, float]]:
        moments = sorted(self.times.values())[WARM_BATCHES:]
        return list(pairwise(moments))

    def quiet(self) -> list[float]:
        """Gaps in which no savepoint was made."""
        return [end - begin for begin, end in self.gaps() if not any(_overlap(begin, end, making) for making in self.made)]

    def longest(self, making: Making) -> float:
        return max(end - begin for begin, end in self.gaps() if _overlap(begin, end, making))


def _overlap(begin: float, end: float, making: Making) -> bool:
    return end > making.began and begin < making.ended


def hot(subject: Subject, wishes: list[SavepointType]) -> dict[SavepointType, dict[str, Any]]:
    """Savepoints of the running pipeline, in this order; facts by type."""
    stream = Stream(subject, wishes, Path(current_checkpoint(subject.project, subject.name).location) / "commits")
    say(f"{subject.name}: running")
    stream.run()
    say(f"{subject.name}: {len(stream.times)} batches, {len(stream.made)} savepoints")
    subject.check(subject.files_read())
    gap = statistics.median(stream.quiet())
    found: dict[SavepointType, dict[str, Any]] = {}
    for wanted in dict.fromkeys(wishes):
        own = [making for making, wish in zip(stream.made, wishes, strict=True) if wish is wanted]
        pauses = [max(0.0, stream.longest(making) - gap) for making in own]
        found[wanted] = {
            "hot_create_s": rounded([making.ended - making.began for making in own]),
            "hot_begun_after_s": rounded([begun_at(subject, making.savepoint) - making.began for making in own]),
            "pause_s": rounded(pauses),
            "median_gap_s": round(gap, 3),
            "longest_quiet_gap_s": round(max(stream.quiet()), 3),
            "savepoints": [making.savepoint for making in own],
        }
    return found


def begun_at(subject: Subject, savepoint: str) -> float:
    """When the request was taken up and the batch checked: from then on it is copied."""
    record = ledger_of(subject.project).savepoints.get(savepoint)
    assert record is not None
    return datetime.fromisoformat(record.begun_at.replace("Z", "+00:00")).timestamp()


# -- making, verifying, restoring ------------------------------------------------------------------------------------


def take(subject: Subject, wanted: SavepointType) -> tuple[Savepoint, float]:
    """At rest."""
    with SessionTags(subject.project, ME, lambda text: None, subject.spark) as tags:
        taker = Taker(subject.project, subject.pipeline, ledger_of(subject.project), tags, lambda text: None, engine=tags.session)
        began = time.perf_counter()
        saved = taker.take(Wish(ME, wanted))
        return saved, time.perf_counter() - began


def verify(subject: Subject, savepoint: str) -> float:
    archive = archive_of(subject.project, subject.name, savepoint)
    began = time.perf_counter()
    found = examine(subject.project, archive)
    seconds = time.perf_counter() - began
    if found.damages or found.tables:
        raise WrongResult(f"{subject.name}: {(found.damages or found.tables)[0]}")
    return seconds


def started(subject: Subject, savepoint: str | None) -> float:
    """Seconds to the first completed batch, from a savepoint or from the checkpoint."""
    _collect_garbage(subject.spark)
    _forget_state(subject.spark)
    before = subject.files_read()
    began = time.time()
    allow = None
    if savepoint is not None:
        archive = find_archive(subject.project, subject.name, savepoint)
        code = None if subject.kind == AGGREGATION else rehearse(subject.spark, subject.project, subject.pipeline)
        plan = plan_from_savepoint(subject.project, subject.pipeline, ledger_of(subject.project), archive, ROLLBACK, code=code)
        before = files_in(archive.read().positions)
        allow = Allowances(restoration=plan.restoration)
    subject.run(ForBatches(1), allow)
    completed = subject.completed_at()
    seconds = completed[max(completed)] - began
    if not before < (read := subject.files_read()) <= before + 2:  # Spark may have listed a file for a batch that it did not plan any more
        raise WrongResult(f"{subject.name}: the first batch read the files from {before} to {read}")
    subject.check(read)
    say(f"{subject.name}: {'restored' if savepoint else 'started'} in {seconds:.2f} s")
    return seconds


def _forget_state(spark: SparkSession) -> None:
    """The stores of the run before stay open in the session; a process that starts has none."""
    jvm: Any = spark._jvm
    getattr(getattr(jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$"), "MODULE$").unloadAll()


def _collect_garbage(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()


def rounded(seconds: list[float]) -> list[float]:
    return [round(second, 3) for second in seconds]


def middle(facts: dict[str, Any], name: str) -> float:
    return float(statistics.median(facts[name]))


# -- the parts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    native: int
    canonical: tuple[int, ...]
    """The middle one is also measured while it runs; the last is five times as large."""
    rounds: int
    canonical_rounds: int
    small: int


QUICK = Sizes(50_000, (10_000, 50_000), rounds=2, canonical_rounds=1, small=400)
FULL = Sizes(1_000_000, (100_000, 1_000_000, 5_000_000), rounds=5, canonical_rounds=2, small=1_000)


def native(subject: Subject, rounds: int) -> dict[str, Any]:
    facts = hot(subject, [NATIVE] * rounds)[NATIVE]
    savepoint = facts["savepoints"][-1]
    saved = archive_of(subject.project, subject.name, savepoint).read()
    facts["create_s"] = rounded([take(subject, NATIVE)[1] for _ in range(rounds)])
    facts["verify_s"] = rounded([verify(subject, savepoint) for _ in range(rounds)])
    facts.update(keys=subject.keys, files=len(saved.files), bytes=saved.size, restore_s=[], cold_start_s=[])
    for number in range(rounds):
        for side in ("cold_start_s", "restore_s")[:: 1 if number % 2 == 0 else -1]:
            facts[side].append(round(started(subject, savepoint if side == "restore_s" else None), 3))
    facts["hot_pause_vs_batch"] = round(middle(facts, "pause_s") / facts["median_gap_s"], 3)
    facts["native_restore_vs_cold_start"] = round(middle(facts, "restore_s") / middle(facts, "cold_start_s"), 3)
    return facts


def canonical(subject: Subject, rounds: int, running: bool) -> dict[str, Any]:
    wanted = SavepointType.CANONICAL
    facts = hot(subject, [wanted] * rounds)[wanted] if running else {}
    facts.update(keys=subject.keys, create_s=[], verify_s=[], restore_s=[])
    for _ in range(rounds):
        _collect_garbage(subject.spark)
        saved, seconds = take(subject, wanted)
        facts["create_s"].append(round(seconds, 3))
        facts["verify_s"].append(round(verify(subject, saved.id), 3))
        facts["restore_s"].append(round(started(subject, saved.id), 3))
        facts.update(files=len(saved.files), bytes=saved.size)
    return facts


@dataclass
class Bench:
    spark: SparkSession
    project: Project
    sizes: Sizes
    subjects: dict[str, Subject] = field(default_factory=dict)

    def subject(self, kind: str, keys: int, small: int | None = None) -> Subject:
        """Filled when it is first asked for."""
        wanted = Subject(self.spark, self.project, kind, keys, small or self.sizes.small)
        if wanted.name not in self.subjects:
            self.subjects[wanted.name] = wanted
            wanted.fill()
        return self.subjects[wanted.name]

    def warm_up(self, part: str) -> None:
        """A small pipeline through everything: until then the JVM has not compiled what it runs through."""
        subject = self.subject(AGGREGATION if part == AGGREGATION else KEYED, 2_000, 150)
        if part == CANONICAL:
            canonical(subject, 1, running=False)
        else:
            native(subject, 1)

    def native(self, kind: str) -> dict[str, Any]:
        return native(self.subject(kind, self.sizes.native), self.sizes.rounds)

    def canonical(self) -> dict[str, Any]:
        *_, middle_size, _ = (0, *self.sizes.canonical)
        found: dict[str, Any] = {}
        for keys in self.sizes.canonical:
            found[str(keys)] = facts = canonical(self.subject(KEYED, keys), self.sizes.canonical_rounds, running=keys == middle_size)
            tell(CANONICAL, "canonical", facts)
        return found


def tell(subject: str, kind: str, facts: dict[str, Any]) -> None:
    shown = [f"{middle(facts, name):.2f}" if facts.get(name) else "–" for name, _ in COLUMNS]
    print(f"{subject:<12}{kind:<11}{facts['keys']:>10,}{facts['bytes'] / 1e6:>9.1f}" + "".join(f"{text:>13}" for text in shown), flush=True)


COLUMNS = (
    ("create_s", "create"),
    ("hot_create_s", "create, hot"),
    ("pause_s", "pause"),
    ("verify_s", "verify"),
    ("restore_s", "restore"),
    ("cold_start_s", "plain start"),
)


def tell_peers() -> None:
    for kind, (create, running) in FLINK.items():
        print(f"{'Flink*':<12}{kind:<11}{1_000_000:>10,}{'–':>9}{create:>13.2f}{'–':>13}{'–':>13}{'–':>13}{running:>13.2f}{'–':>13}")
    print("* not measured here: on a loaded machine; restore is until it runs")


def measure(bench: Bench, *, quick: bool, only: str | None) -> dict[str, Any]:
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        KEYED: lambda: bench.native(KEYED),
        AGGREGATION: lambda: bench.native(AGGREGATION),
        CANONICAL: bench.canonical,
    }
    details: dict[str, Any] = {
        "reading": "ratios and growth: lower is better. hot_pause_vs_batch: added pause of the stream while a native savepoint is made ÷ its median "
        "gap between two completed batches; native_restore_vs_cold_start: to the first completed batch, restored ÷ started from its own "
        "checkpoint; both of the worse of keyed and aggregation. canonical_5x: create at rest + restore with five times the keys ÷ with the "
        f"keys: {bench.sizes.canonical[-1]:,} ÷ {bench.sizes.canonical[-2]:,}",
        "quick": quick,
        "flink_1m_create_and_running_s": FLINK,
        "load_average_before": os.getloadavg(),
    }
    found: dict[str, dict[str, Any]] = {}
    for part in parts if only is None else [only]:
        bench.warm_up(part)
    print(f"{'':<23}{'keys':>10}{'MB':>9}" + "".join(f"{title:>13}" for _, title in COLUMNS), flush=True)
    for part in parts if only is None else [only]:
        found[part] = parts[part]()
        if part != CANONICAL:
            tell(part, "native", found[part])
    tell_peers()
    ratios: dict[str, float] = {}
    grown: dict[str, float] = {}
    for name in ("hot_pause_vs_batch", "native_restore_vs_cold_start"):
        if known := [facts[name] for facts in found.values() if name in facts]:
            ratios[name] = max(known)
    if CANONICAL in found:
        once, five = (found[CANONICAL][str(keys)] for keys in bench.sizes.canonical[-2:])
        grown["canonical_5x"] = round(_there_and_back(five) / _there_and_back(once), 3)
    details.update(found, load_average=os.getloadavg())
    print(f"{ratios} {grown}, load average {os.getloadavg()[0]:.1f}")
    return {"version": 1, "name": "savepoint", "ratios": ratios, "growth": grown, "details": details}


def _there_and_back(facts: dict[str, Any]) -> float:
    return middle(facts, "create_s") + middle(facts, "restore_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and noisier, within 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", choices=[KEYED, AGGREGATION, CANONICAL], help="one part instead of all")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    try:
        write_project(folder)
        project = load_project(folder)
        spark = start_session(project, "bench", folder / "bench.log", say)
        result = measure(Bench(spark, project, QUICK if arguments.quick else FULL), quick=arguments.quick, only=arguments.only)
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
