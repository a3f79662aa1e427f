"""StreamingDataset as its users meet it: sizes, keys, mixing, processes, errors, data that stay as they are."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import MDSWriter, Stream, StreamingDataset
from penstock.errors import (
    CacheTooSmallError,
    ConfigError,
    CorruptShardError,
    EmptyDatasetError,
    ObjectChangedError,
    ObjectNotFoundError,
    SampleIndexError,
    SampleKeyError,
)
from tests.streaming import COLUMNS, ids_of, sample, tree_of, write_samples

if TYPE_CHECKING:
    from pathlib import Path

NUM_SAMPLES = 103


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("data") / "all", NUM_SAMPLES)


@pytest.fixture(scope="module", params=["in place", "copied", "compressed"])
def source(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path | None]:
    """The same samples read where they lie, brought through the cache, or unpacked on the way."""
    if request.param == "in place":
        return {"local": folder}
    if request.param == "copied":
        return {"remote": folder, "local": tmp_path_factory.mktemp("cache")}
    packed = write_samples(tmp_path_factory.mktemp("data") / "packed", NUM_SAMPLES, compression="zstd")
    return {"remote": packed, "local": tmp_path_factory.mktemp("cache")}


def same(found: Any, number: int) -> bool:
    expected = sample(number)
    is_same = found.keys() == expected.keys() and (found["id"], found["text"]) == (number, expected["text"])
    return bool(is_same and np.array_equal(found["x"], expected["x"]))


def test_sizes_and_keys(source: dict[str, Any]) -> None:
    with StreamingDataset(**source) as dataset:
        assert len(dataset) == dataset.size == dataset.num_samples == dataset.epoch_size == NUM_SAMPLES
        assert dataset.samples_per_stream.tolist() == [NUM_SAMPLES]
        assert dataset.num_shards == 11
        for key in (0, 57, -1, np.int32(5), np.uint8(102)):
            assert same(dataset[key], int(key) % NUM_SAMPLES)
        everything = list(range(NUM_SAMPLES))
        for cut in (slice(None), slice(95, None), slice(50, 10, -7), slice(7, 7)):
            assert ids_of(dataset[cut]) == everything[cut]
        for many in ([3, 99, 3, -1], (0,), range(20, 5, -5), np.array([102, 0, 55])):
            assert ids_of(dataset[many]) == [everything[number] for number in many]
        assert dataset[[]] == []
        with pytest.raises(SampleIndexError, match="out of range"):
            dataset[NUM_SAMPLES]
        with pytest.raises(SampleIndexError):
            dataset[[0, -104]]
        with pytest.raises(SampleIndexError):
            dataset.get_item(-1)
        with pytest.raises(SampleKeyError):
            dataset["3"]  # type: ignore[index]
        with pytest.raises(SampleKeyError):
            dataset[np.array([True, False])]


def test_iterating_gives_each_sample_once_and_whole(source: dict[str, Any]) -> None:
    with StreamingDataset(**source, shuffle=True, batch_size=4) as dataset:
        first, second = list(dataset), list(dataset)
    assert all(same(each, each["id"]) for each in first)
    assert sorted(ids_of(first)) == sorted(ids_of(second)) == list(range(NUM_SAMPLES))
    assert ids_of(first) != ids_of(second)


def test_without_shuffle_and_without_a_batch_size_it_is_the_order_of_the_data(source: dict[str, Any]) -> None:
    with StreamingDataset(**source) as dataset:
        assert ids_of(dataset) == list(range(NUM_SAMPLES))


def test_the_order_does_not_depend_on_the_batch_size(folder: Path) -> None:
    passes = [ids_of(StreamingDataset(local=folder, shuffle=True, batch_size=size)) for size in (None, 1, 7, 500)]
    assert all(each == passes[0] for each in passes)


def test_columns(source: dict[str, Any]) -> None:
    with StreamingDataset(**source, columns=["text", "id"]) as dataset:
        assert dataset[5].keys() == {"id", "text"}
        assert {frozenset(each) for each in dataset} == {frozenset({"id", "text"})}
    with pytest.raises(ConfigError, match="string"):
        StreamingDataset(**source, columns="id")


def test_columnar_batches_hold_the_samples_in_order(source: dict[str, Any]) -> None:
    with StreamingDataset(**source, shuffle=True, batch_size=8) as by_sample:
        expected = ids_of(by_sample)
    with StreamingDataset(**source, shuffle=True, batch_size=8, columnar=True) as dataset:
        batches = list(dataset)
    assert [len(batch["id"]) for batch in batches] == [8] * 12 + [7]
    assert np.concatenate([batch["id"] for batch in batches]).tolist() == expected
    assert all(batch["x"].shape[1:] == (3,) and np.array_equal(batch["x"][:, 1], batch["id"]) for batch in batches)
    assert all(list(batch["text"]) == [sample(number)["text"] for number in batch["id"]] for batch in batches)


# --- Subclasses ---------------------------------------------------------------------------------------------


class Doubled(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        return {**super().get_item(sample_id), "twice": 2 * sample_id}


class Bare(StreamingDataset):
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key)["id"]


def test_an_overridden_get_item_is_what_everyone_calls(source: dict[str, Any]) -> None:
    with Doubled(**source, shuffle=True, batch_size=5) as dataset:
        taken = [dataset[4], *dataset[[7, 2]], *dataset]
    assert all(each["twice"] == 2 * each["id"] for each in taken)
    assert len(taken) == NUM_SAMPLES + 3


def test_an_overridden_getitem_is_what_iterating_calls(folder: Path) -> None:
    expected = ids_of(StreamingDataset(local=folder, shuffle=True, batch_size=5))
    assert list(Bare(local=folder, shuffle=True, batch_size=5)) == expected


def test_columnar_does_not_silently_pass_over_a_subclass(folder: Path) -> None:
    with pytest.raises(ConfigError, match="would not call your get_item"):
        list(Doubled(local=folder, columnar=True))


def test_image_decoder(tmp_path: Path) -> None:
    from PIL import Image

    with MDSWriter(out=tmp_path, columns={"picture": "png"}) as writer:
        for shade in range(4):
            writer.write({"picture": Image.new("RGB", (5, 3), (shade, 0, 9))})
    pictures = [each["picture"] for each in StreamingDataset(local=tmp_path, image_decoder="array")]
    assert [array.shape for array in pictures] == [(3, 5, 3)] * 4
    assert [array[0, 0].tolist() for array in pictures] == [[shade, 0, 9] for shade in range(4)]
    assert [each["picture"].size for each in StreamingDataset(local=tmp_path)] == [(5, 3)] * 4


# --- Worlds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_ranks", "num_nodes"), [(1, 1), (2, 1), (2, 2), (4, 2), (8, 1), (3, 1)])
def test_ranks_share_an_epoch_and_its_global_batches(folder: Path, num_ranks: int, num_nodes: int) -> None:
    options = {"shuffle": True, "num_canonical_nodes": 2}
    whole = ids_of(StreamingDataset(local=folder, batch_size=24, **options))  # type: ignore[arg-type]
    ranks = []
    for rank in range(num_ranks):
        dataset = StreamingDataset(
            local=folder,
            batch_size=24 // num_ranks,
            rank=rank,
            world_size=num_ranks,
            num_nodes=num_nodes,
            **options,  # type: ignore[arg-type]
        )
        ranks.append(ids_of(dataset))
        assert len(ranks[-1]) == len(dataset) == -(-NUM_SAMPLES // num_ranks)
    size = 24 // num_ranks
    for step in range(NUM_SAMPLES // 24):
        mixed = [number for each in ranks for number in each[step * size : (step + 1) * size]]
        assert sorted(mixed) == sorted(whole[step * 24 : (step + 1) * 24])
    counts = Counter(number for each in ranks for number in each)
    assert set(counts) == set(range(NUM_SAMPLES))
    assert sum(counts.values()) - NUM_SAMPLES < num_ranks


def test_replicated_ranks_see_the_same_samples(folder: Path) -> None:
    ranks = [
        ids_of(StreamingDataset(local=folder, batch_size=4, shuffle=True, rank=rank, world_size=4, replication=2))
        for rank in range(4)
    ]
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    assert set(ranks[0]) | set(ranks[2]) == set(range(NUM_SAMPLES))


def test_the_world_is_found_at_first_use_and_looked_at_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = StreamingDataset(local=folder)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(dataset) == 52
    assert ids_of(dataset)[:3] == [1, 3, 5] or len(ids_of(dataset)) == 52
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert len(ids_of(dataset)) == len(dataset) == NUM_SAMPLES


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 0},
        {"world_size": 2},
        {"rank": 2, "world_size": 2},
        {"rank": 0, "world_size": 3, "num_nodes": 2},
        {"rank": 0, "world_size": 3, "replication": 2},
    ],
)
def test_worlds_that_are_none(folder: Path, options: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        StreamingDataset(local=folder, **options)  # type: ignore[arg-type]


# --- Mixing -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("pair")
    write_samples(out / "a" / "train", 60)
    write_samples(out / "b" / "train", 40, first_id=1000)
    return [out / "a", out / "b"]


def count_by_stream(dataset: StreamingDataset) -> list[int]:
    found = ids_of(dataset)
    return [sum(number < 1000 for number in found), sum(number >= 1000 for number in found)]


@pytest.mark.parametrize(
    ("weights", "options", "counts"),
    [
        (({}, {}), {}, [60, 40]),
        (({}, {}), {"epoch_size": 50}, [30, 20]),
        (({"proportion": 1}, {"proportion": 3}), {"epoch_size": "1k"}, [250, 750]),
        (({"proportion": 1}, {"proportion": 1}), {}, [50, 50]),
        (({"repeat": 0.5}, {"repeat": 2}), {}, [30, 80]),
        (({"choose": 7}, {"repeat": 1.5}), {}, [7, 60]),
        (({"choose": 0}, {}), {}, [0, 40]),
    ],
)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("order", ["native", "mosaic"])
def test_weights(
    pair: list[Path], weights: Any, options: dict[str, Any], counts: list[int], shuffle: bool, order: str
) -> None:
    streams = [Stream(local=path, **weight) for path, weight in zip(pair, weights, strict=True)]
    dataset = StreamingDataset(streams=streams, split="train", shuffle=shuffle, order=order, batch_size=1, **options)
    assert count_by_stream(dataset) == counts
    assert dataset.epoch_size == sum(counts)
    assert dataset.num_samples == dataset.size == 100
    assert dataset.samples_per_stream.tolist() == [60, 40]
    assert [stream.choose for stream in streams] == counts
    assert [stream.repeat for stream in streams] == pytest.approx([counts[0] / 60, counts[1] / 40])
    assert [stream.proportion for stream in streams] == pytest.approx([count / sum(counts) for count in counts])
    assert [stream.split for stream in streams] == ["train", "train"]


def test_a_split_belongs_to_one_stream_or_to_all(pair: list[Path]) -> None:
    assert len(StreamingDataset(remote=pair[0], split="train")) == 60
    assert len(StreamingDataset(streams=[Stream(remote=pair[1], split="train")])) == 40
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(local=pair[0], split="test")


@pytest.mark.parametrize("method", ["stratified", "per_stream"])
def test_batching_methods(pair: list[Path], method: Any) -> None:
    dataset = StreamingDataset(
        streams=[Stream(local=path) for path in pair],
        split="train",
        batch_size=10,
        batching_method=method,
        shuffle=True,
    )
    found = ids_of(dataset)
    assert len(found) == len(set(found)) == 100
    shares = [sum(number < 1000 for number in found[at : at + 10]) for at in range(0, 100, 10)]
    assert shares == [6] * 10 if method == "stratified" else sorted(shares) == [0] * 4 + [10] * 6


# --- What is wrong is said ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"streams": []},
        {"streams": [Stream(local="a")], "local": "b"},
        {"local": "{folder}", "on_error": "ignore"},
        {"local": "{folder}", "batch_size": 0},
        {"local": "{folder}", "predownload": -1},
        {"local": "{folder}", "epoch_size": -5},
        {"local": "{folder}", "epoch_size": "many"},
        {"local": "{folder}", "cache_limit": "some"},
        {"local": "{folder}", "validate_hash": "crc"},
        {"local": "{folder}", "order": "random"},
        {"local": "{folder}", "shuffle_algo": "py9z"},
        {"local": "{folder}", "shuffle_algo": "py1s", "order": "native"},
        {"local": "{folder}", "batching_method": "fair"},
        {"local": "{folder}", "sampling_method": "fixed", "order": "native"},
        {"local": "{folder}", "stream_name": "unheard of"},
        {"local": "{folder}", "image_decoder": "webcam"},
        {"local": "{folder}", "columns": ["missing"]},
        {"local": "{folder}", "epoch_end": "wrap"},
    ],
)
def test_bad_arguments_are_refused_by_name(folder: Path, options: dict[str, Any]) -> None:
    options = {name: str(folder) if value == "{folder}" else value for name, value in options.items()}
    with pytest.raises((ConfigError, ObjectNotFoundError)):
        next(iter(StreamingDataset(**options)))


@pytest.mark.parametrize(
    "weights", [{"proportion": -1}, {"repeat": -1}, {"choose": -1}, {"proportion": 1, "repeat": 1}, {"choose": "x"}]
)
def test_bad_weights(weights: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Stream(local="somewhere", **weights)


def test_missing_and_empty_datasets(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="nowhere"):
        StreamingDataset(local=tmp_path / "nowhere")
    with pytest.raises(ObjectNotFoundError, match="nowhere"):
        StreamingDataset(remote=tmp_path / "nowhere", local=tmp_path / "cache")
    with MDSWriter(out=tmp_path / "empty", columns=COLUMNS):
        pass
    with pytest.raises(EmptyDatasetError):
        StreamingDataset(local=tmp_path / "empty")


def test_a_limit_that_cannot_work_says_what_is_needed(folder: Path, tmp_path: Path) -> None:
    limit = 1000 + (folder / "index.json").stat().st_size
    with pytest.raises(CacheTooSmallError, match='set cache_limit="'):
        list(StreamingDataset(remote=folder, local=tmp_path, cache_limit=limit, shuffle=True))


# --- Skipping what is bad -----------------------------------------------------------------------------------


def damage(folder: Path, shard: int) -> None:
    (path,) = (folder / f"part.{shard:03}").glob("shard.*.mds")
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("is_remote", [False, True])
def test_skipping(tmp_path: Path, columnar: bool, is_remote: bool) -> None:
    data = write_samples(tmp_path / "data", 100)
    damage(data, 3)
    (next((data / "part.007").glob("shard.*.mds"))).unlink()
    place = {"remote": data, "local": tmp_path / "cache"} if is_remote else {"local": data}
    options: dict[str, Any] = {**place, "batch_size": 10, "shuffle": True, "columnar": columnar, "download_retry": 0}
    with (
        StreamingDataset(**options) as strict,
        pytest.raises((CorruptShardError, ObjectNotFoundError, ObjectChangedError)),
    ):
        list(strict)
    with StreamingDataset(**options, on_error="skip") as dataset:
        passed = list(dataset)
        stats = dataset.stats()
    if columnar:
        assert [len(batch["id"]) for batch in passed] == [10] * 10
        found = [int(number) for batch in passed for number in batch["id"]]
    else:
        found = ids_of(passed)
    assert len(found) == 100
    assert set(found) == set(range(100)) - set(range(30, 40)) - set(range(70, 80))
    assert stats.skipped == 20


def test_a_batch_without_any_good_sample_is_an_error(tmp_path: Path) -> None:
    data = write_samples(tmp_path, 20)
    damage(data, 1)
    with pytest.raises(CorruptShardError):
        list(StreamingDataset(local=data, batch_size=5, on_error="skip"))


# --- Data stay as they are ----------------------------------------------------------------------------------


def test_a_dataset_without_a_remote_is_never_touched(tmp_path: Path) -> None:
    mine = write_samples(tmp_path / "mine", 100)
    packed = write_samples(tmp_path / "packed", 100, first_id=200, compression="zstd")
    far = write_samples(tmp_path / "far", 400, first_id=1000, per_shard=20)
    before = {path: tree_of(path) for path in (mine, packed, far)}
    size = sum(path.stat().st_size for path in far.rglob("shard*"))
    indexes = sum((folder / "index.json").stat().st_size for folder in (packed, far))
    streams = [Stream(local=mine), Stream(remote=packed), Stream(remote=far, local=tmp_path / "cache")]
    limit = int(size * 0.8) + indexes
    with StreamingDataset(
        streams=streams, shuffle=True, shuffle_block_size=60, cache_limit=limit, batch_size=10
    ) as dataset:
        for _ in range(2):
            assert len(set(ids_of(dataset))) == 600
        kept = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("shard*"))
    assert kept <= size * 0.8 + 2 * size / 20
    assert {path: tree_of(path) for path in (mine, packed, far)} == before


def test_two_datasets_on_one_directory(folder: Path, tmp_path: Path) -> None:
    with (
        StreamingDataset(remote=folder, local=tmp_path, shuffle=True, batch_size=4) as one,
        StreamingDataset(remote=folder, local=tmp_path, batch_size=4) as other,
    ):
        pairs = list(zip(one, other, strict=True))
    assert sorted(each["id"] for each, _ in pairs) == [each["id"] for _, each in pairs] == list(range(NUM_SAMPLES))


def test_a_closed_dataset_opens_again(source: dict[str, Any]) -> None:
    dataset = StreamingDataset(**source)
    assert dataset[3]["id"] == 3
    dataset.close()
    dataset.close()
    assert dataset[50]["id"] == 50
    assert len(list(dataset)) == NUM_SAMPLES
    dataset.close()


# --- Processes ----------------------------------------------------------------------------------------------


def read_all(dataset: StreamingDataset, results: Any) -> None:
    results.put((dataset[7]["id"], ids_of(dataset), ids_of(dataset)))
    dataset.close()


def fork_and_read(dataset: StreamingDataset, results: Any) -> None:
    dataset[3]
    child = multiprocessing.get_context("fork").Process(target=read_all, args=(dataset, results))
    child.start()
    child.join()
    dataset.close()


@pytest.mark.parametrize("target", [read_all, fork_and_read])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_other_processes_go_on_where_this_one_stands(source: dict[str, Any], method: Any, target: Any) -> None:
    """Each of them for itself: a rank that was started with the dataset does not move the epoch of the others."""
    dataset = StreamingDataset(**source, shuffle=True, batch_size=4)
    passes = [ids_of(dataset) for _ in range(3)]
    dataset.set_epoch(1)
    dataset[11]  # the parent has used its shards, and its connection
    context = multiprocessing.get_context(method)
    results = context.Queue()
    children = [context.Process(target=target, args=(dataset, results)) for _ in range(2)]
    for child in children:
        child.start()
    found = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert found == [(7, passes[1], passes[2])] * 2
    assert ids_of(dataset) == passes[1]
    dataset.close()


def test_pickled_copies_are_independent(source: dict[str, Any]) -> None:
    dataset = StreamingDataset(**source, shuffle=True, batch_size=4)
    first = ids_of(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    second = ids_of(dataset)
    assert ids_of(copy) == second != first
    assert copy[5]["id"] == 5
    for each in (dataset, copy):
        each.close()


def test_local_shards_that_appear_later_are_found(folder: Path, tmp_path: Path) -> None:
    """A cache that was filled by hand is used as it is, and what lacks is brought."""
    cache = tmp_path / "cache"
    shutil.copytree(folder, cache)
    next((cache / "part.004").glob("shard*")).unlink()
    with StreamingDataset(remote=folder, local=cache) as dataset:
        assert ids_of(dataset) == list(range(NUM_SAMPLES))
        assert dataset.stats().downloads == 2  # the index and the shard
