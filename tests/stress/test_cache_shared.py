"""Many processes over the same directories, with room for all of it and without."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.cache.kit import finish, left_over, runtime_dir, start_client, write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def runtime() -> Iterator[Path]:
    with runtime_dir() as folder:
        yield folder


# Each goes through all shards in its own order and prints what its cache says it caused. It waits for its siblings
# before it leaves, so that one fetcher serves them all.
CLIENT = """
import json, random, sys
from pathlib import Path
from tests.cache.kit import check_shard, open_dataset
folder, seed, limit, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
data = open_dataset(folder)
with data.cache(limit_bytes=limit or None) as cache:
    cache.open_index(0)
    for round in range(rounds):
        order = list(data.shards)
        random.Random(seed * 100 + round).shuffle(order)
        for number, shard in enumerate(order):
            cache.expect([(0, later, ahead) for ahead, later in enumerate(order[number:number + 3])])
            with cache.lease(0, order[max(0, number - 1)]):
                check_shard(cache, shard)
    stats = cache.stats().total
    print(json.dumps({"downloads": stats.downloads, "leases": stats.leases}), flush=True)
    sys.stdin.read()
"""


def run_clients(folders: list[Path], limit_bytes: int, rounds: int) -> list[dict[str, int]]:
    clients = [start_client(CLIENT, folder, seed, limit_bytes, rounds) for seed, folder in enumerate(folders)]
    results = []
    try:
        for client in clients:
            assert client.stdout is not None
            line = client.stdout.readline()
            results.append(json.loads(line) if line else {})
    finally:
        for client in clients:
            assert client.stdin is not None
            client.stdin.close()
            client.stdin = None
    for client in clients:
        finish(client)
    return results


def test_each_shard_is_downloaded_once_for_all(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path, num_shards=20, num_bytes=200_000, compression="zstd")
    results = run_clients([tmp_path] * 8, 20 * 200_000 + 100_000, 1)
    indexes = sum(result["downloads"] for result in results) - 20
    assert 1 <= indexes <= 8  # each looks whether the data were written again; who asks at the same time asks once
    assert not left_over(runtime)
    assert not data.parts_left()


def test_eight_processes_and_room_for_half(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path, num_shards=20, num_bytes=200_000, num_parts=2, compression="zstd")
    limit = 20 * 200_000  # half of it
    results = run_clients([tmp_path] * 8, limit, 2)
    assert all(result["leases"] == 80 for result in results)
    assert sum((data.local / name).stat().st_size for name in data.cached_names()) <= limit
    assert not left_over(runtime)
    assert not data.parts_left()


def test_two_jobs_and_a_limit_below_their_sum(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path, num_shards=12, num_bytes=100_000)
    limit = 5 * 100_000  # each holds two at a time and wants three more soon
    results = run_clients([tmp_path] * 2, limit, 3)
    assert [result["leases"] for result in results] == [72, 72]
    assert sum((data.local / name).stat().st_size for name in data.cached_names()) <= limit
    assert not left_over(runtime)
