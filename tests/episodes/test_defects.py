"""Faults that streaming readers of robot episodes are known to have, each with the test that would find it.

| fault | found by |
| --- | --- |
| 1 workers lose frames | `test_every_frame_once_whatever_the_ranks_and_workers` |
| 2 ranks that do not divide the files spoil windows | `test_windows_are_right_whatever_the_ranks_and_workers` |
| 3 windows of video show the next episode at the end of one | `test_windows_are_right_whatever_the_ranks_and_workers` |
| 4 epochs repeat with workers that end, a state is used twice | `test_every_frame_once_…`, `test_a_state_is_exact_…` |
| 5 resuming with workers is not exact | `test_a_state_is_exact_whatever_the_workers` |
| 6 `episodes=` is not heeded | `test_chosen_episodes_and_no_others` |
| 7 images, and windows of images and scalars | `test_meta.py`: `…_of_every_kind_…`, `test_pictures_as_bytes_…` |
| 8 scalars are no tensors | `test_golden.py`: `test_every_query_…`, `test_samples_of_a_stream_are_those_by_number` |
| 9 files are begun in stored order | `test_each_epoch_begins_with_other_episodes` |
| 10 resuming reads the epoch so far | `test_resuming_reads_only_what_is_left` |
| 11 a state holds for one world | `test_a_state_serves_any_world_workers_and_batch_size` |
| 12 consumers of one cache fetch twice, or remove each other's files | `test_ranks_share_a_cache_that_is_too_small` |
| 13 nothing is bounded in bytes | `test_a_pool_is_bounded_in_bytes`, `test_ranks_share_a_cache_that_is_too_small` |
| 14 every frame is decoded from its keyframe anew | `test_dataset.py`: `test_one_pass_decodes_each_frame_…` |
| 15 decoders stay open, or are shared by processes | `test_few_files_stay_open`, `test_workers_are_forked_after_…` |
| 16 a pool holds a dict for each row | `test_a_pool_takes_little_memory_for_each_frame` |
| 17 ranks have different numbers of batches | `test_all_ranks_get_the_same_number_of_batches` |
| 18 videos of another revision than rows | `test_rows_and_videos_are_of_one_revision` |
| 19 the benchmark counts samples as frames | `test_samples_and_decoded_frames_are_counted_apart` |
"""

from __future__ import annotations

import json
import tracemalloc
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from penstock import StreamingDataLoader, StreamingLeRobotDataset
from tests.episodes.build import Layout, write_dataset
from tests.episodes.golden import LENGTHS, NUM_FRAMES, ROOT, TOP, WRIST, codes_of
from tests.episodes.test_remote import FILES, VIDEOS, upload
from tests.servers.hub import Repo, running_hub

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.servers.s3 import S3Server

ENDS = [sum(LENGTHS[: number + 1]) - 1 for number in range(len(LENGTHS))]
DELTAS = {TOP: [0.0, 0.1], "action": [-0.1, 0.0, 0.3]}
# Ranks, workers, whether these stay: all of it is a matter of minutes, so some stand for the others.
QUICK = [(1, 0, False), (1, 2, True), (1, 3, False), (2, 0, False), (2, 2, False), (3, 0, False), (3, 3, True)]
WORLDS = [
    pytest.param(*world, marks=() if world in QUICK else pytest.mark.soak)
    for world in [(ranks, workers, stays) for ranks in (1, 2, 3) for workers in (0, 2, 3) for stays in (False, True)]
    if world[1] or not world[2]
]
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def open_golden(rank: int = 0, ranks: int = 1, **arguments: Any) -> StreamingLeRobotDataset:
    given = {"episode_pool_size": 4, "batch_size": 8, "return_uint8": True, "rank": rank, "world_size": ranks}
    return StreamingLeRobotDataset(root=ROOT, **{**given, **arguments})


def numbers(batches: Iterable[Any]) -> list[int]:
    return [int(number) for batch in batches for number in batch["index"].reshape(-1)]


@cache
def whole_epochs() -> list[list[int]]:
    """Return two epochs as one process without a loader reads them."""
    with open_golden() as dataset:
        return [[int(sample["index"]) for sample in dataset] for _ in range(2)]


def interleaved(by_rank: list[list[int]]) -> list[int]:
    """Lay the samples of ranks in the order of the job; ranks that got one more repeat it at the end."""
    return list(chain.from_iterable(zip(*by_rank, strict=True)))


@pytest.mark.parametrize(("ranks", "workers", "stays"), WORLDS)
def test_every_frame_once_whatever_the_ranks_and_workers(ranks: int, workers: int, stays: bool) -> None:
    epochs: list[list[list[int]]] = [[], []]
    for rank in range(ranks):
        with open_golden(rank, ranks) as dataset:
            loader = DataLoader(
                dataset, batch_size=8, num_workers=workers, persistent_workers=stays, timeout=60 if workers else 0
            )
            for seen in epochs:
                seen.append(numbers(loader))
            if workers and stays:
                del loader
    for expected, by_rank in zip(whole_epochs(), epochs, strict=True):
        assert interleaved(by_rank)[:NUM_FRAMES] == expected
        assert sorted(expected) == list(range(NUM_FRAMES))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2), (3, 0)])
