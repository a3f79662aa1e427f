"""Five codecs at all their levels, and what they refuse."""

from __future__ import annotations

import gzip
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codecs.compress import known_compressions, most_compressed_bytes, parse_compression
from penstock.codecs.unpack import map_file, unpack_to_file, unpack_to_memory
from penstock.errors import ConfigError, CorruptShardError

if TYPE_CHECKING:
    from pathlib import Path

CODECS = ["br", "bz2", "gz", "snappy", "zstd"]
SAMPLE = b"".join(b"%d: some text that repeats, some text that does not %x\n" % (n, n * n * 7919) for n in range(300))
data = st.binary(max_size=300) | st.builds(
    lambda piece, times: piece * times, st.binary(max_size=20), st.integers(0, 50)
)


def compress(compression: str, content: bytes) -> bytes:
    codec, level = parse_compression(compression)
    out = bytearray(most_compressed_bytes(len(content)))
    return bytes(out[: codec.compress_into(content, out, level)])


def decompress(compression: str, packed: bytes, num_bytes: int) -> bytes:
    return bytes(unpack_to_memory(packed, compression, num_bytes, "some.file"))


@pytest.mark.parametrize("compression", known_compressions())
def test_every_level_gives_the_content_back(compression: str) -> None:
    for content in (b"", b"x", SAMPLE):
        packed = compress(compression, content)
        assert decompress(compression, packed, len(content)) == content
    if compression != "gz:0":
        assert len(compress(compression, SAMPLE)) < len(SAMPLE)


@pytest.mark.parametrize("compression", CODECS)
@settings(max_examples=30)
@given(content=data)
def test_any_content_comes_back(compression: str, content: bytes) -> None:
    assert decompress(compression, compress(compression, content), len(content)) == content


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("declared", [0, 1, len(SAMPLE) - 1, len(SAMPLE) + 1, 2 * len(SAMPLE), 2**32 - 1])
def test_a_wrong_size_is_a_corrupt_shard(compression: str, declared: int) -> None:
    packed = compress(compression, SAMPLE)
    with pytest.raises(CorruptShardError, match=r"^some\.file (cannot be decompressed|decompresses) to ") as caught:
        decompress(compression, packed, declared)
    assert isinstance(caught.value, ValueError)
    assert f"{declared}" in str(caught.value)


@pytest.mark.parametrize("compression", CODECS)
@settings(max_examples=30)
@given(content=data, change=st.integers(-300, 300).filter(bool))
def test_any_wrong_size_is_a_corrupt_shard(compression: str, content: bytes, change: int) -> None:
    declared = max(len(content) + change, 0)
    if declared != len(content):
        with pytest.raises(CorruptShardError):
            decompress(compression, compress(compression, content), declared)


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("packed", [b"", b"\0", b"garbage" * 20, b"\xff" * 100])
def test_garbage_is_a_corrupt_shard(compression: str, packed: bytes) -> None:
    with pytest.raises(CorruptShardError, match=r"^some\.file "):
        decompress(compression, packed, 1000)


@pytest.mark.parametrize("compression", CODECS)
def test_truncated_files_are_corrupt_shards(compression: str) -> None:
    packed = compress(compression, SAMPLE)
    for size in (1, 10, len(packed) // 2, len(packed) - 8):
        with pytest.raises(CorruptShardError):
            decompress(compression, packed[:size], len(SAMPLE))


def test_a_bomb_stops_at_the_declared_size() -> None:
    for compression in CODECS:
        bomb = compress(compression, bytes(1 << 22))
        with pytest.raises(CorruptShardError):
            decompress(compression, bomb, 1000)


def test_files_in_several_members_read_as_one() -> None:
    packed = gzip.compress(b"first ") + gzip.compress(b"second")
    assert decompress("gz", packed, 12) == b"first second"


# --- To a file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("content", [b"", SAMPLE])
def test_unpacking_to_a_file(compression: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "deep/er/raw"
    unpack_to_file(compress(compression, content), compression, len(content), path, "some.file")
    assert path.read_bytes() == content
    assert [entry.name for entry in path.parent.iterdir()] == ["raw"]


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("declared", [0, 10, len(SAMPLE) - 1, len(SAMPLE) + 1])
def test_a_file_of_the_wrong_size_never_appears(compression: str, declared: int, tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match=r"^some\.file "):
        unpack_to_file(compress(compression, SAMPLE), compression, declared, tmp_path / "raw", "some.file")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(b"old")
    with pytest.raises(CorruptShardError):
        unpack_to_file(b"garbage", "zstd", 3, path, "some.file")
    assert path.read_bytes() == b"old"
    unpack_to_file(compress("zstd", b"new!"), "zstd", 4, path, "some.file")
    assert path.read_bytes() == b"new!"


def test_many_may_unpack_one_file_at_once(tmp_path: Path) -> None:
    packed = compress("zstd", SAMPLE)
    path = tmp_path / "raw"
    failures: list[BaseException] = []

    def unpack() -> None:
        try:
            for _ in range(20):
                unpack_to_file(packed, "zstd", len(SAMPLE), path, "some.file")
                assert path.read_bytes() == SAMPLE
        except BaseException as error:  # noqa: BLE001  shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=unpack) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["raw"]


def test_mapping_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    assert map_file(path) == b""
    path.write_bytes(b"abc")
    assert map_file(path)[1:] == b"bc"


# --- Names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "lzma", "ZSTD", "zstd ", ":3", "gzip"])
def test_unknown_codecs_list_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_compression(text)
    assert str(caught.value) == (
        f"unknown compression {text!r}: use one of br[:0-11], bz2[:1-9], gz[:0-9], snappy, zstd[:1-22]"
    )
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "text", ["zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:+3", "zstd: 3", "zstd:3.0", "zstd:٣", "br:12", "bz2:0",
             "gz:10", "snappy:1", "gz:" + "9" * 5000]
)  # fmt: skip
def test_bad_levels(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^\w+ does not have the level given in compression='.*': use ") as caught:
        parse_compression(text)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("text", known_compressions())
def test_known_names_are_understood(text: str) -> None:
    codec, level = parse_compression(text)
    assert text == (codec.name if level is None else f"{codec.name}:{level}")
