"""What code written for MosaicML Streaming passes to a dataset or a loader, reads from them, and is warned of."""

from __future__ import annotations

import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from penstock import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from penstock.errors import CacheError, ConfigError, ObjectNotFoundError, SampleIndexError, SampleKeyError
from tests.streaming import ids_of, sample, write_samples

if TYPE_CHECKING:
    from tests.servers.nginx import WebServer

# --- Arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [None, [], ()])
def test_no_streams_beside_a_folder_are_one_stream(tmp_path: Path, streams: Any) -> None:
    write_samples(tmp_path, 20)
    dataset = StreamingDataset(streams=streams, local=str(tmp_path), batch_size=4)
    assert dataset.num_streams == 1
    assert ids_of(dataset) == list(range(20))


def test_streams_beside_a_folder_are_refused(tmp_path: Path) -> None:
    write_samples(tmp_path, 20)
    with pytest.raises(ValueError, match="exclude each other"):
        StreamingDataset(streams=[Stream(local=str(tmp_path))], local=str(tmp_path))
    with pytest.raises(ValueError, match="needs streams, or a remote"):
        StreamingDataset(streams=[])


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle_algo": "py1e"},
        {"partition_algo": "orig"},
        {"partition_algo": "relaxed"},
        {"sampling_method": "fixed"},
        {"sampling_granularity": 4},
        {"mosaic_version": "0.5"},
    ],
)
def test_what_only_the_original_has_chooses_its_order(tmp_path: Path, arguments: dict[str, Any]) -> None:
    write_samples(tmp_path, 40)
    chosen = StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True, **arguments)
    named = StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True, order="mosaic", **arguments)
    assert chosen.state_dict()["order"] == "mosaic"
    assert ids_of(chosen) == ids_of(named)
    with pytest.raises(ConfigError, match="works only with order='mosaic', not with 'native'"):
        StreamingDataset(local=str(tmp_path), batch_size=4, order="native", **arguments)