def test_windows_are_right_whatever_the_ranks_and_workers(ranks: int, workers: int) -> None:
    seen = set()
    for rank in range(ranks):
        with open_golden(rank, ranks, delta_timestamps=DELTAS) as dataset:
            for batch in DataLoader(dataset, batch_size=8, num_workers=workers):
                for place, number in enumerate(batch["index"].tolist()):
                    begin = max([0, *(end + 1 for end in ENDS if end < number)])
                    end = min(end for end in ENDS if end >= number)
                    wanted = [min(max(number + offset, begin), end) for offset in (-1, 0, 3)]
                    assert batch["action"][place, :, 0].tolist() == wanted
                    assert batch["action_is_pad"][place].tolist() == [number == begin, False, number + 3 > end]
                    assert codes_of(batch[TOP][place]) == [number, min(number + 1, end)]
                    assert batch[f"{TOP}_is_pad"][place].tolist() == [False, number == end]
                    seen.add(number)
    assert seen == set(range(NUM_FRAMES))


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("taken", [1, 6, 19])
def test_a_state_is_exact_whatever_the_workers(workers: int, taken: int) -> None:
    first, second = whole_epochs()
    with open_golden() as dataset:
        loader = StreamingDataLoader(dataset, batch_size=8, num_workers=workers)
        batches = iter(loader)
        begun = numbers(next(batches) for _ in range(taken))
        state = json.loads(json.dumps(loader.state_dict()))
        del batches
    assert begun == first[: 8 * taken]
    with open_golden() as dataset:
        loader = StreamingDataLoader(dataset, batch_size=8, num_workers=workers)
        loader.load_state_dict(state)
        assert numbers(loader) == first[8 * taken :]
        assert numbers(loader) == second  # whole: the state was used once


@pytest.mark.parametrize(("ranks", "workers", "batch_size"), [(2, 0, 8), (1, 3, 5), (3, 0, 4)])
@pytest.mark.parametrize("kind", ["ours", "two numbers"])
def test_a_state_serves_any_world_workers_and_batch_size(ranks: int, workers: int, batch_size: int, kind: str) -> None:
    first, _ = whole_epochs()
    with open_golden() as dataset:
        loader = StreamingDataLoader(dataset, batch_size=8)
        batches = iter(loader)
        for _ in range(6):
            next(batches)
        state = loader.state_dict() if kind == "ours" else {"epoch": 0, "samples": 48}
        del batches
    by_rank = []
    for rank in range(ranks):
        with open_golden(rank, ranks, batch_size=batch_size) as dataset:
            loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers)
            loader.load_state_dict(state)
            by_rank.append(numbers(loader))
    assert interleaved(by_rank)[: NUM_FRAMES - 48] == first[48:]


def test_chosen_episodes_and_no_others() -> None:
    chosen = [1, 4, 6]
    with open_golden(episodes=chosen) as dataset:
        seen = numbers(DataLoader(dataset, batch_size=8, num_workers=2))
    begins = [0, *(end + 1 for end in ENDS)]
    assert sorted(seen) == sorted(chain.from_iterable(range(begins[each], ENDS[each] + 1) for each in chosen))


def test_samples_of_a_stream_are_those_by_number() -> None:
    with open_golden(delta_timestamps=DELTAS) as dataset:
        for sample, _ in zip(dataset, range(24), strict=False):
            alone = dataset[int(sample["index"])]
            assert list(sample) == list(alone)
            for key, value in alone.items():
                assert torch.equal(sample[key], value) if isinstance(value, torch.Tensor) else sample[key] == value
            assert isinstance(sample["index"], torch.Tensor)
            assert sample["frame_index"].shape == ()


def test_each_epoch_begins_with_other_episodes() -> None:
    with open_golden(batch_size=1) as dataset:
        firsts = []
        for epoch in range(8):
            dataset.set_epoch(epoch)
            firsts.append({int(sample["episode_index"]) for sample, _ in zip(dataset, range(20), strict=False)})
    assert len(set(map(frozenset, firsts))) > 4
    assert len(set().union(*firsts)) >= 8  # sooner or later any episode may be among the first ones


