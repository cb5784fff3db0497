"""The few Iceberg calls that need the JVM, each behind a plain Python method.

Everything py4j-shaped stays in this module and in `fencing`. Callers see rows, ids and our own values.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from strandline.model.crash import CrashPoint, reach
from strandline.model.errors import TableUnavailable
from strandline.model.fence import Decision
from strandline.model.stamp import Stamp, Witness, encode_mark, mark_key
from strandline.tables.fencing import FenceValidator, Judge, each, plain_snapshot, witnesses
from strandline.tables.view import FOR_EVER, MAIN, Snapshot, only_maintained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


MERGE_MANIFESTS_AT = 100
"""A fast append adds one manifest and is some 15 ms faster; at this many the next commit merges them into one, so
that the list which every commit rewrites, and every reader plans from, stays short."""


@dataclass(frozen=True)
class StagedFiles:
    """Data files on storage that no snapshot knows yet."""

    handles: tuple[Any, ...]
    """Java DataFile objects, opaque to callers."""
    paths: tuple[tuple[str, int, int], ...]
    """(path, rows, bytes) of each."""

    @property
    def rows(self) -> int:
        return sum(rows for _, rows, _ in self.paths)


@dataclass(frozen=True)
class Retired:
    """A branch that ends: what it holds is published. Its mark is taken over, so that its writer cannot begin it again."""

    branch: str
    pipeline: str
    by: Witness


@dataclass(frozen=True)
class Move:
    """The branch goes to another snapshot, an older one or a published one; a tag keeps what it leaves."""

    to: int
    leaving: int | None
    """The branch's head, from which it goes; None while there is no snapshot."""
    keep_as: str
    retiring: Retired | None = None


@dataclass(frozen=True)
class Begin:
    """The branch begins."""

    at: int | None
    """The snapshot it begins with; None begins it without rows."""


Entrance = Move | Begin
"""What happens to a branch in the same transaction as the boundary on top of it: no reader sees one without the other."""


