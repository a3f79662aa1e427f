"""A source with an index, given to a `StreamingDataset`: its shuffle, mix, state and workers."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from penstock import (
    CompositeShardedSource,
    LimitedShardedSource,
    MDSWriter,
    MemoryShardedSource,
    MixedShardedSource,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    Transform,
)
from penstock.errors import ConfigError, EmptyDatasetError, MissingColumnError, ResumeError
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


def memory(count: int = 200, word: str = "one", first: int = 0) -> MemoryShardedSource:
    samples = [{"x": first + number} for number in range(count)]
    return MemoryShardedSource(samples, num_shards=5, fingerprint=word)


class Times(Transform):
    def __init__(self, factor: int) -> None:
        self._factor = factor

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": self._factor * sample["x"]}

    def settings(self) -> dict[str, Any]:
        return {"factor": self._factor}


def dataset(*sources: Any, **options: Any) -> StreamingDataset:
    streams = [Stream(source=source, name=str(number)) for number, source in enumerate(sources)]
    return StreamingDataset(**{"streams": streams, "shuffle": True, "batch_size": 8, **options})


def xs(samples: Any) -> list[int]:
    return [sample["x"] for sample in samples]


def test_it_is_shuffled_as_a_whole_and_read_by_number() -> None:
    streamed = dataset(memory())
    first, second = xs(streamed), xs(streamed)
    assert sorted(first) == sorted(second) == list(range(200))
    assert len({tuple(first), tuple(second), tuple(range(200))}) == 3
    assert xs(streamed[[7, 150]]) == [7, 150]


def test_transforms_and_joined_sources() -> None:
    joined = CompositeShardedSource([memory().transform(Times(2)), memory(50, "two", first=1000)])
    assert sorted(xs(dataset(joined))) == sorted([*range(0, 400, 2), *range(1000, 1050)])


def test_columns_are_chosen() -> None:
    samples = [{"x": number, "y": "unread"} for number in range(10)]
    streamed = dataset(MemoryShardedSource(samples, fingerprint="xy"), columns=["x"], shuffle=False)
    assert list(streamed) == [{"x": number} for number in range(10)]
    with pytest.raises(MissingColumnError, match="memory:0 has no field 'z'"):
        list(dataset(MemoryShardedSource(samples, fingerprint="xy"), columns=["z"]))


def test_mixed_with_shards(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns={"x": "int"}) as writer:
        for x in range(1000, 1100):
            writer.write({"x": x})
    streams = [
        Stream(source=memory(), name="memory", proportion=0.5),
        Stream(local=tmp_path, name="shards", proportion=0.5),
    ]
    mixed = StreamingDataset(streams=streams, shuffle=True, batch_size=10, epoch_size=100)
    assert Counter(x >= 1000 for x in xs(mixed)) == {True: 50, False: 50}


def test_with_workers() -> None:
    loader = StreamingDataLoader(dataset(memory().transform(Times(2))), batch_size=8, num_workers=2)
    assert sorted(x for batch in loader for x in batch["x"].tolist()) == list(range(0, 400, 2))


@pytest.mark.parametrize("cut", [0, 1, 77, 199])
def test_cut_and_gone_on(cut: int) -> None:
    whole = xs(dataset(memory()))
    begun = dataset(memory())
    assert xs(islice(iter(begun), cut)) == whole[:cut]
    resumed = dataset(memory())
    resumed.load_state_dict(begun.state_dict(cut))
    assert xs(resumed) == whole[cut:]


def test_a_state_of_other_samples_is_refused() -> None:
    begun = dataset(memory())
    next(iter(begun))
    other = dataset(memory(word="other"))
    with pytest.raises(ResumeError):
        other.load_state_dict(begun.state_dict(1))
        next(iter(other))


def test_what_cannot_be_streamed_says_why() -> None:
    with pytest.raises(ConfigError, match="MemoryShardedSource has no fingerprint"):
        dataset(MemoryShardedSource([{"x": 1}]))
    lock = threading.Lock()
    with pytest.raises(
        ConfigError, match=r"TransformedShardedSource has no fingerprint.*lambda>' has no digest, because of 'lock'"
    ):
        dataset(memory().map(lambda row: {**row, "is_held": lock.locked()}))
    with pytest.raises(ConfigError, match="MixedShardedSource never ends.* stop_strategy="):
        dataset(MixedShardedSource({"a": memory()}))
    with pytest.raises(EmptyDatasetError, match="LimitedShardedSource gives none"):
        dataset(LimitedShardedSource(memory(), 0))
    with pytest.raises(ConfigError, match="source= of a stream is a list"):
        dataset([{"x": 1}])
