"""What keyed state costs: get and update per event on RocksDB, beside Spark's own Python API and its native aggregation.

    python bench/state.py [--quick] [--json FILE] [--only WORKLOAD]

Every side reads the same kind of Parquet files, two per batch, and writes to Spark's `noop` sink, in one session with a run's settings:

* `ours`: a `KeyedProcess` through `sl.keyed`;
* `plain`: the same code as a `StatefulProcessor` of PySpark's `transformWithState`, with fewer keys and events where it would take
  minutes: rates are compared, and its sizes are in the table;
* `ours_tenth` (sparse only): ours with a tenth of the keys stored and as many touched;
* `native`: what Spark does without Python, where it has something that gives the same rows;
* `ours_once`, `plain_once`: one get and one update per key and batch instead of per event, as somebody who knows the cost writes it.

Workloads: dense (every key in every batch), sparse (few of many stored keys), hot (few keys, many events), list (an append per event),
timers (every key sets an event-time timer in every batch; it fires two batches later). Only warm batches count: every side first runs
small ones until the JVM has compiled its code, and the first batches of every run are left out.

The bench cannot lie about what was computed: every measured batch carries a digest of its output rows, and all sides that read the
same files must agree, batch by batch. (`--quick` has `plain`, which reads files of its own, checked for the dense workload only.)
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import strandline as sl
from strandline.project.config import load_project
from strandline.project.template import write_project
from strandline.runtime.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WARM_UP = 2
"""Batches left out at the start of every run, and after filling the state."""
WARM_JVM = 24
"""Small batches that every side runs before the first is measured: until then the JVM has not compiled what a batch runs through, and
that costs more than the batch."""
SAMPLE_EVERY = 0.1
ENOUGH = 120
"""Seconds after which `--quick` begins no other workload: those with a ratio come first."""
LOOK_AROUND_EVERY = 10
"""Samples between two looks at which workers there are."""
FIRST_EVENT = 1_767_225_600
BATCH_SECONDS, TIMER_AFTER = 60, 30
OUTPUT = "key string, s bigint, c bigint"
PAIR = "s bigint, c bigint"
RATIOS = ("dense_vs_native_agg", "dense_vs_plain", "sparse_vs_plain", "hot_vs_plain")


# -- the sides -------------------------------------------------------------------------------------------------------


class Sum(sl.KeyedProcess):
    """Sum and count, kept after every event."""

    total = sl.value_state(f"struct<{PAIR}>")

    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> Any:
        for event in events:
            s, c = self.total.get() or (0, 0)
            self.total.update((s + event.v, c + 1))
        return [(key, *self.total.get())]


class SumOnce(sl.KeyedProcess):
    total = sl.value_state(f"struct<{PAIR}>")

    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> Any:
        s, c = self.total.get() or (0, 0)
        for event in events:
            s, c = s + event.v, c + 1
        self.total.update((s, c))
        return [(key, s, c)]


class Append(sl.KeyedProcess):
    """Every event into a list; tells its length."""

    seen = sl.list_state("bigint")

    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> Any:
        for event in events:
            self.seen.add(event.v)
        return [(key, len(self.seen), len(self.seen))]


class Timers(Sum):
    """Tells sum and count when the timer fires."""

    def process(self, key: Any, events: list[Any], ctx: sl.Context) -> Any:
        super().process(key, events, ctx)
        ctx.set_timer(events[0].ts + timedelta(seconds=TIMER_AFTER))

    def on_timer(self, key: Any, at: datetime, ctx: sl.Context) -> Any:
        return [(key, *self.total.get())]


class PlainSum(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", PAIR)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's names
        for row in rows:
            s, c = self.total.get() or (0, 0)
            self.total.update((s + row.v, c + 1))
        s, c = self.total.get()
        yield Row(key=key[0], s=s, c=c)

    def close(self) -> None: ...


class PlainSumOnce(PlainSum):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        s, c = self.total.get() or (0, 0)
        for row in rows:
            s, c = s + row.v, c + 1
        self.total.update((s, c))
        yield Row(key=key[0], s=s, c=c)


class PlainAppend(PlainSum):
    def init(self, handle: Any) -> None:
        self.seen = handle.getListState("seen", "v bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        for row in rows:
            self.seen.appendValue((row.v,))
        length = sum(1 for _ in self.seen.get())
        yield Row(key=key[0], s=length, c=length)


class PlainTimers(PlainSum):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        own = list(rows)
        for _ in super().handleInputRows(key, own, timerValues):
            self.handle.registerTimer(int(own[0].ts.timestamp() + TIMER_AFTER) * 1000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        s, c = self.total.get()
        yield Row(key=key[0], s=s, c=c)


Side = Callable[["DataFrame"], "DataFrame"]


def ours(process: sl.KeyedProcess) -> Side:
    return lambda events: sl.keyed(events, by="key", process=process, output=OUTPUT)


def plain(process: StatefulProcessor, clock: str = "none") -> Side:
    mode = "append" if clock == "eventtime" else "update"
    return lambda events: events.groupBy("key").transformWithState(process, OUTPUT, mode, clock)


def native_sum(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(F.sum("v").alias("s"), F.count("*").alias("c"))


def native_list(events: DataFrame) -> DataFrame:
    length = F.size("seen").cast("long")
    return events.groupBy("key").agg(F.collect_list("v").alias("seen")).select("key", length.alias("s"), length.alias("c"))


# -- the files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What the files of a run hold: batches that fill the state, then those that count."""

    keys: int
    events: int
    """Per batch."""
    fills: int = 0
    """Batches that bring every key once, before the others; these then draw their keys by lot, each at most once."""

    def write(self, folder: Path, measured: int) -> None:
        rng = np.random.default_rng(1)
        folder.mkdir(parents=True)
        numbers: list[Any] = np.array_split(rng.permutation(self.keys), self.fills) if self.fills else []
        for _ in range(WARM_UP + measured):
            if self.fills:
                numbers.append(rng.choice(self.keys, self.events, replace=False))
            else:
                numbers.append(rng.permutation(np.arange(self.events) % self.keys))
        for batch, chosen in enumerate(numbers):
            at = pa.scalar(datetime.fromtimestamp(FIRST_EVENT + batch * BATCH_SECONDS, timezone.utc), pa.timestamp("us", "UTC"))
            for half, own in enumerate(np.array_split(chosen, 2)):
                columns = {"key": [f"user-{n:07d}" for n in own.tolist()], "v": np.arange(len(own)) % 97, "ts": pa.repeat(at, len(own))}
                file = folder / f"{batch:03d}-{half}.parquet"
                parquet.write_table(pa.table(columns), file)
                os.utime(file, (FIRST_EVENT + 10 * batch + half,) * 2)  # Spark takes the oldest first


