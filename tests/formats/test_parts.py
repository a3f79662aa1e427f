"""Files of a shard are checked against the index, unpacked where that is allowed, and let go of when one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock import MDSWriter
from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.base import ReadOptions
from penstock.formats.parts import note_path, open_files, open_shard
from penstock.index.catalog import parse_index

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.index.model import IndexedShard


def write(folder: Path, compression: str | None = None) -> IndexedShard:
    with MDSWriter(out=str(folder), columns={"x": "int"}, compression=compression, hashes=["sha1"]) as writer:
        for number in range(3):
            writer.write({"x": number})
    [info] = parse_index((folder / "index.json").read_bytes(), "the index").shards
    return info


def test_raw_files_are_opened_as_they_lie(tmp_path: Path) -> None:
    info = write(tmp_path)
    path = tmp_path / info.parts[0].raw.basename
    assert open_files([path], info, ReadOptions()).read([2]) == [{"x": 2}]
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(CorruptShardError, match="bytes, but the index says"):
        open_shard(tmp_path, info)


def test_a_digest_is_checked_if_asked_for(tmp_path: Path) -> None:
    info = write(tmp_path)
    path = tmp_path / info.parts[0].raw.basename
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert len(open_shard(tmp_path, info)) == 3
    with pytest.raises(CorruptShardError, match="sha1"):
        open_shard(tmp_path, info, validate_hash="sha1")


def test_packed_files_are_unpacked_within_bounds_or_to_a_folder(tmp_path: Path) -> None:
    info = write(tmp_path / "data", "zstd")
    assert open_shard(tmp_path / "data", info).read([1]) == [{"x": 1}]
    with pytest.raises(ConfigError, match="more than memory_limit allows"):
        open_shard(tmp_path / "data", info, memory_limit=8)
    copies = tmp_path / "copies"
    copies.mkdir()
    assert open_shard(tmp_path / "data", info, unpack_dir=copies, memory_limit=8).read([1]) == [{"x": 1}]
    copy = copies / info.parts[0].raw.basename
    before = copy.stat().st_ino
    assert note_path(copy).exists()
    open_shard(tmp_path / "data", info, unpack_dir=copies)
    assert copy.stat().st_ino == before
    copy.write_bytes(b"of another file")
    assert open_shard(tmp_path / "data", info, unpack_dir=copies).read([1]) == [{"x": 1}]
