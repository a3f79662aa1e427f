"""Compressed files of other programs: any frames, cut anywhere, bounded."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import tracemalloc

import brotli
import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codecs import stream
from penstock.codecs.stream import (
    FOOTER_BYTES,
    XzBlock,
    XzStream,
    decompress_stream,
    end_bytes,
    read_end,
    split_compression,
)
from penstock.errors import CorruptShardError

COMPRESS = {
    "gz": gzip.compress,
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
    "bz2": bz2.compress,
    "br": brotli.compress,
    "xz": lzma.compress,
}
MANY_FRAMES = sorted(COMPRESS.keys() - {"br"})


def unpack(data: bytes, codec: str, chunk_bytes: int = 1000) -> bytes:
    chunks = (data[begin : begin + chunk_bytes] for begin in range(0, len(data), chunk_bytes))
    return b"".join(decompress_stream(chunks, codec, "a.file"))


@pytest.mark.parametrize("codec", COMPRESS)
@given(data=st.binary(max_size=3000), chunk_bytes=st.integers(1, 700), repeats=st.integers(1, 50))
def test_content_comes_back_however_the_file_is_cut(codec: str, data: bytes, chunk_bytes: int, repeats: int) -> None:
    data *= repeats
    assert unpack(COMPRESS[codec](data), codec, chunk_bytes) == data


@pytest.mark.parametrize("codec", MANY_FRAMES)
@given(frames=st.lists(st.binary(max_size=200), min_size=1, max_size=5), chunk_bytes=st.integers(1, 300))
def test_frames_follow_one_another(codec: str, frames: list[bytes], chunk_bytes: int) -> None:
    stored = b"".join(map(COMPRESS[codec], frames))
    assert unpack(stored, codec, chunk_bytes) == b"".join(frames)
    if codec == "xz":
        assert unpack(stored + bytes(512) + stored, codec, chunk_bytes) == 2 * b"".join(frames)


@pytest.mark.parametrize("codec", COMPRESS)
def test_pieces_larger_than_what_is_decoded_at_once(codec: str) -> None:
    data = random.Random(0).randbytes(300) * 20_000
    assert unpack(COMPRESS[codec](data), codec, 1 << 30) == data


@pytest.mark.parametrize("codec", COMPRESS)
def test_broken_files_name_themselves(codec: str) -> None:
    whole = COMPRESS[codec](random.Random(0).randbytes(5000))
    for broken in (whole[:-1], whole[: len(whole) // 2], whole[1:], b"\xff" * 300, b'{"a": 1}\n' * 9):
        with pytest.raises(CorruptShardError, match="a.file"):
            unpack(broken, codec)


@pytest.mark.parametrize("codec", COMPRESS)
def test_a_bomb_is_refused_in_little_memory(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_ALWAYS_ALLOWED_BYTES", 20 << 20)
    bomb = COMPRESS[codec](bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptShardError, match="a.file unpacks to more than"):
            for _ in decompress_stream(iter([bomb]), codec, "a.file"):
                pass
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", COMPRESS)
def test_an_empty_file_is_no_frame(codec: str) -> None:
    assert unpack(b"", codec) == b""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl.gz", ("a.jsonl", "gz")),
        ("b/a.CSV.ZST", ("b/a.CSV", "zstd")),
        ("a.tgz", ("a.tar", "gz")),
        ("a.jsonl", ("a.jsonl", None)),
        ("gz", ("gz", None)),
    ],
)
def test_names(name: str, expected: tuple[str, str | None]) -> None:
    assert split_compression(name) == expected


# --- Blocks of .xz files, found from the end of the file ----------------------------------------------------------

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
