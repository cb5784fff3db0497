"""The events of a bucket's batch by key, straight from Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from strandline.state.arrow import rows_of
from strandline.state.keys import Keys

if TYPE_CHECKING:
    import pyarrow as pa


class GroupedEvents:
    """Rows of one bucket, sorted by key; implements `state.bucket.Events`."""

    def __init__(self, batches: Sequence[pa.RecordBatch], keys: Keys, order_by: str | None) -> None:
        import numpy as np
        import pyarrow as pa

        table = pa.Table.from_batches(batches).combine_chunks()
        codes, values = _codes(table, keys.names)
        if order_by is None:
            order = np.argsort(codes, kind="stable")
        else:
            column = table.column(order_by)
            plain = pa.types.is_primitive(column.type) and column.null_count == 0
            ranks = column.to_numpy() if plain else _ranks(table, order_by)
            order = np.lexsort((ranks, codes))
        ordered = codes[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        self._rows = rows_of(table.take(pa.array(order)).combine_chunks())
        self._bounds = [*starts.tolist(), len(order)]
        distinct = [values[code] for code in ordered[starts].tolist()]
        self.keys = keys.pack_all(distinct)
        self._values = distinct if keys.is_plain else [keys.unpack(packed) for packed in self.keys]

    def key(self, number: int) -> Any:
        return self._values[number]

    def events(self, number: int) -> list[Any]:
        return self._rows[self._bounds[number] : self._bounds[number + 1]]


def _codes(table: pa.Table, names: Sequence[str]) -> tuple[Any, Any]:
    """A number per row that is equal for equal keys, and the key behind each number."""
    import numpy as np

    encoded = [table.column(name).combine_chunks().dictionary_encode() for name in names]
    columns = [column if not hasattr(column, "chunks") else column.chunk(0) for column in encoded]
    values = [column.dictionary.to_pylist() for column in columns]
    codes = columns[0].indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if len(names) == 1:
        return codes, values[0]
    for column in columns[1:]:
        codes = codes * (len(column.dictionary) + 1) + column.indices.to_numpy(zero_copy_only=False)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    places = [column.indices.to_numpy(zero_copy_only=False)[first] for column in columns]
    keys = [tuple(own[place] for own, place in zip(values, row, strict=True)) for row in zip(*places, strict=True)]
    return inverse, keys


def _ranks(table: pa.Table, name: str) -> Any:
    """Numbers in the order of a column that numpy cannot sort itself, such as strings; nulls come first."""
    import numpy as np
    import pyarrow.compute as pc

    ranks = np.empty(table.num_rows, dtype=np.int64)
    ranks[pc.sort_indices(table.column(name), null_placement="at_start").to_numpy()] = np.arange(table.num_rows)
    return ranks
