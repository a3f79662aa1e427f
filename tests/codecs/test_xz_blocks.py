"""Blocks of .xz files: found from the end of the file, and unpacked without those before them."""

from __future__ import annotations

import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codecs.stream import FOOTER_BYTES, XzBlock, XzStream, end_bytes, read_end

PARTS = st.lists(st.binary(min_size=1, max_size=500), min_size=1, max_size=6)


def parse(data: bytes) -> XzStream | None:
    num_end = end_bytes(data[-FOOTER_BYTES:])
    return None if num_end is None or num_end > len(data) else read_end(data[-num_end:], len(data))


def join_blocks(parts: list[bytes], check: int = lzma.CHECK_CRC64) -> bytes:
    """Compress parts as the blocks of one stream, as `xz -T0` does."""
    bodies: list[bytes] = []
    blocks: list[XzBlock] = []
    flags = b""
    for part in parts:
        one = lzma.compress(part, check=check)
        stream = parse(one)
        assert stream is not None
        bodies.append(one[12 : stream.starts[-1].stored])
        blocks += stream.blocks
        flags = stream.flags
    whole = XzStream(flags, tuple(blocks))
    joined = whole.header() + b"".join(bodies) + whole.end()
    assert lzma.decompress(joined) == b"".join(parts)
    return joined


@given(PARTS, st.sampled_from([lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_SHA256]))
def test_any_block_may_be_the_first(parts: list[bytes], check: int) -> None:
    data = join_blocks(parts, check)
    stream = parse(data)
    assert stream is not None
    assert [block.content_bytes for block in stream.blocks] == list(map(len, parts))
    end = stream.starts[-1]
    assert end.content == len(b"".join(parts))
    for number, start in enumerate(stream.starts):
        rest = stream.without(number)
        alone = rest.header() + data[start.stored : end.stored] + rest.end()
        assert lzma.decompress(alone) == b"".join(parts[number:])


@given(PARTS, st.data())
def test_what_is_damaged_or_another_file_tells_nothing(parts: list[bytes], data: st.DataObject) -> None:
    whole = join_blocks(parts)
    stream = parse(whole)
    assert stream is not None
    damaged = bytearray(whole)
    at = data.draw(st.integers(stream.starts[-1].stored, len(whole) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    assert parse(bytes(damaged)) is None
    assert parse(whole * 2) is None  # the end tells of the second stream alone
    assert parse(whole + bytes(4)) is None
    assert parse(whole[:-1]) is None


@given(st.binary(max_size=80), st.integers(0, 10**6))
def test_any_bytes_are_read_without_harm(data: bytes, num_bytes: int) -> None:
    assert end_bytes(data) is None or len(data) == FOOTER_BYTES
    read_end(data, num_bytes)


@pytest.mark.parametrize("sizes", [(), (XzBlock(2**62, 2**62),), tuple(XzBlock(n, n * n) for n in range(1, 300))])
def test_numbers_of_any_size(sizes: tuple[XzBlock, ...]) -> None:
    stream = XzStream(b"\0\4", sizes)
    end = stream.end()
    assert end_bytes(end[-FOOTER_BYTES:]) == len(end)
    assert read_end(end, stream.starts[-1].stored + len(end)) == stream
