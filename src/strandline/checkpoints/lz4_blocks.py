"""Streams of LZ4 blocks, as Spark writes changelogs: block by block, so that a header needs only the first.

A block is ``LZ4Block``, a token, its length packed and unpacked, a checksum of the unpacked bytes, then the bytes. One of length zero ends
the stream.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator

from strandline.checkpoints.checksums import xxhash32, xxhash32_of_each
from strandline.checkpoints.unreadable import NotKnown, Truncated, Unreadable

_MAGIC = b"LZ4Block"
_HEADER = 21
_PLAIN, _PACKED = 0x10, 0x20
_SEED = 0x9747B28C
_CHECKSUM_BITS = 0x0FFFFFFF
"""The writer drops the highest four bits."""
_MOST = 64 << 20
"""More than a block can hold: a length beyond it is damage, not a reason to take memory."""
_LARGE = 65_536
"""Bytes from which a stream is worth loading pyarrow, which unpacks a hundred times as fast."""
_TOGETHER = 256
"""Blocks whose checksums are computed side by side; a full one has 64 KB."""


def blocks(raw: bytes, *, checked: bool) -> Iterator[bytes]:
    """The unpacked blocks; `checked` compares each with its checksum."""
    for content, checksum in _contents(raw, unpack, whole=checked):
        if checked and xxhash32(content, _SEED) & _CHECKSUM_BITS != checksum:
            raise _other_checksum()
        yield content


def check(raw: bytes) -> None:
    """Unpack every block and compare its checksum: as `blocks` does, for many megabytes too."""
    alike: dict[int, list[tuple[bytes, int]]] = {}
    for content, checksum in _contents(raw, _unpacker(len(raw)), whole=True):
        own = alike.setdefault(len(content), [])
        own.append((content, checksum))
        if len(own) == _TOGETHER:
            _compare(alike.pop(len(content)))
    for own in alike.values():
        _compare(own)


def _compare(alike: list[tuple[bytes, int]]) -> None:
    found = xxhash32_of_each([content for content, _ in alike], _SEED)
    if any(value & _CHECKSUM_BITS != checksum for value, (_, checksum) in zip(found, alike, strict=True)):
        raise _other_checksum()


def _other_checksum() -> Unreadable:
    return Unreadable("the checksum of a block does not match")


Unpacker = Callable[[bytes, int], bytes]


def _unpacker(size: int) -> Unpacker:
    if size < _LARGE and "pyarrow" not in sys.modules:
        return unpack
    import pyarrow as pa

    codec = pa.Codec("lz4_raw")

    def unpack_fast(packed: bytes, size: int) -> bytes:
        try:
            return bytes(codec.decompress(packed, size, asbytes=True))
        except (OSError, pa.ArrowException) as error:
            raise Unreadable("a block does not unpack") from error

    return unpack_fast


def _contents(raw: bytes, unpacker: Unpacker, *, whole: bool) -> Iterator[tuple[bytes, int]]:
    """Every block unpacked, with the checksum it should have; `whole` wants nothing behind the last."""
    if raw[:8] != _MAGIC:
        raise (
            NotKnown("it is not compressed with lz4, so it can only be read with Spark")
            if raw[:4] in _OTHERS
            else Unreadable("it does not begin with an LZ4 block")
        )
    at = 0
    while True:
        if len(raw) - at < _HEADER:
            raise Truncated("it ends in the middle of a block")
        if raw[at : at + 8] != _MAGIC:
            raise Unreadable("a block of it does not begin as one")
        packed, size, checksum = struct.unpack_from("<iiI", raw, at + 9)
        method = raw[at + 8] & 0xF0
        at += _HEADER
        if not 0 <= packed <= _MOST or not 0 <= size <= _MOST or method not in (_PLAIN, _PACKED):
            raise Unreadable("the header of a block makes no sense")
        if size == 0:
            if at != len(raw) and whole:
                raise Unreadable("something follows its end")
            return
        if len(raw) - at < packed:
            raise Truncated("it ends in the middle of a block")
        content = raw[at : at + packed] if method == _PLAIN else unpacker(raw[at : at + packed], size)
        at += packed
        if len(content) != size:
            raise Unreadable("a block has another length than it says")
        yield content, checksum


_OTHERS = (b"\x28\xb5\x2f\xfd", b"\x82SNA", b"ZV\x00\x00", b"ZV\x01\x00")
"""How streams of Spark's other codecs begin: zstd, snappy, lzf."""


def unpack(packed: bytes, size: int) -> bytes:
    """One LZ4 block: literals, then copies of what came before, in turn."""
    out = bytearray()
    at = 0
    try:
        while True:
            token = packed[at]
            at += 1
            literals, at = _length(packed, at, token >> 4)
            if at + literals > len(packed) or len(out) + literals > size:
                raise Unreadable("a block does not unpack")
            out += packed[at : at + literals]
            at += literals
            if at == len(packed):
                return bytes(out)
            distance = packed[at] | packed[at + 1] << 8
            length, at = _length(packed, at + 2, token & 15)
            length += 4
            start = len(out) - distance
            if distance == 0 or start < 0 or len(out) + length > size:
                raise Unreadable("a block does not unpack")
            repeated = out[start : start + length]
            out += (repeated * (length // len(repeated) + 1))[:length] if len(repeated) < length else repeated
    except IndexError:
        raise Unreadable("a block does not unpack") from None


def _length(packed: bytes, at: int, begun: int) -> tuple[int, int]:
    if begun == 15:
        while packed[at] == 255:
            begun += 255
            at += 1
        begun += packed[at]
        at += 1
    return begun, at
