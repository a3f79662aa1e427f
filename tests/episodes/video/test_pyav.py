"""Frames of videos by time: exact, each group of pictures decoded once, few files open, few bytes kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.counters import private_row
from penstock.episodes.decoders import COUNTED, DecodedFrames, Videos
from penstock.episodes.open_clips import ClipLocator, LocatedClip
from penstock.episodes.upcoming import ClipKey, FrameCache
from penstock.episodes.video.backend import group_by_keyframe
from penstock.episodes.video.pyav import PyavBackend, PyavFile
from penstock.errors import CorruptShardError, FrameTimeError, ObjectNotFoundError
from penstock.formats.mp4.track import FrameIndex, read_frame_index
from tests.episodes.clips import number_of, write_clip
from tests.episodes.golden import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.counters import Row

KINDS = {
    "g2": {"gop": 2},
    "g30": {"gop": 30},
    "one_group": {"gop": 250},
    "b_frames": {"gop": 12, "b_frames": 2},
    "fast_start": {"gop": 12, "b_frames": 2, "movflags": "faststart"},
    "fragmented": {"gop": 12, "movflags": "frag_keyframe+empty_moov"},
}
NUM_FRAMES = 60


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("clips")
    for name, kind in KINDS.items():
        write_clip(folder / f"{name}.mp4", NUM_FRAMES, **kind)  # type: ignore[arg-type]
    return {name: str(folder / f"{name}.mp4") for name in KINDS}


class Paths(ClipLocator):
    """Takes the path of a file for the camera of its only episode."""

    def name(self, clip: ClipKey) -> str:
        return clip.camera

    def begin_s(self, clip: ClipKey) -> float:
        assert clip.episode == 0
        return 0.0

    def locate(self, clip: ClipKey) -> LocatedClip:
        return LocatedClip(clip.camera)


def open_videos(max_open: int = 8, cache_bytes: int = 0, num_threads: int = 0) -> tuple[Videos, Row]:
    row = private_row(COUNTED)
    videos = Videos(
        Paths({}), PyavBackend(), max_open=max_open, frame_cache_bytes=cache_bytes, num_threads=num_threads, row=row
    )
    return videos, row


def read(videos: Videos, path: str, seconds: Sequence[float] | np.ndarray[Any, Any]) -> DecodedFrames:
    times = np.asarray(seconds, np.float64)
    return videos.read(ClipKey(path, 0), (times * 10).round().astype(np.int64), times, 1e-4)


def by_packets(path: str) -> FrameIndex:
    with av.open(path) as container:
        stream = container.streams.video[0]
        packets = [(packet.pts, packet.is_keyframe) for packet in container.demux(stream) if packet.pts is not None]
        ticks, is_key = zip(*packets, strict=True)
        return FrameIndex.of(np.array(ticks), np.array(is_key), float(stream.time_base or 0))


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_a_file_say_what_its_packets_say(clips: dict[str, str], kind: str) -> None:
    index = read_frame_index(clips[kind])
    if kind == "fragmented":
        assert index is None
        return
    assert index is not None
    packets = by_packets(clips[kind])
    assert index.ticks.tolist() == packets.ticks.tolist()
    assert index.keyframes.tolist() == packets.keyframes.tolist()
    assert index.tick_s == pytest.approx(packets.tick_s)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.mp4")), ids=lambda path: "-".join(path.parts[-3:]))
def test_tables_of_recorded_files_say_what_their_packets_say(path: Path) -> None:
    index, packets = read_frame_index(str(path)), by_packets(str(path))
    assert index is not None
    assert index.ticks.tolist() == packets.ticks.tolist()
    assert index.keyframes.tolist() == packets.keyframes.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_any_frames_in_any_order_are_the_ones_asked_for(clips: dict[str, str], kind: str) -> None:
    videos, _ = open_videos()
    rng = np.random.default_rng(0)
    for _ in range(12):
        numbers = rng.integers(0, NUM_FRAMES, rng.integers(1, 6))
        decoded = read(videos, clips[kind], numbers / 10 + 3e-5)
        assert [number_of(decoded.frames[place]) for place in decoded.places] == numbers.tolist()
    videos.close()


@pytest.mark.parametrize("seconds", [0.05, -0.2, 6.0, 1e9])
def test_a_time_without_a_frame_is_an_error_that_names_both(clips: dict[str, str], seconds: float) -> None:
    videos, _ = open_videos()
    with pytest.raises(FrameTimeError, match="no frame at"):
        read(videos, clips["g2"], np.array([seconds]))


def test_one_pass_over_a_group_serves_all_frames_of_it(clips: dict[str, str]) -> None:
    videos, row = open_videos()
    read(videos, clips["g30"], np.array([0.9, 0.1, 2.0, 0.9]))
    assert row.read()["frames_decoded"] == 21
    assert row.read()["frames_used"] == 3
    read(videos, clips["g30"], np.array([5.9, 2.5]))  # goes on at frame 21, and needs all of the next group
    assert row.read()["frames_decoded"] == 21 + 5 + 30


def test_surplus_frames_are_kept_and_not_decoded_again(clips: dict[str, str]) -> None:
    videos, row = open_videos(cache_bytes=1 << 20)
    read(videos, clips["one_group"], np.array([3.0]))
    for number in (0, 17, 29, 30):
        decoded = read(videos, clips["one_group"], np.array([number / 10]))
        assert number_of(decoded.frames[0]) == number
    assert row.read()["frames_decoded"] == 31
    assert row.read()["frames_kept"] == 4


def test_few_files_stay_open(clips: dict[str, str]) -> None:
    videos, row = open_videos(max_open=2)
    for kind in ("g2", "g30", "g2", "b_frames", "g30"):
        read(videos, clips[kind], np.array([0.3]))
        assert videos.num_open <= 2
    counts = row.read()
    assert (counts["hits"], counts["misses"], counts["evictions"]) == (1, 4, 2)
    videos.close()
    assert videos.num_open == 0


def test_bad_files_are_named(clips: dict[str, str], tmp_path: Path) -> None:
    videos, _ = open_videos()
    with pytest.raises(ObjectNotFoundError, match="missing.mp4"):
        read(videos, str(tmp_path / "missing.mp4"), np.zeros(1))
    no_video = tmp_path / "text.mp4"
    no_video.write_bytes(b"hello" * 100)
    with pytest.raises(CorruptShardError, match="text.mp4 cannot be opened"):
        read(videos, str(no_video), np.zeros(1))
    whole = Path(clips["fast_start"]).read_bytes()
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(CorruptShardError, match="cut.mp4"):
        read(videos, str(cut), np.array([5.5]))


@given(data=st.data())
def test_damaged_tables_never_do_more_than_raise(data: st.DataObject, clips: dict[str, str], tmp_path: Path) -> None:
    whole = bytearray(Path(clips["fast_start"]).read_bytes())
    at = whole.find(b"moov")
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(at, at + 1200))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.mp4"
    path.write_bytes(whole)
    try:
        index = read_frame_index(str(path))
    except CorruptShardError:
        return
    assert index is None or 0 < len(index) <= len(whole)


@given(
    ticks=st.lists(st.integers(0, 500), min_size=1, max_size=40, unique=True),
    seconds=st.lists(st.floats(-10, 600), min_size=1, max_size=9),
)
def test_the_nearest_frame_is_nearest(ticks: list[int], seconds: list[float]) -> None:
    index = FrameIndex.of(np.array(ticks), np.ones(len(ticks), np.bool_), 1.0)
    frames, off = index.nearest(np.array(seconds))
    for frame, distance, wanted in zip(frames, off, seconds, strict=True):
        assert distance == abs(index.ticks[frame] - wanted) == min(abs(tick - wanted) for tick in ticks)


@given(
    keyframes=st.sets(st.integers(1, 99), max_size=20),
    frames=st.sets(st.integers(0, 99), max_size=30),
)
def test_groups_hold_frames_of_one_keyframe_each(keyframes: set[int], frames: set[int]) -> None:
    index = FrameIndex(np.arange(100), 1.0, np.array(sorted({0, *keyframes})))
    groups = group_by_keyframe(np.array(sorted(frames), np.int64), index)
    assert [int(frame) for group in groups for frame in group] == sorted(frames)
    firsts = [max(key for key in {0, *keyframes} if key <= group[0]) for group in groups]
    assert len(set(firsts)) == len(firsts)
    for first, group in zip(firsts, groups, strict=True):
        assert not any(first < key <= group[-1] for key in keyframes)


@given(sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=60), limit=st.integers(0, 100))
def test_the_frame_cache_keeps_to_its_limit(sizes: list[tuple[int, int]], limit: int) -> None:
    cache = FrameCache(limit)
    for key, num_bytes in sizes:
        cache.put(key, f"frame {key}", num_bytes)
        assert cache.num_bytes <= limit
        if num_bytes <= limit:
            assert cache.get(key) == f"frame {key}"
    kept = len(cache)
    cache.clear()
    assert (cache.num_bytes, len(cache)) == (0, 0)
    assert kept <= 10


def test_a_file_goes_on_where_it_stopped(clips: dict[str, str]) -> None:
    file = PyavFile(clips["one_group"])
    assert [number for number, _ in file.decode(4, 7)] == list(range(8))
    assert [number for number, _ in file.decode(10, 10)] == [8, 9, 10]
    assert [number for number, _ in file.decode(2, 2)] == [0, 1, 2]
    file.close()


def with_flipped_bits(path: str, seed: int, damaged: Path) -> None:
    """Copy a video with two bits of its frames flipped."""
    data, random = bytearray(Path(path).read_bytes()), np.random.default_rng(seed)
    begin = data.find(b"mdat") + 4
    for at in random.integers(begin, data.find(b"moov") - 8, 2):
        data[at] ^= 1 << int(random.integers(8))
    damaged.write_bytes(data)


@pytest.fixture
def quiet() -> Iterator[None]:
    level = av.logging.get_level()
    av.logging.set_level(av.logging.PANIC)
    yield
    av.logging.set_level(level)


@pytest.mark.usefixtures("quiet")
def test_what_the_decoder_finds_damaged_is_an_error_to_the_end_of_its_group(
    clips: dict[str, str], tmp_path: Path
) -> None:
    """FFmpeg by itself makes up what it cannot decode, and marks a frame; those after it refer to that one."""
    num_found, path = 0, tmp_path / "a.mp4"
    for seed in range(12):
        with_flipped_bits(clips["g30"], seed, path)
        with av.open(str(path)) as container:
            marked = [number for number, frame in enumerate(container.decode(video=0)) if frame.is_corrupt]
        damaged = {after for number in marked for after in range(number, number // 30 * 30 + 30)}
        num_found += len(damaged)
        for number in range(NUM_FRAMES):
            file = PyavFile(str(path), "the clip")
            if number in damaged:
                with pytest.raises(CorruptShardError, match=r"the clip cannot be decoded from \d.* s to \d"):
                    list(file.decode(number, number))
            file.close()
    assert num_found > 50


@pytest.mark.usefixtures("quiet")
def test_open_groups_of_pictures_are_not_taken_for_damaged(tmp_path: Path) -> None:
    options = {"x264-params": "open-gop=1:keyint=12:scenecut=0:bframes=3"}
    write_clip(tmp_path / "a.mp4", NUM_FRAMES, gop=12, b_frames=3, encoder=options)
    for number in range(NUM_FRAMES):
        file = PyavFile(str(tmp_path / "a.mp4"))
        frames = dict(file.decode(number, number))
        assert number_of(frames[number]().to_ndarray(format="rgb24")) == number
        file.close()
