"""What somebody names to compare, and which operators of two pipelines belong together. Without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from strandline.checkpoints.checkpoint import Checkpoint
from strandline.evidence.pipeline_comparing import Manner, SideBySide, compare_state, compare_tables
from strandline.evidence.sides import Output, names_table, outputs_of, side_of
from strandline.evidence.state_comparing import Pairs, StateAt, pair_operators
from strandline.ledger import Ledger, ledger_of
from strandline.ledger.records import AttemptStatus, BatchRecord
from strandline.model.errors import NotFound, UsageError
from strandline.model.offsets import ORIGIN
from strandline.model.stamp import Holder, Stamp
from strandline.project.config import Project
from strandline.runtime.keyed.building import OperatorRecord
from strandline.runtime.keyed.inspecting import StateReader, StoredOperator
from strandline.runtime.liveness import this_process
from strandline.state.declarations import Context, KeyedProcess, value_state
from strandline.state.layout import layout_of
from strandline.state.types import parse_fields
from strandline.tables.rows import RowsOf, rows_of
from strandline.testing.plain_tables import PlainTables

PIPELINES = """
import strandline as sl

@sl.pipeline(source=sl.generator(total=10), sink=sl.table("shop.totals"))
def totals(orders):
    return orders

@sl.pipeline(source=sl.generator(total=10), sinks={"even": sl.table("shop.even"), "odd": sl.table("shop.odd")})
def split(orders):
    return {"even": orders, "odd": orders}
