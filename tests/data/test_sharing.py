"""A cache that several share keeps to its limit, and none fails for what another one keeps open and does not need."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from penstock import StreamingDataset
from penstock.errors import PenstockError
from penstock.index.catalog import parse_index
from penstock.storage.base import open_store
from tests.cache.kit import fetcher_pids, finish, start_client, wait_until
from tests.streaming import ids_of, write_samples

if TYPE_CHECKING:
    from pathlib import Path

NUM_SHARDS, PER_SHARD = 40, 10


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compressed, so that samples are never read by ranges."""
    folder = tmp_path_factory.mktemp("data") / "remote"
    return write_samples(folder, NUM_SHARDS * PER_SHARD, per_shard=PER_SHARD, compression="zstd")


def largest_shard(remote: Path) -> int:
    index = parse_index((remote / "index.json").read_bytes(), str(remote))
    return max(sum(part.raw.num_bytes for part in shard.parts) for shard in index.shards)


def room_for(remote: Path, num_shards: int) -> int:
    """Return a limit that has room for the index and some shards."""
    return (remote / "index.json").stat().st_size + num_shards * largest_shard(remote)


def open_dataset(remote: Path, local: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(remote=remote, local=local, batch_size=PER_SHARD, **options)


def bytes_in(folder: Path) -> int:
    num_bytes = 0
    for path in folder.rglob("*.mds"):
        with suppress(FileNotFoundError):  # it is evicted meanwhile
            num_bytes += path.stat().st_size
    return num_bytes


def first_of_each(dataset: StreamingDataset) -> list[int]:
    return ids_of(dataset[number] for number in range(0, NUM_SHARDS * PER_SHARD, PER_SHARD))


FIRST_OF_EACH = list(range(0, NUM_SHARDS * PER_SHARD, PER_SHARD))


@pytest.mark.parametrize("num_fit", [1, 6])
def test_one_process_that_reads_by_number_does_not_wait_for_itself(remote: Path, tmp_path: Path, num_fit: int) -> None:
    limit = room_for(remote, num_fit)
    with open_dataset(remote, tmp_path / "cache", cache_limit=limit) as dataset:
        assert first_of_each(dataset) == FIRST_OF_EACH
        assert ids_of(dataset[FIRST_OF_EACH]) == FIRST_OF_EACH
        assert list(dataset.read_columns(FIRST_OF_EACH)["id"]) == FIRST_OF_EACH
        assert bytes_in(tmp_path / "cache") <= limit


def test_a_store_in_memory_is_no_different(remote: Path, tmp_path: Path) -> None:
    """What fetches for it is a thread of this process, which tells its own."""
    store = open_store("memory://sharing")
    for path in remote.rglob("*"):
        if path.is_file():
            store.upload(path, str(path.relative_to(remote)))
    limit = room_for(remote, 2)
    options: dict[str, Any] = {"remote": "memory://sharing", "local": tmp_path / "cache"}
    with StreamingDataset(**options) as idle:
        assert first_of_each(idle) == FIRST_OF_EACH
        with StreamingDataset(**options, cache_limit=limit) as limited:
            assert first_of_each(limited) == FIRST_OF_EACH
            wait_until(lambda: bytes_in(tmp_path / "cache") <= limit)
        assert first_of_each(idle) == FIRST_OF_EACH


def test_an_idle_dataset_without_a_limit_gives_way_to_one_with_a_limit(remote: Path, tmp_path: Path) -> None:
    with open_dataset(remote, tmp_path / "cache") as idle:
        assert first_of_each(idle) == FIRST_OF_EACH
        assert len(idle.readers.here.main.shards) == NUM_SHARDS
        limit = room_for(remote, 3)
        with open_dataset(remote, tmp_path / "cache", cache_limit=limit) as limited:
            assert first_of_each(limited) == FIRST_OF_EACH
            wait_until(lambda: len(idle.readers.here.main.shards) <= 1)
            wait_until(lambda: bytes_in(tmp_path / "cache") <= limit)
        assert first_of_each(idle) == FIRST_OF_EACH


READ_ALL = """
import random, sys
from penstock import StreamingDataset
from penstock.errors import PenstockError
remote, local, limit, seed, num_samples = sys.argv[1:]
options = {"cache_limit": int(limit)} if int(limit) else {}
dataset = StreamingDataset(remote=remote, local=local, batch_size=10, **options)
order = list(range(int(num_samples)))
for number in random.Random(int(seed)).sample(order, 60):
    assert dataset[number]["id"] == number
assert [int(sample["id"]) for sample in dataset] == order
"""


def test_jobs_with_other_limits_and_without_one_on_one_folder(remote: Path, tmp_path: Path) -> None:
    small, large = room_for(remote, 5), room_for(remote, 20)
    jobs = [
        start_client(READ_ALL, remote, tmp_path / "cache", limit, seed, NUM_SHARDS * PER_SHARD, PYTHONWARNINGS="ignore")
        for seed, limit in enumerate([0, small, large])
    ]
    for job in jobs:
        finish(job, 240)


def test_idle_workers_of_a_loader_give_way_to_an_eval_dataset(remote: Path, tmp_path: Path) -> None:
    train = open_dataset(remote, tmp_path / "cache", shuffle=True)
    train.warm()
    loader = DataLoader(train, batch_size=PER_SHARD, num_workers=2, persistent_workers=True)
    seen = len(list(loader))  # the workers stay, with all their shards open
    limit = room_for(remote, 2)
    with open_dataset(remote, tmp_path / "cache", cache_limit=limit) as evaluation:
        assert ids_of(evaluation) == list(range(NUM_SHARDS * PER_SHARD))
        wait_until(lambda: bytes_in(tmp_path / "cache") <= limit)
    assert len(list(loader)) == seen
    train.close()


def read_at_random(dataset: StreamingDataset, seed: int, all_idle: Any) -> None:
    numbers = random.Random(seed)
    for turn in range(12):
        number = numbers.randrange(NUM_SHARDS * PER_SHARD)
        assert dataset[number]["id"] == number
        if turn == 6:
            all_idle.wait(120)  # none gets here while others sit on what it needs
    dataset.close()


def test_thirty_processes_with_room_for_one_shard_each(remote: Path, tmp_path: Path) -> None:
    num_processes = 30
    limit = room_for(remote, num_processes)
    with open_dataset(remote, tmp_path / "cache", cache_limit=limit) as dataset:
        context = multiprocessing.get_context("fork")
        all_idle = context.Barrier(num_processes)
        readers = [
            context.Process(target=read_at_random, args=(dataset, seed, all_idle)) for seed in range(num_processes)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(240)
        assert [reader.exitcode for reader in readers] == [0] * num_processes
        assert bytes_in(tmp_path / "cache") <= limit


def test_shards_are_let_go_of_when_no_client_can_ask_for_them(remote: Path, tmp_path: Path, places: Path) -> None:
    """A fetcher that is started in the place of a killed one knows nothing of those who are idle."""
    with open_dataset(remote, tmp_path / "cache") as dataset:
        assert first_of_each(dataset) == FIRST_OF_EACH
        shelf = dataset.readers.here.main.shards
        assert len(shelf) == NUM_SHARDS
        (pid,) = fetcher_pids(places / "run")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(shelf) == 0)
        assert first_of_each(dataset) == FIRST_OF_EACH  # makes a new line for what is there already
        wait_until(lambda: not shelf._keeps_none)
        assert first_of_each(dataset) == FIRST_OF_EACH
        assert len(shelf) == NUM_SHARDS


@pytest.mark.parametrize("problem", ["missing", "empty", "damaged"])
def test_a_dataset_that_could_not_be_opened_keeps_no_fetcher(tmp_path: Path, places: Path, problem: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    if problem != "missing":
        (folder / "a.csv").write_text("id,id\n1,2\n" if problem == "damaged" else "id\n")
    with pytest.raises(PenstockError) as held:  # and with it all that its frames hold
        StreamingDataset(remote=f"{folder}/*.csv", local=str(tmp_path / "local"))
    wait_until(lambda: not fetcher_pids(places / "run"), 10)
    assert held.type
