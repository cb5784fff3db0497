"""The files that a restart needs, against the judge who decides: Spark itself goes on from a copy of nothing else, and comes to the same rows."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import strandline as sl
from strandline.checkpoints.checkpoint import Checkpoint
from strandline.checkpoints.needed import FileKind, NeededFile, Problem
from strandline.checkpoints.requirements import needed_by
from strandline.checkpoints.state_files import relocate_operator
from strandline.checkpoints.storage import LocalStorage
from strandline.checkpoints.verification import Answer, Verification, newest_restartable, verify
from strandline.project.config import CONFIG_NAME, load_project
from strandline.runtime.options import ForBatches
from strandline.testing import generated_orders, table_rows
from strandline.testing.fixtures import Sandbox

pytestmark = pytest.mark.engine

EVENTS, PER_BATCH, SHIFT = 240, 40, 60

PIPELINES = f"""
import strandline as sl
from pyspark.sql import functions as F

class Totals(sl.KeyedProcess):
    total = sl.reducing_state("double", lambda a, b: a + b)

    def process(self, key, events, ctx):
        for event in events:
            self.total.add(event.amount)
        yield key, round(self.total.get(), 6)

@sl.pipeline(source=sl.generator(events_per_batch={PER_BATCH}, total={EVENTS}, duplicates=0.3), sink=sl.table("shop.totals"),
             output_mode="append", checkpoint=sl.checkpoint(every="0 s"))
def totals(orders):
    once = sl.dedupe(orders, by="order_id", forever=True)
    return sl.keyed(once, by="customer", process=Totals(), output="customer string, total double")

@sl.pipeline(sources={{"left": sl.generator(events_per_batch={PER_BATCH}, total={EVENTS}), "right": sl.generator(events_per_batch={PER_BATCH}, total={EVENTS})}},
             sink=sl.table("shop.pairs"), event_time="placed_at", allowed_lateness="1 hour", checkpoint=sl.checkpoint(every="0 s", retain=2))
def pairs(left, right):
    number = F.expr("cast(substring(order_id, 3) as bigint)")
    left = left.select(number.alias("n"), "placed_at")
    right = right.select((number + {SHIFT}).alias("n"), F.col("placed_at").alias("seen_at"), "customer")
    return sl.join_streams(left, right, on="n", left_time="placed_at", right_time="seen_at", within="1 hour").select("n", "customer")

@sl.pipeline(source=sl.files("data", schema="n bigint", max_files_per_batch=1), sink=sl.table("shop.numbers"), checkpoint=sl.checkpoint(every="0 s"))
def numbers(rows):
    return rows
"""


def checkpoint_at(folder: str | Path) -> Checkpoint:
    return Checkpoint(LocalStorage(str(folder)))


def copy_of_needed(checkpoint: Checkpoint, batch: int, target: Path) -> tuple[NeededFile, ...]:
    """Exactly those files, without any checksum beside them; the one kind that knows its place is told the new one."""
    files = needed_by(checkpoint, batch)
    for file in files:
        assert file.problem is None, file
        content = (Path(checkpoint.location) / file.path).read_bytes()
        (target / file.path).parent.mkdir(parents=True, exist_ok=True)
        (target / file.path).write_bytes(relocate_operator(content, str(target)) if file.kind is FileKind.OPERATOR else content)
    return files


def go_on_from(sandbox: Sandbox, pipeline: str) -> Path:
    """Let the pipeline's checkpoint be a copy of what its newest batch needs, at another place; the old one is gone."""
    old = checkpoint_at(sandbox.project.checkpoint_of(pipeline))
    folder = sandbox.folder / "restored" / pipeline
    files = copy_of_needed(old, old.completed()[-1], folder)
    shutil.rmtree(old.location)
    config = sandbox.folder / CONFIG_NAME
    config.write_text(config.read_text().replace("    spark:", "    checkpoints: restored\n    spark:"))
    sandbox.project = load_project(sandbox.folder)
    assert Path(sandbox.project.checkpoint_of(pipeline)) == folder
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {file.path for file in files}
    assert verify(checkpoint_at(folder), checkpoint_at(folder).completed()[-1]).answer is Answer.YES
    return folder


