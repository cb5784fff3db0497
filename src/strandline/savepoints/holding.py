"""Does a table, at a snapshot, hold every row that a strand brought to it up to a batch? Proven, or the reason why it is not.

A table that was rolled back, restored from an older copy or made anew looks complete to whoever only asks for its newest stamp. The
ledger saw what entered it.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.ledger import Ledger
from strandline.model.fence import is_rolled_back, latest
from strandline.model.stamp import Witness
from strandline.tables.view import Link, TableView


def links_of(ledger: Ledger, pipeline: str, strand: str, batch: int) -> tuple[Link, ...]:
    """A strand up to a batch, and the strands it goes on from, each up to the batch where it was left; the newest first."""
    found = [(strand, batch)]
    known = ledger.strands.get(pipeline, strand)
    while known is not None and known.parent is not None and known.parent_batch is not None and known.parent not in dict(found):
        found.append((known.parent, known.parent_batch))
        known = ledger.strands.get(pipeline, known.parent)
    return tuple(found)


def why_not(view: TableView, at: int | None, pipeline: str, links: Sequence[Link], ledger: Ledger) -> str | None:
    """None when it is proven."""
    witness = next((s.stamp.witness for s in view.lineage(at) if s.stamp is not None and s.stamp.pipeline == pipeline), None)
    if at == view.head:
        mark, newest = view.mark(pipeline), view.newest_stamp(pipeline)
        if is_rolled_back(mark, newest):
            return "it was rolled back without a boundary"
        witness = latest(mark, newest)
    places = {strand: place for place, (strand, _) in enumerate(links)}
    if witness is not None and witness.strand not in places:
        return f"it was last written by strand {witness.strand} (batch {witness.batch}), and strand {links[0][0]} does not go on from there"
    place = places[witness.strand] if witness is not None else len(links)
    if witness is not None and witness.batch > links[place][1]:
        return f"it already holds batch {witness.batch} of strand {witness.strand}"
    if (place, witness.batch if witness is not None else None) == (0, links[0][1]):
        return None
    if not ledger.batches.knows(pipeline, links[0][0]):
        return "the ledger cannot tell whether its last batches had rows for it"
    missing = _recorded_after(view.name, witness, place, pipeline, links, ledger)
    return None if missing is None else f"the ledger saw batch {missing} enter it, and it is not there"


def _recorded_after(table: str, witness: Witness | None, place: int, pipeline: str, links: Sequence[Link], ledger: Ledger) -> int | None:
    """The first batch that brought rows to the table after its newest stamp, as the ledger knows it."""
    reached = witness.batch if witness is not None else -1
    for number, (strand, limit) in reversed(list(enumerate(links))):
        if number > place:
            continue
        after = reached if number == place else -1  # a strand's own batches alone; the one it goes on from is recorded without rows
        for batch, record in sorted(ledger.batches.between(pipeline, strand, after, limit + 1).items()):
            if record.rows_by_table.get(table, 0) > 0:
                return batch
    return None