# -- measuring -------------------------------------------------------------------------------------------------------


class Sampler:
    """Watches the JVM and its Python processes, or only those that it starts from now on: CPU seconds and resident memory."""

    def __init__(self, jvm: int, only_new: bool) -> None:
        self._jvm = jvm
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._earlier = self._pythons() if only_new else set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._samples: list[list[float]] = []

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def cpu(self, start: float, end: float) -> Any:
        """CPU seconds between two moments: of the JVM, of Python, of everything on this machine."""
        times, *kinds = np.array(self._samples).T[:4]
        return np.array([np.interp(end, times, so_far) - np.interp(start, times, so_far) for so_far in kinds])

    def peaks(self) -> tuple[float, float]:
        """Megabytes of the JVM, and of all Python processes below it together."""
        return max(sample[4] for sample in self._samples), max(sample[5] for sample in self._samples)

    def _watch(self) -> None:
        used: dict[int, float] = {}
        while True:
            if len(self._samples) % LOOK_AROUND_EVERY == 0:
                pythons = self._pythons() - self._earlier
            found = {pid: self._process(pid) for pid in (self._jvm, *pythons)}
            jvm, jvm_mb = found.pop(self._jvm)
            used.update({pid: seconds for pid, (seconds, _) in found.items() if seconds})  # one that has ended keeps its last value
            user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
            machine = (user + nice + system + irq + softirq + steal) / self._ticks
            self._samples.append([time.time(), jvm, sum(used.values()), machine, jvm_mb, sum(megabytes for _, megabytes in found.values())])
            if self._over.wait(SAMPLE_EVERY):
                return

    def _process(self, pid: int) -> tuple[float, float]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return 0.0, 0.0
        return (int(fields[11]) + int(fields[12])) / self._ticks, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def _pythons(self) -> set[int]:
        """The daemons and workers below the JVM, now."""
        children: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                start, end = stat.read_text().rsplit(")", 1)
            except OSError:
                continue
            if "(python" in start:
                children.setdefault(int(end.split()[1]), []).append(int(stat.parent.name))
        daemons = children.get(self._jvm, [])
        return {*daemons, *(worker for daemon in daemons for worker in children.get(daemon, []))}


