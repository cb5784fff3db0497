"""Filling a new strand: what can be said without an engine."""

from __future__ import annotations

import pytest

from strandline.model.errors import DefinitionError
from strandline.runtime.dataflow import SourceLine
from strandline.runtime.keyed.building import OperatorRecord
from strandline.runtime.keyed.planting import SavedOperator
from strandline.runtime.seeding import Seed, check_operators, position_lines
from strandline.runtime.strands import FORK, PUBLISH, Published, StrandOrigin, TableStart
from strandline.state.layout import Layout, StateLayout
from strandline.state.types import parse_fields, parse_type

LAYOUT = Layout((StateLayout("seen", "value", parse_type("bigint"), None, None),), frozenset(["event"]))
SAVED = SavedOperator(OperatorRecord("sums", (0, 1), parse_fields("who string"), True, (LAYOUT,)), 3, {"event": 2}, ("rates",))


def test_a_seed_says_the_same_after_it_was_written() -> None:
    seed = Seed('v1\n{"conf":{}}\n{"logOffset":3}', 17, (SAVED,), frozenset(["sums"]))

    assert Seed.decode(seed.encode()) == seed


def test_positions_are_taken_up_in_the_order_of_the_query() -> None:
    once, twice = [SourceLine("a", 0)], [SourceLine("a", 0), SourceLine("a", 0)]

    assert position_lines(["x", "y"], [SourceLine("a", 0), SourceLine("b", 1)], "p") == ["x", "y"]
    assert position_lines(["x", "x"], once, "p") == ["x"], "one operator less on the only source"
    assert position_lines(["x"], twice, "p") == ["x", "x"]
    for saved, declared in ((["x", "y"], once), (["x"], [SourceLine("a", 0), SourceLine("b", 1)])):
        with pytest.raises(DefinitionError, match="which saved position belongs to which of several sources cannot be told"):
            position_lines(saved, declared, "p")


def test_state_needs_its_operator() -> None:
    check_operators([SAVED], {"sums": SAVED.record})
    with pytest.raises(DefinitionError, match=r"'sums', which the pipeline no longer has \(it has none\)"):
        check_operators([SAVED], {})


def test_where_a_strand_comes_from_is_written_down_and_read_again() -> None:
    """Also as version 1 wrote it, which knew neither places nor branches."""
    published = Published("trial", "fork", 4, "published")
    for origin in (
        StrandOrigin("parent", 7, "sp-1", tables={"t": TableStart(1, 2)}),
        StrandOrigin("parent", 7, "sp-1", place=0),
        StrandOrigin("fork-strand", 7, "", False, {"t": TableStart(None, 2)}, PUBLISH, publishes=published),
        StrandOrigin("", -1, how=FORK, branch="trial"),
    ):
        assert StrandOrigin.decode(origin.encode()) == origin
    old = StrandOrigin.decode(
        b'{"version": 1, "parent": "p", "batch": 7, "savepoint": "", "claim": false, "tables": {"t": {"head": 1, "rollback_to": null}}}'
    )
    assert (old.begins_after, old.branch, old.tables) == (7, "main", {"t": TableStart(1)})
    assert StrandOrigin("parent", 7, place=0).begins_after == 0
