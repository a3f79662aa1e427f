"""What holds for every format that is read in place: all that holds for a dataset of our own."""

from __future__ import annotations

import json
import pickle
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import Stream, StreamingDataLoader, StreamingDataset
from tests.streaming import tree_of, write_samples

if TYPE_CHECKING:
    from pathlib import Path

    from tests.in_place.kinds import Kind
    from tests.servers.nginx import WebServer
    from tests.servers.s3 import S3Server

NUM_SAMPLES = 200
BATCH = 24


def open_dataset(place: Any, **options: Any) -> StreamingDataset:
    return StreamingDataset(remote=place, **{"shuffle": True, "batch_size": BATCH, **options})


def batches_of(kind: Kind, dataset: StreamingDataset, num_workers: int = 0) -> list[list[int]]:
    loader = StreamingDataLoader(dataset, batch_size=dataset.batch_size, num_workers=num_workers)
    return [kind.batch_numbers(batch) for batch in loader]


def test_a_shuffled_epoch_gives_each_sample_once(kind: Kind, tmp_path: Path) -> None:
    folder = kind.write_files(tmp_path / "data")
    before = tree_of(folder)
    with open_dataset(folder) as dataset:
        assert dataset.num_samples == NUM_SAMPLES
        epochs = [kind.numbers(dataset) for _ in range(2)]
        assert all(sorted(epoch) == list(range(NUM_SAMPLES)) for epoch in epochs)
        assert epochs[0] != epochs[1]
        assert epochs[0] != sorted(epochs[0])
        # By number they are as the files have them.
        assert kind.numbers(dataset[[3, 199, 0]]) == [3, 199, 0]
        assert kind.numbers([dataset[NUM_SAMPLES - 1], dataset[17]]) == [199, 17]
    assert tree_of(folder) == before


