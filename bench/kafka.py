"""What Kafka costs on both ends, on a real broker of its own: same rows, same session, alternating order.

    python bench/kafka.py [--quick] [--json FILE]

Two questions:

* topic → table: rows per second and CPU seconds per million rows, beside Spark's own Kafka source with `from_json` into
  Iceberg's own streaming sink, and beside a plain consumer with `json.loads` that keeps nothing (ratio of CPU, lower is better);
* rows → topic: one transaction per batch beside Spark's own at-least-once writer (ratio of rows per second, higher is
  better), and whether a batch ten times as large needs more memory.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition

import strandline as sl
from strandline.model.definition import Pipeline, Sink, Source, TableSink
from strandline.model.kafka import Delivery
from strandline.project.config import Project, load_project
from strandline.project.template import write_project
from strandline.runtime.options import AvailableNow, ForBatches, RunLimit
from strandline.runtime.provision import provision
from strandline.runtime.reporting import Progress
from strandline.runtime.run import run_pipeline
from strandline.runtime.session import start_session
from strandline.runtime.sources.generator import GeneratorReader
from strandline.runtime.topics import message_frame
from strandline.testing.kafka import KafkaForTests, Sender

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
SCHEMA = "order_id string, customer string, amount double, placed_at timestamp, note string"
SAMPLE_EVERY = 0.05
PATIENCE = 60.0


# -- measuring ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cpu:
    """CPU seconds so far; the broker is a child of ours, but nobody's cost here."""

    python: float
    jvm: float
    broker: float
    machine: float
    """Of everything that runs here: says how far a measurement can be trusted."""

    def since(self, before: Cpu) -> Cpu:
        return Cpu(self.python - before.python, self.jvm - before.jvm, self.broker - before.broker, self.machine - before.machine)

    @property
    def others(self) -> float:
        return max(0.0, self.machine - self.python - self.jvm - self.broker)


@dataclass
class Run:
    """One run of one side."""

    rows: int
    wall: float
    """Seconds of the whole run: with making the table or opening the topic, starting the query and ending it."""
    cpu: Cpu
    batches: list[float]
    """Seconds of every batch with rows, as Spark itself reports them for all sides alike."""
    memory: dict[str, float] = field(default_factory=dict)

    @property
    def disturbance(self) -> float:
        """The share of the machine that others used meanwhile."""
        return self.cpu.others / self.wall / (os.cpu_count() or 1)

    @property
    def cpu_per_million(self) -> float:
        return (self.cpu.python + self.cpu.jvm) / self.rows * 1e6


