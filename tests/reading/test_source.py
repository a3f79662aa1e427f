"""A source of one's own, with no files and no cache, has all that datasets have: the seam is in the right place."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import Stream, StreamingDataLoader, StreamingDataset
from penstock.errors import ConfigError
from penstock.reading.source import (
    FetchesShards,
    FollowsSamples,
    HasPortions,
    HasStretches,
    ReadsFewRows,
    SharesSpace,
    Source,
    sources,
)
from penstock.testing import SourceContract
from tests.reading.computed import FIRST_ID, Squares
from tests.streaming import write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.types import Int64Array

LENGTHS = [7, 0, 30, 12, 1]
NUM_SQUARES = sum(LENGTHS)
NUM_STORED = 60


class TestContract(SourceContract):
    def make_source(self, folder: Path) -> Source:
        del folder
        return Squares(LENGTHS)


class TestContractOfStoredShards(SourceContract):
    def make_source(self, folder: Path) -> Source:
        if not any(folder.iterdir()):
            write_samples(folder, 25)
        return StreamingDataset(local=folder)._opened.source


class TestContractOfFetchedShards(SourceContract):
    def make_source(self, folder: Path) -> Source:
        if not any(folder.iterdir()):
            write_samples(folder / "remote", 25)
        return StreamingDataset(remote=folder / "remote", local=folder / "local")._opened.source


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "stored", NUM_STORED, compression="zstd")


def mixed(stored: Path, **options: Any) -> StreamingDataset:
    """Computed samples between two halves of stored ones, which are fetched and unpacked."""
    streams = [
        Stream(local=stored, name="stored"),
        Stream(source=Squares(LENGTHS), name="squares"),
        Stream(local=stored, name="again", repeat=0.5),
    ]
    return StreamingDataset(**{"streams": streams, "shuffle": True, "batch_size": 6, **options})


def ids_of(batches: Iterator[Any]) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


def test_shuffled_and_mixed_with_stored_shards(stored: Path) -> None:
    with mixed(stored) as dataset:
        assert dataset.samples_per_stream.tolist() == [NUM_STORED, NUM_SQUARES, NUM_STORED]
        seen = [sample["id"] for sample in dataset]
        assert [stream.samples for stream in dataset.stats().streams] == [NUM_STORED, NUM_SQUARES, NUM_STORED // 2]
    counts = Counter(seen)
    squares = [number for number in seen if number >= FIRST_ID]
    assert sorted(squares) == [FIRST_ID + row for row in range(NUM_SQUARES)]
    assert squares != sorted(squares)
    assert all(counts[number] in (1, 2) for number in range(NUM_STORED))


def test_by_number_by_slice_and_by_column(stored: Path) -> None:
    with mixed(stored) as dataset:
        assert dataset[NUM_STORED]["square"] == FIRST_ID**2
        assert [sample["id"] for sample in dataset[NUM_STORED - 1 : NUM_STORED + 2]] == [59, FIRST_ID, FIRST_ID + 1]
        numbers = np.arange(NUM_STORED, NUM_STORED + NUM_SQUARES)[::-1]
        assert list(dataset.read_columns(numbers)["id"]) == list(range(FIRST_ID + NUM_SQUARES - 1, FIRST_ID - 1, -1))


def test_warm_and_pin_mean_the_shards_that_are_fetched(stored: Path) -> None:
    with mixed(stored) as dataset:
        dataset.warm()
        dataset.pin([NUM_STORED, 0])
        dataset.unpin()
        dataset.warm([NUM_STORED])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_on_another_world_in_workers(stored: Path, num_workers: int) -> None:
    options = {"batch_size": None, "epoch_end": "uneven"}
    alone = mixed(stored, **options)
    loader = StreamingDataLoader(alone, batch_size=12, num_workers=num_workers, collate_fn=_collate)
    whole = ids_of(iter(loader))
    first = mixed(stored, **options)
    loader = StreamingDataLoader(first, batch_size=12, num_workers=num_workers, collate_fn=_collate)
    batches = iter(loader)
    begun = [int(number) for _ in range(3) for number in next(batches)["id"]]
    state = json.loads(json.dumps(loader.state_dict()))
    del batches
    rest: list[list[list[int]]] = []
    for rank in range(2):
        dataset = mixed(stored, rank=rank, world_size=2, **options)
        loader = StreamingDataLoader(dataset, batch_size=6, num_workers=num_workers, collate_fn=_collate)
        loader.load_state_dict(state)
        rest.append([[int(number) for number in batch["id"]] for batch in loader])
    assert begun == whole[:36]
    resumed = Counter(number for rank in rest for batch in rank for number in batch)
    assert resumed == Counter(whole[36:])
    for step in range(min(map(len, rest))):
        ours = sorted(number for rank in rest for number in rank[step])
        assert ours == sorted(whole[36 + 12 * step : 36 + 12 * step + len(ours)])


def _collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": [sample["id"] for sample in samples]}


def test_two_streams_of_one_source() -> None:
    source = Squares([4, 4])
    streams = [Stream(source=source, name="once"), Stream(source=source, name="again")]
    with StreamingDataset(streams=streams) as dataset:
        assert dataset.num_samples == 16
        assert [dataset[number]["id"] for number in (0, 7, 8, 15)] == [FIRST_ID, FIRST_ID + 7, FIRST_ID, FIRST_ID + 7]
        assert Counter(sample["id"] for sample in dataset) == Counter({FIRST_ID + row: 2 for row in range(8)})


def test_a_source_by_name_is_made_from_its_stream() -> None:
    made: list[Stream] = []

    def make(stream: Stream) -> Source:
        made.append(stream)
        return Squares([4, 4])

    sources.register("squares-of-this-test")(make)
    stream = Stream(remote="anywhere", source="squares-of-this-test")
    with StreamingDataset(streams=[stream]) as dataset:
        assert [sample["id"] for sample in dataset] == list(range(FIRST_ID, FIRST_ID + 8))
    assert made == [stream]


class _Told(Squares):
    """Squares that note what they are told, without inheriting any ability."""

    is_fetched, samples_ahead, portion_bytes = True, 8, 64

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(lengths)
        self.expected: list[int] = []
        self.announced: list[int] = []

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:
        assert len(shards) == len(batches_ahead)
        self.expected += shards.tolist()

    def announce(self, ids: Int64Array, *, is_first: bool) -> None:
        self.announced = [*([] if is_first else self.announced), *ids.tolist()]


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_source_is_told_what_it_has_members_for(is_joined: bool) -> None:
    told = _Told([4, 4, 4])
    streams = [Stream(source=told, name="told"), *([Stream(source=Squares([2]), name="more")] if is_joined else [])]
    with StreamingDataset(streams=streams, batch_size=2) as dataset:
        seen = [sample["id"] for sample in dataset]
    assert len(seen) == (14 if is_joined else 12)
    assert set(told.expected) == {0, 1, 2}
    assert sorted(told.announced) == list(range(12))


def test_a_source_has_few_members() -> None:
    """All else is an ability, which a source has if it defines it."""
    members = {name for name in vars(Source) if not name.startswith("_")} | {"spans"}
    assert len(members) <= 7
    abilities = (FetchesShards, FollowsSamples, HasPortions, HasStretches, ReadsFewRows, SharesSpace)
    assert not any(isinstance(Squares(LENGTHS), ability) for ability in abilities)
    told = _Told(LENGTHS)
    assert [isinstance(told, ability) for ability in abilities] == [True, True, True, False, False, False]


def test_a_source_of_an_unknown_type() -> None:
    with pytest.raises(ConfigError, match="unknown source 'squirrels'"):
        StreamingDataset(streams=[Stream(source="squirrels")])