@pytest.mark.parametrize(
    ("num_ranks", "num_workers"),
    [(3, 2), *(pytest.param(*world, marks=pytest.mark.soak) for world in ((1, 2), (2, 0), (2, 2), (3, 0)))],
)
def test_the_same_global_batches_on_any_world(kind: Kind, tmp_path: Path, num_ranks: int, num_workers: int) -> None:
    folder = kind.write_files(tmp_path / "data")
    with open_dataset(folder) as dataset:
        whole = batches_of(kind, dataset)
    ranks = []
    for rank in range(num_ranks):
        options = {"rank": rank, "world_size": num_ranks, "batch_size": BATCH // num_ranks}
        with open_dataset(folder, **options) as dataset:
            ranks.append(batches_of(kind, dataset, num_workers if rank == 0 else 0))
    for step in range(NUM_SAMPLES // BATCH):
        assert sorted(chain.from_iterable(rank[step] for rank in ranks)) == sorted(whole[step])


def test_a_run_goes_on_elsewhere_as_if_it_had_never_ended(kind: Kind, tmp_path: Path) -> None:
    """On two ranks instead of one, and from a copy of the files in another place."""
    folder = kind.write_files(tmp_path / "data")
    copy = kind.write_files(tmp_path / "copy")
    with open_dataset(folder) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2)
        batches = iter(loader)
        begun = [kind.batch_numbers(next(batches)) for _ in range(3)]
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [kind.batch_numbers(batch) for batch in batches]
    assert sorted(chain.from_iterable(begun + rest)) == list(range(NUM_SAMPLES))
    ranks = []
    for rank in range(2):
        with open_dataset(copy, rank=rank, world_size=2, batch_size=BATCH // 2) as dataset:
            with pytest.warns(UserWarning, match="not the versions that the state was saved with"):
                dataset.load_state_dict(state)
            ranks.append(batches_of(kind, dataset))
    for step in range(len(rest) - 1):
        assert sorted(ranks[0][step] + ranks[1][step]) == sorted(rest[step])


def test_columns_are_the_rows(kind: Kind, tmp_path: Path) -> None:
    folder = kind.write_files(tmp_path / "data")
    rows = np.array([7, 3, 150, 99])
    with open_dataset(folder) as dataset:
        assert kind.batch_numbers(dataset.read_columns(rows)) == rows.tolist()
    with open_dataset(folder) as one, open_dataset(folder, columnar=True) as other:
        by_columns = [kind.batch_numbers(batch) for batch in other]
        assert list(chain.from_iterable(by_columns)) == kind.numbers(one)


def test_chosen_columns(kind: Kind, tmp_path: Path) -> None:
    folder = kind.write_files(tmp_path / "data")
    with open_dataset(folder, columns=[kind.text]) as chosen, open_dataset(folder) as whole:
        assert [set(sample) for sample in chosen[:2]] == [{kind.text}] * 2
        assert [sample[kind.text] for sample in chosen] == [sample[kind.text] for sample in whole]


def test_mixed_with_a_dataset_of_our_own(kind: Kind, tmp_path: Path) -> None:
    folder = kind.write_files(tmp_path / "data")
    ours = write_samples(tmp_path / "ours", 100)
    streams = [Stream(remote=str(folder), proportion=0.5), Stream(local=str(ours), proportion=0.5)]
    with StreamingDataset(streams=streams, shuffle=True, batch_size=BATCH, epoch_size=200) as dataset:
        samples = list(dataset)
        of_files = [sample for sample in samples if "x" not in sample]
        assert len(samples) == 200
        assert len(set(kind.numbers(of_files))) == 100
        assert kind.numbers([dataset[5]]) == [5]
        assert dataset[NUM_SAMPLES + 5]["id"] == 5


def test_over_the_network_with_a_small_cache(kind: Kind, nginx: WebServer, tmp_path: Path) -> None:
    """A list of URLs: web servers cannot be listed. The cache holds half of the files."""
    folder = kind.write_files(nginx.files / f"contract-{kind.name}", num_files=6)
    urls = [f"{nginx.url}/{folder.name}/{path.name}" for path in sorted(folder.iterdir())]
    with open_dataset(urls, local=tmp_path / "cache") as dataset:
        assert sorted(kind.numbers(dataset)) == list(range(300))
    sizes = [path.stat().st_size for path in (tmp_path / "cache").glob("part-*")]
    assert len(sizes) == 6
    small, limit = tmp_path / "small", 3 * max(sizes)
    with open_dataset(urls, local=small, cache_limit=limit, shuffle=False) as dataset:
        assert sorted(kind.numbers(dataset)) == list(range(300))
        assert sum(path.stat().st_size for path in small.glob("part-*")) <= limit


def test_in_a_bucket_by_glob_folder_and_name(kind: Kind, moto: S3Server, tmp_path: Path) -> None:
    folder = kind.write_files(tmp_path / "data")
    bucket = f"contract-{kind.name.replace('.', '-')}"
    moto.make_bucket(bucket)
    store = open_bucket(bucket, moto)
    for path in folder.iterdir():
        store.upload(path, f"deep/train/{path.name}")
    found = []
    for place in (
        f"s3://{bucket}/deep/train",
        f"s3://{bucket}/deep/*/part-*",
        f"s3://{bucket}/deep/train/part-0{kind.suffix}",
    ):
        with open_dataset(place, storage_options=moto.options) as dataset:
            found.append(kind.numbers(dataset))
    assert sorted(found[0]) == sorted(found[1])
    assert sorted(found[0]) == list(range(NUM_SAMPLES))
    assert sorted(found[2]) == list(range(50))


def open_bucket(name: str, server: S3Server) -> Any:
    from penstock.storage.base import open_store, resolve_store

    return open_store(resolve_store(f"s3://{name}", server.options))


def test_it_travels_to_other_processes(kind: Kind, tmp_path: Path) -> None:
    folder = kind.write_files(tmp_path / "data")
    with open_dataset(folder) as dataset:
        again = pickle.loads(pickle.dumps(dataset))
        assert kind.numbers(again[:5]) == [0, 1, 2, 3, 4]
        again.close()