@dataclass(frozen=True)
class Run:
    """The measured batches of one run of one side."""

    seconds: list[float]
    jvm_cpu: float
    python_cpu: float
    others: float
    """The share of the machine that others used meanwhile."""
    jvm_mb: float
    python_mb: float


@dataclass
class Bench:
    spark: SparkSession
    folder: Path
    measured: int
    fresh_workers: bool
    """Every run starts its own Python workers, so that none inherits memory; it takes seconds."""
    counter: int = 0
    digests: dict[tuple[str, Path], list[tuple[int, int]]] = field(default_factory=dict)

    def files(self, shape: Shape, measured: int) -> Path:
        folder = self.folder / f"{shape.keys}-{shape.events}-{shape.fills}-{measured}"
        if not folder.exists():
            shape.write(folder, measured)
        return folder

    def warm_up(self, workload: str, side: Side) -> None:
        """Small batches, unmeasured."""
        query = self._start(self.files(Shape(200, 200), WARM_JVM - WARM_UP), workload == "timers", side)
        query.awaitTermination()

    def _start(self, files: Path, timers: bool, side: Side) -> StreamingQuery:
        self.counter += 1
        events = (
            self.spark.readStream.schema("key string, v bigint" + ", ts timestamp" * timers)
            .option("maxFilesPerTrigger", 2)
            .parquet(str(files))
        )
        made = side(events.withWatermark("ts", "0 seconds") if timers else events)
        made = made.observe("made", F.count(F.lit(1)).alias("rows"), F.bit_xor(F.xxhash64("key", "s", "c")).alias("digest"))
        writer = made.writeStream.format("noop").outputMode("append" if timers else "update").trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self.folder / f"checkpoint-{self.counter}")).start()

    def run(self, workload: str, side: Side, shape: Shape) -> Run:
        files, timers = self.files(shape, self.measured), workload == "timers"
        if self.fresh_workers:  # Spark shares workers among those that want the same environment
            self.spark.sparkContext.environment["BENCH_RUN"] = str(self.counter + 1)
        jvm: Any = self.spark._jvm
        jvm.java.lang.System.gc()
        with Sampler(jvm.java.lang.ProcessHandle.current().pid(), self.fresh_workers) as sampler:
            query = self._start(files, timers, side)
            query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        assert len(batches) == shape.fills + WARM_UP + self.measured, f"{len(batches)} batches"
        digests = [(made["rows"], made["digest"]) for made in (batch.observedMetrics["made"] for batch in batches)]
        expected = self.digests.setdefault((workload, files), digests)
        assert digests == expected, f"{workload}: two sides disagree: (rows, digest) of the batches are {digests} and {expected}"
        if timers:  # set in a batch, due in the next, and Spark's watermark is one batch late
            assert [rows for rows, _ in digests] == [0, 0] + [shape.keys] * (len(batches) - 2), f"timers fired otherwise: {digests}"
        cpu = np.zeros(3)
        seconds = []
        for batch in batches[-self.measured :]:
            began = datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()
            seconds.append(batch["durationMs"]["triggerExecution"] / 1000)
            cpu += sampler.cpu(began, began + seconds[-1])
        jvm, python, machine = cpu.tolist()
        others = max(0.0, machine - jvm - python) / sum(seconds) / (os.cpu_count() or 1)
        return Run(seconds, jvm, python, others, *sampler.peaks())


