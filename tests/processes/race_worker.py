"""One of two racing processes: stages a file per batch, then commits them all against the other.

python race_worker.py PROJECT NAME BATCHES
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from strandline.model.fence import Decision, Proposal, Verdict, decide
from strandline.model.offsets import Offsets
from strandline.model.positions import GeneratorPosition
from strandline.model.stamp import Holder, Stamp, Witness
from strandline.project.config import load_project
from strandline.runtime.session import start_session
from strandline.tables.jvm import CommitOutcomeUnknown, CommitRefused, JvmTable


def position(batch: int) -> Offsets:
    return Offsets.of({"orders": GeneratorPosition(batch + 1, 0)}) if batch >= 0 else Offsets()


def main(folder: Path, me: str, batches: int) -> None:
    project = load_project(folder)
    spark = start_session(project, f"race-{me}", folder / f"{me}.log", lambda _: None)
    table = JvmTable(spark, project.profile.catalog.name, "shop.race")
    staged = [table.stage(spark.range(b, b + 1, 1, 1).selectExpr("id as batch", f"'{me}' as winner")) for b in range(batches)]
    outcome = {"won": 0, "duplicate": 0, "other": 0}
    for batch in range(batches):
        meet(folder, me, batch)
        proposal = Proposal("strand", Holder(1, "racer"), batch, position(batch - 1), position(batch))

        def judge(mark: Witness | None, newest: Witness | None, proposal: Proposal = proposal) -> Decision:
            return decide(proposal, mark, newest)

        start, end = proposal.start, proposal.end
        stamp = Stamp("race", "strand", proposal.holder, batch, batch, start, end, start.digest, end.digest, "test", rows=1)
        try:
            table.append(staged[batch], stamp, judge)
            outcome["won"] += 1
        except (CommitRefused, CommitOutcomeUnknown):  # both racers are one holder: the loser must look to know
            table.refresh()
            outcome["duplicate" if judge(*table.witnesses("race")).verdict is Verdict.DUPLICATE else "other"] += 1
    print(json.dumps(outcome))
    spark.stop()


def meet(folder: Path, me: str, batch: int) -> None:
    """Both reach a batch before either commits it."""
    (folder / f"{batch}.{me}").touch()
    other = folder / f"{batch}.{'b' if me == 'a' else 'a'}"
    deadline = time.monotonic() + 120
    while not other.exists():
        if time.monotonic() > deadline:
            raise SystemExit("the other racer is gone")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
