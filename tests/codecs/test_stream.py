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
from penstock.codecs.stream import decompress_stream, split_compression
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
