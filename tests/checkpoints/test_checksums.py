"""Checksums, against values that others published or wrote."""

from __future__ import annotations

import json
import random
import struct
import zlib

import pytest

from strandline.checkpoints.checksums import crc32c, hadoop_says_same, spark_says_same, xxhash32, xxhash32_of_each
from strandline.checkpoints.lz4_blocks import blocks, check, unpack
from strandline.checkpoints.unreadable import NotKnown, Truncated, Unreadable


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_crc32c_is_that_of_the_standard(content: bytes, value: int) -> None:
    assert crc32c(content) == value


@pytest.mark.parametrize("size", [4095, 4096, 32_767, 32_768, 32_769, 100_003, 4096 * 1024 + 2049])
def test_many_bytes_side_by_side_give_what_one_after_the_other_gives(size: int) -> None:
    from strandline.checkpoints import checksums

    content = (bytes(range(251)) * (size // 251 + 1))[:size]

    assert crc32c(content) == checksums._byte_by_byte(0xFFFFFFFF, content) ^ 0xFFFFFFFF
    assert checksums._by_rows(content) == checksums._byte_by_byte(0xFFFFFFFF, content)


@pytest.mark.parametrize(
    ("content", "seed", "value"),
    [(b"", 0, 0x02CC5D05), (b"a", 0, 0x550D7456), (b"abc", 0, 0x32D153FF), (b"Nobody inspects the spammish repetition", 0, 0xE2293B2F)],
)
def test_xxhash_is_that_of_its_author(content: bytes, seed: int, value: int) -> None:
    assert xxhash32(content, seed) == value


@pytest.mark.parametrize("size", [0, 15, 16, 16_384, 65_535, 65_536])
@pytest.mark.parametrize("many", [1, 7, 8, 20])
def test_hashes_side_by_side_are_those_of_each(size: int, many: int) -> None:
    contents = [random.Random(number).randbytes(size) for number in range(many)]

    assert xxhash32_of_each(contents, 0x9747B28C) == [xxhash32(content, 0x9747B28C) for content in contents]


def test_hadoops_checksum_is_of_every_chunk() -> None:
    content = bytes(range(256)) * 5
    sidecar = b"crc\x00" + struct.pack(">I3I", 512, *(zlib.crc32(content[at : at + 512]) for at in (0, 512, 1024)))

    assert hadoop_says_same(content, sidecar) is True
    assert hadoop_says_same(content[:-1] + b"x", sidecar) is False
    assert hadoop_says_same(content[:1024], sidecar) is False, "a chunk is missing"
    assert hadoop_says_same(content, b"something else") is None
    assert hadoop_says_same(content, b"crc\x00\x00\x00\x00\x00") is None


def test_sparks_checksum_is_of_the_whole_file_and_its_size() -> None:
    sidecar = {"algorithm": "CRC32C", "value": 0xE3069283 - 2**32, "mainFileSize": 9, "timestampMs": 1}

    assert spark_says_same(b"123456789", json.dumps(sidecar).encode()) is True
    assert spark_says_same(b"123456780", json.dumps(sidecar).encode()) is False
    assert spark_says_same(b"123456789", json.dumps(sidecar | {"mainFileSize": 8}).encode()) is False
    assert spark_says_same(b"123456789", json.dumps(sidecar | {"algorithm": "SHA-256"}).encode()) is None
    assert spark_says_same(b"123456789", b"{") is None


# -- LZ4 ---------------------------------------------------------------------------------------------------------------


def block(content: bytes, packed: bytes | None = None, checksum: int | None = None) -> bytes:
    checksum = xxhash32(content, 0x9747B28C) & 0x0FFFFFFF if checksum is None else checksum
    return (
        b"LZ4Block"
        + bytes([0x25 if packed else 0x15])
        + struct.pack("<iiI", len(packed or content), len(content), checksum)
        + (packed or content)
    )


END = b"LZ4Block\x15" + struct.pack("<iiI", 0, 0, 0)


def test_blocks_packed_and_plain() -> None:
    packed = b"\x32abc\x03\x00\x50hello"  # abc, then six bytes from three back, then hello

    assert unpack(packed, 14) == b"abcabcabchello"
    assert list(blocks(block(b"plain") + block(b"abcabcabchello", packed) + END, checked=True)) == [b"plain", b"abcabcabchello"]


def test_long_lengths_and_copies_of_themselves() -> None:
    packed = b"\xf1\x00" + b"0123456789abcde" + b"\x01\x00" + b"\x00"

    assert unpack(packed, 100) == b"0123456789abcde" + b"e" * 5
    assert unpack(b"\x1fa\x01\x00\xff\x05\x00", 1000) == b"a" * (1 + 15 + 255 + 5 + 4)


@pytest.mark.parametrize(
    ("raw", "error", "says"),
    [
        (b"", Unreadable, "does not begin with an LZ4 block"),
        (b"\x28\xb5\x2f\xfd....", NotKnown, "not compressed with lz4"),
        (block(b"plain")[:10], Truncated, "ends in the middle of a block"),
        (block(b"plain"), Truncated, "ends in the middle of a block"),
        (block(b"plain")[:-1], Truncated, "ends in the middle of a block"),
        (block(b"plain", checksum=1) + END, Unreadable, "the checksum of a block does not match"),
        (block(b"plain") + b"x" * 30, Unreadable, "a block of it does not begin as one"),
        (block(b"plain") + END + b"x", Unreadable, "something follows its end"),
        (b"LZ4Block\x25" + struct.pack("<iiI", -1, 5, 0), Unreadable, "the header of a block makes no sense"),
        (b"LZ4Block\x35" + struct.pack("<iiI", 1, 5, 0) + b"x" + END, Unreadable, "the header of a block makes no sense"),
        (block(b"abcd", b"\x1fa\x09\x00\x00") + END, Unreadable, "a block does not unpack"),
        (block(b"abcd", b"\xf0") + END, Unreadable, "a block does not unpack"),
        (block(b"abcd", b"\x20ab") + END, Unreadable, "a block has another length than it says"),
    ],
)
def test_damage_is_told_and_never_crashes(raw: bytes, error: type[Unreadable], says: str) -> None:
    with pytest.raises(error, match=says):
        list(blocks(raw, checked=True))


def test_a_large_stream_is_checked_block_by_block() -> None:
    import pyarrow as pa

    codec = pa.Codec("lz4_raw")
    contents = [random.Random(number).randbytes(1000) * 65 for number in range(300)] + [b"the last one is shorter" * 100]
    parts = [block(content, bytes(codec.compress(content, asbytes=True))) for content in contents]
    check(b"".join(parts) + END)

    for number, at in ((0, 21), (150, 40), (299, -1), (300, -1)):
        wrong = bytearray(parts[number])
        wrong[at] ^= 1
        with pytest.raises(Unreadable, match="a block does not unpack|the checksum of a block does not match"):
            check(b"".join([*parts[:number], bytes(wrong), *parts[number + 1 :]]) + END)
    with pytest.raises(Truncated):
        check(b"".join(parts))
