"""Iceberg's own Avro files (manifests and manifest lists): read, and written again with a few values changed.

Values keep the form they have in the file: no date or decimal is interpreted on the way, and the header stays as Iceberg wrote it, with the
table's schema and partition spec in it.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16


class NotIceberg(Exception):
    """The bytes are not what Iceberg writes; says why."""


@dataclass(frozen=True)
class AvroFile:
    """A whole file in memory: manifests are a few megabytes at most."""

    header: bytes
    """Up to the first block, sync marker included."""
    schema: Any
    """As fastavro takes it, without logical types."""
    codec: str
    records: tuple[Record, ...]

    @classmethod
    def decode(cls, raw: bytes) -> AvroFile:
        from fastavro import parse_schema, schemaless_reader

        try:
            stream = io.BytesIO(raw)
            if stream.read(len(_MAGIC)) != _MAGIC:
                raise NotIceberg("it is no Avro file")
            facts = dict(_header_map(stream))
            sync = stream.read(_SYNC_BYTES)
            header = raw[: stream.tell()]
            codec = facts.get("avro.codec", b"null").decode()
            schema = parse_schema(_plain(json.loads(facts["avro.schema"])))
            records: list[Record] = []
            while stream.tell() < len(raw):
                count, size = _read_long(stream), _read_long(stream)
                block = io.BytesIO(_unpack(codec, stream.read(size)))
                records += [schemaless_reader(block, schema, None) for _ in range(count)]  # type: ignore[misc]
                if stream.read(_SYNC_BYTES) != sync:
                    raise NotIceberg("a block does not end where it should")
        except NotIceberg:
            raise
        except (ValueError, KeyError, IndexError, EOFError, TypeError, zlib.error, StopIteration) as error:
            raise NotIceberg(f"it cannot be read: {type(error).__name__}") from error
        return cls(header, schema, codec, tuple(records))

    def encode(self) -> bytes:
        from fastavro import schemaless_writer

        block = io.BytesIO()
        for record in self.records:
            schemaless_writer(block, self.schema, record)
        packed = _pack(self.codec, block.getvalue())
        body = _long(len(self.records)) + _long(len(packed)) + packed + self.header[-_SYNC_BYTES:] if self.records else b""
        return self.header + body


def changed(raw: bytes, change: Callable[[Record], Record]) -> bytes:
    """The same file with every record changed."""
    file = AvroFile.decode(raw)
    return AvroFile(file.header, file.schema, file.codec, tuple(map(change, file.records))).encode()


def _plain(schema: Any) -> Any:
    """Without logical types, which would turn bytes and numbers into Python values and back."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if key != "logicalType"}
    return schema


def _unpack(codec: str, raw: bytes) -> bytes:
    if codec == "deflate":
        return zlib.decompress(raw, -zlib.MAX_WBITS)
    if codec == "null":
        return raw
    raise NotIceberg(f"it is compressed with '{codec}'; only deflate (Iceberg's default) and none can be read")


def _pack(codec: str, raw: bytes) -> bytes:
    if codec == "null":
        return raw
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(raw) + packer.flush()


def _header_map(stream: io.BytesIO) -> Iterator[tuple[str, bytes]]:
    while (count := _read_long(stream)) != 0:
        if count < 0:  # a block with its size in front
            count = -count
            _read_long(stream)
        for _ in range(count):
            key = stream.read(_read_long(stream)).decode("utf-8")
            yield key, stream.read(_read_long(stream))


def _read_long(stream: io.BytesIO) -> int:
    """Zigzag, seven bits to a byte."""
    value = shift = 0
    while True:
        (byte,) = stream.read(1) or _ended()
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)


def _ended() -> bytes:
    raise EOFError


def _long(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append((rest & 0x7F) | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
