"""What the ledger knows of a savepoint's strand, in a file: the ledger of another project must know it to prove that nothing is missing.

The strands that lead to the savepoint, their batches up to it with the rows of each, what entered the tables, and the ids of input topics.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from strandline.ledger import Ledger
from strandline.ledger.records import BatchRecord, CommitRecord, StrandRecord
from strandline.model.continuity import TopicFacts
from strandline.model.errors import SavepointDamaged
from strandline.tables.view import Link

LEDGER_VERSION = 1


@dataclass(frozen=True)
class Remembered:
    pipeline: str
    strands: tuple[StrandRecord, ...]
    batches: tuple[BatchRecord, ...]
    commits: tuple[CommitRecord, ...]
    topics: Mapping[str, Mapping[str, TopicFacts]]
    """Input topics, by strand and name."""

    @classmethod
    def gather(cls, ledger: Ledger, pipeline: str, links: Sequence[Link], tables: Collection[str]) -> Remembered:
        limits = dict(links)
        strands = [ledger.strands.get(pipeline, strand) for strand in limits]
        batches = [record for strand, limit in links for record in ledger.batches.between(pipeline, strand, -1, limit + 1).values()]
        commits = [
            commit
            for table in sorted(tables)
            for commit in ledger.commits.of_table(table)
            if commit.pipeline == pipeline and commit.batch <= limits.get(commit.strand, -2)
        ]
        topics = {strand: found for strand in limits if (found := ledger.topics.latest(pipeline, strand))}
        return cls(pipeline, tuple(strand for strand in strands if strand is not None), tuple(batches), tuple(commits), topics)

    def tell(self, ledger: Ledger) -> None:
        """May be repeated: each record is there once."""
        for strand in self.strands:
            ledger.strands.record(strand)
        ledger.batches.bring(self.batches)
        for commit in self.commits:
            ledger.commits.record_commit(commit)
        for name, topics in self.topics.items():
            if not ledger.topics.latest(self.pipeline, name):
                ledger.topics.record(self.pipeline, name, 0, topics)

    def encode(self) -> bytes:
        return (json.dumps({"version": LEDGER_VERSION, **asdict(self)}, indent=1) + "\n").encode()

    @classmethod
    def decode(cls, raw: bytes, where: str) -> Remembered:
        try:
            told = json.loads(raw)
            if told["version"] > LEDGER_VERSION:
                raise SavepointDamaged(
                    f"{where} has version {told['version']}, written by a newer strandline; this one reads up to {LEDGER_VERSION}",
                    next_command="pip install --upgrade strandline",
                )
            return cls(
                told["pipeline"],
                tuple(StrandRecord(**strand) for strand in told["strands"]),
                tuple(BatchRecord(**batch) for batch in told["batches"]),
                tuple(CommitRecord(**commit) for commit in told["commits"]),
                {strand: {name: _topic(facts) for name, facts in topics.items()} for strand, topics in told["topics"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SavepointDamaged(f"{where} cannot be read", next_command="export the savepoint again, then import that") from error


def _topic(facts: Mapping[str, object]) -> TopicFacts:
    bounds = facts["bounds"]
    assert isinstance(bounds, dict)
    return TopicFacts(str(facts["id"]), {int(number): (int(first), int(last)) for number, (first, last) in bounds.items()})
