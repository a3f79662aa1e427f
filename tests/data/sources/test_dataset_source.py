"""A `StreamingDataset` given wherever a source can be: its shards, transforms, mixes, packing, batches."""

from __future__ import annotations

import pickle
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import (
    AsyncDataLoader,
    CompositeShardedSource,
    LimitedShardedSource,
    MDSWriter,
    MemoryShardedSource,
    MixedShardedSource,
    PackedShardedSource,
    SelectFields,
    Stream,
    StreamingDataset,
    TransformedShardedSource,
    wrap_hf_dataset,
)
from penstock.errors import ConfigError, SampleIndexError
from tests.sources.cutting import check_cut_anywhere, plain
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.s3 import S3Server

NUM = 120


def rows(count: int = NUM, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": first + n, "text": f"text {n}", "tokens": np.arange(n % 5 + 1, dtype=np.int32)} for n in range(count)
    ]


def write(folder: Path, samples: list[dict[str, Any]]) -> Path:
    columns = {"id": "int", "text": "str", "tokens": "ndarray:int32"}
    with MDSWriter(out=folder, columns=columns, size_limit=700) as writer:
        for sample in samples:
            writer.write(sample)
    return folder


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


@pytest.fixture
def dataset(tmp_path: Path) -> StreamingDataset:
    return StreamingDataset(local=write(tmp_path / "mds", rows()), shuffle=True, batch_size=8)


def ids(samples: Any) -> list[int]:
    return [int(sample["id"]) for sample in samples]


def test_shards_are_opened_by_name_at_every_row(dataset: StreamingDataset) -> None:
    assert dataset.num_shards == dataset.num_shards() == len(dataset.shard_names) > 3
    assert ids(dataset.iter_shards()) == list(range(NUM))
    first = 0
    for name in dataset.shard_names:
        info = dataset.get_shard_info(name)
        assert info.num_rows
        for row in range(info.num_rows + 1):
            assert ids(dataset.open_shard_at_row(name, row=row)) == list(range(first + row, first + info.num_rows))
        with pytest.raises(SampleIndexError):
            dataset.open_shard_at_row(name, info.num_rows + 1)
        first += info.num_rows
    with pytest.raises(ConfigError, match=r"did you mean 'shard\.000\d0\.mds'"):
        dataset.open_shard("shard.0000.mds")
    assert ids(dataset) != list(range(NUM))  # a pass over it is shuffled all the same


def test_cut_anywhere(dataset: StreamingDataset) -> None:
    check_cut_anywhere(lambda: dataset.iter_shards([2, 0, 1]))


def test_whatever_takes_a_source_takes_it(dataset: StreamingDataset) -> None:
    other = MemoryShardedSource(rows(30, first=1000))
    mixed = MixedShardedSource({"a": dataset, "b": other}, stop_strategy="all_exhausted")
    assert sorted(ids(mixed)) == sorted([*range(NUM), *range(1000, 1030)])
    assert ids(CompositeShardedSource([other, dataset])) == [*range(1000, 1030), *range(NUM)]
    assert ids(LimitedShardedSource(dataset, 7)) == list(range(7))
    packed = PackedShardedSource(dataset, 16, 1, input_field="tokens")
    assert sum(1 for _ in packed) == packed.stats().rows > 0
    assert packed.stats().documents == NUM
    assert list(TransformedShardedSource(dataset, SelectFields(["id"]))) == [{"id": n} for n in range(NUM)]
    assert ids(dataset.filter(lambda sample: sample["id"] % 2).map(lambda sample: {"id": sample["id"] * 2}))[1] == 6
    assert ids(wrap_hf_dataset(dataset)) == list(range(NUM))


def test_batches_in_order_through_a_buffer_and_shuffled_globally(tmp_path: Path, dataset: StreamingDataset) -> None:
    def taken(loader: AsyncDataLoader) -> list[int]:
        return [int(number) for batch in loader for number in batch["id"]]

    assert taken(AsyncDataLoader(dataset.as_source(), 8)) == list(range(NUM))
    buffered = taken(AsyncDataLoader(dataset.as_source(), 8, shuffle_buffer_size=20, prefetch_workers=3))
    assert sorted(buffered) == list(range(NUM)) != buffered
    in_order = StreamingDataset(local=tmp_path / "mds")
    assert taken(AsyncDataLoader(in_order, 8)) == list(range(NUM))
    shuffled = taken(AsyncDataLoader(in_order, 8, shuffle=True, seed=3))
    assert sorted(shuffled) == list(range(NUM)) != shuffled
    assert taken(AsyncDataLoader(in_order.as_source(), 8, shuffle=True, seed=3)) == shuffled


