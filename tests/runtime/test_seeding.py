"""Filling a new strand: what can be said without an engine."""

from __future__ import annotations

import pytest

from strandline.model.errors import DefinitionError
from strandline.runtime.dataflow import SourceLine
from strandline.runtime.keyed.building import OperatorRecord
from strandline.runtime.keyed.planting import SavedOperator
from strandline.runtime.seeding import Seed, check_operators, position_lines
from strandline.runtime.strands import StrandOrigin, TableStart
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


def test_a_strand_with_its_parents_numbers_is_written_as_before() -> None:
    """An older strandline reads it, and its files are read here."""
    old = StrandOrigin("parent", 7, "sp-1", tables={"t": TableStart(1, 2)})
    new = StrandOrigin("parent", 7, "sp-1", place=0)

    assert b'"version": 1' in old.encode() and b"place" not in old.encode()
    assert StrandOrigin.decode(old.encode()) == old
    assert StrandOrigin.decode(new.encode()) == new
    assert (old.begins_after, new.begins_after) == (7, 0)
