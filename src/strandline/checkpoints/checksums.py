"""The checksums that lie beside and inside checkpoint files, computed without a library of their own.

Three kinds protect a checkpoint. Hadoop's local file system keeps ``.name.crc`` beside each file: a CRC-32 per chunk. Spark keeps
``name.crc`` beside changelogs and snapshots, on every store: a CRC-32C of the whole file, in JSON. Each block of a changelog has an
xxHash32 of its content.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

_HADOOP_MAGIC = b"crc\x00"
_CASTAGNOLI = 0x82F63B78
_ALL = 0xFFFFFFFF

_WIDE = 32_768
"""Bytes from which a CRC-32C is worth loading numpy: a tenth of a second, once, against 80 ns a byte."""
_ROW = 1024
"""Bytes of a row; rows are computed side by side and joined afterwards."""
_SLAB = 4096
"""Rows at a time: their registers stay in the processor's cache, and little memory is taken."""
_FEW = 8
"""Contents below which computing them side by side gains nothing."""


def hadoop_says_same(content: bytes, sidecar: bytes) -> bool | None:
    """Whether a file is what its ``.name.crc`` was written for; None when that is no such file."""
    if len(sidecar) < 8 or sidecar[:4] != _HADOOP_MAGIC:
        return None
    (chunk,) = struct.unpack_from(">I", sidecar, 4)
    if chunk == 0 or len(sidecar) % 4:
        return None
    expected = struct.unpack(f">{(len(sidecar) - 8) // 4}I", sidecar[8:])
    found = tuple(zlib.crc32(content[start : start + chunk]) for start in range(0, len(content), chunk))
    return found == expected


def spark_says_same(content: bytes, sidecar: bytes) -> bool | None:
    """Whether a file is what its ``name.crc`` was written for; None when that is no such file, or of a newer kind."""
    try:
        told = json.loads(sidecar)
        if told["algorithm"] != "CRC32C":
            return None
        size, value = int(told["mainFileSize"]), int(told["value"]) & _ALL
    except (ValueError, KeyError, TypeError):
        return None
    return size == len(content) and crc32c(content) == value


# -- CRC-32C -----------------------------------------------------------------------------------------------------------


def crc32c(content: bytes) -> int:
    many = len(content) >= _WIDE or (len(content) >= 4 * _ROW and "numpy" in sys.modules)
    register = _by_rows(content) if many else _byte_by_byte(_ALL, content)
    return register ^ _ALL


@cache
def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_CASTAGNOLI if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _byte_by_byte(register: int, content: bytes) -> int:
    table = _table()
    for byte in content:
        register = table[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register


def _by_rows(content: bytes) -> int:
    """All rows at once, each from zero; a CRC is linear, so they are then put one after the other."""
    import numpy as np

    table: Any = np.array(_table(), dtype=np.uint32)
    first, second, third, fourth = _row_of_zeros()
    whole = _ALL
    rows = len(content) // _ROW
    for begun in range(0, rows, _SLAB):
        count = min(_SLAB, rows - begun)
        slab: Any = np.frombuffer(content, dtype=np.uint8, count=count * _ROW, offset=begun * _ROW)
        registers: Any = np.zeros(count, dtype=np.uint32)
        for column in slab.reshape(count, _ROW).T.astype(np.uint32):
            registers = table[(registers ^ column) & 0xFF] ^ (registers >> 8)
        for register in registers.tolist():
            whole = first[whole & 0xFF] ^ second[whole >> 8 & 0xFF] ^ third[whole >> 16 & 0xFF] ^ fourth[whole >> 24] ^ register
    return _byte_by_byte(whole, content[rows * _ROW :])


@cache
def _row_of_zeros() -> tuple[tuple[int, ...], ...]:
    """What a row of zero bytes makes of a register, by each of its four bytes."""
    bits = [_byte_by_byte(1 << bit, bytes(_ROW)) for bit in range(32)]
    tables = []
    for byte in range(4):
        table = [0] * 256
        for value in range(1, 256):
            lowest = value & -value
            table[value] = table[value ^ lowest] ^ bits[8 * byte + lowest.bit_length() - 1]
        tables.append(tuple(table))
    return tuple(tables)


# -- xxHash32 ----------------------------------------------------------------------------------------------------------

_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393


def xxhash32(content: bytes, seed: int = 0) -> int:
    lanes: list[int] = []
    stripes = len(content) // 16
    if stripes:
        a, b, c, d = (seed + _P1 + _P2) & _ALL, (seed + _P2) & _ALL, seed, (seed - _P1) & _ALL
        for w, x, y, z in struct.iter_unpack("<4I", content[: stripes * 16]):
            a = (a + w * _P2) & _ALL
            a = ((a << 13 | a >> 19) * _P1) & _ALL
            b = (b + x * _P2) & _ALL
            b = ((b << 13 | b >> 19) * _P1) & _ALL
            c = (c + y * _P2) & _ALL
            c = ((c << 13 | c >> 19) * _P1) & _ALL
            d = (d + z * _P2) & _ALL
            d = ((d << 13 | d >> 19) * _P1) & _ALL
        lanes = [a, b, c, d]
    return _finished(lanes, content, seed)


def _finished(lanes: Sequence[int], content: bytes, seed: int) -> int:
    """Four lanes, which whole stripes of 16 bytes went into, and what is left."""
    size = len(content)
    stripes = size // 16
    mixed = sum(_turn(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) if lanes else seed + _P5
    mixed = (mixed + size) & _ALL
    words_end = size - size % 4
    for (word,) in struct.iter_unpack("<I", content[stripes * 16 : words_end]):
        mixed = (_turn((mixed + word * _P3) & _ALL, 17) * _P4) & _ALL
    for byte in content[words_end:]:
        mixed = (_turn((mixed + byte * _P5) & _ALL, 11) * _P1) & _ALL
    mixed = ((mixed ^ mixed >> 15) * _P2) & _ALL
    mixed = ((mixed ^ mixed >> 13) * _P3) & _ALL
    return mixed ^ mixed >> 16


def xxhash32_of_each(contents: Sequence[bytes], seed: int = 0) -> list[int]:
    """Of many contents of one length: each depends on itself alone, so they are computed side by side."""
    size = len(contents[0])
    stripes = size // 16
    if len(contents) < _FEW or size * len(contents) < _WIDE:
        return [xxhash32(content, seed) for content in contents]
    import numpy as np

    whole: Any = np.frombuffer(b"".join(content[: stripes * 16] for content in contents), dtype="<u4").reshape(len(contents), stripes, 4)
    lanes: Any = np.empty((len(contents), 4), dtype=np.uint32)
    lanes[:] = [(seed + _P1 + _P2) & _ALL, (seed + _P2) & _ALL, seed, (seed - _P1) & _ALL]
    for stripe in np.ascontiguousarray(whole.transpose(1, 0, 2)) * np.uint32(_P2):
        lanes += stripe
        lanes = (lanes << np.uint32(13) | lanes >> np.uint32(19)) * np.uint32(_P1)
    return [_finished(own, content, seed) for own, content in zip(lanes.tolist(), contents, strict=True)]


def _turn(value: int, by: int) -> int:
    return (value << by | value >> 32 - by) & _ALL
