"""A dataset that is read where it lies: opened as it was, and never mixed with what replaces it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from penstock import MDSWriter
from penstock.errors import ObjectChangedError, ObjectNotFoundError
from penstock.formats.base import ReadOptions
from penstock.reading.local_folder import LocalFolder

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, first: int = 0) -> Path:
    with MDSWriter(out=folder, columns={"id": "int"}, size_limit=200, exist_ok=True) as writer:
        for number in range(first, first + 20):
            writer.write({"id": number})
    return folder


def test_a_folder_without_an_index_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"index\.json is missing"):
        LocalFolder.open(tmp_path)


def test_shards_are_read_as_they_lie(tmp_path: Path) -> None:
    folder = LocalFolder.open(write(tmp_path / "data"))
    info = folder.index.shards[1]
    assert folder.is_raw(info)
    assert folder.has(info)
    assert not folder.is_compressed
    first = folder.index.shards[0].num_samples
    assert folder.open_shard(info, ReadOptions()).read([0]) == [{"id": first}]
    assert folder.version == LocalFolder.open(tmp_path / "data").version


def test_a_shard_that_was_written_again_is_refused(tmp_path: Path) -> None:
    folder = LocalFolder.open(write(tmp_path / "data"))
    index = tmp_path / "data" / "index.json"
    later = index.stat().st_mtime_ns + 10_000_000_000
    write(tmp_path / "data", 500)
    for file in (tmp_path / "data").iterdir():
        os.utime(file, ns=(later, later))
    with pytest.raises(ObjectChangedError, match="was rewritten while this job was reading it"):
        folder.open_shard(folder.index.shards[0], ReadOptions())


def test_a_shard_that_is_gone_is_not_there(tmp_path: Path) -> None:
    folder = LocalFolder.open(write(tmp_path / "data"))
    info = folder.index.shards[0]
    (tmp_path / "data" / info.name).unlink()
    assert not folder.has(info)
    with pytest.raises(ObjectNotFoundError):
        folder.open_shard(info, ReadOptions())
