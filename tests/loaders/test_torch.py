"""The stock DataLoader, and ours, in every way to start workers: each pass is the next epoch, in the same order."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from penstock import StreamingDataLoader, StreamingDataset
from penstock.errors import ConfigError, ResumeError
from tests.streaming import batch_ids, write_samples

NUM_SAMPLES, BATCH = 67, 4

# More workers than processors are slow, not wrong.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("data"), NUM_SAMPLES)


def open_dataset(folder: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(**{"local": folder, "shuffle": True, "batch_size": BATCH, **options})


@pytest.fixture(scope="module")
def epochs(folder: Path) -> list[list[list[int]]]:
    """The first passes of a loader without workers."""
    loader = DataLoader(open_dataset(folder), batch_size=BATCH)
    return [batch_ids(loader) for _ in range(8)]


def test_a_single_process_gives_different_whole_epochs(epochs: list[list[list[int]]]) -> None:
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [BATCH] * 16 + [3]
        assert sorted(number for batch in epoch for number in batch) == list(range(NUM_SAMPLES))
    assert len({str(epoch) for epoch in epochs}) == 8


WAYS = [(0, None, False)] + [
    (workers, method, persistent)
    for workers, method in ((1, "fork"), (2, "fork"), (3, "fork"))
    for persistent in (False, True)
]
# These import torch anew in each worker, which takes seconds.
SLOW_WAYS = [(1, "spawn", False), (2, "spawn", True), (2, "forkserver", False), (2, "forkserver", True)]


@pytest.mark.parametrize("kind", [DataLoader, StreamingDataLoader])
@pytest.mark.parametrize(("workers", "method", "persistent"), WAYS)
def test_each_pass_is_the_next_epoch(
    folder: Path, epochs: list[list[list[int]]], kind: Any, workers: int, method: str | None, persistent: bool
) -> None:
    loader = kind(
        open_dataset(folder),
        batch_size=BATCH,
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=persistent,
    )
    assert len(loader) == 17
    torch.manual_seed(5)
    assert batch_ids(loader) == epochs[0]
    torch.manual_seed(5)  # a seed that is set anew for each epoch does not replay it
    assert batch_ids(loader) == epochs[1]
    loader.dataset.set_epoch(5)
    assert batch_ids(loader) == epochs[5]
    assert batch_ids(islice(loader, 3)) == epochs[6][:3]  # left early
    assert batch_ids(loader) == epochs[7]


@pytest.mark.parametrize(("workers", "method", "persistent"), SLOW_WAYS)
def test_so_it_is_however_workers_are_started(
    folder: Path, epochs: list[list[list[int]]], workers: int, method: str, persistent: bool
) -> None:
    loader: DataLoader[Any] = DataLoader(
        open_dataset(folder),
        batch_size=BATCH,
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=persistent,
    )
    assert batch_ids(loader) == epochs[0]
    loader.dataset.set_epoch(4)  # type: ignore[attr-defined]
    assert batch_ids(loader) == epochs[4]


def test_recreated_loaders_go_on(folder: Path, epochs: list[list[list[int]]]) -> None:
    dataset = open_dataset(folder)
    for epoch, workers in enumerate((2, 0, 3, 1)):
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH, num_workers=workers)
        assert batch_ids(loader) == epochs[epoch]


@pytest.mark.parametrize("kind", [DataLoader, StreamingDataLoader])
@pytest.mark.parametrize("persistent", [False, True])
def test_two_loaders_of_one_dataset_take_turns(
    folder: Path, epochs: list[list[list[int]]], kind: Any, persistent: bool
) -> None:
    dataset = open_dataset(folder)
    loaders = [kind(dataset, batch_size=BATCH, num_workers=2, persistent_workers=persistent) for _ in range(2)]
    for epoch in range(4):
        assert batch_ids(loaders[epoch % 2]) == epochs[epoch]


@pytest.mark.parametrize("workers", [1, 2])
def test_without_a_batch_size_workers_warn_and_no_state_is_given(folder: Path, workers: int) -> None:
    dataset = StreamingDataset(local=folder, shuffle=True)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH, num_workers=workers)
    with pytest.raises(UserWarning, match="batch_size="):  # warnings are errors here, in workers too
        list(loader)
    gc.collect()  # the error holds torch's iterator, whose workers the next ones would inherit, and wait for
    told = DataLoader(dataset, batch_size=BATCH, num_workers=workers, worker_init_fn=_be_quiet)
    found = [number for batch in batch_ids(told) for number in batch]
    assert sorted(found) == list(range(NUM_SAMPLES))
    with pytest.raises(ResumeError, match="batch_size="):
        dataset.state_dict(num_samples=8)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_whose_batches_are_not_the_datasets_warns(folder: Path, workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(open_dataset(folder), batch_size=2 * BATCH, num_workers=workers)
    with pytest.raises(UserWarning, match=f"batches of {2 * BATCH} samples, but its dataset has batch_size={BATCH}"):
        list(loader)
    gc.collect()


def test_a_loader_that_makes_no_batches_does_not_warn(folder: Path) -> None:
    loader: DataLoader[Any] = DataLoader(open_dataset(folder, columnar=True), batch_size=None)
    assert [len(batch["id"]) for batch in loader] == [BATCH] * 16 + [3]


def _be_quiet(worker: int) -> None:
    import warnings

    warnings.simplefilter("ignore")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_a_dataset_under_a_stock_loader(folder: Path, epochs: list[list[list[int]]], workers: int) -> None:
    dataset = open_dataset(folder)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH, num_workers=workers)
    batch_ids(loader)
    steps = iter(loader)
    for _ in range(5):
        next(steps)
    if workers:
        with pytest.raises(ResumeError, match="num_samples="):
            dataset.state_dict()
    else:
        assert dataset.state_dict() == dataset.state_dict(num_samples=5 * BATCH)
    state = json.loads(json.dumps(dataset.state_dict(num_samples=5 * BATCH)))
    other = open_dataset(folder, shuffle_seed=1)
    with pytest.warns(UserWarning, match="shuffle_seed=9176, but this dataset has shuffle_seed=1"):
        other.load_state_dict(state)
    again: DataLoader[Any] = DataLoader(other, batch_size=BATCH, num_workers=2 - workers)
    steps = iter(again)
    assert batch_ids([next(steps) for _ in range(3)]) == epochs[1][5:8]
    later = other.state_dict(num_samples=3 * BATCH, from_beginning=False)
    assert later == other.state_dict(num_samples=8 * BATCH)
    dataset.load_state_dict(later)
    assert batch_ids(loader) == epochs[1][8:]
    assert batch_ids(loader) == epochs[2]


# --- StreamingDataLoader ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("after", [0, 1, 6, 16, 17])
def test_resuming_anywhere(
    folder: Path, epochs: list[list[list[int]]], workers: int, columnar: bool, after: int
) -> None:
    loader = StreamingDataLoader(open_dataset(folder), num_workers=workers, columnar=columnar)
    batch_ids(loader)
    for taken, _ in enumerate(loader, 1):
        if taken >= after:
            break
    state = json.loads(json.dumps(loader.state_dict() if after else epoch_start(folder, 1)))
    other = StreamingDataLoader(open_dataset(folder), num_workers=2 - workers, columnar=not columnar)
    other.load_state_dict(state)
    expected = epochs[1][after:] if after < 17 else epochs[2]
    assert other.state_dict()["epoch"] == (1 if after < 17 else 2)
    assert batch_ids(other) == expected
    assert batch_ids(other) == epochs[2 if after < 17 else 3]
    other.load_state_dict(state)  # back again, twice
    assert batch_ids(islice(other, 1)) == expected[:1]
    other.load_state_dict(other.state_dict())
    assert batch_ids(other) == (expected[1:] or epochs[2])


def epoch_start(folder: Path, epoch: int) -> dict[str, Any]:
    dataset = open_dataset(folder)
    dataset.set_epoch(epoch)
    return dataset.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("columnar", [False, True])
def test_dropping_the_last_batch(folder: Path, epochs: list[list[list[int]]], workers: int, columnar: bool) -> None:
    loader = StreamingDataLoader(open_dataset(folder), num_workers=workers, columnar=columnar, drop_last=True)
    assert len(loader) == 16
    assert batch_ids(loader) == epochs[0][:16]
    other = StreamingDataLoader(open_dataset(folder), drop_last=True)
    other.load_state_dict(loader.state_dict())
    assert batch_ids(other) == epochs[1][:16]


def test_a_state_waits_for_its_epoch_or_gives_way_to_another(folder: Path, epochs: list[list[list[int]]]) -> None:
    loader = StreamingDataLoader(open_dataset(folder))
    batch_ids(loader)
    list(islice(loader, 4))
    state = loader.state_dict()
    loader.set_epoch(1)  # the epoch of no pass yet: it begins anew
    assert batch_ids(loader) == epochs[1]
    loader.load_state_dict(state)
    loader.set_epoch(1)  # as trainers do before each epoch
    assert batch_ids(loader) == epochs[1][4:]
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert batch_ids(loader) == epochs[0]
    assert batch_ids(loader) == epochs[1]


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_length_is_that_of_the_pass_under_way_or_of_the_next(folder: Path, drop_last: bool) -> None:
    loader = StreamingDataLoader(open_dataset(folder), drop_last=drop_last)
    whole = len(loader)
    batches = iter(loader)
    next(batches)
    assert len(loader) == whole  # progress bars ask at any time
    state = loader.state_dict()
    resumed = StreamingDataLoader(open_dataset(folder), drop_last=drop_last)
    resumed.load_state_dict(state)
    assert len(resumed) == whole - 1
    assert [len(resumed) for _ in resumed] == [whole - 1] * (whole - 1)
    assert len(resumed) == whole
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    assert len(resumed) == whole


LEFT_OPEN = """
import sys
from penstock import AsyncDataLoader, MemoryShardedSource, StreamingDataLoader, StreamingDataset

