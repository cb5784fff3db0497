"""All Kafka sources of a running pipeline: continuity at the start, group offsets after each checkpoint, reachability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.ledger import Ledger
from strandline.model.continuity import Gap, superfluous
from strandline.model.errors import Refused, StrandlineError, UsageError
from strandline.model.offsets import Offsets
from strandline.model.positions import KafkaPosition
from strandline.runtime.protocol import Identity
from strandline.runtime.reporting import Reporter
from strandline.runtime.sources import KafkaReader, SourceReader


@dataclass(frozen=True)
class KafkaInputs:
    readers: Mapping[str, KafkaReader]
    identity: Identity
    ledger: Ledger
    reporter: Reporter

    @classmethod
    def of(cls, readers: Mapping[str, SourceReader], identity: Identity, ledger: Ledger, reporter: Reporter) -> KafkaInputs:
        inputs = cls({name: r for name, r in readers.items() if isinstance(r, KafkaReader)}, identity, ledger, reporter)
        for reader in inputs.readers.values():
            reader.notice = inputs._notice
        return inputs

    def _notice(self, kind: str, text: str) -> None:
        self.ledger.events.add(self.identity.pipeline, kind, text, self.identity.holder.attempt)
        self.reporter.say(text)
        self._record_topics()

    def _record_topics(self) -> None:
        me = self.identity
        for reader in self.readers.values():
            self.ledger.topics.record(me.pipeline, me.strand, me.holder.attempt, reader.known)

    # -- at the start ----------------------------------------------------------------------------------------

    def accept(self, batch: int, asked: frozenset[Gap]) -> None:
        """Gaps named on the command line now, or by an earlier start that did not get to finish the batch over them."""
        me = self.identity
        if asked and not self.readers:
            raise UsageError(
                f"pipeline '{me.pipeline}' reads no Kafka topic, so there is no gap to accept", next_command=f"strandline run {me.pipeline}"
            )
        known = self.ledger.gaps.of_batches(me.pipeline, me.strand, batch - 1, batch)
        for reader in self.readers.values():
            reader.accepting = asked | frozenset(known)

    def take_up(
        self, needed: Offsets, batch: int, witnessed_ids: Mapping[str, str], asked: frozenset[Gap], parent: str | None = None
    ) -> None:
        """Every topic must still hold what batch `batch` reads; what does not hold must have been accepted by name.

        Args:
            parent: the strand that this one goes on from; its topics are these topics.
        """
        me = self.identity
        ids = {**witnessed_ids}
        for strand in (*([parent] if parent else []), me.strand):
            owner = self.ledger.attempts.owner_of(strand) or me.pipeline  # a fork goes on from another pipeline's strand
            ids |= {name: facts.id for name, facts in self.ledger.topics.latest(owner, strand).items()}
        places = dict(needed.sources)
        found = []
        for name, reader in self.readers.items():
            at = places.get(name)
            found += reader.take_up(at if isinstance(at, KafkaPosition) else KafkaPosition(()), ids)
        if wrong := superfluous(found, asked):
            raise Refused(
                f"--accept-gap {wrong[0].argument}: that is not missing now; nothing was written",
                next_command=f"strandline run {me.pipeline}",
            )
        gaps = [loss.gap for loss in found if loss.gap is not None]
        if gaps:
            self.ledger.gaps.accept(me.pipeline, me.strand, me.holder.attempt, batch, gaps)
            shown = ", ".join(map(str, gaps))
            self.ledger.events.add(me.pipeline, "gap-accepted", f"batch {batch} goes over {shown}", me.holder.attempt)
            self.reporter.say(f"accepted: {shown} will not be read; ledger and table will say so")
        self._record_topics()

    def look_for_losses(self, position: Offsets | None) -> None:
        """Raise `DataLost` with its ranges if something that must be read after `position` is gone."""
        places = dict(position.sources) if position else {}
        for name, reader in self.readers.items():
            at = places.get(name)
            if isinstance(at, KafkaPosition):
                reader.take_up(at, {topic: facts.id for topic, facts in reader.known.items()})

    def compare_groups(self, position: Offsets) -> None:
        """The checkpoint rules. A group that says otherwise was changed by someone, or could not be told in time."""
        places = dict(position.sources)
        for name, reader in self.readers.items():
            at = places.get(name)
            if not isinstance(at, KafkaPosition):
                continue
            committed = reader.cluster.group_offsets(reader.group)
            other = [
                f"{topic}[{number}] {committed[topic, number]} instead of {offset}"
                for topic, number, offset in at.partitions
                if committed.get((topic, number), offset) != offset
            ]
            if other:
                text = f"group '{reader.group}' says {', '.join(other[:5])}; the checkpoint rules, the group is set to it"
                self.ledger.events.add(self.identity.pipeline, "group-differs", text, self.identity.holder.attempt)
                self.reporter.say(text)

    # -- while running ---------------------------------------------------------------------------------------

    def commit_groups(self, position: Offsets) -> bool:
        """Tell the cluster how far a complete checkpoint reaches. False when it could not be told; later ones will."""
        places = dict(position.sources)
        done = True
        for name, reader in self.readers.items():
            at = places.get(name)
            if not isinstance(at, KafkaPosition) or not at.partitions:
                continue
            try:
                reader.cluster.commit_group(reader.group, at)
            except StrandlineError as error:
                done = False
                text = f"the offsets of group '{reader.group}' could not be set: {error.message}"
                self.ledger.events.add(self.identity.pipeline, "group-not-committed", text, self.identity.holder.attempt)
        return done

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()