class Processes:
    """This process, the JVM that it started, and the broker that it started."""

    def __init__(self, broker: int) -> None:
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._broker = broker
        (self._jvm,) = [pid for pid in self._children() if pid != broker and Path(f"/proc/{pid}/comm").read_text() == "java\n"]

    def cpu(self) -> Cpu:
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
        busy = (user + nice + system + irq + softirq + steal) / self._ticks
        return Cpu(self._used(os.getpid()), self._used(self._jvm), self._used(self._broker), busy)

    def memory(self) -> tuple[float, float]:
        """Resident megabytes of this process and of the JVM."""
        return self._resident(os.getpid()), self._resident(self._jvm)

    def _used(self, pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / self._ticks

    def _resident(self, pid: int) -> float:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * self._page / 1e6

    def _children(self) -> list[int]:
        return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


@contextmanager
def sampled(processes: Processes, spark: SparkSession) -> Iterator[dict[str, float]]:
    """Memory before and at its peak. The JVM keeps what it once took, so what its long-lived objects needed is told too."""
    found: dict[str, float] = {}
    over = threading.Event()
    pools = [pool for pool in spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans() if "Old Gen" in pool.getName()]  # type: ignore[union-attr]
    for pool in pools:
        pool.resetPeakUsage()
    found["python_before_mb"], found["jvm_before_mb"] = found["python_peak_mb"], found["jvm_peak_mb"] = processes.memory()

    def sample() -> None:
        while not over.wait(SAMPLE_EVERY):
            python, jvm = processes.memory()
            found["python_peak_mb"] = max(found["python_peak_mb"], python)
            found["jvm_peak_mb"] = max(found["jvm_peak_mb"], jvm)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        found["jvm_old_generation_peak_mb"] = sum(pool.getPeakUsage().getUsed() for pool in pools) / 1e6
        found.update({name: round(value, 1) for name, value in found.items()})


class Silent:
    def say(self, text: str) -> None: ...

    def progress(self, progress: Progress) -> None: ...


def batch_times(spark: SparkSession) -> Callable[[], list[float]]:
    """Listen to the queries of a session; the answer gives, and forgets, the seconds of the batches of ended queries."""
    from pyspark.sql.streaming import listener

    lock = threading.Condition()
    running: set[str] = set()
    ended: set[str] = set()
    seconds: list[float] = []

    class Listener(listener.StreamingQueryListener):
        def onQueryStarted(self, event: listener.QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
            running.add(str(event.runId))

        def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:  # noqa: N802
            if event.progress.numInputRows:
                seconds.append(event.progress.durationMs["triggerExecution"] / 1000)

        def onQueryIdle(self, event: listener.QueryIdleEvent) -> None: ...  # noqa: N802

        def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:  # noqa: N802
            with lock:
                ended.add(str(event.runId))
                lock.notify_all()

    spark.streams.addListener(Listener())

    def take() -> list[float]:
        with lock:
            assert lock.wait_for(lambda: ended and ended >= running, PATIENCE), "Spark did not tell of the query's end"
        taken = list(seconds)
        running.clear()
        ended.clear()
        seconds.clear()
        return taken

    return take


@dataclass
class Bench:
    spark: SparkSession
    project: Project
    kafka: KafkaForTests
    processes: Processes
    batches: Callable[[], list[float]]
    counter: int = 0

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}_{self.counter}"

    def measured(self, rows: int, work: Callable[[], object], *, query: bool = True) -> Run:
        self.spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]  # nobody pays for what the one before left behind
        time.sleep(0.3)
        began, before = time.monotonic(), self.processes.cpu()
        work()
        wall, used = time.monotonic() - began, self.processes.cpu().since(before)
        return Run(rows, wall, used, self.batches() if query else [])

    # -- topic → table ---------------------------------------------------------------------------------------------

    def fill(self, rows: int) -> str:
        """A topic with `rows` records of some 120 bytes, half of them in each partition."""
        topic = self.kafka.create_topic(self.kafka.topic("orders"), PARTITIONS)
        sender = Sender(Producer(self.kafka.settings(linger_ms=20, compression_type="none")))
        piece = 10_000
        for first in range(0, rows, piece):
            sender.produce(topic, [order(n) for n in range(first, min(first + piece, rows))], partition=first // piece % PARTITIONS)
        sender.flush()
        assert sum(self.kafka.ends(topic).values()) == rows
        return topic

    def read_ours(self, topic: str, rows: int, per_batch: int) -> Run:
        table = self.fresh("ours")
        source = sl.kafka(topic, bootstrap=self.kafka.bootstrap, schema=SCHEMA, max_offsets_per_batch=per_batch)
        pipeline = declare(table, source, sl.table(f"bench.{table}"))
        run = self.measured(rows, lambda: self.run(pipeline, AvailableNow()))
        self.check(table, rows)
        return run

    def read_native(self, topic: str, rows: int, per_batch: int) -> Run:
        """Into a table made the same way, with the options that decide what is read."""
        from pyspark.sql import functions as F

        table = self.fresh("native")

        def work() -> None:
            options = {
                "kafka.bootstrap.servers": self.kafka.bootstrap,
                "subscribe": topic,
                "startingOffsets": "earliest",
                "kafka.isolation.level": "read_committed",
                "maxOffsetsPerTrigger": str(per_batch),
            }
            raw = self.spark.readStream.format("kafka").options(**options).load()
            frame = raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("order")).select("order.*")
            provision(self.spark, "local", TableSink(f"bench.{table}"), frame)
            writer = frame.writeStream.format("iceberg").option("checkpointLocation", f"{self.project.checkpoints}/{table}")
            writer.trigger(availableNow=True).toTable(f"local.bench.{table}").awaitTermination()

        run = self.measured(rows, work)
        self.check(table, rows)
        return run

    def read_plain(self, topic: str, rows: int) -> Run:
        """The floor: fetch and parse in one thread, and keep nothing."""

        def work() -> None:
            consumer = Consumer(self.kafka.settings(group_id="bench", enable_auto_commit=False, isolation_level="read_committed"))
            consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
            seen = 0
            while seen < rows:
                for message in consumer.consume(5_000, 1.0):
                    json.loads(message.value() or b"")
                    seen += 1
            consumer.close()

        return self.measured(rows, work, query=False)

    def check(self, table: str, rows: int) -> None:
        found = self.spark.table(f"local.bench.{table}").count()
        assert found == rows, f"{table} has {found} rows instead of {rows}"
        self.spark.sql(f"DROP TABLE local.bench.{table} PURGE")

    # -- rows → topic ----------------------------------------------------------------------------------------------

    def write(self, delivery: Delivery, rows: int, batches: int) -> Run:
        topic = self.kafka.create_topic(self.kafka.topic(delivery), PARTITIONS)
        source = sl.generator(events_per_batch=rows, rate=1000)
        sink = sl.topic(topic, key="customer", bootstrap=self.kafka.bootstrap, delivery=delivery)
        pipeline = declare(self.fresh(delivery), source, sink)
        return self.written(topic, rows, batches, lambda: self.run(pipeline, ForBatches(batches)))

    def write_native(self, rows: int, batches: int) -> Run:
        """The same rows as the same messages through Spark's streaming writer, without us."""
        topic = self.kafka.create_topic(self.kafka.topic("native"), PARTITIONS)
        options = {"kafka.bootstrap.servers": self.kafka.bootstrap, "topic": topic}

        def work() -> None:
            # `total` leaves a batch empty that begins before the query is stopped.
            source = sl.generator(events_per_batch=rows, rate=1000, total=rows * batches)
            frame = GeneratorReader("orders", source).read(self.spark, None).rows
            messages = message_frame(frame, sl.topic(topic, key="customer"))
            writer = messages.writeStream.format("kafka").options(**options)
            query = writer.option("checkpointLocation", f"{self.project.checkpoints}/{topic}").trigger(processingTime="0 seconds").start()
            while (query.lastProgress or {"batchId": -1})["batchId"] < batches - 1:
                time.sleep(0.1)
            query.stop()

        return self.written(topic, rows, batches, work)

    def written(self, topic: str, rows: int, batches: int, work: Callable[[], object]) -> Run:
        with sampled(self.processes, self.spark) as memory:
            run = self.measured(rows * batches, work)
        run.memory = memory
        ends = sum(self.kafka.ends(topic).values())
        assert rows * batches <= ends <= rows * batches + PARTITIONS * batches, f"{topic} has {ends} records instead of {rows * batches}"
        self.kafka.delete_topic(topic)
        return run

    def run(self, pipeline: Pipeline, limit: RunLimit) -> None:
        run_pipeline(self.project, pipeline, limit, Silent(), session=self.spark)