def test_resuming_reads_only_what_is_left(moto: S3Server, tmp_path: Path) -> None:
    lengths = [[6, 7], [5, 8], [9, 4], [6, 6], [7, 5], [8, 6]]
    write_dataset(tmp_path / "set", Layout(data_files=lengths, has_video=False))
    files = {str(path.relative_to(tmp_path / "set")): path for path in (tmp_path / "set").rglob("*") if path.is_file()}
    url = upload(moto, "episodes-resumed", files)
    num_frames = sum(map(sum, lengths))
    arguments: dict[str, Any] = {"root": url, "storage_options": moto.options, "episode_pool_size": 1, "batch_size": 1}
    with StreamingLeRobotDataset(**arguments) as dataset:
        dataset.load_state_dict({"epoch": 0, "samples": num_frames - 3})
        last = [int(sample["episode_index"]) for sample in dataset]
        assert len(last) == 3
        assert dataset.stats().samples == 3
        assert dataset.stats().downloads <= len({episode // 2 for episode in last}) + 1


def test_ranks_share_a_cache_that_is_too_small(moto: S3Server) -> None:
    url = upload(moto, "episodes-shared", FILES | VIDEOS)
    limit = sum(path.stat().st_size for path in VIDEOS.values()) * 2 // 3 + 200_000
    datasets = [
        StreamingLeRobotDataset(
            root=url,
            storage_options=moto.options,
            rank=rank,
            world_size=2,
            batch_size=4,
            episode_pool_size=3,
            video_decoder_cache_size=1,
            cache_limit=limit,
            return_uint8=True,
        )
        for rank in range(2)
    ]
    seen: list[int] = []
    loaders = [iter(DataLoader(dataset, batch_size=4, num_workers=1, timeout=60)) for dataset in datasets]
    for batches in zip(*loaders, strict=True):
        for batch in batches:
            assert codes_of(batch[WRIST]) == [1000 + number for number in batch["index"].tolist()]
            seen += batch["index"].tolist()
    assert set(seen) == set(range(NUM_FRAMES))
    for dataset in datasets:
        dataset.close()


def test_a_pool_is_bounded_in_bytes(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(data_files=[[10, 30], [20, 10], [10, 20]], has_video=False))
    row_bytes = 8 * (2 + 6 + 1 + 1 + 1 + 4)
    with StreamingLeRobotDataset(root=tmp_path / "set", batch_size=1, pool_bytes=55 * row_bytes) as dataset:
        seen = [int(sample["episode_index"]) for sample in dataset]
    # The two largest have 50 frames together, the three largest 70: two at a time, and never more.
    first = {episode: seen.index(episode) for episode in set(seen)}
    last = {episode: len(seen) - 1 - seen[::-1].index(episode) for episode in set(seen)}
    assert max(sum(first[other] <= place <= last[other] for other in first) for place in range(len(seen))) == 2


def test_a_pool_takes_little_memory_for_each_frame(tmp_path: Path) -> None:
    lengths = [[600] * 8, [600] * 8, [600] * 8]
    write_dataset(tmp_path / "set", Layout(data_files=lengths, has_video=False))
    with StreamingLeRobotDataset(root=tmp_path / "set", batch_size=16) as dataset:
        next(iter(dataset))  # loads what is loaded once
        tracemalloc.start()
        try:
            dataset.set_epoch(1)
            for _ in zip(dataset, range(64), strict=False):
                pass
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # Bytes. The values of a frame take 180, a third of it its string; a dict of tensors would take 1800. The first
    # sample of a pass comes alone, so all episodes but one are read while this counts.
    assert peak / (24 * 600) < 300


@pytest.mark.parametrize("epoch_end", ["pad", "drop"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_all_ranks_get_the_same_number_of_batches(epoch_end: Any, ranks: int, tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(data_files=[[5, 8, 3], [9, 2, 7, 6]], has_video=False))
    counts = set()
    for rank in range(ranks):
        with StreamingLeRobotDataset(
            root=tmp_path / "set", rank=rank, world_size=ranks, batch_size=4, epoch_end=epoch_end
        ) as dataset:
            counts.add(sum(1 for _ in StreamingDataLoader(dataset, batch_size=4)))
    assert len(counts) == 1


def test_rows_and_videos_are_of_one_revision() -> None:
    files = {name: path.read_bytes() for name, path in (FILES | VIDEOS).items()}
    other = dict.fromkeys(VIDEOS, b"of another revision")
    with running_hub() as hub:
        repo = hub.repos["datasets/me/moving"] = Repo()
        repo.commit("main", files)
        with StreamingLeRobotDataset("me/moving", storage_options=hub.options()) as dataset:
            repo.commit("main", files | other)  # another user pushes while the job runs
            for number in (0, 100, 162):
                assert codes_of(dataset[number][TOP]) == [number]


def test_samples_and_decoded_frames_are_counted_apart() -> None:
    with open_golden(delta_timestamps={TOP: [-0.1, 0.0], WRIST: [0.0]}, batch_size=16) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=16, num_workers=2)
        assert len(numbers(loader)) == NUM_FRAMES
        stats = loader.stats(flat=True)
    assert stats["samples"] == NUM_FRAMES
    assert stats["video.frames_used"] > 2 * NUM_FRAMES
    assert stats["video.seconds_decoding"] > 0
    assert stats["loop.batches"] == 11
    assert 0 < stats["latency.p50_ms"] <= stats["latency.p95_ms"] <= stats["latency.p99_ms"]
