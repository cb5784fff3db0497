"""The pipeline of the savepoint tests: events of files, each once, numbered per key in the order they come."""

from __future__ import annotations

import json
import os

from strandline.model.savepoint import Savepoint
from strandline.savepoints.session import SessionTags
from strandline.savepoints.taking import Taker, Wish
from strandline.testing.fixtures import Sandbox

COUNTED = """
import strandline as sl

class Counted(sl.KeyedProcess):
    seen = sl.value_state("bigint", default=0)

    def process(self, key, events, ctx):
        for event in events:
            self.seen.update(self.seen.get() + 1)
            yield event.n, key, self.seen.get()

@sl.pipeline(source=sl.files("data", format="json", schema="n bigint, who string", max_files_per_batch=1),
             sink=sl.table("shop.counted"), checkpoint=sl.checkpoint(every="0 s"))
def counted(events):
    once = sl.dedupe(events, by="n", forever=True)
    return sl.keyed(once, by="who", process=Counted(), output="n bigint, who string, seen bigint", order_by="n")
"""


def add_file(shop: Sandbox, number: int) -> None:
    """Ten events; the last repeats the first of the file before, which state remembers."""
    folder = shop.folder / "data"
    folder.mkdir(exist_ok=True)
    numbers = [*range(number * 10, number * 10 + 10), max(0, number * 10 - 10)]
    file = folder / f"{number:03d}.json"
    file.write_text("".join(json.dumps({"n": n, "who": f"w{n % 3}"}) + "\n" for n in numbers))
    os.utime(file, (1_800_000_000 + number,) * 2)  # Spark takes the oldest first


def take(shop: Sandbox, **wish: object) -> Savepoint:
    with SessionTags(shop.project, "test", shop.heard.say, shop.spark) as tags:
        return Taker(shop.project, shop.pipeline("counted"), shop.ledger, tags, shop.heard.say).take(Wish("me@here", **wish))  # type: ignore[arg-type]
