"""Decoding what a pass will want: together, ahead, in threads, within a number of bytes; each in the right place."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import StreamingDataLoader, StreamingLeRobotDataset
from penstock.counters import private_row
from penstock.episodes.clips import cut
from penstock.episodes.decoders import COUNTED, Videos
from penstock.episodes.open_clips import ClipLocator, LocatedClip
from penstock.episodes.upcoming import COST_OF_KEEPING, NEVER, ClipKey, FrameCache, Keeping, WantedFrames, best_to_keep
from penstock.episodes.video.pyav import PyavBackend
from penstock.errors import DataError, PenstockError
from tests.cache.kit import wait_until
from tests.episodes.build import CAMERA, Layout, write_dataset
from tests.episodes.clips import number_of, write_clip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FRAME_BYTES = 64 * 64 * 3 // 2
LENGTHS = [60, 45, 60, 52, 60]
NUM_FRAMES = sum(LENGTHS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding") / "set"
    write_dataset(folder, Layout(data_files=[LENGTHS], video_files=[LENGTHS[:3], LENGTHS[3:]], gop=15))
    return folder


def open_set(root: Path, **arguments: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(
        root=root, **{"batch_size": 8, "return_uint8": True, "episode_pool_size": 5, **arguments}
    )


def numbers(samples: Iterator[Any] | StreamingLeRobotDataset) -> list[int]:
    found = []
    for sample in samples:
        found.append(int(sample["index"]))
        assert number_of(sample[CAMERA].permute(1, 2, 0).numpy()) == found[-1]
    return found


@pytest.mark.parametrize("num_threads", [0, 1, 3])
@pytest.mark.parametrize("locality", [None, "gop"])
@pytest.mark.parametrize("cache_frames", [0, 40, 1000])
def test_every_frame_is_right_however_it_is_decoded(
    root: Path, num_threads: int, locality: Any, cache_frames: int
) -> None:
    with open_set(
        root,
        video_decode_threads=num_threads,
        video_locality=locality,
        frame_cache_bytes=cache_frames * FRAME_BYTES,
        video_decoder_cache_size=2 if cache_frames == 40 else None,
    ) as dataset:
        epochs = [numbers(dataset) for _ in range(2)]
        stats = dataset.video_decoder_cache_stats()
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(NUM_FRAMES))
    assert epochs[0] != epochs[1]
    assert stats["frames_used"] == 2 * NUM_FRAMES
    if cache_frames == 1000:
        # Some groups of pictures are of two episodes, or lie where two slots meet.
        assert stats["frames_decoded"] <= 2.3 * NUM_FRAMES


@pytest.mark.parametrize(("pool_size", "most"), [(1, 1.1), (5, 1.6)])
def test_frames_that_fit_the_order_are_decoded_once_with_little_memory(root: Path, pool_size: int, most: float) -> None:
    with open_set(
        root,
        video_locality="gop",
        episode_pool_size=pool_size,
        frame_cache_bytes=60 * FRAME_BYTES,
        video_decode_threads=0,
    ) as dataset:
        assert sorted(numbers(dataset)) == list(range(NUM_FRAMES))
        stats = dataset.video_decoder_cache_stats()
    # But for groups of pictures that lie where two slots meet: here each slot has little more than an episode.
    assert stats["frames_decoded"] <= most * NUM_FRAMES


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_order_that_fits_the_video(root: Path, world_size: int) -> None:
    with open_set(root, video_locality="gop") as dataset:
        whole = [int(sample["index"]) for sample in dataset]
    by_rank = []
    for rank in range(world_size):
        with open_set(root, video_locality="gop", rank=rank, world_size=world_size) as dataset:
            by_rank.append([int(sample["index"]) for sample in dataset])
    joined = [number for each in zip(*by_rank, strict=True) for number in each]
    assert joined[:NUM_FRAMES] == whole


def test_a_state_goes_on_in_the_order_that_fits_the_video(root: Path) -> None:
    with open_set(root, video_locality="gop") as dataset:
        whole = numbers(dataset)
    with open_set(root, video_locality="gop") as dataset:
        loader = StreamingDataLoader(dataset, batch_size=8)
        batches = iter(loader)
        begun = [number for _ in range(7) for number in next(batches)["index"].tolist()]
        state = loader.state_dict()
        del batches
    assert begun == whole[:56]
    with open_set(root, video_locality="gop") as dataset:
        dataset.load_state_dict(state)
        assert numbers(dataset) == whole[56:]


def test_where_groups_of_pictures_begin_is_found_once_a_node(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.episodes.clips._MANY", 0)
    orders = []
    for _ in range(2):
        with open_set(root, video_locality="gop") as dataset:
            orders.append(numbers(dataset))
        monkeypatch.setattr("penstock.episodes.clips.find_stretches", None)
    assert orders[0] == orders[1]
    with pytest.raises(TypeError):  # other episodes are other stretches
        open_set(root, video_locality="gop", episodes=[0, 1])


@given(st.sets(st.integers(0, 300), max_size=40), st.integers(1, 300))
def test_stretches_begin_with_keyframes_that_are_not_too_close(keyframes: set[int], count: int) -> None:
    begins = [0]
    for keyframe in sorted(keyframes):
        if keyframe - begins[-1] >= 32 and keyframe < count:
            begins.append(keyframe)
    assert cut(np.array(sorted(keyframes), np.int64), count).tolist() == begins


def test_windows_of_video_are_right_and_decoded_together(root: Path) -> None:
    deltas = {CAMERA: [-0.3, 0.0, 0.2]}
    for locality in (None, "gop"):
        with open_set(root, delta_timestamps=deltas, video_locality=locality) as dataset:
            starts = np.cumsum([0, *LENGTHS])
            for sample in dataset:
                index, episode = int(sample["index"]), int(sample["episode_index"])
                wanted = np.clip([index - 3, index, index + 2], starts[episode], starts[episode + 1] - 1)
                shown = [number_of(picture.permute(1, 2, 0).numpy()) for picture in sample[CAMERA]]
                assert shown == wanted.tolist()
            assert dataset.video_decoder_cache_stats()["frames_decoded"] <= 2 * NUM_FRAMES


def test_threads_are_gone_when_a_dataset_is_closed_or_left(root: Path) -> None:
    def decoding() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "penstock-video"]

    dataset = open_set(root, video_decode_threads=2)
    samples = iter(dataset)
    next(samples)
    dataset.close()
    assert not decoding()
    dataset = open_set(root, video_decode_threads=2)
    assert numbers(iter([next(iter(dataset))]))
    del dataset
    for thread in decoding():
        thread.join(30)
    assert not decoding()


def test_a_damaged_video_is_named_and_may_be_skipped(root: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(data_files=[LENGTHS], video_files=[LENGTHS[:3], LENGTHS[3:]], gop=15))
    path = tmp_path / "set" / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    data = bytearray(path.read_bytes())
    at = data.find(b"mdat") + 4
    data[at + 2000 : at + 4000] = bytes(2000)
    path.write_bytes(data)
    for num_threads in (0, 2):
        with open_set(tmp_path / "set", video_decode_threads=num_threads, on_error="skip") as dataset:
            seen = [int(sample["index"]) for sample in dataset]
            assert len(seen) == NUM_FRAMES
            assert dataset.stats().skipped > 0
        with open_set(tmp_path / "set", video_decode_threads=num_threads) as dataset:
            with pytest.raises(DataError, match=r"episode \d of .*, frame .*file-000.mp4"):
                list(dataset)


@pytest.mark.parametrize("locality", [None, "gop"])
def test_frames_that_can_be_decoded_are_not_lost_with_damaged_neighbours(tmp_path: Path, locality: Any) -> None:
    write_dataset(tmp_path / "set", Layout(data_files=[LENGTHS[:2]], video_files=[LENGTHS[:2]], gop=15))
    path = tmp_path / "set" / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    data = bytearray(path.read_bytes())
    at = data.find(b"mdat") + 4
    for share in (1 / 3, 2 / 3):
        place = at + int((data.find(b"moov") - at) * share)
        data[place : place + 20] = bytes(20)
    path.write_bytes(data)
    alone = set()
    with open_set(tmp_path / "set", video_decode_threads=0, frame_cache_bytes=0) as dataset:
        for number in range(len(dataset)):
            with suppress(DataError):
                alone |= {int(dataset[number]["index"])}
    assert 0 < len(alone) < sum(LENGTHS[:2]) - 10
    for num_threads in (0, 2):
        with open_set(
            tmp_path / "set", video_decode_threads=num_threads, video_locality=locality, on_error="skip"
        ) as dataset:
            assert {int(sample["index"]) for sample in dataset} == alone
            assert dataset.stats().skipped == sum(LENGTHS[:2]) - len(alone)


class Flat(ClipLocator):
    """Gives each camera, which is a path, as the video of one episode."""

    def name(self, clip: ClipKey) -> str:
        return clip.camera

    def begin_s(self, clip: ClipKey) -> float:
        return 0.0 * clip.episode

    def locate(self, clip: ClipKey) -> LocatedClip:
        return LocatedClip(clip.camera)


def test_one_pass_over_a_group_serves_all_samples_that_were_announced(tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4", 60, gop=30)
    row = private_row(COUNTED)
    videos = Videos(Flat({}), PyavBackend(), max_open=2, frame_cache_bytes=1 << 20, num_threads=0, row=row)
    clip = ClipKey(str(tmp_path / "a.mp4"), 0)
    wanted = [3, 25, 17, 40]
    videos.announce(([(clip, [frame])] for frame in wanted), is_first=True)
    for frame, decoded in zip(wanted, [26, 26, 26, 37], strict=True):
        found = videos.read(clip, np.array([frame]), np.array([frame / 10]), 1e-4)
        assert number_of(found.frames[0]) == frame
        assert row.read()["frames_decoded"] == decoded
    videos.close()


def test_frames_that_cannot_be_read_do_not_keep_threads_from_others(tmp_path: Path) -> None:
    write_clip(tmp_path / "good.mp4", 30, gop=15)
    row = private_row(COUNTED)
    videos = Videos(Flat({}), PyavBackend(), max_open=2, frame_cache_bytes=1 << 20, num_threads=1, row=row)
    bad, good = ClipKey(str(tmp_path / "bad.mp4"), 0), ClipKey(str(tmp_path / "good.mp4"), 0)
    videos.announce([[(bad, [frame])] for frame in range(100)] + [[(good, [3])]], is_first=True)
    for frame in range(100):
        with pytest.raises(PenstockError, match=r"bad\.mp4"):
            videos.read(bad, np.array([frame]), np.array([frame / 10]), 1e-4)
    videos.announce([], is_first=False)
    wait_until(lambda: row.read()["frames_decoded"] > 0)
    videos.close()


class Late(Flat):
    """Has a thread that decodes ahead wait, between choosing a frame and getting its file, for the reader."""

    def __init__(self) -> None:
        self.has_chosen, self.is_read = threading.Event(), threading.Event()

    def begin_in_clip_s(self, clip: ClipKey) -> float:
        if threading.current_thread().name == "penstock-video":
            self.has_chosen.set()
            assert self.is_read.wait(60)
        return 0.0


def test_a_thread_that_comes_late_does_not_decode_again_what_was_read(tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4", 60, gop=30)
    row, locator = private_row(COUNTED), Late()
    videos = Videos(locator, PyavBackend(), max_open=2, frame_cache_bytes=1 << 20, num_threads=1, row=row)
    clip = ClipKey(str(tmp_path / "a.mp4"), 0)
    videos.announce(([(clip, [frame])] for frame in (3, 25, 40)), is_first=True)
    assert locator.has_chosen.wait(60)
    videos.read(clip, np.array([3]), np.array([0.3]), 1e-4)
    assert row.read()["frames_decoded"] == 26
    locator.is_read.set()
    for thread in threading.enumerate():
        if thread.name == "penstock-video":
            thread.join(60)
    assert row.read()["frames_decoded"] == 26 + 11  # it went on to the next group
    videos.close()


@given(
    samples=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), max_size=20),
    num_read=st.integers(0, 20),
)
def test_wants_are_known_until_they_are_met(samples: list[list[int]], num_read: int) -> None:
    clip, wanted = ClipKey("top", 0), WantedFrames()
    for frames in samples:
        wanted.add_sample([(clip, frames)])
    left = {frame: deque(turn for turn, frames in enumerate(samples) if frame in frames) for frame in range(7)}
    for frames in samples[:num_read]:
        for frame in set(frames):
            left[frame].popleft()
            assert wanted.use(clip, frame) == (left[frame][0] if left[frame] else NEVER)
    first = next(wanted.soonest(1000), None)
    open_turns = [times[0] for times in left.values() if times]
    assert (None if first is None else first.turn) == min(open_turns, default=None)
    assert wanted.use(ClipKey("other", 0), 1) == NEVER


@given(
    wants=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=7, unique_by=lambda want: want[0]),
    num_first=st.integers(1, 12),
    price=st.floats(0, 2),
)
def test_no_other_choice_of_frames_to_keep_costs_less(
    wants: list[tuple[int, int]], num_first: int, price: float
) -> None:
    """A choice is where to decode again: each want begins a new part, or belongs to the one before."""
    first, rest = (0.0, num_first), sorted((float(turn), num) for turn, num in wants)
    costs: dict[int, list[float]] = {}  # by how many are kept now
    for begins in product([True, False], repeat=len(rest)):
        parts = [[first]]
        for want, is_new in zip(rest, begins, strict=True):
            parts.append([want]) if is_new else parts[-1].append(want)
        decoded = sum(max(num for _, num in part) for part in parts)
        kept = sum(turn - part[0][0] for part in parts for turn, _ in part)
        at_once = COST_OF_KEEPING * (len(rest) + 1 - len(parts))
        costs.setdefault(len(parts[0]) - 1, []).append(decoded + at_once + price * kept)
    best = min(min(each) for each in costs.values())
    assert min(costs[best_to_keep(*first, rest, price)]) == pytest.approx(best)


def test_frames_are_kept_for_longer_if_there_is_more_memory_or_less_to_mix() -> None:
    def until(num_kept: int, num_mixed: int) -> float:
        wants = [(turn * 10.0, 30) for turn in range(1, 30)]
        return Keeping(4 * num_kept, num_kept, num_mixed).until(0, 30, 30, wants)

    assert [until(num_kept, 3000) for num_kept in (1, 30, 300, 3000)] == sorted(
        until(num_kept, 3000) for num_kept in (1, 30, 300, 3000)
    )
    assert until(1, 3000) == 0 < until(30, 3000) <= 120  # no more than there may be room for
    assert until(30, 3000) <= until(30, 300)
    assert until(3000, 3000) == 290  # all of them
    assert Keeping(50).until(7, 1, 30, []) == 57  # in an order that fits the video


@given(
    frames=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40), st.integers(0, 50)), max_size=60),
    limit=st.integers(0, 100),
)
def test_the_frames_wanted_soonest_stay(frames: list[tuple[int, int, int]], limit: int) -> None:
    cache = FrameCache(limit)
    uses: dict[int, int] = {}
    for key, num_bytes, use in frames:
        before = {kept for kept in uses if kept in cache}
        cache.put(key, key, num_bytes, use)
        if num_bytes > limit:
            continue
        uses[key] = use
        assert cache.num_bytes <= limit
        lost = {kept for kept in {*before, key} if kept not in cache}
        kept = [uses[each] for each in uses if each in cache]
        assert not lost or not kept or min(uses[each] for each in lost) >= max(kept)
