"""When a cluster is away: told at once, waited for as declared, and forgiven when it stays."""

from __future__ import annotations

from datetime import timedelta

import pytest

from strandline.messaging.connection import KafkaConnection
from strandline.model.errors import ClusterUnreachable
from strandline.runtime import outage as module
from strandline.runtime.outage import Outage


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def an_outage(said: list[str]) -> Outage:
    return Outage([KafkaConnection("127.0.0.1:9", give_up_after=timedelta(seconds=60))], "orders", said.append)


def test_a_lost_cluster_is_told_and_given_up_after_its_time(clock: Clock) -> None:
    said: list[str] = []
    outage = an_outage(said)

    outage.lost(ClusterUnreachable("the cluster is away"))

    assert said == ["the cluster is away; waiting up to 1 min for it"]
    assert not outage.is_over()
    clock.now += 61
    with pytest.raises(ClusterUnreachable, match="the cluster is away; gave up after 1 min, nothing is lost or doubled") as given_up:
        outage.is_over()
    assert given_up.value.next_command == "bring the cluster back, then: strandline run orders"


def test_a_cluster_that_is_back_is_not_given_up_however_long_nothing_happens(clock: Clock) -> None:
    outage = an_outage([])
    outage.lost(ClusterUnreachable("the cluster is away"))
    outage.answered()
    clock.now += 3600

    assert outage.is_over()
    assert outage.given_up() is None


def test_one_that_comes_and_goes_is_given_up(clock: Clock) -> None:
    outage = an_outage([])
    for _ in range(2):
        outage.lost(ClusterUnreachable("the cluster is away"))
        clock.now += 25
        outage.answered()
        clock.now += 10
        outage.answered()
    outage.lost(ClusterUnreachable("the cluster is away"))

    assert outage.given_up() is not None


def test_a_complete_batch_or_a_while_without_trouble_ends_it(clock: Clock) -> None:
    outage = an_outage([])
    outage.lost(ClusterUnreachable("the cluster is away"))
    clock.now += 50
    outage.answered()
    clock.now += module.STEADY + 1
    outage.answered()
    outage.lost(ClusterUnreachable("again"))
    clock.now += 30

    assert outage.given_up() is None, "a new outage has its own time"
    outage.answered()
    outage.recovered()
    outage.lost(ClusterUnreachable("and again"))
    clock.now += 59
    assert outage.given_up() is None
