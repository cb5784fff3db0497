"""Helpers for testing pipelines, yours and ours: crash points, an oracle for the generator, projects, assertions.

``pytest_plugins = ["strandline.testing.fixtures"]`` in a conftest gives the fixtures `spark_home` (one Spark session
per test run) and `sandbox` (a fresh project on that session).
"""

from strandline.model.crash import CrashPoint
from strandline.testing.assertions import assert_chain_unbroken, assert_rows_once, committed_batches, table_rows
from strandline.testing.keyed import BatchOutput, KeyedHarness
from strandline.testing.oracle import Order, generated_orders
from strandline.testing.processes import Finished, run_cli, start_cli

__all__ = [
    "BatchOutput",
    "CrashPoint",
    "Finished",
    "KeyedHarness",
    "Order",
    "assert_chain_unbroken",
    "assert_rows_once",
    "committed_batches",
    "generated_orders",
    "run_cli",
    "start_cli",
    "table_rows",
]
