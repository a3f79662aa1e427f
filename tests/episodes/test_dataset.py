"""Frames of a stream: all of them once, the same on any world, from where a state left it, in any loader."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from penstock import StreamingDataLoader, StreamingLeRobotDataset
from penstock.errors import ResumeError
from penstock.order.pool import EpisodePool
from tests.episodes.build import CAMERA, Layout, write_dataset
from tests.episodes.golden import LENGTHS, NUM_FRAMES, ROOT, TOP, codes_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DELTAS = {TOP: [-0.1, 0.0, 0.1], "action": [0.0, 0.1]}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset without pictures, of many short episodes in several files."""
    root = tmp_path_factory.mktemp("rows") / "set"
    write_dataset(root, Layout(data_files=[[5, 8, 3], [9, 2, 7, 6], [4, 10, 1]], has_video=False))
    return root


NUM_ROWS = 55


def numbers(samples: Iterable[Any]) -> list[int]:
    return [int(sample["index"]) for sample in samples]


def batched(loader: Iterable[Any]) -> list[int]:
    return [number for batch in loader for number in batch["index"].tolist()]


def open_rows(root: Path, **arguments: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(root=root, **{"episode_pool_size": 3, "batch_size": 4, **arguments})


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("num_workers", "is_persistent"), [(0, False), (2, False), (2, True), (3, False)])
def test_a_stock_loader_gives_every_frame_once_and_another_order_each_epoch(
    rows: Path, num_workers: int, is_persistent: bool
) -> None:
    with open_rows(rows) as dataset:
        loader = DataLoader(dataset, batch_size=4, num_workers=num_workers, persistent_workers=is_persistent)
        epochs = [batched(loader) for _ in range(2)]
        alone = numbers(open_rows(rows))
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(NUM_ROWS))
    assert epochs[0] != epochs[1]
    assert epochs[0] == alone


def test_without_shuffling_frames_come_as_they_are_stored(rows: Path) -> None:
    with open_rows(rows, shuffle=False) as dataset:
        assert numbers(dataset) == numbers(dataset) == list(range(NUM_ROWS))