def dataset():
    return StreamingDataset(local=sys.argv[1], batch_size=4)

source = MemoryShardedSource([{"x": n} for n in range(1000)], num_shards=3)
kept = [
    iter(dataset()),
    iter(StreamingDataLoader(dataset(), num_workers=2)),
    iter(StreamingDataLoader(dataset(), columnar=True, num_workers=2)),
    iter(AsyncDataLoader(dataset())),
    iter(AsyncDataLoader(source.map(dict, num_workers=2), shuffle_buffer_size=10)),
    iter(source.filter(len)),
]
for each in kept:
    next(each)
sys.kept = kept  # for as long as there is anything
"""


def test_passes_that_are_open_when_the_interpreter_ends_are_silent(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN, folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_settings_that_contradict(folder: Path) -> None:
    dataset = open_dataset(folder)
    for options in ({"shuffle": True}, {"columnar": True, "collate_fn": list}):
        with pytest.raises(ConfigError):
            StreamingDataLoader(dataset, **options)
    with pytest.raises(ConfigError, match="batch size"):
        StreamingDataLoader(StreamingDataset(local=folder))
    told = StreamingDataset(local=folder)
    StreamingDataLoader(told, batch_size=6)
    assert told.batch_size == 6


def test_columnar_batches_are_tensors(folder: Path, epochs: list[list[list[int]]]) -> None:
    loader = StreamingDataLoader(open_dataset(folder), columnar=True, num_workers=2, prefetch_factor=3)
    batches = list(loader)
    assert batch_ids(batches) == epochs[0]
    assert all(isinstance(batch["x"], torch.Tensor) and batch["x"].shape[1] == 3 for batch in batches)
    assert all(torch.equal(batch["x"][:, 0].long(), batch["id"]) for batch in batches)
    assert len(loader) == 17


@pytest.mark.parametrize("threads", [0, 2])
def test_a_columnar_loader_counts_and_closes_what_it_reads(tmp_path: Path, threads: int) -> None:
    dataset = open_dataset(write_samples(tmp_path, NUM_SAMPLES))
    loader = StreamingDataLoader(dataset, columnar=True, num_workers=threads)
    for num_passes in (1, 2):
        passed = batch_ids(loader)
        assert loader.stats().samples == num_passes * NUM_SAMPLES
    steps = iter(loader)
    taken = batch_ids(islice(steps, 3))
    dataset.close()
    taken += batch_ids(steps)  # shards are opened again
    assert open_files(tmp_path)
    assert sorted(number for batch in taken for number in batch) == list(range(NUM_SAMPLES))
    assert taken != passed
    dataset.close()
    assert open_files(tmp_path) == set()


def open_files(folder: Path) -> set[str]:
    """What this process has mapped of a folder."""
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line}


@pytest.mark.parametrize("threads", [0, 2])
def test_the_state_of_a_dataset_under_a_columnar_loader(folder: Path, threads: int) -> None:
    dataset = open_dataset(folder)
    next(iter(dataset))  # a pass of the dataset's own, given up
    loader = StreamingDataLoader(dataset, columnar=True, num_workers=threads)
    list(islice(loader, 5))
    if threads:
        with pytest.raises(ResumeError, match="StreamingDataLoader"):
            dataset.state_dict()
    else:
        assert dataset.state_dict() == loader.state_dict()
    assert loader.state_dict()["position"] == 5 * BATCH


@pytest.mark.parametrize("epoch_end", ["pad", "drop", "uneven"])
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_length_is_what_comes(folder: Path, epoch_end: str, rank: int, drop_last: bool) -> None:
    dataset = open_dataset(folder, epoch_end=epoch_end, rank=rank, world_size=3)
    loader = StreamingDataLoader(dataset, num_workers=2, drop_last=drop_last)
    batches = batch_ids(loader)
    assert len(loader) == len(batches)
    if not drop_last:
        assert len(dataset) == sum(map(len, batches))


def test_mosaic_states_load_and_go_on(folder: Path) -> None:
    theirs = {
        "epoch": 1,
        "sample_in_epoch": 20,
        "num_canonical_nodes": 2,
        "shuffle_seed": 7,
        "initial_physical_nodes": 1,
    }
    options: dict[str, Any] = {"shuffle_seed": 7, "num_canonical_nodes": 2}
    begun = open_dataset(folder, order="mosaic", **options)
    begun.set_epoch(1)
    expected = batch_ids(DataLoader(begun, batch_size=BATCH))
    resumed = StreamingDataLoader(open_dataset(folder, shuffle_seed=7), num_workers=2)  # the order is the state's
    resumed.load_state_dict(theirs)
    assert batch_ids(resumed) == expected[5:]
    native = open_dataset(folder, order="native", shuffle_seed=7)
    with pytest.raises(ResumeError, match="order='mosaic'"):
        native.load_state_dict(theirs)


def test_states_of_something_else_are_refused(folder: Path, tmp_path: Path) -> None:
    state = open_dataset(folder).state_dict()
    other = open_dataset(write_samples(tmp_path, 30))
    other.load_state_dict(state)
    with pytest.raises(ResumeError):
        next(iter(other))
    nothings: list[Any] = [{}, {"a": 1}, {"epoch": 0}, [], None]
    for nonsense in nothings:
        with pytest.raises(ResumeError):
            dataset = open_dataset(folder)
            dataset.load_state_dict(nonsense)
            next(iter(dataset))
