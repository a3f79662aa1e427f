"""What a dataset says to its cache: fetch now, keep, bring this as well."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from penstock import Stream, StreamingDataset
from penstock.errors import ConfigError, ObjectNotFoundError
from tests.streaming import ids_of, write_samples

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = write_samples(tmp_path / "remote", 100, compression="zstd", hashes="sha1")
    (folder / "videos").mkdir()
    for number in range(3):
        (folder / "videos" / f"{number}.mp4").write_bytes(bytes([number]) * 1000)
    return folder


def shards_in(cache: Path) -> list[str]:
    return sorted(path.parent.name for path in cache.rglob("shard.*.mds"))


def test_warming(remote: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with StreamingDataset(remote=remote, local=cache, batch_size=4, validate_hash="sha1") as dataset:
        dataset.warm([3, 5, 41])
        assert shards_in(cache) == ["part.000", "part.004"]
        dataset.warm()
        assert len(shards_in(cache)) == 10
        assert ids_of(dataset) == list(range(100))
        counts = dataset.stats()
        assert (counts.samples, counts.cache_waits) == (100, 0)


def test_pinned_shards_outlast_the_others(remote: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    size = (remote / "part.000" / "shard.00000.mds.zstd").stat().st_size
    limit = (remote / "index.json").stat().st_size + 12 * size
    with StreamingDataset(remote=remote, local=cache, batch_size=4, cache_limit=limit) as dataset:
        dataset.pin(range(10))
        for _ in range(2):
            assert ids_of(dataset) == list(range(100))
            assert "part.000" in shards_in(cache)
        assert dataset.stats().node.evictions > 0
        dataset.unpin(range(10))
        list(dataset)
        assert "part.000" not in shards_in(cache)


def test_objects_beside_the_shards(remote: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with StreamingDataset(remote=remote, local=cache) as dataset:
        assert dataset.fetch("videos/0.mp4").read_bytes() == bytes([0]) * 1000
        named = dataset.fetch(f"{remote}/videos/1.mp4", "one.mp4")
        assert named == (cache / "one.mp4").resolve()
        assert named.read_bytes() == bytes([1]) * 1000
        path = dataset.fetch("videos/2.mp4", ahead=True)
        for _ in range(500):
            if path.exists():
                break
            time.sleep(0.02)
        assert dataset.fetch("videos/2.mp4") == path
        assert path.read_bytes() == bytes([2]) * 1000
        with pytest.raises(ObjectNotFoundError, match="9.mp4"):
            dataset.fetch("videos/9.mp4")
        with pytest.raises(ConfigError, match="not below the remote"):
            dataset.fetch("s3://elsewhere/videos/1.mp4")


def test_objects_of_data_in_place_stay_in_place(remote: Path, tmp_path: Path) -> None:
    write_samples(tmp_path / "raw", 10)
    (tmp_path / "raw" / "extra.bin").write_bytes(b"x")
    with StreamingDataset(streams=[Stream(local=tmp_path / "raw")]) as dataset:
        assert dataset.fetch("extra.bin") == tmp_path / "raw" / "extra.bin"
        with pytest.raises(ObjectNotFoundError):
            dataset.fetch("nothing.bin")
