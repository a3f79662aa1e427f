"""The fetcher is killed at every named moment: no torn shard is read, nothing hangs, nothing is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.cache.kit import (
    check_shard,
    content,
    finish,
    left_over,
    open_dataset,
    runtime_dir,
    start_client,
    write_dataset,
)

from penstock.failpoints import POINTS, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Three shards fit, six are read twice over: everything is fetched, unpacked, published and evicted many times.
CLIENT = """
import sys
from pathlib import Path
from tests.cache.kit import check_shard, open_dataset
data = open_dataset(Path(sys.argv[1]))
with data.cache(limit_bytes=600_000, validate_hash="xxh64") as cache:
    cache.open_index(0)
    for _ in range(2):
        for number, shard in enumerate(data.shards):
            cache.expect([(0, later, ahead) for ahead, later in enumerate(data.shards[number:number + 3])])
            check_shard(cache, shard)
"""


@pytest.fixture(autouse=True)
def runtime() -> Iterator[Path]:
    with runtime_dir() as folder:
        yield folder


@pytest.mark.parametrize("point", POINTS)
def test_killed_once(tmp_path: Path, runtime: Path, point: str) -> None:
    data = write_dataset(tmp_path, num_parts=2, compression="zstd")
    marker = tmp_path / "killed"
    finish(start_client(CLIENT, tmp_path, **{VARIABLE: f"{point}:once={marker}"}))
    assert marker.exists(), f"{point} was never reached"
    assert not left_over(runtime)
    assert not data.parts_left()
    check_disk(tmp_path)


@pytest.mark.parametrize("point", ["start.begun", "start.listening", "start.ready"])
def test_killed_at_every_start(tmp_path: Path, runtime: Path, point: str) -> None:
    write_dataset(tmp_path)
    client = start_client(CLIENT, tmp_path, **{VARIABLE: point})
    _, errors = client.communicate(timeout=60)
    assert client.returncode != 0
    assert (
        "FetcherError: the fetcher was started 4 times and died each time. Its log ends with: (it is empty)" in errors
    )
    assert not left_over(runtime)


@pytest.mark.parametrize(
    "point", ["register.before", "download.half", "unpack.done", "publish.between_parts", "evict.between_parts"]
)
def test_killed_again_and_again_until_the_client_gives_up(tmp_path: Path, runtime: Path, point: str) -> None:
    """Then the next job finds a directory that needs no cleaning by hand."""
    data = write_dataset(tmp_path, num_parts=2, compression="zstd")
    client = start_client(CLIENT, tmp_path, **{VARIABLE: point})
    _, errors = client.communicate(timeout=60)
    assert client.returncode != 0
    assert "FetcherError: the fetcher died" in errors
    assert not left_over(runtime)
    check_disk(tmp_path)
    finish(start_client(CLIENT, tmp_path))
    assert not left_over(runtime)
    assert not data.parts_left()
    check_disk(tmp_path)


def check_disk(folder: Path) -> None:
    """Whatever has its final name is whole, and the limit holds."""
    data = open_dataset(folder)
    total = 0
    for shard in data.infos:
        for part in shard.parts:
            path = data.local / part.raw.basename
            if path.exists():
                assert path.read_bytes() == content(path.name, part.raw.num_bytes)
                total += part.raw.num_bytes
    assert total <= 600_000 + 200_000  # one shard may be about to go


def test_the_next_job_uses_what_is_there(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path, num_parts=2, compression="zstd")
    finish(start_client(CLIENT, tmp_path))
    for path in data.remote.glob("shard*"):
        path.unlink()
    with data.cache() as cache:
        present = [shard for shard in data.shards if cache.is_present(0, shard)]
        assert len(present) >= 2
        for shard in present:
            check_shard(cache, shard)
        assert cache.stats().total.hits == len(present)
