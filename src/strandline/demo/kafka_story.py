"""What ``strandline demo --kafka`` tells: driver and broker killed, both restarted, every order counted on both sides.

A real broker on this machine, orders produced into it, one pipeline that writes a table and an output topic. The final
count reads the table with PyIceberg and the topic as any `read_committed` consumer would.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from strandline.demo.narrator import say, step
from strandline.model.crash import CrashPoint
from strandline.model.definition import GeneratorSource
from strandline.model.errors import Failure
from strandline.project.config import Project, load_project
from strandline.runtime.jars import ensure_jars
from strandline.runtime.java import ensure_java
from strandline.testing import generated_orders, run_cli, start_cli, table_rows
from strandline.testing.kafka import KafkaForTests
from strandline.testing.projects import write_sandbox

TOTAL = 4000
SOURCE = GeneratorSource(total=TOTAL, seed=7)
PIPELINE = '''
"""Orders from Kafka into a table, and the large ones of them into a topic of their own."""

import strandline as sl


@sl.pipeline(
    source=sl.kafka(
        "orders", schema="order_id string not null, customer string, amount double, placed_at timestamp", max_offsets_per_batch=500
    ),
    sinks={"all": sl.table("shop.orders"), "large": sl.topic("large-orders", key="customer")},
    checkpoint=sl.checkpoint(every="0 s"),
)
def orders(orders):
    return {"all": orders, "large": orders.where("amount >= 500")}
'''


def tell(keep: Path | None) -> int:
    """Play the story; 0 when nothing was lost or doubled."""
    say(f"Strandline demo with Kafka: {TOTAL:,} orders, one table, one output topic; kill -9 of the driver, then of the broker.\n")
    java = ensure_java(step)
    ensure_jars(java, step)
    folder = keep or Path(tempfile.mkdtemp(prefix="strandline-demo-"))
    if keep is not None and (keep / "strandline.yaml").exists():
        raise Failure(f"{keep} already holds a project", next_command="strandline demo --kafka --keep another-folder")
    write_sandbox(folder, PIPELINE)
    project = load_project(folder)
    kafka = KafkaForTests(project.broker_folder, say=step)
    step(f"a Kafka broker answers at {kafka.bootstrap}")
    try:
        kafka.create_topic("orders", partitions=2)
        kafka.create_topic("large-orders", partitions=2)
        _produce(kafka, range(0, TOTAL // 2))
        _kill_driver(folder)
        _kill_broker(folder, project, kafka)
        return _count(folder, project, kafka)
    finally:
        kafka.stop()
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"\nThe project is in {folder}; go on there: strandline kafka up")


def _produce(kafka: KafkaForTests, numbers: Iterable[int]) -> None:
    chosen = set(numbers)
    orders = [order for order in generated_orders(SOURCE) if order.seq in chosen]
    values = [
        json.dumps({"order_id": o.order_id, "customer": o.customer, "amount": o.amount, "placed_at": o.placed_at.isoformat()})
        for o in orders
    ]
    kafka.produce("orders", values, keys=[o.customer for o in orders])
    step(f"{len(orders):,} orders produced into topic 'orders'")


def _kill_driver(folder: Path) -> None:
    step("attempt 1 runs, and is killed with SIGKILL in batch 2: the table has the batch, the output topic only an open transaction")
    died = run_cli(folder, "run", "orders", crash_at=CrashPoint.TOPIC_SENT, batch=2)
    if not died.killed:
        raise Failure(f"attempt 1 was not killed as planned: {died.err}")


def _kill_broker(folder: Path, project: Project, kafka: KafkaForTests) -> None:
    step("attempt 2 finishes the batch: the table knows it already, the topic gets it now")
    running = start_cli(folder, "run", "orders")
    try:
        _until(lambda: _rows(project) == TOTAL // 2, running, "the first half is in the table")
        step("the broker is killed with SIGKILL under the running pipeline")
        with kafka.outage():
            time.sleep(5)
        step("the broker is back; attempt 2 was waiting for it")
        _produce(kafka, range(TOTAL // 2, TOTAL))
        _until(lambda: _rows(project) == TOTAL, running, "the second half is in the table")
        run_cli(folder, "stop", "orders")
        _, err = running.communicate(timeout=90)
        for line in err.splitlines():
            if "does not answer" in line or "answers again" in line:
                say(f"    it said: {line}")
    finally:
        running.kill()


def _rows(project: Project) -> int:
    from strandline.tables.catalog import EmbeddedCatalog

    return 0 if EmbeddedCatalog(project).find("shop.orders") is None else len(table_rows(project, "shop.orders", ["order_id"]))


def _until(done: Callable[[], bool], running: subprocess.Popen[str], what: str) -> None:
    deadline = time.monotonic() + 120
    while not done():
        if running.poll() is not None or time.monotonic() > deadline:
            raise Failure(f"waited in vain: {what}")
        time.sleep(0.3)


def _count(folder: Path, project: Project, kafka: KafkaForTests) -> int:
    say("")
    print(run_cli(folder, "history", "orders").out)
    orders = list(generated_orders(SOURCE))
    in_table = Counter(row["order_id"] for row in table_rows(project, "shop.orders", ["order_id"]))
    in_topic = Counter(json.loads(record.value or b"{}")["order_id"] for record in kafka.read("large-orders"))
    lost = doubled = 0
    print("An independent count (orders computed in plain Python, the table read by PyIceberg, the topic by a read_committed consumer):")
    for name, found, sent in (
        ("table shop.orders", in_table, {o.order_id for o in orders}),
        ("topic large-orders", in_topic, {o.order_id for o in orders if o.amount >= 500}),
    ):
        gone, twice = len(sent - found.keys()), sum(count - 1 for count in found.values())
        lost, doubled = lost + gone, doubled + twice
        print(f"  {name}: {len(sent)} expected, {len(found)} found, lost {gone}, doubled {twice}")
    ends, group = kafka.ends("orders"), kafka.group_offsets("strandline.orders.orders")
    lag = sum(end - group.get(("orders", number), 0) for number, end in ends.items())
    print(f"  lag of group strandline.orders.orders: {lag} records")
    print("\nTry next: docs/kafka.md")
    return 0 if not lost and not doubled and lag == 0 else 3
