"""What the fenced commit costs beside Iceberg's own streaming sink: same data, same session, alternating order.

    python bench/commit.py [--quick] [--json FILE]

Three questions:

* per-batch time for 1, 10,000 and 200,000 rows (ratio of medians, lower is better);
* rows per second from JSON files into the table (ratio, higher is better), with CPU seconds;
* does a batch get slower as history grows? (median around snapshot 2,000 ÷ around snapshot 20)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import strandline as sl
from strandline.model.definition import Pipeline, TableSink
from strandline.project.config import Project, load_project
from strandline.project.template import write_project
from strandline.runtime.options import AvailableNow, ForBatches, RunLimit
from strandline.runtime.provision import provision
from strandline.runtime.reporting import Progress
from strandline.runtime.run import run_pipeline
from strandline.runtime.session import start_session
from strandline.runtime.sources.generator import GeneratorReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UP = 3
"""Batches left out at the start of every run: class loading and code generation."""


class QueryWatcher:
    """Keeps the queries that a run starts, for their progress reports."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.queries: dict[str, Any] = {}

    def say(self, text: str) -> None: ...

    def progress(self, progress: Progress) -> None:
        for query in self._spark.streams.active if not self.queries else []:
            self.queries.setdefault(str(query.runId), query)


@dataclass
class Bench:
    spark: SparkSession
    project: Project
    counter: int = 0

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"bench.{stem}_{self.counter}"

    def ours(self, source: Any, limit: RunLimit) -> list[float]:
        """Seconds per batch of our sink."""
        table = self.fresh("ours")
        pipeline = _pipeline(table.replace(".", "_"), source, sl.table(table))
        watcher = QueryWatcher(self.spark)
        run_pipeline(self.project, pipeline, limit, watcher, session=self.spark)
        return [seconds for query in watcher.queries.values() for seconds in _durations(query)]

    def native(self, source: Any, limit: RunLimit) -> list[float]:
        """Seconds per batch of Iceberg's own sink, into a table made the same way."""
        table = self.fresh("native")
        frame = GeneratorReader("orders", source).read(self.spark, None).rows
        provision(self.spark, "local", TableSink(table), frame)
        writer = frame.writeStream.format("iceberg").option("checkpointLocation", f"{self.project.checkpoints}/{table}")
        if isinstance(limit, AvailableNow):
            query = writer.trigger(availableNow=True).toTable(f"local.{table}")
            query.awaitTermination()
        else:
            assert isinstance(limit, ForBatches)
            query = writer.trigger(processingTime="0 seconds").toTable(f"local.{table}")
            while (query.lastProgress or {"batchId": -1})["batchId"] < limit.count - 1:
                time.sleep(0.1)
            query.stop()  # interrupts the batch after the last one measured
        return _durations(query)


def _pipeline(name: str, source: Any, sink: TableSink) -> Pipeline:
    def transform(orders: DataFrame) -> DataFrame:
        return orders

    return sl.pipeline(name=name, source=source, sink=sink, checkpoint=sl.checkpoint(every="0 s"))(transform)


def _durations(query: Any) -> list[float]:
    """Seconds of every batch with rows, as Spark itself reports them for both sinks alike."""
    return [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress if p["numInputRows"]]


def alternate(rounds: int, first: Callable[[], list[float]], second: Callable[[], list[float]]) -> tuple[list[float], list[float]]:
    """ABBA order: drift of the machine hits both alike."""
    a: list[float] = []
    b: list[float] = []
    for number in range(rounds):
        for side in ("ab", "ba")[number % 2]:
            if side == "a":
                a += first()[WARM_UP:]
            else:
                b += second()[WARM_UP:]
    return a, b


def commit_time(bench: Bench, rows: int, batches: int, rounds: int) -> dict[str, Any]:
    source = sl.generator(events_per_batch=rows, rate=1000)
    limit = ForBatches(batches + WARM_UP)
    ours, native = alternate(rounds, lambda: bench.ours(source, limit), lambda: bench.native(source, limit))
    return {
        "rows": rows,
        "ours_ms": round(1000 * statistics.median(ours), 1),
        "native_ms": round(1000 * statistics.median(native), 1),
        "ratio": round(statistics.median(ours) / statistics.median(native), 3),
        "batches": [len(ours), len(native)],
    }


