"""A processor's key, and the bytes it is found by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.state.codec import Codec, codec_of, pack, unpack
from strandline.state.types import StructOf


class Keys:
    """How a key looks: a plain value with ``by="customer"``, a named tuple with ``by=["country", "customer"]``."""

    def __init__(self, fields: StructOf, single: bool) -> None:
        self.fields = fields
        self.names = fields.names
        self._single = single
        self._codec: Codec = codec_of(fields.fields[0].type if single else fields)

    @property
    def is_plain(self) -> bool:
        """Arrow gives keys as user code sees them."""
        return self._single and self._codec.is_plain

    def pack(self, key: Any) -> bytes:
        return pack(self._codec.to_plain(key))

    def pack_all(self, keys: Sequence[Any]) -> list[bytes]:
        if self.is_plain:
            return list(map(pack, keys))
        to_plain = self._codec.to_plain
        return [pack(to_plain(key)) for key in keys]

    def unpack(self, packed: bytes) -> Any:
        return self._codec.from_plain(unpack(packed))

    def of_columns(self, columns: Sequence[Any]) -> Any:
        """The key that is made of these values, one per column."""
        return columns[0] if self._single else tuple(columns)

    def columns(self, packed: bytes) -> tuple[Any, ...]:
        """The values of its columns, also when there is only one."""
        key = self.unpack(packed)
        return (key,) if self._single else tuple(key)