def declare(name: str, source: Source, sink: Sink) -> Pipeline:
    def transform(orders: DataFrame) -> DataFrame:
        return orders

    return sl.pipeline(name=name, source=source, sink=sink, checkpoint=sl.checkpoint(every="0 s"))(transform)


def order(n: int) -> bytes:
    return b'{"order_id":"o-%09d","customer":"c-%03d","amount":%d.%02d,"placed_at":"2026-01-01T%02d:%02d:%02d.000Z","note":"%010d"}' % (
        n,
        n % 1000,
        n % 1000,
        n % 100,
        n // 3600 % 24,
        n // 60 % 60,
        n % 60,
        n,
    )


def alternate(rounds: int, sides: dict[str, Callable[[], Run]]) -> dict[str, list[Run]]:
    """Forth and back: drift of the machine hits all alike."""
    found: dict[str, list[Run]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides)[:: 1 if number % 2 == 0 else -1]:
            found[side].append(sides[side]())
    return found


# -- the questions -----------------------------------------------------------------------------------------------


def source(bench: Bench, rows: int, batches: int, rounds: int) -> dict[str, Any]:
    topic = bench.fill(rows)
    sides: dict[str, Callable[[], Run]] = {
        "ours": lambda: bench.read_ours(topic, rows, rows // batches),
        "native": lambda: bench.read_native(topic, rows, rows // batches),
        "plain": lambda: bench.read_plain(topic, rows),
    }
    alternate(1, sides)  # classes, compiled code and the page cache, for all alike
    found = alternate(rounds, sides)
    shown: dict[str, Any] = {"rows": rows, "bytes_per_record": len(order(rows - 1)), "batches": batches, "rounds": rounds}
    for side, runs in found.items():
        shown[side] = {
            "rows_per_s": round(statistics.median(run.rows / run.wall for run in runs)),
            "rows_per_s_in_batches": round(statistics.median(run.rows / sum(run.batches) for run in runs)) if runs[0].batches else None,
            "cpu_s_per_million": round(statistics.median(run.cpu_per_million for run in runs), 2),
            "python_cpu_s_per_million": round(statistics.median(run.cpu.python / rows * 1e6 for run in runs), 2),
            "broker_cpu_s_per_million": round(statistics.median(run.cpu.broker / rows * 1e6 for run in runs), 2),
            "every_cpu_s_per_million": [round(run.cpu_per_million, 2) for run in runs],
            "batches": [len(run.batches) for run in runs],
            "used_by_others": round(statistics.median(run.disturbance for run in runs), 2),
        }
    ours, native, plain = (shown[side] for side in ("ours", "native", "plain"))
    shown["cpu_vs_spark_native"] = round(ours["cpu_s_per_million"] / native["cpu_s_per_million"], 3)
    shown["cpu_vs_plain_consumer"] = round(ours["cpu_s_per_million"] / plain["cpu_s_per_million"], 3)
    shown["rows_per_s_vs_spark_native"] = round(ours["rows_per_s"] / native["rows_per_s"], 3)
    shown["rows_per_s_in_batches_vs_spark_native"] = round(ours["rows_per_s_in_batches"] / native["rows_per_s_in_batches"], 3)
    shown["rows_per_s_vs_plain_consumer"] = round(ours["rows_per_s"] / plain["rows_per_s"], 3)
    return shown


def sink(bench: Bench, rows: int, batches: int, rounds: int) -> dict[str, Any]:
    """`batches` per run; the first one is left out when there are several."""
    sides: dict[str, Callable[[], Run]] = {
        "exactly_once": lambda: bench.write("exactly_once", rows, batches),
        "at_least_once": lambda: bench.write("at_least_once", rows, batches),
        "native": lambda: bench.write_native(rows, batches),
    }
    found = alternate(rounds, sides)
    shown: dict[str, Any] = {"rows_per_batch": rows, "rounds": rounds}
    for side, runs in found.items():
        seconds = [second for run in runs for second in run.batches[min(1, batches - 1) : batches]]
        shown[side] = {
            "rows_per_s": round(rows / statistics.median(seconds)),
            "seconds_per_batch": [round(second, 2) for second in seconds],
            "cpu_s_per_million": round(statistics.median(run.cpu_per_million for run in runs), 2),
            "python_cpu_s_per_million": round(statistics.median(run.cpu.python / run.rows * 1e6 for run in runs), 2),
            "broker_cpu_s_per_million": round(statistics.median(run.cpu.broker / run.rows * 1e6 for run in runs), 2),
            "used_by_others": round(statistics.median(run.disturbance for run in runs), 2),
            "memory": {name: max(run.memory[name] for run in runs) for name in runs[0].memory},
        }
    shown["ratio"] = round(shown["exactly_once"]["rows_per_s"] / shown["at_least_once"]["rows_per_s"], 3)
    shown["ratio_to_native"] = round(shown["exactly_once"]["rows_per_s"] / shown["native"]["rows_per_s"], 3)
    return shown


def measure(bench: Bench, *, quick: bool, only: str | None) -> dict[str, Any]:
    ratios: dict[str, float] = {}
    grown: dict[str, float] = {}
    details: dict[str, Any] = {
        "reading": "source_cpu_vs_spark_native is CPU seconds per million rows, ours ÷ Spark's own source and Iceberg's own sink (lower is "
        "better; driver Python and JVM together, the broker's are not counted); sink_vs_at_least_once is rows/s exactly once ÷ at "
        "least once through Spark's own writer (higher is better; native is that writer in a query of its own, without us); growth is the peak of resident memory during the larger batch ÷ during the smaller",
        "quick": quick,
    }
    if only in (None, "sink"):  # first: what the other question leaves behind in memory would blur the growth
        small, large = (50_000, 500_000) if quick else (500_000, 5_000_000)
        sink(bench, large // 5, 2, 1)  # load classes and compile code, for all sides
        details["sink"] = [sink(bench, small, 4, 2), sink(bench, large, 3 if quick else 1, 2)]
        print(
            f"{'rows/batch':>10} {'exactly once':>13} {'at least once':>14} {'ratio':>6} {'Spark alone':>12}   {'Python peak MB':>14} {'JVM peak MB':>12}"
        )
        for found in details["sink"]:
            exact, loose, native = found["exactly_once"], found["at_least_once"], found["native"]
            print(
                f"{found['rows_per_batch']:>10} {exact['rows_per_s']:>9} r/s {loose['rows_per_s']:>10} r/s {found['ratio']:>6} {native['rows_per_s']:>8} r/s   "
                f"{exact['memory']['python_peak_mb']:>14} {exact['memory']['jvm_peak_mb']:>12}",
                flush=True,
            )
        ratios["sink_vs_at_least_once"] = details["sink"][-1]["ratio"]
        before, after = (found["exactly_once"]["memory"] for found in details["sink"])
        pair = "500k_vs_50k" if quick else "5m_vs_500k"
        grown[f"sink_python_rss_mb_{pair}"] = round(after["python_peak_mb"] / before["python_peak_mb"], 3)
        grown[f"sink_jvm_rss_mb_{pair}"] = round(after["jvm_peak_mb"] / before["jvm_peak_mb"], 3)
    if only in (None, "source"):
        found = source(bench, *((300_000, 5, 3) if quick else (2_000_000, 10, 4)))
        details["source"] = found
        ratios["source_cpu_vs_spark_native"] = found["cpu_vs_spark_native"]
        print(f"{found['rows']} records → table, {found['batches']} batches {'rows/s':>9} {'in batches':>11} {'CPU-s/million':>14}")
        for side, name in (("ours", "ours"), ("native", "Spark and Iceberg alone"), ("plain", "consumer and json.loads")):
            told = found[side]
            print(f"  {name:<34} {told['rows_per_s']:>9} {told['rows_per_s_in_batches'] or '':>11} {told['cpu_s_per_million']:>14}")
        print(
            f"  CPU ours ÷ Spark's {found['cpu_vs_spark_native']}, rows/s ours ÷ Spark's {found['rows_per_s_vs_spark_native']}", flush=True
        )
    return {"version": 1, "name": "kafka", "ratios": ratios, "growth": grown, "details": details}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and noisier, within 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", choices=["source", "sink"], help="one question instead of both")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    kafka: KafkaForTests | None = None
    try:
        write_project(folder)
        project = load_project(folder)
        spark = start_session(project, "bench", folder / "bench.log", lambda text: print(text, file=sys.stderr))
        kafka = KafkaForTests(folder / "broker", say=lambda text: print(text, file=sys.stderr))
        broker = kafka.broker.status().pid
        assert broker is not None
        bench = Bench(spark, project, kafka, Processes(broker), batch_times(spark))
        result = measure(bench, quick=arguments.quick, only=arguments.only)
        spark.stop()
    finally:
        if kafka is not None:
            kafka.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
