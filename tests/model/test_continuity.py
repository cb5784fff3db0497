"""What can go missing from a topic, how it is named, and what may be accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.model.continuity import Gap, LossKind, TopicFacts, losses, superfluous, unaccepted
from strandline.model.errors import UsageError
from strandline.model.positions import KafkaPosition

IDS = {"orders": "id-1"}


def at(**partitions: int) -> KafkaPosition:
    return KafkaPosition.of({"orders": {int(name.removeprefix("p")): offset for name, offset in partitions.items()}})


def topic(*bounds: tuple[int, int], id: str = "id-1") -> dict[str, TopicFacts]:
    return {"orders": TopicFacts(id, dict(enumerate(bounds)))}


def test_what_is_still_there_is_no_loss() -> None:
    assert losses(at(p0=5), IDS, topic((5, 9))) == []
    assert losses(at(p0=5), IDS, topic((0, 5))) == []
    assert losses(at(p0=5), IDS, topic((0, 5), (0, 100))) == [], "a new partition is news"


def test_removed_records_are_named_with_their_range() -> None:
    (loss,) = losses(at(p0=5), IDS, topic((12, 20)))

    assert (loss.kind, loss.gap) == (LossKind.REMOVED, Gap("orders", 0, 5, 12))
    assert loss.reason == "orders[0] 5–12 was removed from the topic (retention or delete-records) before it was read"


def test_a_partition_that_ends_before_what_was_read_cannot_be_gone_on_with() -> None:
    (loss,) = losses(at(p0=50), IDS, topic((0, 20)))

    assert (loss.kind, loss.gap) == (LossKind.RESET, None)


def test_another_topic_of_the_same_name_is_told_by_its_id() -> None:
    shorter = losses(at(p0=50), IDS, topic((0, 20), id="id-2"))
    longer = losses(at(p0=50, p1=0), IDS, topic((0, 90), (0, 7), id="id-2"))

    assert [(loss.kind, loss.gap) for loss in shorter] == [(LossKind.RECREATED, None)]
    assert [(loss.kind, loss.gap) for loss in longer] == [(LossKind.RECREATED, Gap("orders", 0, 0, 50))], "p1 loses nothing"


def test_missing_partitions_and_topics() -> None:
    assert [loss.kind for loss in losses(at(p0=1, p1=1), IDS, topic((0, 5)))] == [LossKind.SHRUNKEN]
    assert [loss.kind for loss in losses(at(p0=1), IDS, {})] == [LossKind.DELETED]


def test_only_the_very_gap_that_is_there_can_be_accepted() -> None:
    found = losses(at(p0=5), IDS, topic((12, 20)))

    assert unaccepted(found, [Gap("orders", 0, 5, 12)]) == []
    assert unaccepted(found, [Gap("orders", 0, 5, 11), Gap("orders", 1, 5, 12)]) == found
    assert superfluous(found, [Gap("orders", 0, 5, 12), Gap("orders", 0, 1, 2)]) == [Gap("orders", 0, 1, 2)]


@given(st.builds(Gap, st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True), st.integers(0, 99), st.integers(0, 10**9), st.just(10**10)))
def test_a_gap_is_read_back_from_its_argument(gap: Gap) -> None:
    assert Gap.parse(gap.argument) == gap


@pytest.mark.parametrize("text", ["", "orders", "orders:0", "orders:0:5", "orders:0:9-5", "orders:0:5-5", "orders:x:1-2", "a b:0:1-2"])
def test_anything_else_is_no_gap(text: str) -> None:
    with pytest.raises(UsageError, match="is no gap; write topic:partition:from-to"):
        Gap.parse(text)