class CommitRefused(Exception):
    """The fence said no; nothing entered the table."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


class CommitConflict(Exception):
    """The table moved under a compare-and-set; nothing was changed. Read again and redo."""


class CommitOutcomeUnknown(Exception):
    """The commit may or may not have happened: look before anything else."""


class JvmTable:
    """One Iceberg table, loaded in the driver's JVM."""

    def __init__(self, spark: SparkSession, catalog: str, name: str, branch: str = MAIN) -> None:
        self._spark = spark
        self.branch = branch
        """Where everything is read and written."""
        jvm: Any = spark._jvm
        # Looked up once: every dot of a Java package name is a round trip.
        self._snapshot_util = jvm.org.apache.iceberg.util.SnapshotUtil
        self._parser = jvm.org.apache.iceberg.SnapshotParser
        self._cleanup_level = jvm.org.apache.iceberg.ExpireSnapshots.CleanupLevel
        self._array_list = jvm.java.util.ArrayList
        self._expressions = jvm.org.apache.iceberg.expressions.Expressions
        self.catalog = catalog
        self.name = name
        self.full_name = f"{catalog}.{name}"
        try:
            self._table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, self.full_name)
        except Py4JJavaError as error:
            raise TableUnavailable(f"table '{name}' cannot be loaded: {error.java_exception.getMessage()}") from error
        self._staging = _Staging(spark, self._table)
        self._manifests = MERGE_MANIFESTS_AT  # unknown: let the first commit merge if there is something to merge

    # -- looking ---------------------------------------------------------------------------------------------

    def on(self, branch: str) -> JvmTable:
        """The same table, seen from another branch."""
        return self if branch == self.branch else JvmTable(self._spark, self.catalog, self.name, branch)

    def refresh(self) -> None:
        self._table.refresh()

    def witnesses(self, pipeline: str, at: int | None = None) -> tuple[Witness | None, Witness | None]:
        """(mark, newest stamp) of a pipeline on the branch, as of the last refresh; or as a snapshot's history would have it."""
        return witnesses(self._table, self._ancestors(at), pipeline, self._parser, self.branch)

    def _ancestors(self, at: int | None = None) -> Any:
        """Java snapshots of the branch, or of a snapshot, newest first; none while it does not exist."""
        head = self._table.snapshot(self.branch) if at is None else self._table.snapshot(at)
        if head is None:
            return self._array_list()
        return self._snapshot_util.ancestorsBetween(self._table, head.snapshotId(), None)

    def head(self, branch: str | None = None) -> Snapshot | None:
        snapshot = self._table.snapshot(branch or self.branch)
        return plain_snapshot(snapshot, self._parser) if snapshot is not None else None

    def head_id(self, branch: str | None = None) -> int | None:
        snapshot = self._table.snapshot(branch or self.branch)
        return int(snapshot.snapshotId()) if snapshot is not None else None

    def marked_branches(self, pipeline: str) -> list[str]:
        """Branches that are there and that the pipeline has written to, main among them."""
        names = [MAIN, *self.branches("")]
        return [name for name in dict.fromkeys(names) if self._table.properties().get(mark_key(pipeline, name)) is not None]

    def only_maintained_since(self, snapshot: int | None) -> bool:
        return only_maintained((plain_snapshot(found, self._parser) for found in each(self._ancestors())), snapshot)

    def own_snapshot(self, stamp: Stamp) -> Snapshot | None:
        """The snapshot that carries exactly this stamp's batch by exactly this attempt, if the branch's history has it."""
        for snapshot in each(self._ancestors()):
            if snapshot.summary().get("strandline.pipeline") != stamp.pipeline:
                continue
            plain = plain_snapshot(snapshot, self._parser)
            found = plain.stamp
            if found is None or found.holder.attempt < stamp.holder.attempt:
                return None
            if (found.holder, found.batch, found.kind) == (stamp.holder, stamp.batch, stamp.kind):
                return plain
        return None

    def on_branch(self, branch: str) -> str:
        """The name that SQL knows a branch by."""
        return f"{self.full_name}.`branch_{branch}`"

    def at(self, session: SparkSession, snapshot: int) -> DataFrame:
        """The table as a snapshot shows it."""
        return session.read.format("iceberg").option("versionAsOf", snapshot).load(self.full_name)

    def appended_by(self, session: SparkSession, snapshot: Snapshot) -> DataFrame:
        """The rows that an append brought, found by its own manifests: the rest of the table is not read."""
        if snapshot.parent_id is None:
            return self.at(session, snapshot.id)
        between = {"start-snapshot-id": str(snapshot.parent_id), "end-snapshot-id": str(snapshot.id)}
        return session.read.format("iceberg").options(**between).load(self.full_name)

    def written_by(self, session: SparkSession, snapshot: int) -> DataFrame:
        """The rows in files that a snapshot added: with merge-on-read those that it changed, otherwise some that it only moved too."""
        files = [str(file.location()) for file in each(self._table.snapshot(snapshot).addedDataFiles(self._table.io()))]
        found = self.at(session, snapshot)
        return found.where(found["_file"].isin(files))

    # -- changing --------------------------------------------------------------------------------------------

    def stage(self, frame: DataFrame) -> StagedFiles:
        """Write the rows as data files of this table, without any table commit."""
        return self._staging.write(frame)

    def append(self, staged: StagedFiles, stamp: Stamp, judge: Judge) -> Snapshot:
        """One transaction: files + stamp + mark, judged by the fence against the table as it is at that instant."""
        return self._commit(staged, stamp, judge, CrashPoint.COMMITTING)

    def claim(self, stamp: Stamp, judge: Judge, entrance: Entrance | None = None) -> Snapshot:
        """A boundary: an empty stamped snapshot. It moves the ref, so that every older attempt's commit is judged again."""
        return self._commit(StagedFiles((), ()), stamp, judge, CrashPoint.CLAIMING, entrance)

    def _commit(self, staged: StagedFiles, stamp: Stamp, judge: Judge, point: CrashPoint, entrance: Entrance | None = None) -> Snapshot:
        transaction = self._table.newTransaction()
        view = transaction.table()
        update = self._entered(transaction, view, entrance)
        for handle in staged.handles:
            update.appendFile(handle)
        for key, value in stamp.to_summary().items():
            update.set(key, value)
        validator = FenceValidator(judge, stamp.pipeline, stamp.holder, self._parser, view, self.branch)
        update.validateWith(validator).toBranch(self.branch)
        try:
            update.commit()
            mark = replace(stamp.witness, snapshot_id=int(view.snapshot(self.branch).snapshotId()))
            properties = transaction.updateProperties().set(mark_key(stamp.pipeline, self.branch), encode_mark(mark))
            if isinstance(entrance, Move) and (retired := entrance.retiring) is not None:
                properties.set(mark_key(retired.pipeline, retired.branch), encode_mark(retired.by))
            properties.commit()
            if isinstance(entrance, Begin):
                transaction.manageSnapshots().setMaxRefAgeMs(self.branch, FOR_EVER).commit()
            reach(point, stamp.batch)
            transaction.commitTransaction()
        except JAVA_ERRORS as error:
            raise _classify(error, validator.refusal) from error
        finally:
            validator.let_go()
        committed = self.head()
        if committed is None or committed.stamp is None or committed.stamp.holder != stamp.holder:
            committed = self.own_snapshot(stamp)  # another writer landed right behind us
        if committed is None:
            raise CommitOutcomeUnknown("the commit returned but its snapshot is not in the table's history")
        self._manifests = committed.count("manifests-created") + committed.count("manifests-kept")
        return committed

    def _entered(self, transaction: Any, view: Any, entrance: Entrance | None) -> Any:
        """The snapshot update of the transaction, after the branch has been brought where it belongs."""
        head = view.snapshot(self.branch)  # a transaction begins with a fresh look
        try:
            if isinstance(entrance, Move):
                if (int(head.snapshotId()) if head is not None else None) != entrance.leaving:
                    raise CommitConflict(f"{self.branch} moved")
                self._move(transaction, entrance)
            elif isinstance(entrance, Begin):
                if head is not None:
                    raise CommitConflict(f"branch {self.branch} has been made by someone else")
                if entrance.at is not None:
                    transaction.manageSnapshots().createBranch(self.branch, entrance.at).commit()
                elif view.currentSnapshot() is not None:  # Iceberg begins a branch with rows of main; the boundary takes them out
                    transaction.manageSnapshots().createBranch(self.branch, view.currentSnapshot().snapshotId()).commit()
                    return transaction.newDelete().deleteFromRowFilter(self._expressions.alwaysTrue())
        except JAVA_ERRORS as error:
            raise _classify(error, None) from error
        return transaction.newAppend() if self._manifests >= MERGE_MANIFESTS_AT else transaction.newFastAppend()

    def _move(self, transaction: Any, move: Move) -> None:
        manage = transaction.manageSnapshots()
        if move.leaving is not None:
            manage.createTag(move.keep_as, move.leaving).setMaxRefAgeMs(move.keep_as, FOR_EVER)
        if self.branch == MAIN:
            manage.setCurrentSnapshot(move.to)
        else:
            manage.removeBranch(self.branch).createBranch(self.branch, move.to)
        if move.retiring is not None:
            manage.removeBranch(move.retiring.branch)
        manage.commit()

    def branch_off(self, branch: str) -> None:
        """(Re)create a working branch at the head, which must exist; leftovers of a crashed attempt are dropped."""
        try:
            manage = self._table.manageSnapshots()
            if self._table.refs().get(branch) is not None:
                manage.removeBranch(branch)
            manage.createBranch(branch, self._table.snapshot(self.branch).snapshotId()).commit()
        except JAVA_ERRORS as error:
            raise _classify(error, None) from error
        self.refresh()

    def branch_at(self, branch: str, snapshot: int | None) -> None:
        """A new branch at a snapshot; without one it is empty."""
        try:
            head = self._table.currentSnapshot()
            start = snapshot if snapshot is not None else head.snapshotId() if head is not None else None
            manage = self._table.manageSnapshots()
            (manage.createBranch(branch) if start is None else manage.createBranch(branch, start)).commit()
            if snapshot is None and start is not None:  # Iceberg has no snapshot before the first one
                expressions: Any = self._spark._jvm.org.apache.iceberg.expressions.Expressions  # type: ignore[union-attr]
                self._table.newDelete().deleteFromRowFilter(expressions.alwaysTrue()).toBranch(branch).commit()
        except JAVA_ERRORS as error:
            raise _classify(error, None) from error
        self.refresh()

    def tag(self, name: str, snapshot: int) -> None:
        """Name a snapshot, which keeps it from expiry. Naming it again is fine."""
        known = self._table.refs().get(name)
        if known is not None and int(known.snapshotId()) == snapshot:
            return
        try:
            self._table.manageSnapshots().createTag(name, snapshot).setMaxRefAgeMs(name, FOR_EVER).commit()
        except JAVA_ERRORS as error:
            raise _classify(error, None) from error
        self.refresh()

    def untag(self, name: str) -> None:
        if self._table.refs().get(name) is None:
            return
        try:
            self._table.manageSnapshots().removeTag(name).commit()
        except JAVA_ERRORS as error:
            raise _classify(error, None) from error
        self.refresh()

    def branches(self, prefix: str) -> list[str]:
        return sorted(str(name) for name in each(self._table.refs().keySet()) if str(name).startswith(prefix))

    def branch_only_files(self, branch: str) -> list[tuple[str, int, int]]:
        """(path, rows, bytes) of files that the snapshots of a working branch added and ours does not have."""
        io = self._table.io()
        found: dict[str, tuple[str, int, int]] = {}  # by path: one file may hold the deletion vectors of several others
        for snapshot in self._branch_only(branch):
            for added in (snapshot.addedDataFiles(io), snapshot.addedDeleteFiles(io)):
                for file in each(added):
                    path = str(file.location())
                    found[path] = (path, int(file.recordCount()), int(file.fileSizeInBytes()))
        return list(found.values())

    def _branch_only(self, branch: str) -> Iterator[Any]:
        """Java snapshots of a branch that no other branch or tag reaches."""
        refs, head = self._table.refs(), self._table.snapshot(branch)
        others = {int(refs.get(name).snapshotId()) for name in each(refs.keySet()) if str(name) != branch}
        while head is not None and not any(self._snapshot_util.isAncestorOf(self._table, at, head.snapshotId()) for at in others):
            yield head
            head = self._table.snapshot(head.parentId()) if head.parentId() is not None else None

    def drop_branches(self, names: list[str]) -> None:
        """Remove branches, and the snapshots that only they could reach: nothing holds their files any more."""
        orphans = list(dict.fromkeys(int(snapshot.snapshotId()) for name in names for snapshot in self._branch_only(name)))
        try:
            manage = self._table.manageSnapshots()
            for name in names:
                manage.removeBranch(name)
            manage.commit()
        except JAVA_ERRORS as error:
            raise _classify(error, None) from error
        self.refresh()
        self._expire(orphans)

    def fast_forward(self, branch: str, expected: int | None, witness: Witness, pipeline: str) -> Snapshot:
        """Make a working branch's head ours, with the mark, only if ours is still where it was read."""
        self.refresh()
        head = self._table.snapshot(self.branch)
        if (head.snapshotId() if head is not None else None) != expected:
            raise CommitConflict(f"{self.branch} moved")
        transaction = self._table.newTransaction()
        try:
            manage = transaction.manageSnapshots()
            manage.fastForwardBranch(self.branch, branch).removeBranch(branch).commit()
            mark = replace(witness, snapshot_id=int(self._table.snapshot(branch).snapshotId()))
            transaction.updateProperties().set(mark_key(pipeline, self.branch), encode_mark(mark)).commit()
            reach(CrashPoint.COMMITTING, witness.batch)
            transaction.commitTransaction()
        except JAVA_ERRORS as error:
            raise _classify(error, None) from error
        return plain_snapshot(self._table.snapshot(self.branch), self._parser)

    def snapshot_count(self) -> int:
        return len(self._table.snapshots())

    def expire_to(self, keep: int) -> None:
        """Drop the oldest snapshots of main so that `keep` remain; whatever a tag or branch points to stays.

        Only metadata files go. Data files that only old snapshots knew are left to table maintenance, which can
        weigh them against savepoints and open incidents.
        """
        ancestors = json.loads(str(self._snapshot_util.currentAncestorIds(self._table)))
        refs = self._table.refs()
        named = {int(refs.get(name).snapshotId()) for name in each(refs.keySet())}
        self._expire([snapshot for snapshot in ancestors[keep:] if snapshot not in named])

    def _expire(self, snapshots: list[int]) -> None:
        if not snapshots:
            return
        # Older than the epoch is nothing: without this Iceberg also expires, unasked, whatever is older than five days.
        expire = self._table.expireSnapshots().expireOlderThan(0).cleanupLevel(self._cleanup_level.METADATA_ONLY)
        for snapshot in snapshots:
            expire.expireSnapshotId(snapshot)
        try:
            expire.commit()
        except JAVA_ERRORS as error:
            raise _classify(error, None) from error
        self.refresh()

    def delete_files(self, staged: StagedFiles) -> None:
        io = self._table.io()
        for path, _, _ in staged.paths:
            io.deleteFile(path)