def throughput(bench: Bench, rows: int, rounds: int) -> dict[str, Any]:
    folder = Path(bench.project.root) / "data" / "many"
    files = 8
    for number in range(files):
        made = bench.spark.range(number * rows // files, (number + 1) * rows // files, 1, 1)
        made.selectExpr(
            "concat('o-', lpad(cast(id as string), 9, '0')) as order_id",
            "concat('c-', cast(id % 1000 as string)) as customer",
            "cast(id % 10000 as double) / 100 as amount",
            "timestamp_seconds(1767225600 + id) as placed_at",
        ).write.mode("append").json(str(folder / f"part-{number}"))
    flat = folder / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(folder.glob("part-*/*.json"))):
        file.rename(flat / f"{number:03d}.json")
    source = sl.files(
        str(flat), schema="order_id string, customer string, amount double, placed_at timestamp", max_files_per_batch=files // 4
    )
    results: dict[str, list[tuple[float, float]]] = {"ours": [], "native": []}
    sides: dict[str, Callable[[], list[float]]] = {
        "ours": lambda: bench.ours(source, AvailableNow()),
        "native": lambda: bench.native(source, AvailableNow()),
    }
    for number in range(rounds):
        for side in ("ours", "native") if number % 2 == 0 else ("native", "ours"):
            began = _cpu_seconds()
            seconds = sides[side]()
            results[side].append((sum(seconds), _cpu_seconds() - began))
    rate = {side: rows / statistics.median(seconds for seconds, _ in found) for side, found in results.items()}
    cpu = {side: statistics.median(used for _, used in found) for side, found in results.items()}
    return {
        "rows": rows,
        "ours_rows_per_s": round(rate["ours"]),
        "native_rows_per_s": round(rate["native"]),
        "ours_cpu_s": round(cpu["ours"], 1),
        "native_cpu_s": round(cpu["native"], 1),
        "ratio": round(rate["ours"] / rate["native"], 3),
    }


def growth(bench: Bench, snapshots: int) -> dict[str, Any]:
    """One pipeline, one-row batches, from the first snapshot on; the window around 20 against the one at the end."""
    window = 40
    seconds = bench.ours(sl.generator(events_per_batch=1), ForBatches(snapshots + window // 2))
    early = statistics.median(seconds[20 : 20 + window])
    late = statistics.median(seconds[-window:])
    return {
        "snapshots": len(seconds),
        "ms_at_20": round(1000 * early, 1),
        "ms_at_end": round(1000 * late, 1),
        "ratio": round(late / early, 3),
    }


def _cpu_seconds() -> float:
    """CPU of this process, its JVM and its workers."""
    ticks = os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        fields = text.rsplit(")", 1)[1].split()
        pid = int(text.split(" ", 1)[0])
        children.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(int(f) for f in fields[11:15])
    total, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        total += used.get(pid, 0)
        todo += children.get(pid, [])
    return total / ticks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and noisier, within 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", choices=["commit", "throughput", "growth"], help="one question instead of all three")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    try:
        write_project(folder)
        project = load_project(folder)
        spark = start_session(project, "bench", folder / "bench.log", lambda text: print(text, file=sys.stderr))
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10_000)
        bench = Bench(spark, project)
        result = measure(bench, quick=arguments.quick, only=arguments.only)
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def measure(bench: Bench, *, quick: bool, only: str | None) -> dict[str, Any]:
    ratios: dict[str, float] = {}
    grown: dict[str, float] = {}
    details: dict[str, Any] = {
        "reading": "commit_* are time ratios ours ÷ native (lower is better); throughput_vs_native is rows/s ours ÷ native (higher is better)",
        "quick": quick,
    }
    if only in (None, "commit"):
        bench.ours(sl.generator(events_per_batch=1000), ForBatches(3))  # load classes once, for both sides
        bench.native(sl.generator(events_per_batch=1000), ForBatches(3))
        details["commit"] = []
        print(f"{'rows/batch':>10} {'ours ms':>9} {'native ms':>10} {'ratio':>6}")
        for rows, batches, rounds in (
            ((1, 12, 2), (10_000, 15, 4), (200_000, 6, 2)) if quick else ((1, 40, 4), (10_000, 40, 6), (200_000, 15, 4))
        ):
            found = commit_time(bench, rows, batches, rounds)
            print(f"{rows:>10} {found['ours_ms']:>9} {found['native_ms']:>10} {found['ratio']:>6}", flush=True)
            details["commit"].append(found)
            ratios[f"commit_{'10k' if rows == 10_000 else '200k' if rows == 200_000 else rows}_vs_native"] = found["ratio"]
    if only in (None, "throughput"):
        found = throughput(bench, 400_000 if quick else 5_000_000, 2 if quick else 4)
        details["throughput"] = found
        ratios["throughput_vs_native"] = found["ratio"]
        print(
            f"JSON → Iceberg, {found['rows']} rows: ours {found['ours_rows_per_s']} rows/s ({found['ours_cpu_s']} CPU-s), native "
            f"{found['native_rows_per_s']} rows/s ({found['native_cpu_s']} CPU-s), ratio {found['ratio']}",
            flush=True,
        )
    if only in (None, "growth"):
        found = growth(bench, 300 if quick else 2000)
        details["growth"] = found
        grown["commit_2000_vs_20"] = found["ratio"]
        print(
            f"history: {found['ms_at_20']} ms at snapshot 20, {found['ms_at_end']} ms at snapshot {found['snapshots']}, ratio {found['ratio']}"
        )
    return {"version": 1, "name": "commit", "ratios": ratios, "growth": grown, "details": details}


if __name__ == "__main__":
    main()
