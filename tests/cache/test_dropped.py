"""What is dropped without being closed gives everything back at once: nothing waits for the garbage collector."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cache.cache import Cache, CachedStream
from penstock.storage.base import StoreSettings, open_store
from tests.cache.kit import wait_until, write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cache.kit import Dataset


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def descriptors() -> dict[str, str]:
    """What this process has open, by number."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder itself
            found[link.name] = str(link.readlink())
    return found


def streams_of(data: Dataset, kind: str) -> list[CachedStream]:
    if kind == "folder":
        return [data.stream()]
    store = StoreSettings(f"memory://dropped-{data.local.parent.name}")
    for path in data.remote.iterdir():
        open_store(store).upload(path, path.name)
    return [CachedStream(directory=data.local, store=store)]


@pytest.mark.parametrize("kind", ["folder", "memory"])
@pytest.mark.parametrize("limit_bytes", [None, 1 << 30])
def test_a_cache_and_its_leases_leave_nothing_open(tmp_path: Path, kind: str, limit_bytes: int | None) -> None:
    data = write_dataset(tmp_path, num_shards=4)
    streams = streams_of(data, kind)
    Cache(streams).open_index(0)  # whatever is loaded on first use is loaded now
    before = descriptors()
    for _ in range(3):
        cache = Cache(streams, limit_bytes=limit_bytes)
        cache.open_index(0)
        cache.expect([(0, shard, shard) for shard in data.shards])
        leases = [cache.lease(0, shard) for shard in data.shards]
        assert cache.is_present(0, 3)
        cache.fetch_object(0, "index.json", "other")
        leases.pop().close()
        assert len(descriptors()) > len(before)
        del cache, leases
        wait_until(lambda: descriptors() == before)  # threads that fetched here end in a moment


def test_a_lease_outlives_its_cache_and_closes_with_the_last_word_of_it(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=1)
    before = descriptors()
    lease = data.cache().lease(0, 0)
    path = str(lease.paths[0])
    assert path in descriptors().values()
    del lease
    assert descriptors() == before


def test_a_shard_that_could_not_be_leased_leaves_nothing_open(tmp_path: Path) -> None:
    """The way of an error: its traceback leads through everything that was open when it was raised."""
    data = write_dataset(tmp_path, num_shards=1)
    cache = data.cache(retry=0)
    cache.open_index(0)
    (data.remote / "shard.00000.data").unlink()
    before = descriptors()
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            cache.lease(0, 0)
    assert descriptors() == before
    cache.close()
