"""What rollbacks left: told from metadata and ledger alone, released tag by tag."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from strandline.ledger import Ledger, ledger_of
from strandline.model.errors import NotFound
from strandline.model.offsets import ORIGIN
from strandline.model.stamp import Holder, Stamp, StampKind
from strandline.savepoints.abandoned import abandoned, chosen, release
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing.plain_tables import PlainTables

TABLE = "shop.orders"
TAG = "strandline-abandoned-big-orders-3"
OTHER = "strandline-abandoned-big-orders-4"


class Untagger:
    """PyIceberg in place of Spark."""

    def __init__(self, tables: PlainTables) -> None:
        self._tables = tables

    def tag(self, table: str, name: str, snapshot: int) -> None:
        raise AssertionError("nothing is tagged")

    def untag(self, table: str, name: str) -> None:
        self._tables.untag(table, name)


def stamp(strand: str, attempt: int, batch: int, rows: int, kind: StampKind = StampKind.BATCH) -> dict[str, str]:
    digest = ORIGIN.digest
    return Stamp(
        "big-orders", strand, Holder(attempt, "a"), batch, batch, ORIGIN, ORIGIN, digest, digest, "src:1", kind, rows=rows
    ).to_summary()


def roll_back(tables: PlainTables, tag: str, to: int, strand: str, attempt: int) -> None:
    """As a restore does, though not in one commit."""
    tables.tag(TABLE, tables.head(TABLE), tag)
    tables.go_back(TABLE, to)
    tables.append(TABLE, stamp(strand, attempt, 0, 0, StampKind.BOUNDARY))


@pytest.fixture
def shop(tables: PlainTables) -> PlainTables:
    """Batches 0–2 of a first strand; a second one went back to batch 0 and ran one; a third went back to batch 0 again."""
    tables.make(TABLE, id=pa.int64())
    first = tables.append(TABLE, stamp("s-first", 1, 0, 2), id=[1, 2])
    for batch in (1, 2):
        tables.append(TABLE, stamp("s-first", 1, batch, 3), id=[10, 11, 12])
    roll_back(tables, TAG, first, "s-second", 3)
    tables.append(TABLE, stamp("s-second", 3, 1, 1), id=[20])
    roll_back(tables, OTHER, first, "s-third", 4)
    return tables


@pytest.fixture
def ledger(shop: PlainTables) -> Iterator[Ledger]:
    opened = ledger_of(shop.project)
    yield opened
    opened.close()


def test_each_tag_tells_what_only_it_holds_and_who_left_it(shop: PlainTables, ledger: Ledger) -> None:
    one, other = abandoned(shop.project, ledger, "big-orders")

    assert (one.table, one.tag, one.pipeline, one.attempt, one.strand) == (TABLE, TAG, "big-orders", 3, "s-second")
    assert (one.left_strand, one.left_batch, one.rows, one.snapshots) == ("s-first", 2, 6, 2)
    assert (other.tag, other.strand, other.left_strand, other.left_batch) == (OTHER, "s-third", "s-second", 1)
    assert (other.rows, other.snapshots) == (1, 2), "the row of its batch; its boundary brought none"
    assert one.left_at is not None and other.left_at is not None and one.left_at <= other.left_at
    assert abandoned(shop.project, ledger, "orders") == [], "a pipeline whose name only ends alike"


def test_a_row_that_two_tags_hold_is_of_neither_alone(shop: PlainTables, ledger: Ledger) -> None:
    shop.tag(TABLE, EmbeddedCatalog(shop.project).load(TABLE).refs[TAG], "mine")

    one, other = abandoned(shop.project, ledger)

    assert (one.rows, one.snapshots, other.rows) == (0, 0, 1)


def test_tags_of_others_that_look_alike_are_not_ours(shop: PlainTables, ledger: Ledger) -> None:
    shop.tag(TABLE, shop.head(TABLE), "strandline-abandoned-by-hand")

    assert [left.tag for left in abandoned(shop.project, ledger)] == [TAG, OTHER]


def test_released_tags_are_gone_and_the_ledger_remembers_who_let_go(shop: PlainTables, ledger: Ledger) -> None:
    found = abandoned(shop.project, ledger, "big-orders")

    release(chosen(found, "big-orders", [TAG]), ledger, Untagger(shop), by="ann@host")

    refs = EmbeddedCatalog(shop.project).load(TABLE).refs
    assert (TAG in refs, OTHER in refs) == (False, True)
    (event,) = ledger.events.of_pipeline("big-orders")
    assert (event.kind, event.attempt) == ("abandoned-released", 3)
    assert event.detail == f"{TABLE}: {TAG} at snapshot {found[0].snapshot}, 6 rows, by ann@host"


def test_a_tag_that_nobody_has_releases_nothing(shop: PlainTables, ledger: Ledger) -> None:
    found = abandoned(shop.project, ledger, "big-orders")

    with pytest.raises(NotFound, match=rf"no table holds a tag 'typo' .*\(there are: {TAG}, {OTHER}\)"):
        chosen(found, "big-orders", [TAG, "typo"])
