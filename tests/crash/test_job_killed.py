"""A training job loses a worker, its main process, the fetcher, or all of it: started again, it goes on exactly."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cache.kit import fetcher_pids, left_over
from tests.jobs import Job
from tests.streaming import batch_ids, private_places, write_samples

from penstock import StreamingDataLoader, StreamingDataset
from penstock.index.catalog import parse_index

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_SAMPLES, PER_SHARD, BATCH, EPOCHS = 240, 10, 6, 2
ORDER: dict[str, Any] = {"shuffle": True, "shuffle_block_size": 40, "num_canonical_nodes": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "remote"
    return write_samples(folder, NUM_SAMPLES, per_shard=PER_SHARD, compression="zstd", hashes=["xxh64"])


@pytest.fixture(scope="module")
def expected(data: Path) -> list[list[int]]:
    """What a job that is left alone is given."""
    with private_places(), StreamingDataset(remote=data, **ORDER) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=BATCH)
        batches = [batch for _ in range(EPOCHS) for batch in batch_ids(loader)]
    assert sorted(number for batch in batches for number in batch) == sorted([*range(NUM_SAMPLES)] * EPOCHS)
    return batches


@pytest.fixture
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


@pytest.fixture
def job(data: Path, tmp_path: Path, places: Path) -> Iterator[Job]:
    """Half of the shards fit into the cache: all through the job, some are fetched, unpacked and evicted."""
    index = parse_index((data / "index.json").read_bytes(), str(data))
    raw_bytes = sum(part.raw.num_bytes for shard in index.shards for part in shard.parts)
    dataset = {
        "remote": str(data),
        "local": str(tmp_path / "cache"),
        "cache_limit": raw_bytes // 2 + (data / "index.json").stat().st_size,
        "validate_hash": "xxh64",
        **ORDER,
    }
    job = Job(tmp_path / "job", dataset, batch_size=BATCH, epochs=EPOCHS)
    before = shared_memory()
    try:
        yield job
        check_nothing_is_left(job, places, tmp_path / "cache")
    finally:
        job.close()
    assert not [name for name in shared_memory() - before if "penstock" in name.lower()]


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def check_nothing_is_left(job: Job, places: Path, cache: Path) -> None:
    """No process, no socket, no file half done."""
    job.wait_until_all_are_gone()
    assert not left_over(places / "run")
    assert {path.suffix for path in (places / "run").iterdir()} <= {".lock", ".log"}
    assert not list(cache.rglob("*.part"))


def test_a_worker(job: Job, expected: list[list[int]]) -> None:
    """Torch ends the job; its successor goes on from the last batch that was delivered."""
    job.start(stop_at=25)
    job.wait_for("batch 25")
    os.kill(job.worker_pids[0], signal.SIGKILL)
    job.go_on()
    assert job.wait() == 1
    # Torch hears of it from the system, or finds out when it waits for that worker's batch: whichever comes first.
    assert re.search(r"RuntimeError: DataLoader worker.*(killed by signal: Killed|exited unexpectedly)", job.errors)
    job.wait_until_all_are_gone()
    assert 25 <= len(job.batches) < len(expected)
    assert job.batches == expected[: len(job.batches)]
    assert job.run() == expected


def test_the_main_process(job: Job, places: Path, expected: list[list[int]]) -> None:
    """Its workers notice that they are orphans, the fetcher that no client is left."""
    process = job.start(stop_at=47)
    job.wait_for("batch 47")
    assert len(job.pids) == 3
    assert len(fetcher_pids(places / "run")) == 1
    for pid in job.worker_pids:  # each counts into a file there, which has no name
        assert re.search(rf"{places / 'run'}/\S+ \(deleted\)", Path(f"/proc/{pid}/maps").read_text())
    process.kill()
    assert job.wait() == -signal.SIGKILL
    job.wait_until_all_are_gone()
    assert not left_over(places / "run")
    assert {path.suffix for path in (places / "run").iterdir()} <= {".lock", ".log"}
    assert job.batches == expected[:47]
    assert job.run() == expected


def test_the_fetcher_while_the_job_goes_on(job: Job, places: Path, expected: list[list[int]]) -> None:
    """Three times, at places that the job does not choose: it does not even notice."""
    job.step_s = 0.01
    job.start()
    killed = set()
    for number in (3, 30, 55):
        job.wait_for(f"batch {number}")
        for pid in fetcher_pids(places / "run"):
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    assert job.wait() == 0, job.errors
    assert len(killed) >= 2
    assert job.batches == expected


def test_all_of_it_again_and_again(job: Job, places: Path, expected: list[list[int]]) -> None:
    """The fetcher too, as when a node is lost, at any moment: while starting, fetching, or saving."""
    draw = random.Random(20)
    job.step_s = 0.01
    for number in range(3):
        job.start()
        job.wait_for("begun")
        if number:  # the first one may not have got any further
            job.wait_for(f"batch {len(saved_batches(job)) + 1 + draw.randrange(8)}")
        time.sleep(draw.random() * 0.1)
        for pid in fetcher_pids(places / "run"):
            os.kill(pid, signal.SIGKILL)
        job.kill_all()
        assert job.wait() == -signal.SIGKILL
        job.wait_until_all_are_gone()
        assert saved_batches(job) == expected[: len(saved_batches(job))]
    assert 0 < len(saved_batches(job)) < len(expected)
    assert job.run() == expected


def saved_batches(job: Job) -> list[list[int]]:
    return job.batches if (job.out / "saved.json").exists() else []


@pytest.mark.parametrize("who", ["main process", "all"])
def test_an_interrupt_ends_it(job: Job, places: Path, expected: list[list[int]], who: str) -> None:
    """A terminal sends it to the job and its workers alike, a scheduler to the job alone."""
    job.step_s = 0.05  # it would still run for seconds
    process = job.start()
    job.wait_for("batch 20")
    if who == "all":
        job.kill_all(signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    assert job.wait() == -signal.SIGINT
    assert "KeyboardInterrupt" in job.errors
    job.wait_until_all_are_gone()
    assert job.batches == expected[: len(job.batches)]