"""


@pytest.fixture
def shop(tables: PlainTables) -> PlainTables:
    (tables.project.pipelines_folder / "tested.py").write_text(PIPELINES)
    return tables


@pytest.fixture
def ledger(shop: PlainTables) -> Iterator[Ledger]:
    opened = ledger_of(shop.project)
    yield opened
    opened.close()


def ran(ledger: Ledger, pipeline: str, *written: str) -> None:
    attempt = ledger.attempts.begin(pipeline, id="a", above=0, replaces=None, process=this_process(), code="c", tables=written)
    assert attempt is not None
    ledger.attempts.end(attempt, AttemptStatus.STOPPED, "done")


def ids(found: RowsOf) -> list[int]:
    return sorted(row["id"] for row in found.records(["id"]))


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_table_is_told_from_a_pipeline_and_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.first").mkdir()

    assert names_table("shop.orders") and names_table("shop.orders@tag")
    assert not any(map(names_table, ("orders", "orders@3", "../kept/sp-1", "./sp-1", "s3://bucket.name/sp-1", "kept.first")))


def test_what_is_no_side_of_a_comparison_of_pipelines_is_refused(shop: PlainTables, ledger: Ledger) -> None:
    shop.make("shop.orders", id=pa.int64())
    ran(ledger, "totals", "shop.totals")

    def asked(name: str) -> None:
        with side_of(shop.project, ledger, name):
            raise AssertionError("unreachable")

    with pytest.raises(UsageError, match=r"'shop.orders' is a table: a table is compared with a table"):
        asked("shop.orders")
    with pytest.raises(NotFound, match=r"there is no pipeline 'total' .*did you mean 'totals'\?"):
        asked("total")
    with pytest.raises(NotFound, match="there is no pipeline 'sp-20260101-000000-abcd'"):
        asked("sp-20260101-000000-abcd")
    with pytest.raises(UsageError, match="'newest' in 'totals@newest' is not the number of a batch"):
        asked("totals@newest")
    with pytest.raises(NotFound, match="pipeline 'split' has no checkpoint"):
        asked("split")


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_pipelines_table_is_shown_as_it_was_after_the_batch(
    shop: PlainTables, ledger: Ledger, written_by_spark: Callable[[str, Path], Checkpoint]
) -> None:
    checkpoint = written_by_spark("totals", Path(shop.project.checkpoint_of("totals")))
    strand = str(checkpoint.strand())
    ran(ledger, "totals", "shop.totals")
    shop.make("shop.totals", id=pa.int64())
    for batch in range(6):  # the last one is in the table, and not completed yet
        digest = ORIGIN.digest
        stamp = Stamp("totals", strand, Holder(1, "a"), batch, batch, ORIGIN, ORIGIN, digest, digest, "c", rows=1)
        shop.append("shop.totals", stamp.to_summary(), id=[batch])
        ledger.batches.inherit(BatchRecord("totals", strand, batch, 1, "{}", "{}", digest, {"shop.totals": 1}))

    def seen(asked: str) -> list[int]:
        with side_of(shop.project, ledger, asked) as side:
            return ids(outputs_of(shop.project, ledger, side)["output"].rows)

    assert seen("totals") == [0, 1, 2, 3, 4]
    assert seen("totals@2") == [0, 1, 2]
    with pytest.raises(NotFound, match="the ledger does not know batch 9 of strand"):
        seen("totals@9")
    with ExitStack() as opened:
        sides = [opened.enter_context(side_of(shop.project, ledger, asked)) for asked in ("totals", "totals@9")]
        with pytest.raises(NotFound, match="batch 9 of 'totals' is not in its checkpoint"):
            compare_state(SideBySide(sides[0], sides[1]), lambda: pytest.fail("Spark was started"), Manner())


def test_a_pipeline_whose_code_and_checkpoint_are_gone_still_has_its_tables(shop: PlainTables, ledger: Ledger) -> None:
    shop.make("shop.old", id=pa.int64())
    shop.append("shop.old", id=[1])
    ran(ledger, "former", "shop.old", "kafka:orders")

    with side_of(shop.project, ledger, "former") as side:
        found = outputs_of(shop.project, ledger, side)

    assert (side.batch, side.keeps_state, list(found), ids(found["old"].rows)) == (None, False, ["old"], [1])


def outputs(project: Project, **named: str) -> dict[str, Output]:
    return {name: Output(rows_of(project, table), ("id",) if table == "shop.keyed" else ()) for name, table in named.items()}


def paired(shop: PlainTables, left: dict[str, Output], right: dict[str, Output]) -> SideBySide:
    found = SideBySide(cast(Any, None), cast(Any, None))
    compare_tables(found, left, right, Manner())
    return found


def test_tables_are_paired_by_output_and_single_ones_whatever_their_names(shop: PlainTables) -> None:
    for name in ("a", "b", "late"):
        shop.make(f"shop.{name}", id=pa.int64())
    project = shop.project

    by_name = paired(shop, outputs(project, even="shop.a", odd="shop.b"), outputs(project, odd="shop.a", more="shop.late"))
    assert {name: (found.left, found.right) for name, found in by_name.tables.items()} == {"odd": ("shop.b", "shop.a")}
    assert (by_name.tables_only_left, by_name.tables_only_right, by_name.same) == (("shop.a",), ("shop.late",), False)

    single = paired(shop, outputs(project, output="shop.a", __late="shop.late"), outputs(project, totals="shop.b"))
    assert {name: (found.left, found.right) for name, found in single.tables.items()} == {"output / totals": ("shop.a", "shop.b")}
    assert single.tables_only_left == ("shop.late",)


def test_rows_of_upsert_tables_are_known_by_their_key(shop: PlainTables) -> None:
    shop.make("shop.keyed", id=pa.int64(), v=pa.int64())
    shop.append("shop.keyed", id=[1], v=[1])

    found = paired(shop, outputs(shop.project, output="shop.keyed"), outputs(shop.project, output="shop.keyed"))

    assert (found.tables["output"].key, found.same) == (("id",), True)


# -- operators ---------------------------------------------------------------------------------------------------------


class Totals(KeyedProcess):
    total = value_state("bigint")

    def process(self, key: Any, events: list[Any], ctx: Context) -> None: ...


def ours(number: int, name: str, key: str = "who string") -> StoredOperator:
    record = OperatorRecord(name, (0,), parse_fields(key), True, (layout_of(Totals()),))
    return StoredOperator(number, "transformWithState", 2, record)


def sparks(number: int, kind: str = "dedupe", twins: int = 1) -> StoredOperator:
    return StoredOperator(number, kind, 2, None, twins)


def put_together(left: list[StoredOperator], right: list[StoredOperator]) -> Pairs:
    at = StateAt("p", cast(StateReader, None), 0, None)
    return pair_operators(at, left, at, right)


def test_operators_are_paired_by_name_and_sparks_by_kind_and_order() -> None:
    found = put_together([sparks(0, twins=2), sparks(1, twins=2), ours(2, "totals")], [ours(0, "totals"), sparks(3), ours(4, "alerts")])

    assert [pair.name for pair in found.both] == ["dedupe-0 / dedupe", "totals"]
    assert (found.only_left, found.only_right) == (("dedupe-1",), ("alerts",))


def test_one_that_was_renamed_is_found_if_it_is_the_only_one_left() -> None:
    assert [pair.name for pair in put_together([ours(0, "totals")], [ours(0, "sums")]).both] == ["totals / sums"]
    assert put_together([ours(0, "totals")], [sparks(0)]).both == ()


def test_keys_of_another_shape_cannot_be_put_side_by_side() -> None:
    found = put_together([ours(0, "totals", "who string")], [ours(0, "totals", "who string, day date")])

    assert (found.both, found.only_left, found.only_right) == ((), ("totals",), ("totals",))


def test_columns_of_the_key_have_the_names_of_the_first_and_a_state_named_alike_gives_way() -> None:
    (pair,) = put_together([ours(0, "totals", "total string")], [ours(0, "totals", "who string")]).both

    assert (pair.key, pair.left.columns, pair.right.columns) == (("total",), ("total", "state_total"), ("total", "state_total"))
