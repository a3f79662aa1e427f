"""What goes when room is needed, and what never does."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.cache.cache import Cache
from penstock.errors import CacheTooSmallError
from tests.cache.kit import Dataset, check_shard, content, left_over, wait_until, write_dataset

LOCKS = Path("/proc/locks")  # of Linux


def bytes_used(data: Dataset) -> int:
    total = 0
    for name in data.cached_names():
        with suppress(FileNotFoundError):  # evicted meanwhile
            total += (data.local / name).stat().st_size
    return total


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=300_000) as cache:
        for number in (0, 1, 2, 0, 3, 0, 4):
            check_shard(cache, data.shards[number])
            assert bytes_used(data) <= 300_000
        assert data.cached_names() == {f"shard.{number:05}.data" for number in (0, 3, 4)}
        assert cache.node_stats()["evictions"] == 2
        assert cache.node_stats()["evicted_bytes"] == 200_000


@pytest.mark.parametrize("keep_zip", [False, True])
def test_all_files_of_a_shard_count_and_go(tmp_path: Path, keep_zip: bool) -> None:
    data = write_dataset(tmp_path, num_parts=2, compression="zstd")
    with data.cache(limit_bytes=500_000, keep_zip=keep_zip) as cache:
        for shard in data.shards:
            check_shard(cache, shard)
            assert bytes_used(data) <= 500_000
    assert len(data.cached_names()) == (8 if keep_zip else 4)


def test_a_leased_shard_stays(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=300_000) as cache:
        with cache.lease(0, data.shards[0]) as lease:
            for shard in data.shards[1:]:
                check_shard(cache, shard)
            assert lease.paths[0].read_bytes() == content("shard.00000.data", 100_000)
        check_shard(cache, data.shards[1])
        check_shard(cache, data.shards[2])
        check_shard(cache, data.shards[3])
        assert "shard.00000.data" not in data.cached_names()


def test_a_pinned_shard_stays_even_for_the_next_job(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=300_000) as cache:
        check_shard(cache, data.shards[0])
        cache.pin(0, data.shards[:1])
    with data.cache(limit_bytes=300_000) as cache:
        for shard in data.shards[1:]:
            check_shard(cache, shard)
        assert "shard.00000.data" in data.cached_names()
        cache.unpin(0, data.shards[:1])
        for shard in data.shards[1:]:
            check_shard(cache, shard)
        assert "shard.00000.data" not in data.cached_names()


def test_who_waits_for_room_gets_it_when_a_lease_ends(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=200_000) as cache:
        leases = [cache.lease(0, shard) for shard in data.shards[:2]]
        waiting = threading.Thread(target=check_shard, args=(cache, data.shards[2]))
        waiting.start()
        wait_until(lambda: cache.node_stats().get("queued"))
        leases[0].close()
        waiting.join(30)
        assert not waiting.is_alive()
        assert data.cached_names() == {"shard.00001.data", "shard.00002.data"}
        leases[1].close()


def test_room_that_never_comes_is_an_error(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=200_000, timeout_s=1.5) as cache:
        with cache.lease(0, data.shards[0]), cache.lease(0, data.shards[1]):
            who = rf"process {os.getpid()} \[.*\] holds 2 of them, 195 kB" if LOCKS.exists() else ""
            with pytest.raises(
                CacheTooSmallError, match=rf"shard\.00002\.data.*2 shards take 19[67].* kB.*{who}.*cache_limit"
            ):
                cache.lease(0, data.shards[2])
        check_shard(cache, data.shards[2])


def test_a_shard_larger_than_the_limit_is_an_error_at_once(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=99_999) as cache, pytest.raises(CacheTooSmallError, match="raise cache_limit"):
        cache.lease(0, data.shards[0])


def test_an_index_larger_than_the_limit_is_an_error_at_once(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with (
        data.cache(limit_bytes=-1) as cache,
        pytest.raises(CacheTooSmallError, match="the index takes .*raise cache_limit"),
    ):
        cache.open_index(0)


def test_prefetch_stays_within_the_limit_and_keeps_what_is_expected(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=12)
    with data.cache(limit_bytes=400_000) as cache:
        for number, shard in enumerate(data.shards):
            cache.expect([(0, later, ahead) for ahead, later in enumerate(data.shards[number:])])
            check_shard(cache, shard)
            assert bytes_used(data) <= 400_000
        assert cache.stats().total.downloads == 13  # the index, and each once: none went before its turn


def test_a_blocked_request_may_take_what_is_expected_latest(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=300_000) as cache:
        plan = [(0, shard, ahead) for ahead, shard in enumerate(data.shards[:3])]
        cache.expect(plan)
        wait_until(lambda: len(data.cached_names()) == 3 and cache.node_stats()["in_flight"] == 0)
        check_shard(cache, data.shards[5])
        assert data.cached_names() == {f"shard.{number:05}.data" for number in (0, 1, 5)}


def test_files_of_others_are_neither_counted_nor_deleted(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    data.local.mkdir()
    (data.local / "mine.txt").write_bytes(bytes(10**6))
    with data.cache(limit_bytes=200_000) as cache:
        for shard in data.shards:
            check_shard(cache, shard)
    assert (data.local / "mine.txt").stat().st_size == 10**6
    assert (data.local / "index.json").exists()
    assert bytes_used(data) == 10**6 + 200_000


def test_what_an_earlier_job_fetched_counts(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path)
    (data.remote / "clip").write_bytes(bytes(100_000))
    with data.cache() as cache:
        cache.fetch_object(0, "clip")
        for shard in data.shards:
            check_shard(cache, shard)
    assert not left_over(runtime)
    written_ns = (data.local / "clip").stat().st_mtime_ns
    os.utime(data.local / "clip", ns=(0, written_ns))  # it was not wanted for long
    assert bytes_used(data) == 700_000
    with data.cache(limit_bytes=400_000) as cache:
        check_shard(cache, data.shards[5])
        assert bytes_used(data) == 400_000
        assert "clip" not in data.cached_names()
        assert "shard.00005.data" in data.cached_names()


def test_one_limit_over_several_directories(tmp_path: Path) -> None:
    one, two = write_dataset(tmp_path / "1"), write_dataset(tmp_path / "2")
    limit = 300_000 + one.index_bytes + two.index_bytes
    with Cache([one.stream(), two.stream()], limit_bytes=limit) as cache:
        for number in range(6):
            check_shard(cache, one.shards[number], 0)
            check_shard(cache, two.shards[number], 1)
            assert bytes_used(one) + bytes_used(two) <= 300_000
    assert one.cached_names() == {"shard.00005.data"}
    assert two.cached_names() == {"shard.00004.data", "shard.00005.data"}


def test_the_smaller_limit_on_a_shared_directory_holds(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=200_000) as small, data.cache(limit_bytes=400_000) as large:
        check_shard(small, data.shards[0])
        with pytest.warns(UserWarning, match="limits .* to 19[67].* kB"):
            check_shard(large, data.shards[1])
        for shard in data.shards[2:]:
            check_shard(large, shard)
            assert bytes_used(data) <= 200_000


def test_a_limit_that_comes_later_holds_as_soon_as_leases_end(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache() as unlimited:
        leases = [unlimited.lease(0, shard) for shard in data.shards]
        with data.cache(limit_bytes=200_000) as limited:
            check_shard(limited, data.shards[0])  # it is there
            limited.open_index(0)  # asks the fetcher, which learns of the limit
            assert bytes_used(data) == 600_000
            for lease in leases:
                lease.close()
            wait_until(lambda: bytes_used(data) <= 200_000)


def test_a_directory_that_others_empty(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=300_000) as cache:
        for _ in range(3):
            for shard in data.shards:
                check_shard(cache, shard)
            for name in data.cached_names():
                (data.local / name).unlink()
        check_shard(cache, data.shards[0])
        assert bytes_used(data) == 100_000


def test_the_clock_is_on_the_files(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=1)
    with data.cache() as cache:
        check_shard(cache, data.shards[0])
        path = data.local / "shard.00000.data"
        os.utime(path, (0, 12345))
        begin = time.time() - 1
        check_shard(cache, data.shards[0])
        assert path.stat().st_atime >= begin
        assert path.stat().st_mtime == 12345