# -- the questions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    sides: dict[str, Side]
    large: Shape
    """For ours and Spark's native operators."""
    small: Shape
    """For `transformWithState`, which would take minutes; what a batch costs by itself therefore weighs more on it."""

    def shape(self, side: str) -> Shape:
        if side == "ours_tenth":
            return Shape(self.large.keys // 10, self.large.events, fills=1)
        if side == "plain_once" and self.small.keys == self.large.keys:
            return self.large  # what it costs follows the keys: with fewer events for each it would look worse than it is
        return self.small if side.startswith("plain") else self.large


def workloads(quick: bool) -> dict[str, Workload]:
    sums: dict[str, Side] = {"ours": ours(Sum()), "plain": plain(PlainSum())}
    lists: dict[str, Side] = {"ours": ours(Append()), "plain": plain(PlainAppend())}
    timers: dict[str, Side] = {"ours": ours(Timers()), "plain": plain(PlainTimers(), "eventtime")}
    counted: dict[str, Side] = {**sums, "native": native_sum}
    if quick:
        return {
            "dense": Workload(counted, Shape(40_000, 100_000), Shape(1_200, 3_000)),
            "sparse": Workload({**sums, "ours_tenth": sums["ours"]}, Shape(400_000, 4_000, fills=2), Shape(8_000, 4_000, fills=1)),
            "hot": Workload(sums, Shape(500, 100_000), Shape(500, 3_000)),
            "list": Workload(lists, Shape(20_000, 50_000), Shape(1_200, 3_000)),
            "timers": Workload(timers, Shape(20_000, 20_000), Shape(1_500, 1_500)),
        }
    once: dict[str, Side] = {**counted, "ours_once": ours(SumOnce()), "plain_once": plain(PlainSumOnce())}
    return {
        "dense": Workload(once, Shape(100_000, 250_000), Shape(4_000, 10_000)),
        "sparse": Workload({**counted, "ours_tenth": sums["ours"]}, Shape(1_000_000, 10_000, fills=4), Shape(40_000, 10_000, fills=1)),
        "hot": Workload(once, Shape(500, 250_000), Shape(500, 10_000)),
        "list": Workload({**lists, "native": native_list}, Shape(100_000, 250_000), Shape(4_000, 10_000)),
        "timers": Workload(timers, Shape(100_000, 100_000), Shape(4_000, 4_000)),
    }


def compare(bench: Bench, name: str, load: Workload, rounds: int) -> dict[str, list[Run]]:
    """Rounds forth and back: drift of the machine hits all alike."""
    if bench.fresh_workers or name == "dense":  # what `plain` must agree with; --quick has no time for all of them
        bench.run(name, load.sides.get("native", load.sides["ours"]), load.small)
    for warmed in load.sides.values():
        bench.warm_up(name, warmed)
    found: dict[str, list[Run]] = {side: [] for side in load.sides}
    for number in range(rounds):
        for side in list(load.sides)[:: 1 if number % 2 == 0 else -1]:
            found[side].append(bench.run(name, load.sides[side], load.shape(side)))
    return found


def told(workload: str, side: str, runs: list[Run], shape: Shape) -> dict[str, Any]:
    seconds = [second for run in runs for second in run.seconds]
    millions = shape.events * len(seconds) / 1e6
    found: dict[str, Any] = {
        "keys": shape.keys,
        "events_per_batch": shape.events,
        "events_per_s": round(shape.events / statistics.median(seconds)),
        "jvm_cpu_s_per_million": round(sum(run.jvm_cpu for run in runs) / millions, 2),
        "python_cpu_s_per_million": round(sum(run.python_cpu for run in runs) / millions, 2),
        "jvm_peak_mb": round(max(run.jvm_mb for run in runs)),
        "python_peak_mb": round(max(run.python_mb for run in runs)),
        "used_by_others": round(statistics.median(run.others for run in runs), 2),
    }
    print(f"{workload:<8} {side:<10}" + "".join(f"{value:>11}" for value in found.values()), flush=True)
    return {**found, "seconds_per_batch": [round(second, 3) for second in seconds]}


def cpu(side: dict[str, Any]) -> float:
    return float(side["jvm_cpu_s_per_million"] + side["python_cpu_s_per_million"])


def measure(bench: Bench, *, quick: bool, only: str | None) -> dict[str, Any]:
    began, rounds = time.monotonic(), 1 if quick else 2
    ratios: dict[str, float] = {}
    grown: dict[str, float] = {}
    details: dict[str, Any] = {
        "reading": "ratios are events/s ours ÷ theirs in the median batch (higher is better); growth is seconds per batch with 1,000,000 keys stored (--quick: 400,000) ÷ "
        "with a tenth of them, as many of them touched (lower is better); cpu_* are CPU seconds per million events, ours ÷ theirs (lower is better, and steadier on a busy machine); *_peak_mb is resident memory, of all Python processes together, and of the JVM, "
        "which keeps what earlier runs made it take; so do the Python workers with --quick, which share them",
        "quick": quick,
    }
    print(
        " " * 19
        + "".join(f"{title:>11}" for title in ("keys", "ev/batch", "events/s", "JVM s/M", "Python s/M", "JVM MB", "Python MB", "others"))
    )
    for name, load in workloads(quick).items():
        if only not in (None, name):
            continue
        if quick and time.monotonic() > began + ENOUGH:
            print(f"{name}: left out, for three minutes are up soon; --only {name} measures it")
            continue
        found: dict[str, Any] = {
            side: told(name, side, runs, load.shape(side)) for side, runs in compare(bench, name, load, rounds).items()
        }
        for own, other, called in (("ours", "plain", "plain"), ("ours", "native", "native_agg"), ("ours_once", "plain_once", "plain_once")):
            if other in found:
                found[f"vs_{called}"] = round(found[own]["events_per_s"] / found[other]["events_per_s"], 3)
                found[f"cpu_vs_{called}"] = round(cpu(found[own]) / cpu(found[other]), 3)
        ratios.update({f"{name}_{ratio}": found[ratio] for ratio in found if f"{name}_{ratio}" in RATIOS})
        if name == "sparse":
            many, few = (statistics.median(found[side]["seconds_per_batch"]) for side in ("ours", "ours_tenth"))
            found["cpu_1m_vs_100k"] = round(cpu(found["ours"]) / cpu(found["ours_tenth"]), 3)
            grown["sparse_cost_1m_vs_100k_stored"] = round(many / few, 3)
        details[name] = found
        print("  " + ", ".join(f"{ratio} {value}" for ratio, value in found.items() if isinstance(value, float)), flush=True)
    details["load_average"] = os.getloadavg()
    print(f"{ratios} {grown}, load average {details['load_average'][0]:.1f}")
    return {"version": 1, "name": "state", "ratios": ratios, "growth": grown, "details": details}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and noisier, within 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", choices=list(workloads(quick=True)), help="one workload instead of all")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    try:
        write_project(folder)
        spark = start_session(load_project(folder), "bench", folder / "bench.log", lambda text: print(text, file=sys.stderr))
        result = measure(Bench(spark, folder, 2 if arguments.quick else 4, not arguments.quick), quick=arguments.quick, only=arguments.only)
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
