"""The examples do what they say: every pipeline runs, on the first day's files and on the next, and plain Python comes to the same rows."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from strandline.project.config import load_project
from strandline.project.loader import load_pipelines
from strandline.testing import table_rows
from strandline.testing.fixtures import Sandbox

from .pages import ROOT

EXAMPLE = ROOT / "examples/keyed-state"

Rows = list[tuple[Any, ...]]


def records(folder: Path, *parts: str) -> Iterator[dict[str, Any]]:
    for part in parts:
        for line in (folder / part).read_text(encoding="utf-8").splitlines():
            found = json.loads(line, parse_float=Decimal)
            yield {name: instant(value) if name.endswith("at") else value for name, value in found.items()}


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def parts_of(source: str, days: int) -> list[str]:
    return [f"{source}/day-1.jsonl", f"next/{source}.jsonl"][:days]


def test_the_project_loads_and_its_readme_names_every_pipeline_and_file() -> None:
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")

    assert set(re.findall(r"strandline run (\w+) --available-now", readme)) == set(load_pipelines(load_project(EXAMPLE)))
    copied = re.findall(r"^\$ cp (\S+) (\S+)$", readme, re.MULTILINE)
    assert {EXAMPLE / source for source, _ in copied} == set((EXAMPLE / "data/next").iterdir())
    assert all((EXAMPLE / target).parent.is_dir() for _, target in copied)


@pytest.mark.engine
def test_every_example_makes_the_rows_that_plain_python_makes(sandbox: Sandbox) -> None:
    shutil.copytree(EXAMPLE / "pipelines", sandbox.folder / "pipelines", dirs_exist_ok=True)
    shutil.copytree(EXAMPLE / "data", sandbox.folder / "data")

    for days in (1, 2):
        if days == 2:
            for file in (sandbox.folder / "data/next").iterdir():
                shutil.copy(file, sandbox.folder / "data" / file.stem / "day-2.jsonl")
        for name in ("sessions", "totals", "fraud", "enriched"):
            sandbox.run(name)

        assert found(sandbox, "visits") == sorted(visits(days))
        assert found(sandbox, "customer_totals") == sorted(customer_totals(days))
        accepted, alerts = payments(days)
        assert found(sandbox, "payments") == sorted(accepted)
        assert found(sandbox, "fraud_alerts") == sorted(alerts)
        rated, unrated = in_euros(days)
        assert found(sandbox, "orders_in_euros") == sorted(rated)
        assert found(sandbox, "unrated_orders") == sorted(unrated)
    assert table_rows(sandbox.project, "shop.visits__late") == []


def found(sandbox: Sandbox, table: str) -> Rows:
    return sorted(tuple(row.values()) for row in table_rows(sandbox.project, f"shop.{table}"))


# -- the same in plain Python, over all events at once -----------------------------------------------------------------


def visits(days: int) -> Rows:
    """Clicks without a pause of half an hour; the last ones of a visitor count once ten more minutes have passed elsewhere."""
    clicks = defaultdict(list)
    for click in records(EXAMPLE / "data", *parts_of("clicks", days)):
        clicks[click["visitor"]].append(click["at"])
    newest = max(max(times) for times in clicks.values())
    made: Rows = []
    for visitor, times in clicks.items():
        starts = [0, *(n for n in range(1, len(times)) if times[n] - times[n - 1] >= timedelta(minutes=30)), len(times)]
        parts = [times[start:end] for start, end in pairwise(starts)]
        if parts[-1][-1] + timedelta(minutes=30) > newest - timedelta(minutes=10):
            parts.pop()
        made += [(visitor, part[0], part[-1], len(part)) for part in parts]
    return made


def customer_totals(days: int) -> Rows:
    amounts = defaultdict(list)
    for order in records(EXAMPLE / "data", *parts_of("orders", days)):
        amounts[order["customer"]].append(order["amount"])
    return [(customer, len(own), sum(own), max(own)) for customer, own in amounts.items()]


def payments(days: int) -> tuple[Rows, Rows]:
    """Accepted payments, and alerts with the newest small charge of the minute before."""
    seen = list(records(EXAMPLE / "data", *parts_of("payments", days)))
    accepted: Rows = []
    alerts: Rows = []
    for number, payment in enumerate(seen):
        card, at, amount = payment["card"], payment["paid_at"], payment["amount"]
        small = [
            (before["paid_at"], float(before["amount"]))
            for before in seen[:number]
            if before["card"] == card and before["amount"] < 1 and before["paid_at"] >= at - timedelta(minutes=1)
        ]
        if small and amount >= 500:
            alerts.append((card, *small[-1], at, float(amount)))
        else:
            accepted.append((card, at, float(amount)))
    return accepted, alerts


def in_euros(days: int) -> tuple[Rows, Rows]:
    """Each day's orders at the rates that are known at its end."""
    rates: dict[str, Decimal] = {}
    rated: Rows = []
    unrated: Rows = []
    for of_orders, of_rates in zip(parts_of("orders", days), parts_of("rates", days), strict=True):
        for rate in records(EXAMPLE / "data", of_rates):
            if rate.get("_deleted"):
                del rates[rate["currency"]]
            else:
                rates[rate["currency"]] = rate["euros"]
        for order in records(EXAMPLE / "data", of_orders):
            if order["currency"] in rates:
                rated.append((order["order_id"], order["customer"], round(order["amount"] * rates[order["currency"]], 2)))
            else:
                unrated.append((order["order_id"], order["currency"], order["amount"]))
    return rated, unrated
