"""Does the state of a savepoint fit the code that is to go on with it? Asked while a restore is planned, before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from strandline.checkpoints.batch_files import parse_commit
from strandline.checkpoints.checkpoint import ORIGIN
from strandline.checkpoints.copying import Moved
from strandline.checkpoints.storage import Storage
from strandline.model.definition import Pipeline
from strandline.model.errors import DefinitionError, UsageError
from strandline.model.savepoint import SavedFile, Savepoint
from strandline.project.config import Project
from strandline.runtime.keyed.building import OperatorRecord
from strandline.runtime.keyed.planting import SavedOperator, fitting
from strandline.runtime.rehearsal import Rehearsal
from strandline.runtime.seeding import Seed, check_operators, lay_seed, position_lines
from strandline.savepoints.archive import CHECKPOINT, Archive
from strandline.savepoints.canonical import STATE

PARTITIONS = "spark.sql.shuffle.partitions"
_TIMERS = ".timers"


# -- canonical -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decoded:
    """The state of a canonical savepoint, without what is left behind."""

    saved: Savepoint
    archive: Archive
    operators: tuple[SavedOperator, ...]
    without_timers: frozenset[str]
    told: tuple[str, ...]
    """What happens to each operator's state, for the plan."""

    def lay_out(self, storage: Storage, moved: Moved) -> None:
        plan, completed = (self._checkpoint_file(f"{folder}/{self.saved.batch}") for folder in ("offsets", "commits"))
        names = tuple(f"{STATE}{operator.name}/" for operator in self.operators)
        state = self._files(STATE, *names) if names else iter(())
        position = ((path, moved(path, content)) for path, content in self._files(CHECKPOINT, f"{CHECKPOINT}sources/"))
        if (origin := self._find(ORIGIN)) is not None:
            storage.write(ORIGIN, self.archive.content(origin))
        watermark = parse_commit(self.saved.batch, completed).next_watermark_ms
        lay_seed(storage, Seed(plan.decode(), watermark, self.operators, self.without_timers), position, state)

    def _files(self, below: str, *folders: str) -> Iterator[tuple[str, bytes]]:
        for file in self.saved.files:
            if file.path.startswith(folders):
                yield file.path.removeprefix(below), self.archive.content(file)

    def _checkpoint_file(self, path: str) -> bytes:
        file = self._find(path)
        assert file is not None, "a canonical savepoint holds it"
        return self.archive.content(file)

    def _find(self, path: str) -> SavedFile | None:
        return next((file for file in self.saved.files if file.path == CHECKPOINT + path), None)


def decoded_state(saved: Savepoint, archive: Archive, pipeline: Pipeline, dropped: Collection[str], code: Rehearsal | None) -> Decoded:
    operators = [SavedOperator.from_json(told) for told in saved.operators]
    names = {operator.name for operator in operators}
    if unknown := sorted(name for name in dropped if name.removesuffix(_TIMERS) not in names):
        raise UsageError(
            f"--allow-dropped-state {unknown[0]}: savepoint {saved.id} holds state of {', '.join(sorted(names)) or 'no operator'}",
            next_command=f"strandline savepoint show {pipeline.name} {saved.id}",
        )
    if (before := set(saved.definition["sources"])) != set(pipeline.sources):
        raise DefinitionError(
            f"pipeline '{pipeline.name}' reads {', '.join(sorted(pipeline.sources))}; savepoint {saved.id} has the positions of "
            f"{', '.join(sorted(before))}",
            next_command="keep the sources as they were, or begin again with: strandline run PIPELINE --new-strand",
        )
    kept = tuple(operator for operator in operators if operator.name not in dropped)
    without_timers = frozenset(name.removesuffix(_TIMERS) for name in dropped if name.endswith(_TIMERS) and name not in names)
    told = [f"operator {o.name}: the state of {o.keys} keys is dropped" for o in operators if o.name in dropped]
    if code is not None:
        check_operators(kept, code.operators)
        told += _changes(kept, code, without_timers)
        position_lines(_plan(saved, archive).split("\n")[2:], code.source_lines, pipeline.name)
    return Decoded(saved, archive, kept, without_timers, tuple(told))


def _plan(saved: Savepoint, archive: Archive) -> str:
    """Spark's plan of the saved batch."""
    file = next(file for file in saved.files if file.path == f"{CHECKPOINT}offsets/{saved.batch}")
    return archive.content(file).decode()


def _changes(kept: Sequence[SavedOperator], code: Rehearsal, without_timers: Collection[str]) -> list[str]:
    told = []
    for saved in kept:
        declared = code.operators[saved.name]
        clauses = [f"{saved.keys} keys in {len(declared.buckets)} buckets and {code.partitions} partitions"]
        told.append(f"operator {saved.name}: {'; '.join(clauses + fitting(saved, declared, saved.name in without_timers))}")
    new = sorted(set(code.operators) - {saved.name for saved in kept})
    return told + [f"operator {name}: begins empty" for name in new]


# -- native --------------------------------------------------------------------------------------------------------------


def check_native_state(
    saved: Savepoint, archive: Archive, project: Project, pipeline: Pipeline, dropped: Collection[str], code: Rehearsal | None
) -> None:
    """Spark's own files go on as they are, or not at all."""
    alternatives = f"a canonical savepoint can: strandline savepoint create {pipeline.name} --type canonical"
    if any(operator.get("native") for operator in saved.operators):
        alternatives = (
            "read the sources again into a branch: strandline fork "
            f"{pipeline.name} --from start --as NAME --into branch:B, then publish it; Spark's own operators know no other way"
        )
    if dropped:
        raise UsageError(
            f"--allow-dropped-state {min(dropped)}: savepoint {saved.id} is native, and its state goes on as a whole or not at all",
            next_command=alternatives,
        )
    if not saved.operators:
        return
    before = json.loads(_plan(saved, archive).split("\n")[1]).get("conf", {}).get(PARTITIONS)
    wanted = project.profile.spark.conf.get(PARTITIONS)  # one that was asked for, not one per core of wherever this runs
    if wanted is not None and before is not None and str(wanted) != str(before):
        raise UsageError(
            f"savepoint {saved.id} is native and keeps its state in {before} partitions; {PARTITIONS} is {wanted} in strandline.yaml, and "
            "Spark's own files cannot be divided anew",
            next_command=f"leave {PARTITIONS} at {before}, or: {alternatives}",
        )
    if code is not None:
        keyed = [OperatorRecord.from_json(told) for told in saved.operators if not told.get("native")]
        if gone := sorted({record.name for record in keyed} - set(code.operators)):
            raise DefinitionError(
                f"savepoint {saved.id} is native and holds state of the keyed operator '{gone[0]}', which the pipeline no longer has (it has "
                f"{', '.join(sorted(code.operators)) or 'none'})",
                next_command=f"keep the operator and its name=…; to let its state go, {alternatives}",
            )
