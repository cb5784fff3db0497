"""Can Kafka still give what a pipeline must read next? A pure comparison of then and now.

A consumer that asks for a removed offset is silently moved, and a topic that was deleted and made again answers as if
nothing had happened. Every such difference is a `Loss` with its range; only one that is named may be accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from strandline.model.errors import UsageError
from strandline.model.positions import KafkaPosition


@dataclass(frozen=True)
class TopicFacts:
    """A topic as the cluster describes it."""

    id: str
    bounds: Mapping[int, tuple[int, int]]
    """By partition: the oldest offset that is kept, and the next one to be written."""


@dataclass(frozen=True, order=True)
class Gap:
    """Records of one partition that are not read: `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.start}–{self.end}"

    @property
    def argument(self) -> str:
        """As `--accept-gap` takes it."""
        return f"{self.topic}:{self.partition}:{self.start}-{self.end}"

    @classmethod
    def parse(cls, text: str) -> Gap:
        match = re.fullmatch(r"([A-Za-z0-9._-]+):(\d+):(\d+)-(\d+)", text.strip())
        if match is None or int(match.group(3)) >= int(match.group(4)):
            raise UsageError(
                f"'{text}' is no gap; write topic:partition:from-to, such as orders:0:120-240",
                next_command="strandline run PIPELINE, which names the gap if there is one",
            )
        return cls(match.group(1), int(match.group(2)), int(match.group(3)), int(match.group(4)))


class LossKind(str, Enum):
    """Why records that must be read next cannot be."""

    DELETED = "topic-deleted"
    RECREATED = "topic-recreated"
    SHRUNKEN = "partitions-shrunken"
    REMOVED = "offsets-removed"
    RESET = "offsets-reset"


@dataclass(frozen=True)
class Loss:
    kind: LossKind
    topic: str
    partition: int
    start: int
    """The offset that must be read next."""
    end: int
    """Where reading could go on, or the end of what was there."""
    reason: str
    gap: Gap | None = None
    """What would be skipped by going on; None when going on is not possible."""


def losses(needed: KafkaPosition, ids: Mapping[str, str], now: Mapping[str, TopicFacts]) -> list[Loss]:
    """Compare what must be read next (`needed`, topic `ids` as recorded) with what the cluster has.

    Partitions and topics that are only there now are news, not losses.
    """
    found: list[Loss] = []
    for topic, partitions in needed.by_topic().items():
        facts = now.get(topic)
        recreated = facts is not None and topic in ids and ids[topic] != facts.id
        for number, offset in sorted(partitions.items()):
            if facts is None:
                found.append(Loss(LossKind.DELETED, topic, number, offset, offset, f"topic '{topic}' does not exist any more"))
            elif number not in facts.bounds:
                why = f"topic '{topic}' has {len(facts.bounds)} partitions, the checkpoint knows partition {number}"
                found.append(Loss(LossKind.SHRUNKEN, topic, number, offset, offset, why))
            elif recreated:
                found += _recreated(topic, number, offset, facts)
            else:
                found += _moved(topic, number, offset, facts.bounds[number])
    return found


def _recreated(topic: str, number: int, offset: int, facts: TopicFacts) -> Iterable[Loss]:
    first, last = facts.bounds[number]
    if offset == first:
        return  # nothing of the old partition was read, or all of the new one will be
    why = (
        f"topic '{topic}' has another id than the one that was read: it was deleted and made again, or lies on another cluster; its offsets "
        f"{first}–{last} need not be the records read before"
    )
    # Going on at our offset skips what the new topic holds before it; a shorter topic has nothing there to go on with.
    gap = Gap(topic, number, *sorted((first, offset))) if offset <= last else None
    yield Loss(LossKind.RECREATED, topic, number, offset, last, why, gap)


def _moved(topic: str, number: int, offset: int, bounds: tuple[int, int]) -> Iterable[Loss]:
    first, last = bounds
    if offset < first:
        why = f"{topic}[{number}] {offset}–{first} was removed from the topic (retention or delete-records) before it was read"
        yield Loss(LossKind.REMOVED, topic, number, offset, first, why, Gap(topic, number, offset, first))
    elif offset > last:
        why = f"{topic}[{number}] ends at {last}, but {offset} was already read: the partition was cut off or restored from a copy"
        yield Loss(LossKind.RESET, topic, number, offset, last, why)


def unaccepted(found: Sequence[Loss], accepted: Iterable[Gap]) -> list[Loss]:
    """Losses that nobody agreed to. An accepted gap must be the very one that is there."""
    known = set(accepted)
    return [loss for loss in found if loss.gap is None or loss.gap not in known]


def superfluous(found: Sequence[Loss], asked: Iterable[Gap]) -> list[Gap]:
    """Gaps that were accepted on the command line, but are not what is missing now."""
    real = {loss.gap for loss in found}
    return sorted(gap for gap in asked if gap not in real)