def test_the_originals_defaults_that_are_ours_too_leave_the_order_native(tmp_path: Path) -> None:
    write_samples(tmp_path, 40)
    dataset = StreamingDataset(
        local=str(tmp_path), batch_size=4, sampling_method="balanced", sampling_granularity=1, batching_method="random"
    )
    assert dataset.state_dict()["order"] == "native"
    assert dataset.shuffle_algo is None


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("is_fetched", [False, True])
def test_a_complete_folder_is_read_without_the_remotes_index(
    tmp_path: Path, compression: str | None, is_fetched: bool
) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    write_samples(remote, 40, compression=compression)
    if is_fetched:
        with StreamingDataset(remote=str(remote), local=str(local), batch_size=4) as dataset:
            ids_of(dataset)
    else:
        shutil.copytree(remote, local)
    (remote / "index.json").unlink()
    with pytest.warns(UserWarning, match=r"uses the complete copy in .*local"):
        dataset = StreamingDataset(remote=str(remote), local=str(local), batch_size=4)
    with dataset:
        assert ids_of(dataset) == list(range(40))


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(403)

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Do nothing."""


def test_a_complete_folder_is_read_if_the_remote_refuses(tmp_path: Path) -> None:
    write_samples(tmp_path, 40)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        remote = f"http://127.0.0.1:{server.server_port}/data"
        with pytest.warns(UserWarning, match=f"cannot read {remote}, .*the complete copy in"):
            dataset = StreamingDataset(remote=remote, local=str(tmp_path), batch_size=4)
        with pytest.raises(PermissionError):
            StreamingDataset(remote=remote, local=str(tmp_path / "nothing"), batch_size=4)
        server.shutdown()
    with dataset:
        assert ids_of(dataset) == list(range(40))


def test_a_folder_that_lacks_a_shard_does_not_stand_in_for_its_remote(tmp_path: Path) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    write_samples(remote, 40)
    shutil.copytree(remote, local)
    (local / "part.002/shard.00000.mds").unlink()
    (remote / "index.json").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        StreamingDataset(remote=str(remote), local=str(local), batch_size=4)
    assert isinstance(caught.value, ObjectNotFoundError)


def test_missing_indexes_are_files_that_were_not_found(tmp_path: Path) -> None:
    for remote, local in ((None, tmp_path), (str(tmp_path / "away"), tmp_path / "here")):
        with pytest.raises(FileNotFoundError, match=r"index\.json"):
            StreamingDataset(remote=remote, local=local, batch_size=4)


def test_a_predownload_below_the_batch_size_is_warned_of(tmp_path: Path) -> None:
    write_samples(tmp_path, 20)
    with pytest.warns(UserWarning, match="predownload=2 is less than batch_size=4"):
        StreamingDataset(local=str(tmp_path), batch_size=4, predownload=2)


@pytest.mark.parametrize("order", ["native", "mosaic"])
def test_fewer_samples_than_ranks_are_warned_of(tmp_path: Path, order: str) -> None:
    write_samples(tmp_path, 3)
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1, order=order, rank=0, world_size=8, num_nodes=8)
    with pytest.warns(UserWarning, match=r"3 samples (for|over) 8"):
        ids_of(dataset)


# --- Attributes -------------------------------------------------------------------------------------------------


def test_settings_and_counts_have_the_names_of_the_original(tmp_path: Path) -> None:
    for name, count in (("a", 25), ("b", 10)):
        write_samples(tmp_path / name, count)
    streams = [Stream(local=str(tmp_path / name)) for name in ("a", "b")]
    dataset = StreamingDataset(
        streams=streams, batch_size=4, shuffle=True, shuffle_algo="py1s", shuffle_seed=7, num_canonical_nodes=2
    )
    assert (dataset.shuffle, dataset.shuffle_algo, dataset.shuffle_seed) == (True, "py1s", 7)
    assert (dataset.num_canonical_nodes, dataset.initial_physical_nodes) == (2, 1)
    assert (dataset.batching_method, dataset.sampling_method, dataset.partition_algo) == ("random", "balanced", None)
    assert (dataset.sampling_granularity, dataset.allow_unsafe_types, dataset.shuffle_block_size) == (1, False, None)
    assert (dataset.num_streams, dataset.num_shards, dataset.length) == (2, 4, 35)
    assert dataset.samples_per_shard.tolist() == [10, 10, 5, 10]
    assert dataset.shards_per_stream.tolist() == [3, 1]
    assert dataset.stream_per_shard.tolist() == [0, 0, 0, 1]
    assert dataset.sample_offset_per_shard.tolist() == [0, 10, 20, 25]
    assert dataset.sample_offset_per_stream.tolist() == [0, 25]
    assert dataset.shard_offset_per_stream.tolist() == [0, 3]
    assert dataset.spanner[26] == (3, 1)
    with pytest.raises(IndexError, match="Invalid sample index 35"):
        dataset.spanner[35]


@pytest.mark.parametrize("algorithm", [None, "py1e"])
def test_a_loaded_state_decides_the_seed_and_the_lanes(tmp_path: Path, algorithm: str | None) -> None:
    write_samples(tmp_path, 40)

    def make(**arguments: Any) -> StreamingDataset:
        return StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True, shuffle_algo=algorithm, **arguments)

    before = make(shuffle_seed=5, num_canonical_nodes=2, rank=0, world_size=2, num_nodes=2)
    after = make()
    with pytest.warns(UserWarning, match="the run continues with 5"):
        after.load_state_dict(before.state_dict())
    assert (after.shuffle_seed, after.num_canonical_nodes, after.initial_physical_nodes) == (5, 2, 2)


@pytest.mark.parametrize("algorithm", [None, "py1e"])
def test_states_have_the_keys_of_the_original(tmp_path: Path, algorithm: str | None) -> None:
    write_samples(tmp_path, 40)
    dataset = StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True, shuffle_algo=algorithm, shuffle_seed=3)
    seen = ids_of(islice(dataset, 12))
    state = dataset.state_dict(12, True)
    expected = {"epoch": 0, "sample_in_epoch": 12, "shuffle_seed": 3, "initial_physical_nodes": 1}
    assert expected.items() <= state.items()
    assert state["num_canonical_nodes"] == dataset.num_canonical_nodes
    resumed = StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True, shuffle_algo=algorithm, shuffle_seed=3)
    resumed.load_state_dict(state)
    assert sorted(seen + ids_of(resumed)) == list(range(40))


def test_the_next_epoch_can_be_set(tmp_path: Path) -> None:
    write_samples(tmp_path, 40)
    dataset, other = (StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True) for _ in range(2))
    other.next_epoch = 1
    assert other.next_epoch == 1
    ids_of(dataset)
    assert ids_of(dataset) == ids_of(other)


def test_streams_say_where_their_files_are(tmp_path: Path, places: Path) -> None:
    write_samples(tmp_path / "train", 20)
    dataset = StreamingDataset(remote=str(tmp_path), split="train", batch_size=4)
    (stream,) = dataset.streams
    assert (stream.local, stream.split) == (str(tmp_path), "train")
    whole = StreamingDataset(remote=str(tmp_path / "train"), batch_size=4)
    assert whole.streams[0].split == ""


def test_streams_of_a_store_say_where_they_are_cached(tmp_path: Path, places: Path, nginx: WebServer) -> None:
    write_samples(nginx.files / tmp_path.name / "train", 20)
    with StreamingDataset(remote=f"{nginx.url}/{tmp_path.name}", split="train", batch_size=4) as dataset:
        ids_of(dataset)
        (stream,) = dataset.streams
        assert stream.local is not None
        folder = Path(stream.local) / str(stream.split)
        assert places in folder.parents
        assert all((folder / shard.raw_data.basename).exists() for shard in dataset.shards)
    with StreamingDataset(streams=[stream], batch_size=4) as again:
        assert ids_of(again) == list(range(20))


def test_shards_are_described_as_the_index_does(tmp_path: Path) -> None:
    write_samples(tmp_path, 20, compression="zstd", hashes=["sha1"])
    for dataset in (StreamingDataset(local=str(tmp_path), batch_size=4), LocalDataset(str(tmp_path))):
        first = dataset.shards[0]
        assert (len(dataset.shards), first.samples, len(first), first.size) == (2, 10, 10, 10)
        assert (first.compression, first.hashes, first.format) == ("zstd", ["sha1"], "mds")
        assert first.raw_data.basename == "part.000/shard.00000.mds"
        assert first.zip_data is not None
        assert (tmp_path / first.zip_data.basename).stat().st_size == first.zip_data.bytes == first.get_zip_size()
        assert first.get_max_size() == first.get_raw_size() + first.zip_data.bytes
        assert list(first.zip_data.hashes) == ["sha1"]
        assert first.column_names == sorted(sample(0))
        assert [shard.raw_data.basename for shard in dataset.shards] == [f"part.{n:03}/shard.00000.mds" for n in (0, 1)]
        assert dataset.shards[-1].raw_data == dataset.shards[:][1].raw_data
        with pytest.raises(IndexError, match="shard 2 is out of range"):
            dataset.shards[2]
        with pytest.raises(AttributeError, match="a shard has no attribute 'nothing'"):
            _ = first.nothing


def test_shards_are_prepared_and_evicted_by_number(tmp_path: Path) -> None:
    remote, local = write_samples(tmp_path / "remote", 40), tmp_path / "local"
    with StreamingDataset(remote=str(remote), local=str(local), batch_size=4) as dataset:
        assert dataset.cache_usage == 0
        for number in range(dataset.num_shards):
            dataset.prepare_shard(number)
        everything = sum(shard.get_raw_size() for shard in dataset.shards)
        assert dataset.cache_usage == everything
        assert dataset[11]["id"] == 11
        dataset.evict_shard(1)
        assert not (local / dataset.shards[1].raw_data.basename).exists()
        assert dataset.cache_usage == everything - dataset.shards[1].get_raw_size()
        assert dataset[11]["id"] == 11
        dataset.pin([11])
        dataset.prepare_shard(1, blocking=False)
        with pytest.raises(CacheError, match="it is pinned"):
            dataset.evict_shard(1)
        with pytest.raises(SampleIndexError, match="shard 4 is out of range"):
            dataset.evict_shard(4)


def test_a_folder_of_the_users_is_never_evicted(tmp_path: Path) -> None:
    write_samples(tmp_path, 40)
    dataset = StreamingDataset(local=str(tmp_path), batch_size=4)
    dataset.prepare_shard(0)
    dataset.evict_shard(0)
    assert dataset.cache_usage == 0
    assert ids_of(dataset) == list(range(40))


def test_a_writer_gives_its_settings(tmp_path: Path) -> None:
    with MDSWriter(
        out=str(tmp_path / "a"), columns={"x": "int", "b": "str"}, hashes=["sha1"], size_limit="1kb"
    ) as made:
        assert made.get_config() == {
            "version": 2,
            "format": "mds",
            "compression": None,
            "hashes": ["sha1"],
            "size_limit": 1024,
            "column_names": ["b", "x"],
            "column_encodings": ["str", "int"],
            "column_sizes": [None, 8],
        }
    with MDSWriter(out=str(tmp_path / "b")) as guessing, pytest.raises(ConfigError, match="pass columns="):
        guessing.get_config()


# --- Samples by number ------------------------------------------------------------------------------------------


def test_keys_may_have_several_dimensions(tmp_path: Path) -> None:
    write_samples(tmp_path, 40)
    for dataset in (StreamingDataset(local=str(tmp_path), batch_size=4), LocalDataset(str(tmp_path))):
        key = np.arange(24).reshape(2, 3, 4)
        found = dataset[key]
        assert [[ids_of(row) for row in block] for block in found] == key.tolist()
        nested: Any = [[-1, 0], [1, 2]]
        assert [ids_of(row) for row in dataset[nested]] == [[39, 0], [1, 2]]
        assert dataset[np.zeros((0, 3), np.int64)] == []
        nested[1].pop()
        with pytest.raises(SampleKeyError, match="the same length"):
            dataset[nested]
        with pytest.raises(SampleKeyError, match="flat list"):
            dataset.read_columns(key)


def test_a_subclass_may_take_and_pass_on_the_retries(tmp_path: Path) -> None:
    write_samples(tmp_path, 20)

    class Own(StreamingDataset):
        def get_item(self, sample_id: int, retry: int = 7) -> Any:
            return super().get_item(sample_id, retry)["id"]

    dataset = Own(local=str(tmp_path), batch_size=4)
    assert dataset[3] == 3
    assert dataset[np.array([[3], [4]])] == [[3], [4]]
    assert list(dataset) == list(range(20))


# --- Loaders ----------------------------------------------------------------------------------------------------


def test_a_loader_takes_what_torchs_takes_in_the_same_places(tmp_path: Path) -> None:
    write_samples(tmp_path, 20)
    dataset = StreamingDataset(local=str(tmp_path))
    loader = StreamingDataLoader(dataset, 4, False, None, None, 2, ids_of, False, True)
    assert (loader.num_workers, loader.drop_last, loader.batch_size) == (2, True, 4)
    assert list(loader) == [list(range(begin, begin + 4)) for begin in range(0, 20, 4)]


def test_a_loader_counts_the_samples_of_a_pass(tmp_path: Path) -> None:
    write_samples(tmp_path, 22)
    loader = StreamingDataLoader(StreamingDataset(local=str(tmp_path)), 4, num_workers=2)
    assert loader.num_samples_yielded == 0
    for _ in range(2):
        assert [loader.num_samples_yielded for _ in loader] == [4, 8, 12, 16, 20, 22]
    assert loader.num_samples_yielded == 22


def test_a_loader_of_another_batch_size_wins_and_its_state_is_exact(tmp_path: Path) -> None:
    write_samples(tmp_path, 40)

    def make() -> StreamingDataLoader:
        dataset = StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True)
        with pytest.warns(UserWarning, match="dataset has batch_size=.*: both use"):
            return StreamingDataLoader(dataset, batch_size=6, num_workers=2, collate_fn=ids_of)

    first = make()
    seen = [*islice(first, 3)]
    assert [len(batch) for batch in seen] == [6, 6, 6]
    second = make()
    second.load_state_dict(first.state_dict())
    assert sorted(number for batch in [*seen, *second] for number in batch) == list(range(40))


def test_a_loader_of_any_other_dataset_is_torchs(tmp_path: Path) -> None:
    loader = StreamingDataLoader(TensorDataset(torch.arange(10)), 4, shuffle=False)
    assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    assert loader.state_dict() == {}
    loader.load_state_dict({})
    assert not loader._is_accelerate_prepared
    with pytest.raises(ConfigError, match="columnar=True needs a StreamingDataset"):
        StreamingDataLoader(TensorDataset(torch.arange(10)), 4, columnar=True)
    with pytest.raises(ConfigError, match="only works with a StreamingDataset"):
        loader.set_epoch(3)
