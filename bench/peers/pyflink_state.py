"""The dense workload of `bench/state.py` in PyFlink: get and update per event in a `KeyedProcessFunction`, on RocksDB.

    python bench/peers/pyflink_state.py [--keys 100000] [--events 5000000]

Needs `pip install apache-flink` in an environment of its own, and Java 11 or 17. Both of PyFlink's modes are run: `process` (workers beside
the JVM) and `thread` (Python inside the JVM). Rates are of a whole job with its start, so give it enough events.
"""

# mypy: disable-error-code="import-not-found,misc,no-any-return,unused-ignore"
from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from typing import Any

PARALLELISM = 2


def job(mode: str, keys: int, events: int, folder: str) -> float:
    """Seconds of one job: a sequence made by Flink, keyed sums in Python, rows that Flink throws away."""
    from pyflink.common import Configuration, Row, Types
    from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
    from pyflink.datastream.state import ValueStateDescriptor
    from pyflink.table import StreamTableEnvironment

    class Sum(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            pair = Types.TUPLE([Types.LONG(), Types.LONG()])
            self.total = runtime_context.get_state(ValueStateDescriptor("total", pair))

        def process_element(self, value: Any, ctx: Any) -> Any:
            s, c = self.total.value() or (0, 0)
            s, c = s + value[1], c + 1
            self.total.update((s, c))
            yield Row(value[0], s, c)

    settings = Configuration()
    settings.set_string("python.execution-mode", mode)
    settings.set_string("parallelism.default", str(PARALLELISM))
    settings.set_string("state.backend.type", "rocksdb")
    settings.set_string("execution.checkpointing.interval", "5 s")
    settings.set_string("execution.checkpointing.dir", f"file://{folder}")  # Flink 2
    settings.set_string("state.checkpoints.dir", f"file://{folder}")  # Flink 1
    tables = StreamTableEnvironment.create(StreamExecutionEnvironment.get_execution_environment(settings))
    tables.execute_sql(
        "CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '1000000000', "
        f"'fields.n.kind' = 'sequence', 'fields.n.start' = '0', 'fields.n.end' = '{events - 1}')"
    )
    tables.execute_sql("CREATE TABLE nowhere (k STRING, s BIGINT, c BIGINT) WITH ('connector' = 'blackhole')")
    made = tables.sql_query(f"SELECT 'user-' || LPAD(CAST(n % {keys} AS STRING), 7, '0') AS k, n % 97 AS v FROM numbers")
    output = Types.ROW_NAMED(["k", "s", "c"], [Types.STRING(), Types.LONG(), Types.LONG()])
    sums = tables.to_data_stream(made).key_by(lambda row: row[0], key_type=Types.STRING()).process(Sum(), output_type=output)
    began = time.monotonic()
    tables.from_data_stream(sums).execute_insert("nowhere").wait()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=5_000_000)
    arguments = parser.parse_args()
    if importlib.util.find_spec("pyflink") is None:
        print("PyFlink is not installed; in an environment of its own: pip install apache-flink", file=sys.stderr)
        return
    for mode in ("process", "thread"):
        with tempfile.TemporaryDirectory(prefix="strandline-bench-") as folder:
            seconds = job(mode, arguments.keys, arguments.events, folder)
        print(f"{mode}: {arguments.events / seconds:,.0f} events/s ({arguments.keys:,} keys, {seconds:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