@contextmanager
def setting(sandbox: Sandbox, key: str, value: str) -> Iterator[None]:
    before = sandbox.spark.conf.get(key, None)
    sandbox.spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            sandbox.spark.conf.unset(key)
        else:
            sandbox.spark.conf.set(key, before)


CHANGELOGS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
"""Without them every batch leaves a snapshot: the way to have one for certain, whatever Spark's maintenance does meanwhile."""


# -- keyed state after dedupe ------------------------------------------------------------------------------------------


def expected_totals() -> list[tuple[str, float]]:
    rows, sums, seen = [], dict[str, float](), set[str]()
    orders = list(generated_orders(sl.generator(total=EVENTS, events_per_batch=PER_BATCH, duplicates=0.3)))
    assert len({order.order_id for order in orders}) < EVENTS
    for start in range(0, EVENTS, PER_BATCH):
        changed = set()
        for order in orders[start : start + PER_BATCH]:
            if order.order_id not in seen:
                seen.add(order.order_id)
                sums[order.customer] = sums.get(order.customer, 0.0) + order.amount
                changed.add(order.customer)
        rows += [(customer, round(sums[customer], 6)) for customer in changed]
    return sorted(rows)


def test_spark_goes_on_from_the_needed_files_alone_and_verify_misses_none_of_them(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.pipelines(PIPELINES)
    sandbox.run("totals", ForBatches(2))
    with setting(sandbox, CHANGELOGS, "false"):
        sandbox.run("totals", ForBatches(1))
    sandbox.run("totals", ForBatches(2))
    checkpoint = checkpoint_at(sandbox.project.checkpoint_of("totals"))

    assert checkpoint.completed() == [0, 1, 2, 3, 4]
    assert [verify(checkpoint, batch).because for batch in checkpoint.completed()] == [""] * 5
    assert newest_restartable(checkpoint) == 4
    kinds = {batch: kinds_of(checkpoint, batch, "dedupe") for batch in checkpoint.completed()}
    assert kinds[1] == {FileKind.CHANGELOG}
    assert kinds[2] == {FileKind.SNAPSHOT, FileKind.TABLE}
    assert kinds[4] == kinds_of(checkpoint, 4, "totals") == {FileKind.SNAPSHOT, FileKind.TABLE, FileKind.CHANGELOG}
    assert FileKind.SNAPSHOT in kinds_of(checkpoint, 1, "totals"), "a new column family makes Spark write a snapshot at once"

    every_damage_is_named(checkpoint, 4, tmp_path / "damaged")
    for batch in (1, 3):
        bare = tmp_path / f"bare-{batch}"
        copied = copy_of_needed(checkpoint, batch, bare)
        assert [f.path for f in needed_by(checkpoint_at(bare), batch)] == [f.path for f in copied], (
            "a copy of the needed files needs the same"
        )

    go_on_from(sandbox, "totals")
    sandbox.run("totals")
    found = sorted((row["customer"], row["total"]) for row in table_rows(sandbox.project, "shop.totals"))
    assert [customer for customer, _ in found] == [customer for customer, _ in expected_totals()]
    assert [total for _, total in found] == pytest.approx([total for _, total in expected_totals()])


def kinds_of(checkpoint: Checkpoint, batch: int, operator: str) -> set[FileKind]:
    return {file.kind for file in needed_by(checkpoint, batch) if file.place is not None and file.place.operator_name == operator}


def every_damage_is_named(original: Checkpoint, batch: int, folder: Path) -> None:
    """All that is not needed goes first, older ways to the same state with it; then each needed file, whole, then by a single byte."""
    shutil.copytree(original.location, folder)
    for metadata in folder.glob("state/*/_metadata/v2/[0-9]*"):  # as whoever moves a checkpoint must
        metadata.write_bytes(relocate_operator(metadata.read_bytes(), str(folder)))
        (metadata.parent / f".{metadata.name}.crc").unlink()
    checkpoint = checkpoint_at(folder)
    needed = needed_by(checkpoint, batch)
    kept = {name for file in needed for name in (file.path, *checksums_of(file.path))}
    for path in folder.rglob("*"):
        if path.is_file() and str(path.relative_to(folder)) not in kept:
            path.unlink()
    assert verify(checkpoint, batch).answer is Answer.YES
    for file in needed:
        path = folder / file.path
        whole = path.read_bytes()
        path.unlink()
        removed = verify(checkpoint, batch)
        name = file.path.rpartition("/v2/")[0] + "/v2" if "/v2/" in file.path else file.path  # the last of its kind: its number is gone too
        assert (removed.answer, [f.path for f in removed.troubles if f.problem is Problem.MISSING]) == (Answer.NO, [name])
        protected = any((folder / name).exists() for name in checksums_of(file.path))
        at = len(whole) // 2 if protected else 0  # of JSON without a checksum only the form can be judged
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        flipped = verify(checkpoint, batch)
        assert (flipped.answer, [f.path for f in flipped.troubles]) == (Answer.NO, [file.path])
        path.write_bytes(whole)
    assert verify(checkpoint, batch).answer is Answer.YES


def checksums_of(path: str) -> tuple[str, str]:
    """Hadoop's, and Spark's."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc", f"{path}.crc"


def problems(found: Verification) -> list[tuple[str, Problem | None]]:
    return [(file.path, file.problem) for file in found.troubles]


# -- a join ------------------------------------------------------------------------------------------------------------


@contextmanager
def watching(checkpoint: Checkpoint) -> Iterator[list[Answer]]:
    """What verify says of the newest batch, again and again, while something else happens."""
    answers: list[Answer] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            answers.extend(verify(checkpoint, batch).answer for batch in checkpoint.completed()[-1:])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def test_the_four_stores_of_a_join_are_all_there(sandbox: Sandbox) -> None:
    sandbox.pipelines(PIPELINES)
    checkpoint = checkpoint_at(sandbox.project.checkpoint_of("pairs"))
    with watching(checkpoint) as answers:
        sandbox.run("pairs", ForBatches(4))

    assert set(answers) == {Answer.YES}, "also while Spark writes the next batch and retires the oldest"
    assert verify(checkpoint, 3).answer is Answer.YES
    assert problems(verify(checkpoint, checkpoint.completed()[0])) == [(f"offsets/{checkpoint.completed()[0] - 1}", Problem.MISSING)]
    stores = {(file.place.partition, file.place.store) for file in needed_by(checkpoint, 3) if file.place is not None}
    assert len(stores) == 8, stores

    go_on_from(sandbox, "pairs")
    sandbox.run("pairs")
    orders = list(generated_orders(sl.generator(total=EVENTS, events_per_batch=PER_BATCH)))
    expected = sorted((order.seq + SHIFT, order.customer) for order in orders if order.seq + SHIFT < EVENTS)
    assert sorted((row["n"], row["customer"]) for row in table_rows(sandbox.project, "shop.pairs")) == expected


# -- the log of a file source ------------------------------------------------------------------------------------------


def test_files_that_were_read_are_not_read_again(sandbox: Sandbox) -> None:
    sandbox.pipelines(PIPELINES)
    (sandbox.folder / "data").mkdir()
    for number in range(5):
        (sandbox.folder / "data" / f"{number}.json").write_text(f'{{"n": {number}}}\n')
    with setting(sandbox, "spark.sql.streaming.fileSource.log.compactInterval", "3"):
        sandbox.run("numbers")
        checkpoint = checkpoint_at(sandbox.project.checkpoint_of("numbers"))

        assert [file.path for file in needed_by(checkpoint, 4) if file.kind is FileKind.SOURCE_LOG] == [
            *("sources/0/2.compact", "sources/0/3", "sources/0/4")
        ]
        assert [file.path for file in needed_by(checkpoint, 1) if file.kind is FileKind.SOURCE_LOG] == ["sources/0/0", "sources/0/1"]
        assert not any(file.place for file in needed_by(checkpoint, 4)), "it keeps no state"

        go_on_from(sandbox, "numbers")
        (sandbox.folder / "data" / "5.json").write_text('{"n": 5}\n')
        sandbox.run("numbers")
    assert sorted(row["n"] for row in table_rows(sandbox.project, "shop.numbers")) == [0, 1, 2, 3, 4, 5]
