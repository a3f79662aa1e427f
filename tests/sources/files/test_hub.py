"""Datasets of the Hub by their files, at a pinned commit; and datasets of its library, with the library itself."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import (
    HFDatasetShardedSource,
    HuggingFaceShardedSource,
    MemoryShardedSource,
    ParquetShardedSource,
    Stream,
    StreamingDataset,
    wrap_hf_dataset,
)
from penstock.errors import ConfigError, MissingExtraError, SampleIndexError, StoreError
from tests.cache.kit import fetcher_pids
from tests.servers.hub import HubServer, Repo, running_hub
from tests.sources.cutting import check_cut_anywhere
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with private_places(), running_hub() as server:
        yield server


def parquet(numbers: range) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": list(numbers), "text": [f"t{n}" for n in numbers]}), sink, row_group_size=4)
    return sink.getvalue()


def test_a_split_of_a_dataset_is_read_at_one_commit(hub: HubServer) -> None:
    repo = hub.repos["datasets/me/words"] = Repo()
    files = {
        "README.md": b"# words",
        "data/train-00000-of-00002.parquet": parquet(range(10)),
        "data/train-00001-of-00002.parquet": parquet(range(10, 20)),
        "data/test-00000-of-00001.parquet": parquet(range(100, 105)),
    }
    repo.commit("main", files)
    options = hub.options()
    source = HuggingFaceShardedSource("me/words", split="train", columns=["n"], storage_options=options)
    assert [name.rpartition("/")[2] for name in source.shard_names] == [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]
    assert len(source) == 20
    repo.commit("main", {**files, "data/train-00000-of-00002.parquet": parquet(range(500, 510))})
    assert [sample["n"] for sample in source] == list(range(20))
    assert [sample["n"] for sample in source.open_shard_at_row(source.shard_names[1], row=7)] == [17, 18, 19]
    test = HuggingFaceShardedSource("me/words", split="test", storage_options=options)
    assert [sample["n"] for sample in test] == list(range(100, 105))
    with pytest.raises(ConfigError, match="validation"):
        HuggingFaceShardedSource("me/words", split="validation", storage_options=options)


def test_the_hub_says_whose_a_dataset_is(hub: HubServer) -> None:
    hub.repos["datasets/me/words"] = Repo()
    hub.repos["datasets/me/words"].commit("main", {"data/train-0.parquet": parquet(range(10))})
    source = HuggingFaceShardedSource("words", storage_options=hub.options())
    assert [sample["n"] for sample in source] == list(range(10))
    assert list(source.shard_names) == ["hf://datasets/me/words/data/train-0.parquet"]
    assert source.fingerprint == HuggingFaceShardedSource("me/words", storage_options=hub.options()).fingerprint
    with pytest.raises(StoreError, match="nowords"):
        HuggingFaceShardedSource("nowords", storage_options=hub.options())


def test_it_stays_at_its_commit_when_the_fetcher_starts_again(hub: HubServer) -> None:
    repo = hub.repos["datasets/me/words"] = Repo()
    names = [f"data/train-0000{part}-of-00002.parquet" for part in range(2)]
    repo.commit("main", {name: parquet(range(10 * part, 10 * part + 10)) for part, name in enumerate(names)})
    options = {**hub.options(), "revision": "main"}
    source = HuggingFaceShardedSource("me/words", storage_options=options)
    by_glob = ParquetShardedSource("hf://datasets/me/words/data/*.parquet", options)
    streamed = StreamingDataset(streams=[Stream(source=source)], shuffle=False, batch_size=1)
    repo.commit("main", {name: parquet(range(900, 905)) for name in names})
    (pid,) = fetcher_pids(Path(os.environ["PENSTOCK_RUNTIME_DIR"]))
    os.kill(pid, signal.SIGKILL)
    for each in (source, by_glob, streamed):
        assert [sample["n"] for sample in each] == list(range(20))
    assert list(by_glob.shard_names) == [f"hf://datasets/me/words/{name}" for name in names]
    newer = HuggingFaceShardedSource("me/words", storage_options=options)
    assert newer.fingerprint != source.fingerprint
    again = StreamingDataset(streams=[Stream(source=source)], shuffle=False, batch_size=1)
    assert [sample["n"] for sample in again] == list(range(20))


def test_files_are_downloaded_first_if_they_are_not_to_be_streamed(hub: HubServer, tmp_path: Path) -> None:
    repo = hub.repos["datasets/me/words"] = Repo()
    names = [f"data/train-0000{part}-of-00002.parquet" for part in range(2)]
    repo.commit("main", {name: parquet(range(10 * part, 10 * part + 10)) for part, name in enumerate(names)})
    options = hub.options()

    def kept(**settings: Any) -> HuggingFaceShardedSource:
        return HuggingFaceShardedSource("me/words", streaming=False, storage_options=options, **settings)

    source = kept(cache_dir=tmp_path / "kept")
    copies = sorted((tmp_path / "kept").rglob("*.parquet"))
    assert [copy.name for copy in copies] == [name.rpartition("/")[2] for name in names]
    streamed = HuggingFaceShardedSource("me/words", cache_dir="unused", storage_options=options)
    assert source.shard_names == streamed.shard_names
    assert source.fingerprint == streamed.fingerprint
    before = len(hub.requests)
    assert [sample["n"] for sample in source] == list(range(20))
    dataset = StreamingDataset(streams=[Stream(source=source)], shuffle=False, batch_size=1)
    assert [sample["n"] for sample in dataset] == list(range(20))
    assert len(hub.requests) == before
    copies[0].write_bytes(b"cut")
    assert [sample["n"] for sample in kept(cache_dir=str(tmp_path / "kept"))] == list(range(20))
    (gone,) = [request for request in hub.requests[before:] if request.endswith(names[0])]
    assert gone.startswith("GET")
    commit = repo.commit("main", {names[0]: parquet(range(5))})
    assert [sample["n"] for sample in kept(cache_dir=tmp_path / "kept", revision=commit)] == list(range(5))
    assert [sample["n"] for sample in kept(revision=commit)] == list(range(5))


def test_a_repository_of_json_files_and_one_of_none_that_can_be_read(hub: HubServer) -> None:
    hub.repos["datasets/me/words"] = Repo()
    files = {"train.json": b'[{"n": 1}, {"n": 2}]', "test.json": b'{"n": 3}\n{"n": 4}\n'}
    hub.repos["datasets/me/words"].commit("main", files)
    source = HuggingFaceShardedSource("me/words", storage_options=hub.options())
    assert [sample["n"] for sample in source] == [1, 2]
    hub.repos["datasets/me/sounds"] = Repo()
    hub.repos["datasets/me/sounds"].commit("main", {"train/a.wav": b"RIFF"})
    match = r"me/sounds has no files that penstock reads itself: to read it needs datasets.*\[datasets\]"
    with pytest.raises(MissingExtraError, match=match):
        HuggingFaceShardedSource("me/sounds", storage_options=hub.options())


def test_sequences_are_wrapped() -> None:
    samples = [{"x": x} for x in range(300)]
    source = wrap_hf_dataset(samples, name="mine")
    assert isinstance(source, HFDatasetShardedSource)
    assert list(source.shard_names) == ["mine:0"]
    assert list(source) == samples
    assert len(source) == 300
    assert source.read_rows("mine:0", [7, 3]) == [{"x": 7}, {"x": 3}]
    check_cut_anywhere(source.__iter__, places=[0, 1, 255, 256, 300])
    with pytest.raises(SampleIndexError):
        source.open_shard_at_row("mine:0", row=301)
    memory = MemoryShardedSource(samples)
    assert wrap_hf_dataset(memory) is memory
    for nothing in (3, "text", iter(samples)):
        with pytest.raises(ConfigError, match="pass a dataset of the Hugging Face library"):
            wrap_hf_dataset(nothing)
