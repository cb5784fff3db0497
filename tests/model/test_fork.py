"""Where a fork writes and ends, and what of its parent it keeps."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

import strandline as sl
from strandline.model.definition import Pipeline
from strandline.model.errors import UsageError
from strandline.model.fork import Fork, Into
from strandline.model.until import Until


@sl.pipeline(
    source=sl.kafka("orders", bootstrap="there:9092", schema="n bigint", group="billing"),
    sinks={"rows": sl.table("shop.rows"), "news": sl.topic("news")},
    savepoint=sl.savepoint(every="1 hour"),
)
def parent(orders):  # type: ignore[no-untyped-def]
    return {"rows": orders, "news": orders}


@sl.pipeline(source=sl.generator(), sinks={"a": sl.table("shop.a"), "b": sl.table("shop.b")})
def two(orders):  # type: ignore[no-untyped-def]
    return {"a": orders, "b": orders}


@sl.pipeline(source=sl.generator(), sink=sl.topic("news"))
def told(orders):  # type: ignore[no-untyped-def]
    return orders


def forked(pipeline: Pipeline, into: str, **more: object) -> Pipeline:
    return Fork("trial", pipeline.name, Into.parse(into), "start", **more).of(pipeline)  # type: ignore[arg-type]


def test_a_fork_into_a_branch_keeps_the_tables_and_gives_topics_nothing() -> None:
    found = forked(parent, "branch:b2")

    assert (found.name, found.parent, found.branch) == ("trial", "parent", "b2")
    assert found.outputs() == ["shop.rows"] and set(found.sinks) == {"rows", "news"}, "the query stays the one that the state belongs to"
    assert found.savepoint is None
    (source,) = found.sources.values()
    assert getattr(source, "group", "") is None, "the parent's group is the parent's"


def test_a_fork_into_a_table_has_it_instead_of_the_parents() -> None:
    found = forked(parent, "table:lab.rows")

    assert (found.outputs(), found.branch) == (["lab.rows"], "main")
    assert found.writes("lab.rows__late") and not found.writes("shop.rows__late")


@pytest.mark.parametrize(
    ("pipeline", "into", "said"),
    [
        (two, "table:lab.rows", "writes 2 tables"),
        (told, "branch:b", "writes only topics"),
        (two, "table:shop.a", "writes 2 tables"),
        (parent, "table:shop.rows", "itself writes"),
        (parent, "branch:main", "main cannot be that branch"),
        (parent, "branch:strandline-merge-x", "cannot be the name of a branch"),
        (parent, "branch:", "cannot be the name of a branch"),
        (parent, "rows", "says not where to write"),
        (parent, "table:rows", "says not where to write"),
    ],
)
def test_what_cannot_be_forked_is_refused(pipeline: Pipeline, into: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        forked(pipeline, into)


def test_a_fork_is_written_down_and_read_again() -> None:
    fork = Fork("trial", "parent", Into(branch="b"), "sp-1", "drafts/x.py", Until.parse("2026-01-31T00:00:00Z"), "now", "me", "local")

    assert Fork.from_json(fork.to_json()) == fork  # type: ignore[arg-type]
    assert Fork.from_json({**fork.to_json(), "into": "table:lab.rows"}).into == Into(table="lab.rows")  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="version 2"):
        Fork.from_json({**fork.to_json(), "version": "2"})  # type: ignore[dict-item]


def test_an_end_is_a_moment_or_offsets() -> None:
    assert Until.parse("2026-01-31T00:00:00Z").moment == datetime(2026, 1, 31, tzinfo=timezone.utc)
    offsets = Until.parse('{"orders": {"0": 12, "1": 7}}')
    assert offsets.offsets == {"orders": {0: 12, 1: 7}}
    assert Until.parse(str(offsets)) == offsets
    for wrong in ("tomorrow", "{", '{"orders": 3}', ""):
        with pytest.raises(UsageError, match="says not where to end"):
            Until.parse(wrong)