class _Staging:
    """Iceberg's rewrite path writes data files and hands them over instead of committing them.

    A table handle is registered under a random group id; writing to that id collects the new files. (The older
    write option ``rewritten-file-set-id`` is ignored since Iceberg 1.9 and commits: a canary test watches this.)
    """

    def __init__(self, spark: SparkSession, table: Any) -> None:
        self._table = table
        self._coordinator = spark._jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()  # type: ignore[union-attr]
        self._cache = _table_cache(spark, table)

    def write(self, frame: DataFrame) -> StagedFiles:
        group = f"strandline-{uuid.uuid4().hex}"
        self._cache.add(group, self._table)
        try:
            frame.write.format("iceberg").mode("append").save(group)
            handles = tuple(each(self._coordinator.fetchNewFiles(self._table, group)))
        finally:
            self._coordinator.clearRewrite(self._table, group)
            self._cache.remove(group)
        facts = tuple((str(f.location()), int(f.recordCount()), int(f.fileSizeInBytes())) for f in handles)
        return StagedFiles(handles, facts)


def _table_cache(spark: SparkSession, table: Any) -> Any:
    """`SparkTableCache.get()` is static beside an instance method of the same name, which py4j cannot tell apart."""
    gateway: Any = spark.sparkContext._gateway
    loader = table.getClass().getClassLoader()
    method = loader.loadClass("org.apache.iceberg.spark.SparkTableCache").getMethod(
        "get", gateway.new_array(gateway.jvm.java.lang.Class, 0)
    )
    return method.invoke(None, gateway.new_array(gateway.jvm.java.lang.Object, 0))


