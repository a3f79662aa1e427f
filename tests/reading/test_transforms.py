"""Functions of the user's on samples and on batches: in which order, in which process, and what their errors say."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import Stream, StreamingDataLoader, StreamingDataset, TransformError
from penstock.errors import ConfigError
from tests.streaming import write_samples

if TYPE_CHECKING:
    from pathlib import Path

NUM_SAMPLES = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "data", NUM_SAMPLES)


def tagged(sample: dict[str, Any], tag: str) -> dict[str, Any]:
    return {"id": sample["id"], "tags": [*sample.get("tags", []), tag]}


def with_process(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"], "process": os.getpid()}


def refuse(sample: dict[str, Any], numbers: tuple[int, ...]) -> dict[str, Any]:
    if sample["id"] in numbers:
        raise KeyError("no such speaker")
    return {"id": sample["id"]}


def test_the_streams_own_comes_first(folder: Path) -> None:
    streams = [
        Stream(local=folder, name="a", sample_transform=partial(tagged, tag="a")),
        Stream(local=folder, name="b"),
    ]
    with StreamingDataset(streams=streams, shuffle=True, sample_transform=partial(tagged, tag="all")) as dataset:
        seen = list(dataset)
        assert sorted(sample["tags"] for sample in seen) == [["a", "all"]] * NUM_SAMPLES + [["all"]] * NUM_SAMPLES
        assert dataset[0] == {"id": 0, "tags": ["a", "all"]}
        assert dataset[-1] == {"id": NUM_SAMPLES - 1, "tags": ["all"]}
        assert [sample["tags"] for sample in dataset[NUM_SAMPLES - 1 : NUM_SAMPLES + 1]] == [["a", "all"], ["all"]]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_it_runs_in_the_workers(folder: Path, context: str) -> None:
    dataset = StreamingDataset(local=folder, sample_transform=with_process)
    loader = StreamingDataLoader(dataset, batch_size=5, num_workers=2, multiprocessing_context=context)
    batches = list(loader)
    assert sorted(number for batch in batches for number in batch["id"].tolist()) == list(range(NUM_SAMPLES))
    processes = {process for batch in batches for process in batch["process"].tolist()}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_what_an_error_says(folder: Path) -> None:
    with StreamingDataset(local=folder, sample_transform=partial(refuse, numbers=(23,))) as dataset:
        with pytest.raises(TransformError, match=r"sample 23 .*shard\.00000\.mds, row 3.*no such speaker") as caught:
            list(dataset)
        assert isinstance(caught.value.__cause__, KeyError)
        assert caught.value.facts["row"] == 3
        with pytest.raises(TransformError):
            dataset[23]
        with pytest.raises(TransformError):
            dataset[20:30]
        assert dataset[22] == {"id": 22}


def test_what_cannot_be_transformed_is_skipped_if_asked_for(folder: Path) -> None:
    transform = partial(refuse, numbers=(3, 23))
    with StreamingDataset(local=folder, on_error="skip", batch_size=10, sample_transform=transform) as dataset:
        seen = [sample["id"] for sample in dataset]
        assert len(seen) == NUM_SAMPLES
        assert set(seen) == set(range(NUM_SAMPLES)) - {3, 23}
        assert dataset.stats().skipped == 2


class Doubled(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        return {"twice": 2 * super().get_item(sample_id)["id"]}


def test_a_subclass_gets_what_the_transform_made(folder: Path) -> None:
    with Doubled(local=folder, sample_transform=lambda sample: {"id": sample["id"] + 100}) as dataset:
        assert dataset[1] == {"twice": 202}
        assert [sample["twice"] for sample in dataset] == [2 * (100 + number) for number in range(NUM_SAMPLES)]


def test_what_a_subclass_asks_for_was_read_already(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass reads many samples at a time, and its subclass is still asked one by one."""
    with Doubled(local=folder, shuffle=True) as dataset:
        reader = dataset.readers.here.main
        monkeypatch.setattr(reader, "read_one", lambda number: pytest.fail(f"sample {number} was read by itself"))
        assert sorted(sample["twice"] for sample in dataset) == list(range(0, 2 * NUM_SAMPLES, 2))


# --- By column ------------------------------------------------------------------------------------------------


def halved(columns: dict[str, Any]) -> dict[str, Any]:
    return {"half": columns["id"] / 2}


@pytest.mark.parametrize("num_threads", [0, 2])
def test_batches_by_column(folder: Path, num_threads: int) -> None:
    dataset = StreamingDataset(local=folder, columnar=True, batch_transform=halved)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=num_threads)
    found = np.concatenate([batch["half"].numpy() for batch in loader])
    assert sorted(found.tolist()) == [number / 2 for number in range(NUM_SAMPLES)]
    assert list(dataset.read_columns([4, 2])["half"]) == [2, 1]


def test_a_batch_that_fails_says_where_it_begins(folder: Path) -> None:
    def fail(columns: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError("of course")

    with StreamingDataset(local=folder, batch_size=4, columnar=True, batch_transform=fail) as dataset:
        with pytest.raises(TransformError, match="batch of 4 samples that begins with sample 0: ZeroDivisionError"):
            next(iter(dataset))


def test_each_kind_where_it_belongs(folder: Path) -> None:
    with pytest.raises(ConfigError, match="pass batch_transform="):
        StreamingDataset(local=folder, columnar=True, sample_transform=with_process)
    with pytest.raises(ConfigError, match="pass batch_transform="):
        StreamingDataLoader(StreamingDataset(local=folder, sample_transform=with_process), 4, columnar=True)
    with StreamingDataset(local=folder, batch_transform=halved) as dataset:
        with pytest.raises(ConfigError, match="set columnar=True"):
            next(iter(dataset))
        assert len(list(StreamingDataLoader(dataset, batch_size=8, columnar=True))) == 5
    with pytest.raises(ConfigError, match="is not callable"):
        StreamingDataset(local=folder, sample_transform="upper")  # type: ignore[arg-type]
