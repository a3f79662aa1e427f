"""Jobs that share a cache too small for both, and a process that opens more datasets than it should."""

from __future__ import annotations

import gc
import os
import resource
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock import StreamingDataset
from penstock.index.catalog import parse_index
from tests.cache.kit import fetcher_pids, left_over
from tests.jobs import Job
from tests.streaming import ids_of, private_places, write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_SAMPLES, PER_SHARD, BATCH, EPOCHS = 240, 10, 6, 2
NUM_DATASETS = 200


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "remote"
    return write_samples(folder, NUM_SAMPLES, per_shard=PER_SHARD, compression="zstd", hashes=["xxh64"])


@pytest.fixture
def jobs(data: Path, tmp_path: Path) -> Iterator[list[Job]]:
    """Each needs over a third of the shards at a time, and half of them fit."""
    index = parse_index((data / "index.json").read_bytes(), str(data))
    raw_bytes = sum(part.raw.num_bytes for shard in index.shards for part in shard.parts)
    jobs = []
    for seed in range(2):
        dataset = {
            "remote": str(data),
            "local": str(tmp_path / "cache"),
            "cache_limit": raw_bytes // 2 + (data / "index.json").stat().st_size,
            "validate_hash": "xxh64",
            "shuffle": True,
            "shuffle_seed": seed,
            "shuffle_block_size": 40,
            "num_canonical_nodes": 2,
        }
        jobs.append(Job(tmp_path / f"job-{seed}", dataset, batch_size=BATCH, epochs=EPOCHS, step_s=0.005))
    try:
        yield jobs
    finally:
        for job in jobs:
            job.close()


def test_two_jobs_on_one_cache_that_is_too_small_for_both(
    jobs: list[Job], data: Path, places: Path, tmp_path: Path
) -> None:
    """They evict each other's shards all the time, and each is given its own order to the last sample."""
    for job in jobs:
        job.start()
    for job in jobs:
        job.wait_for("batch 5")
    assert len(fetcher_pids(places / "run")) == 1
    for job in jobs:
        assert job.wait() == 0, job.errors
    with private_places():
        for job in jobs:
            order = {name: value for name, value in job.dataset.items() if "shuffle" in name or "canonical" in name}
            with StreamingDataset(remote=data, batch_size=BATCH, **order) as alone:
                expected = [number for _ in range(EPOCHS) for number in ids_of(alone)]
            assert [number for batch in job.batches for number in batch] == expected
    assert not left_over(places / "run")
    kept = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("shard*"))
    assert kept <= jobs[0].dataset["cache_limit"]


# --- Many datasets ------------------------------------------------------------------------------------------


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  without a descriptor of its own for each


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """A process may have far fewer files open than these datasets would like."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 640
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        yield few
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("is_remote", [False, True])
def test_two_hundred_datasets_in_one_process(
    data: Path, tmp_path: Path, places: Path, few_descriptors: int, is_remote: bool
) -> None:
    place: dict[str, Any] = {"remote": data, "local": tmp_path / "cache"} if is_remote else {"local": data}
    gc.collect()
    before, threads = open_descriptors(), threading.active_count()
    datasets = [StreamingDataset(**place, shuffle=True, batch_size=BATCH) for _ in range(NUM_DATASETS)]
    for number, dataset in enumerate(datasets):
        assert dataset[number]["id"] == number
        samples = iter(dataset)
        assert len({next(samples)["id"] for _ in range(2 * BATCH)}) == 2 * BATCH
    # One line to the fetcher for all, one nameless file for each, and for shards half of what the process may have.
    assert len(fetcher_pids(places / "run")) == 1
    assert open_descriptors() - before <= NUM_DATASETS + few_descriptors // 2 + 2
    assert threading.active_count() <= threads + 1  # which listens to the fetcher for all of them
    for dataset in datasets:
        dataset.close()
    assert open_descriptors() - before <= NUM_DATASETS + 2
    del dataset, datasets, samples
    gc.collect()
    assert open_descriptors() <= before  # what earlier tests left may have gone meanwhile
    assert threading.active_count() <= threads
    assert not left_over(places / "run")