def test_a_loader_says_which_rank_it_is(dataset: StreamingDataset, tmp_path: Path) -> None:
    seen = []
    for rank in range(2):
        one = StreamingDataset(local=tmp_path / "mds", shuffle=True)
        seen.append([int(n) for batch in AsyncDataLoader(one, 5, rank=rank, world_size=2) for n in batch["id"]])
    assert sorted(seen[0] + seen[1]) == list(range(NUM))
    said = StreamingDataset(local=tmp_path / "mds", rank=0, world_size=3)
    with pytest.raises(ConfigError, match="rank 0 of 3, but its loader is rank 1 of 2"):
        AsyncDataLoader(said, 5, rank=1, world_size=2)


def test_several_streams_have_names_of_their_own(tmp_path: Path) -> None:
    streams = [
        Stream(local=write(tmp_path / "a", rows(20)), name="a"),
        Stream(local=write(tmp_path / "b", rows(20, first=100)), name="b", repeat=3),
        Stream(source=MemoryShardedSource(rows(5, first=200), fingerprint="m"), name="c"),
    ]
    dataset = StreamingDataset(streams=streams)
    assert dataset.shard_names[0] == "a/shard.00000.mds"
    assert dataset.shard_names[-1] == "c/memory:0"
    assert ids(dataset.open_shard("c/memory:0")) == list(range(200, 205))
    # Each sample once: weights are for passes.
    assert ids(dataset.iter_shards()) == [*range(20), *range(100, 120), *range(200, 205)]


class Negated(StreamingDataset):
    def get_item(self, sample_id: int, *retry: Any, **named: Any) -> Any:
        return {"id": -super().get_item(sample_id)["id"]}


def test_samples_are_those_that_the_dataset_gives(tmp_path: Path) -> None:
    folder = write(tmp_path / "mds", rows())
    own = Negated(local=folder)
    assert ids(own.iter_shards()) == [-n for n in range(NUM)]
    changed = StreamingDataset(local=folder, sample_transform=lambda sample: {"id": sample["id"] + 1})
    assert ids(changed.iter_shards()) == list(range(1, NUM + 1))
    chosen = StreamingDataset(local=folder, columns=["id"])
    assert next(chosen.open_shard_at_row(chosen.shard_names[0], 0)) == {"id": 0}


def test_fingerprints(tmp_path: Path) -> None:
    folder = write(tmp_path / "mds", rows())
    first = StreamingDataset(local=folder).as_source().fingerprint
    assert first == StreamingDataset(local=folder).as_source().fingerprint
    assert first != StreamingDataset(local=folder, columns=["id"]).as_source().fingerprint
    assert Negated(local=folder).as_source().fingerprint is None
    assert StreamingDataset(local=folder, sample_transform=dict).as_source().fingerprint is None
    write(tmp_path / "new", rows())
    for file in (tmp_path / "new").iterdir():
        file.rename(folder / file.name)  # written anew, the same in size
    assert first != StreamingDataset(local=folder).as_source().fingerprint


def test_a_dataset_is_a_stream_of_another_one(tmp_path: Path, dataset: StreamingDataset) -> None:
    other = Stream(source=MemoryShardedSource(rows(30, first=1000), fingerprint="m"), name="memory")

    def joined() -> StreamingDataset:
        inner = StreamingDataset(local=tmp_path / "mds")
        return StreamingDataset(streams=[Stream(source=inner, name="inner"), other], shuffle=True, batch_size=5)

    whole = ids(joined())
    assert sorted(whole) == sorted([*range(NUM), *range(1000, 1030)])
    begun = joined()
    assert ids(islice(iter(begun), 35)) == whole[:35]
    resumed = joined()
    resumed.load_state_dict(begun.state_dict())
    assert ids(resumed) == whole[35:]
    copied: StreamingDataset = pickle.loads(pickle.dumps(joined()))
    assert ids(copied) == whole


def test_shards_of_a_bucket(moto: S3Server, tmp_path: Path) -> None:
    moto.make_bucket("as-source")
    columns = {"id": "int", "text": "str", "tokens": "ndarray:int32"}
    with MDSWriter(
        out="s3://as-source/mds", columns=columns, size_limit=700, storage_options=moto.options, compression="zstd"
    ) as writer:
        for sample in rows():
            writer.write(sample)
    dataset = StreamingDataset(remote="s3://as-source/mds", storage_options=moto.options)
    source = dataset.as_source()
    assert plain(source) == plain(rows())
    assert source.fingerprint
    loader = AsyncDataLoader(dataset.map(lambda sample: {"id": sample["id"]}), 10, prefetch_workers=3)
    assert [int(n) for batch in loader for n in batch["id"]] == list(range(NUM))
