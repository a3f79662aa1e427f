"""What was written of sources is part of the cache: listed, cleared unless it is in use, and bounded."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING

import pytest

from penstock import FilterNonEmpty, MemoryShardedSource, ShardedSource, Stream, StreamingDataset
from penstock.cache.cleanup import clear_cache, prune_cache
from penstock.cache.contents import list_cache
from penstock.errors import CacheError, CacheTooSmallError
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


def make_source(number: int = 0) -> ShardedSource:
    """Make 200 kB that can only be read in order."""
    samples = [{"n": number, "data": bytes([number]) * 1000} for _ in range(200)]
    return MemoryShardedSource(samples, fingerprint=f"some {number}").transform(FilterNonEmpty(["data"]))


def streamed(number: int = 0, cache_limit: int | None = None) -> StreamingDataset:
    return StreamingDataset(streams=[Stream(source=make_source(number))], batch_size=1, cache_limit=cache_limit)


def folders(places: Path) -> list[Path]:
    return sorted(path.parent for path in places.rglob("written.json"))


def test_it_is_listed_and_cleared_unless_it_is_in_use(places: Path) -> None:
    dataset = streamed()
    [folder] = folders(places)
    [listed] = list_cache()
    size = sum(path.stat().st_size for path in folder.glob("*.columns"))
    assert listed.source == f"TransformedShardedSource written to sources/{folder.name}"
    assert (listed.directory, listed.num_shards, listed.num_bytes) == (str(folder), 1, size)
    assert (listed.is_open, listed.processes) == (True, (os.getpid(),))
    assert list_cache([places]) == (listed,)
    assert not list_cache([folder / ".."])[1:]
    removal = clear_cache()
    assert (removal.removed_bytes, removal.in_use_bytes, removal.left_bytes) == (0, size, size)
    assert prune_cache(0).left_bytes == size
    assert len(list(dataset)) == 200
    dataset.close()
    [listed] = list_cache()
    assert not listed.is_open
    removal = clear_cache(listed.source)
    assert (removal.removed_bytes, removal.left_bytes) == (size, 0)
    assert not list_cache()
    assert not folder.exists()
    streamed().close()  # it is written again
    assert prune_cache(size).removed_bytes == 0
    assert prune_cache(0).removed_bytes == size
    with pytest.raises(CacheError, match="is not in the cache"):
        clear_cache(listed.source)


def test_each_process_that_reads_it_keeps_it() -> None:
    source = make_source().as_stream_source()
    copied = pickle.loads(pickle.dumps(source))  # as it gets to a worker
    copied.open(0).reader.close()
    source.close()
    assert not clear_cache().removed_bytes
    copied.close()
    assert clear_cache().removed_bytes
    with pytest.raises(CacheError, match=r"TransformedShardedSource.*removed.*open the dataset again"):
        copied.open(0)


def test_a_limit_has_others_go_that_are_not_in_use(places: Path) -> None:
    first, second, third = (streamed(number) for number in range(3))
    one, two = (path for path in folders(places) if path.name in {_name_of(first), _name_of(second)})
    first.close()
    second.close()
    os.utime(two / "use.lock", (1, 1))
    streamed(3, cache_limit=700_000).close()
    assert not two.exists()  # the one that was not used for longest
    assert one.exists()
    assert len(list(third)) == 200  # in use: it stayed
    with pytest.raises(
        CacheTooSmallError, match="TransformedShardedSource do not fit into the cache limit 293 kB.*raise cache_limit"
    ):
        streamed(4, cache_limit=300_000)
    third.close()
    streamed(4, cache_limit=300_000).close()
    assert sum(path.stat().st_size for path in places.rglob("*.columns")) < 300_000


def _name_of(dataset: StreamingDataset) -> str:
    return dataset._opened.source._folder.name  # type: ignore[attr-defined, no-any-return]
