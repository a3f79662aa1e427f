"""Counts of a rank: what all its workers read, however they are started, seen by their parent without asking them."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from dataclasses import asdict, fields
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from penstock import Stream, StreamingDataLoader, StreamingDataset
from penstock.counters import NodeStats, Stats
from penstock.wire import messages
from tests.streaming import batch_ids, write_samples

if TYPE_CHECKING:
    from pathlib import Path

NUM_SAMPLES, BATCH, NUM_SHARDS = 60, 4, 6
REST_S = 0.005

# More workers than processors are slow, not wrong.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("data"), NUM_SAMPLES)


def open_dataset(folder: Path, tmp_path: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(**{"remote": folder, "local": tmp_path / "cache", "batch_size": BATCH, **options})


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.mds"))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_sum_over_workers_is_what_was_delivered(
    folder: Path, tmp_path: Path, method: str, persistent: bool
) -> None:
    dataset = open_dataset(folder, tmp_path)
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method, "persistent_workers": persistent}
    loader = StreamingDataLoader(dataset, **options)
    for passed in (1, 2):
        assert sum(map(len, batch_ids(loader))) == NUM_SAMPLES
        stats = loader.stats(by_worker=True)
        assert stats.samples == passed * NUM_SAMPLES
        assert stats.bytes == pytest.approx(passed * stored_bytes(folder), abs=100)
        assert {name: worker.samples for name, worker in stats.workers.items()} == {
            "main": 0,
            "0": passed * 32,
            "1": passed * 28,
        }
        assert stats.downloads == NUM_SHARDS + 1  # the index, too: what is there is not fetched again
        assert stats.downloads_again == 0
        assert stats.cache_hits + stats.cache_waits >= NUM_SHARDS
        assert stats.loop is not None
        assert stats.loop.batches == passed * 15
    for name in ("reading", "decoding", "collating"):
        assert getattr(stats, f"seconds_{name}") > 0
    assert dataset.stats().samples == stats.samples


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_stock_loader_hides_only_its_loop(folder: Path, tmp_path: Path, method: str) -> None:
    dataset = open_dataset(folder, tmp_path)
    loader: DataLoader[Any] = DataLoader(dataset, BATCH, num_workers=2, multiprocessing_context=method)
    assert sum(map(len, batch_ids(loader))) == NUM_SAMPLES
    stats = dataset.stats()
    assert (stats.samples, stats.downloads, stats.loop) == (NUM_SAMPLES, NUM_SHARDS + 1, None)
    assert stats.seconds_collating > 0
    assert "loop.waiting_share" not in dataset.stats(flat=True)


@pytest.mark.parametrize(("columnar", "workers"), [(False, 0), (True, 0), (True, 2)])
def test_a_single_process_and_threads(folder: Path, tmp_path: Path, columnar: bool, workers: int) -> None:
    loader = StreamingDataLoader(open_dataset(folder, tmp_path), columnar=columnar, num_workers=workers)
    for passed in (1, 2):
        assert sum(map(len, batch_ids(loader))) == NUM_SAMPLES
        stats = loader.stats(by_worker=True)
        assert stats.samples == stats.workers["main"].samples == passed * NUM_SAMPLES
        assert stats.downloads == NUM_SHARDS + 1
    assert stats.seconds_collating > 0
    assert list(stats.workers) == ["main"]


def test_two_loaders_over_one_dataset_and_passes_that_are_left(folder: Path, tmp_path: Path) -> None:
    dataset = open_dataset(folder, tmp_path)
    first, second = (StreamingDataLoader(dataset, num_workers=2) for _ in range(2))
    for left, right in zip(first, second, strict=True):
        assert len(left["id"]) == len(right["id"])
    assert dataset.stats().samples == 2 * NUM_SAMPLES
    assert len(list(islice(first, 3))) == 3
    stats, loop = first.stats(), second.stats().loop
    assert 2 * NUM_SAMPLES + 3 * BATCH <= stats.samples <= 3 * NUM_SAMPLES
    assert stats.loop is not None
    assert loop is not None
    assert (stats.loop.batches, loop.batches) == (18, 15)


def _read_as_rank(dataset: StreamingDataset, rank: int, out: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    loader: DataLoader[Any] = DataLoader(dataset, BATCH, num_workers=2, multiprocessing_context="fork")
    ids = [batch_ids(loader) for _ in range(2)]
    out.write_text(json.dumps({"ids": ids, "samples": dataset.stats().samples, "epoch": dataset.next_epoch}))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_rank_counts_for_itself(folder: Path, tmp_path: Path, method: str) -> None:
    """Also where all were started with one dataset, by a process that has read of it."""
    dataset = open_dataset(folder, tmp_path)
    assert len(list(dataset)) == NUM_SAMPLES
    dataset.set_epoch(0)
    context: Any = multiprocessing.get_context(method)
    outs = [tmp_path / f"{rank}.json" for rank in range(2)]
    ranks = [context.Process(target=_read_as_rank, args=(dataset, rank, out)) for rank, out in enumerate(outs)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    found = [json.loads(out.read_text()) for out in outs]
    assert [rank["samples"] for rank in found] == [NUM_SAMPLES, NUM_SAMPLES]  # a half of two epochs
    assert [rank["epoch"] for rank in found] == [2, 2]
    for epoch in range(2):
        ids = [number for rank in found for batch in rank["ids"][epoch] for number in batch]
        assert sorted(ids) == list(range(NUM_SAMPLES))
    assert dataset.stats().samples == NUM_SAMPLES


def test_what_was_evicted_and_fetched_again_is_counted(folder: Path, tmp_path: Path) -> None:
    limit = stored_bytes(folder) // 2 + (folder / "index.json").stat().st_size
    loader = StreamingDataLoader(open_dataset(folder, tmp_path, cache_limit=limit), num_workers=2)
    for _ in range(3):
        assert sum(map(len, batch_ids(loader))) == NUM_SAMPLES
    stats = loader.stats()
    assert stats.downloads_again == stats.downloads - NUM_SHARDS - 1
    assert stats.downloads_again > 0
    assert stats.node.evictions >= stats.downloads_again


def _rest(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(REST_S)
    return sample


def test_time_goes_to_where_it_is_spent(folder: Path) -> None:
    """Without a store there is nothing to wait for, and a transform takes at least the time that it rests."""
    dataset = StreamingDataset(local=folder, batch_size=BATCH, sample_transform=_rest)
    loader = StreamingDataLoader(dataset, num_workers=2)
    assert sum(map(len, batch_ids(loader))) == NUM_SAMPLES
    stats = loader.stats()
    assert (stats.seconds_waiting, stats.downloads, stats.cache_waits) == (0, 0, 0)
    assert stats.seconds_transforming >= NUM_SAMPLES * REST_S
    assert min(stats.seconds_reading, stats.seconds_decoding, stats.seconds_collating) > 0


def test_streams_are_counted_apart(folder: Path, tmp_path: Path) -> None:
    more = write_samples(tmp_path / "more", 20, first_id=100)
    streams = [Stream(local=folder), Stream(remote=more, local=tmp_path / "cache")]
    loader = StreamingDataLoader(StreamingDataset(streams=streams, batch_size=BATCH), num_workers=2)
    assert sum(map(len, batch_ids(loader))) == 80
    local, fetched = loader.stats().streams
    assert (local.samples, local.downloads, fetched.samples, fetched.downloads) == (NUM_SAMPLES, 0, 20, 3)
    assert loader.stats(flat=True)["streams.1.samples"] == 20


READ = [
    "samples",
    "bytes",
    "cache_hits",
    "cache_waits",
    "downloads",
    "downloaded_bytes",
    "downloads_again",
    "skipped",
    "seconds_reading",
    "seconds_waiting",
    "seconds_decoding",
    "seconds_transforming",
    "seconds_collating",
]
LOOP = ["batches", "seconds_starting", "seconds_waiting", "seconds_training", "waiting_share"]
NODE = [
    "downloads",
    "bytes",
    "bytes_twice",
    "retries",
    "errors",
    "evictions",
    "evicted_bytes",
    "in_flight",
    "queued",
    "pieces_in_flight",
    "concurrency",
    "bytes_per_s",
    "groups",
]


def test_names_are_those_that_dashboards_were_made_with(folder: Path, tmp_path: Path) -> None:
    loader = StreamingDataLoader(open_dataset(folder, tmp_path), num_workers=1)
    assert sum(map(len, batch_ids(loader))) == NUM_SAMPLES
    named = [*READ, *(f"loop.{name}" for name in LOOP), "uncounted_bytes", *(f"node.{name}" for name in NODE)]
    numbers = loader.stats(flat=True)
    assert list(numbers) == named
    assert all(type(number) in (int, float) for number in numbers.values())
    by_worker = [f"workers.{worker}.{name}" for worker in ("main", "0") for name in READ]
    assert set(loader.stats(by_worker=True, flat=True)) == {*named, *by_worker}
    assert numbers["samples"] == loader.stats().samples == NUM_SAMPLES
    assert numbers["uncounted_bytes"] > 2 * (folder / "index.json").stat().st_size  # it is there twice


def test_all_that_the_fetcher_counts_is_shown() -> None:
    assert {each.name for each in fields(NodeStats)} == {each.name for each in fields(messages.NodeCounts)}


def test_nothing_was_read_yet(folder: Path) -> None:
    stats = StreamingDataLoader(StreamingDataset(local=folder), batch_size=BATCH).stats()
    assert stats == Stats(streams=stats.streams, loop=stats.loop)
    assert stats.loop is not None
    assert asdict(stats.loop).popitem() == ("waiting_share", None)