def test_seeds_make_the_order(rows: Path) -> None:
    orders = [numbers(open_rows(rows, seed=seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_frames_of_a_pool_are_mixed(rows: Path) -> None:
    with open_rows(rows, episode_pool_size=8) as dataset:
        first = [int(sample["episode_index"]) for sample, _ in zip(dataset, range(20), strict=False)]
    assert len(set(first)) >= 3


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("epoch_end", ["pad", "drop", "uneven"])
def test_ranks_share_one_order(rows: Path, world_size: int, epoch_end: Any) -> None:
    whole = numbers(open_rows(rows))
    by_rank = [
        numbers(open_rows(rows, rank=rank, world_size=world_size, epoch_end=epoch_end)) for rank in range(world_size)
    ]
    lengths = [len(each) for each in by_rank]
    if epoch_end != "uneven":
        assert len(set(lengths)) == 1
    joined = [each[place] for place in range(max(lengths)) for each in by_rank if place < len(each)]
    common = min(len(joined), NUM_ROWS)
    assert joined[:common] == whole[:common]
    if epoch_end != "drop":
        assert set(joined) == set(range(NUM_ROWS))


def test_windows_stay_whole_on_any_number_of_ranks(rows: Path) -> None:
    with open_rows(rows, shuffle=False) as dataset:
        ends = np.cumsum(dataset.meta.episodes.lengths)
    for rank in range(3):
        with open_rows(rows, rank=rank, world_size=3, delta_timestamps={"action": [0.0, 0.1, 0.2]}) as dataset:
            for sample in dataset:
                index, last = int(sample["index"]), int(ends[int(sample["episode_index"])]) - 1
                assert sample["action"][:, 0].tolist() == [min(index + offset, last) for offset in range(3)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_goes_on_where_its_state_left_it(rows: Path, num_workers: int) -> None:
    with open_rows(rows) as dataset:
        whole = [batched(StreamingDataLoader(dataset, batch_size=4)) for _ in range(2)]
    with open_rows(rows) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=4, num_workers=num_workers)
        batches = iter(loader)
        begun = [next(batches)["index"].tolist() for _ in range(5)]
        state = json.loads(json.dumps(loader.state_dict()))
        del batches
    assert [number for batch in begun for number in batch] == whole[0][:20]
    with open_rows(rows) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=4, num_workers=num_workers)
        loader.load_state_dict(state)
        assert batched(loader) == whole[0][20:]
        assert batched(loader) == whole[1]  # the state is used once


def test_another_world_goes_on_with_the_same_state(rows: Path) -> None:
    whole = numbers(open_rows(rows))
    with open_rows(rows) as dataset:
        samples = iter(dataset)
        assert numbers(next(samples) for _ in range(18)) == whole[:18]
        state = dataset.state_dict()
    rest = []
    for rank in range(2):
        with open_rows(rows, rank=rank, world_size=2) as dataset:
            dataset.load_state_dict(state)
            rest.append(numbers(dataset))
    joined = [number for pair in zip(*rest, strict=True) for number in pair]
    assert joined[: NUM_ROWS - 18] == whole[18:]


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_two_numbers_of_lerobot_resume_every_rank(rows: Path, world_size: int) -> None:
    for rank in range(world_size):
        arguments = {"rank": rank, "world_size": world_size}
        whole = numbers(open_rows(rows, **arguments))
        with open_rows(rows, **arguments) as dataset:
            dataset.load_state_dict({"batches_consumed": 3, "batch_size": 4})
            assert numbers(dataset) == whole[12:]


def test_a_state_that_is_none_is_refused(rows: Path) -> None:
    with open_rows(rows) as dataset:
        with pytest.raises(ResumeError, match="whole number"):
            dataset.load_state_dict({"batches_consumed": "3", "batch_size": 4})


def test_windows_and_videos_are_right_in_workers() -> None:
    ends = {sum(LENGTHS[: number + 1]) - 1 for number in range(len(LENGTHS))}
    starts = {end + 1 for end in ends} | {0}
    with StreamingLeRobotDataset(
        root=ROOT, delta_timestamps=DELTAS, episode_pool_size=4, batch_size=16, return_uint8=True
    ) as dataset:
        seen = []
        for batch in DataLoader(dataset, batch_size=16, num_workers=2, timeout=60):
            for number, pictures, is_pad in zip(batch["index"], batch[TOP], batch[f"{TOP}_is_pad"], strict=True):
                index = int(number)
                seen.append(index)
                wanted = [index if index in starts else index - 1, index, index if index in ends else index + 1]
                assert codes_of(pictures) == wanted
                assert is_pad.tolist() == [index in starts, False, index in ends]
        stats = dataset.video_decoder_cache_stats()
    assert sorted(seen) == list(range(NUM_FRAMES))
    assert stats["misses"] <= 2 * 2 * len(LENGTHS)  # each of two workers opens each video of an episode once
    assert stats["hits"] > 0
    assert stats["frames_used"] >= 2 * NUM_FRAMES


def test_one_pass_decodes_each_frame_about_once(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(data_files=[[60, 60]], video_files=[[60, 60]], gop=60))
    with StreamingLeRobotDataset(root=tmp_path / "set", batch_size=8, frame_cache_bytes="4mb") as dataset:
        assert sorted(numbers(dataset)) == list(range(120))
        stats = dataset.video_decoder_cache_stats()
    assert stats["frames_used"] == 120
    assert stats["frames_decoded"] <= 120


def test_a_dataset_pickles(rows: Path) -> None:
    with open_rows(rows) as dataset:
        copy = pickle.loads(pickle.dumps(dataset))
        assert numbers([copy[3], copy[-1]]) == [3, NUM_ROWS - 1]
        assert numbers(copy[[5, 2]]) == [5, 2]
        assert numbers(copy) == numbers(dataset)


def test_spawned_workers_decode(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout())
    with StreamingLeRobotDataset(root=tmp_path / "set", batch_size=4) as dataset:
        loader = DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="forkserver")
        batches = list(loader)
    assert sorted(number for batch in batches for number in batch["index"].tolist()) == list(range(23))
    assert batches[0][CAMERA].shape == (4, 3, 64, 64)


def test_workers_are_forked_after_videos_were_decoded(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout())
    with StreamingLeRobotDataset(root=tmp_path / "set", batch_size=4) as dataset:
        assert int(dataset[0]["index"]) == 0
        for _ in range(2):
            assert sorted(batched(DataLoader(dataset, batch_size=4, num_workers=2, timeout=60))) == list(range(23))
    with StreamingLeRobotDataset(root=ROOT, batch_size=32) as dataset:  # whose decoder has threads of its own
        assert int(dataset[0]["index"]) == 0
        loader = DataLoader(dataset, batch_size=32, num_workers=2, timeout=60)
        assert sorted(batched(loader)) == list(range(NUM_FRAMES))


def test_frames_of_a_pool_are_uniformly_mixed() -> None:
    """Over many epochs, a frame is as likely in one part of its pool as in any other."""
    lengths = np.array([30, 10, 50, 20, 40, 10, 25, 15])
    order = EpisodePool(lengths, seed=1, stream="s", num_lanes=1, window=4)
    assert order.num_samples == 200
    counts = np.zeros((2, 5))
    for epoch in range(400):
        ids = order.ids(epoch, 0, range(200))
        assert sorted(ids.tolist()) == list(range(200))
        episodes = np.searchsorted(np.cumsum(lengths), ids, side="right")
        first = list(dict.fromkeys(episodes.tolist()))[:4]
        size = int(lengths[first].sum())
        assert set(episodes[:size].tolist()) == set(first)  # four whole episodes, then the four others
        for row, frame in enumerate((0, 199)):
            place = ids.tolist().index(frame)
            begin, length = (0, size) if place < size else (size, 200 - size)
            counts[row, 5 * (place - begin) // length] += 1
    assert np.abs(counts - 80).max() < 4.5 * np.sqrt(80 * 0.8)


def test_any_place_of_a_plan_of_many_episodes_is_found_at_once() -> None:
    lengths = np.random.default_rng(0).integers(100, 500, 10**6)
    order = EpisodePool(lengths, seed=1, stream="s", num_lanes=1, window=64)
    begin = order.num_samples * 9 // 10
    ids = order.ids(3, 0, range(begin, begin + 1000, 1))
    assert order.ids(3, 0, range(begin + 500, begin + 600)).tolist() == ids[500:600].tolist()
    assert len(set(ids.tolist())) == 1000