JAVA_ERRORS = (Py4JJavaError, PySparkException)
"""pyspark turns some Java exceptions, such as IllegalArgumentException, into classes of its own."""

_NOT_HAPPENED = ("CommitFailedException", "ValidationException", "IllegalArgumentException")


def _classify(error: Exception, refusal: Decision | None) -> Exception:
    """Refused and conflicting commits are known not to have happened; anything else is unknown until looked up."""
    if refusal is not None:
        return CommitRefused(refusal)
    if not isinstance(error, Py4JJavaError):
        return CommitConflict(str(error).splitlines()[0])
    causes = java_causes(error)
    names = [name.rsplit(".", 1)[-1] for name, _ in causes]
    if "CommitStateUnknownException" not in names and any(name in _NOT_HAPPENED for name in names):
        return CommitConflict(causes[0][1])
    return CommitOutcomeUnknown("; caused by ".join(f"{n}: {m}" for n, (_, m) in list(zip(names, causes, strict=True))[:3]))


def java_causes(error: Py4JJavaError) -> list[tuple[str, str]]:
    """(class name, message) of a Java exception and its causes, outermost first."""
    found: list[tuple[str, str]] = []
    at: Any = error.java_exception
    while at is not None and len(found) < 20:
        found.append((str(at.getClass().getName()), str(at.getMessage())))
        at = at.getCause()
    return found
