"""Clips of mp4 files: cut by the tables of a file, fetched by their bytes alone, they decode to the same pictures."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptShardError
from penstock.formats.mp4.format import CUTS, Clip, load_clip
from tests.episodes.clips import number_of, write_clip
from tests.formats.in_place import InPlace, MemoryFile

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.types import Int64Array

FPS = 10
KINDS: dict[str, dict[str, Any]] = {
    "g2": {"gop": 2},
    "one_group": {"gop": 250},
    "b_frames": {"gop": 12, "b_frames": 2},
    "fast_start": {"gop": 12, "b_frames": 2, "movflags": "faststart"},
    "fragmented": {"gop": 12, "movflags": "frag_keyframe+empty_moov"},
    "one_frame": {"gop": 12, "num_frames": 1},
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("clips")
    found = {}
    for kind, options in KINDS.items():
        write_clip(folder / f"{kind}.mp4", **{"num_frames": 60, "fps": FPS, **options})
        found[kind] = (folder / f"{kind}.mp4").read_bytes()
    return found


def unpacked(found: InPlace) -> list[bytes]:
    return [found.raw(info) for info in found.infos]


def cut(data: bytes, frames: list[int]) -> InPlace:
    micros = [round(frame / FPS * 1e6) for frame in frames]
    return InPlace("mp4", MemoryFile("a.mp4", data), {CUTS: {"a.mp4": micros}})


def decode(data: bytes) -> list[tuple[int, int]]:
    """Return the tick and the number of each picture."""
    with av.open(BytesIO(data), "r") as container:
        return [(frame.pts or 0, number_of(frame.to_ndarray(format="rgb24"))) for frame in container.decode(video=0)]


@pytest.mark.parametrize("kind", ["g2", "b_frames", "fast_start", "one_group"])
def test_clips_show_what_the_file_shows_at_the_same_times(clips: dict[str, bytes], kind: str) -> None:
    found = cut(clips[kind], [0, 24, 36, 50])
    ends = [24, 36, 50, 60]
    fetched = 0
    for info, packed, first, end in zip(found.infos, unpacked(found), [0, 24, 36, 50], ends, strict=True):
        clip, timescale = load_clip(info.details, info.name), info.layout.settings["timescale"]
        index = clip.index(timescale)
        shown = {round((tick + clip.shift) / timescale * FPS): number for tick, number in decode(packed)}
        assert {frame: frame for frame in range(first, end)}.items() <= shown.items()
        assert round(clip.begin / timescale * FPS) == first
        times = (index.ticks / timescale * FPS).round().astype(int).tolist()
        assert set(range(first, end)) <= set(times) <= set(range(60))
        fetched += sum(len(span) for span in found.form.spans(info, None))
    if kind in ("g2", "b_frames", "fast_start"):  # whose clips begin with keyframes
        assert fetched <= len(clips[kind])


def test_a_file_of_one_frame_is_a_clip(clips: dict[str, bytes]) -> None:
    found = cut(clips["one_frame"], [0])
    [packed] = unpacked(found)
    assert [number for _, number in decode(packed)] == [0]


def test_what_cannot_be_cut_stays_whole(clips: dict[str, bytes]) -> None:
    for data in (clips["fragmented"], b"no mp4 at all" * 9):
        found = cut(data, [0, 10])
        assert [info.details for info in found.infos] == [b""]
        assert unpacked(found) == [data]


def test_files_that_are_cut_off_are_named_or_fetched_whole(clips: dict[str, bytes]) -> None:
    data = clips["fast_start"]
    for end in range(0, len(data), 97):
        try:
            found = cut(data[:end], [0, 24])
            unpacked(found)
        except CorruptShardError as error:
            assert "a.mp4" in str(error)  # noqa: PT017  it need not be one


@given(data=st.data())
def test_damaged_tables_never_do_more_than_raise(data: st.DataObject, clips: dict[str, bytes]) -> None:
    whole = bytearray(clips["fast_start"])
    at = whole.find(b"moov")
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(at, at + 1400))] = data.draw(st.integers(0, 255))
    try:
        found = cut(bytes(whole), [0, 24])
        unpacked(found)
    except CorruptShardError:
        return


@given(data=st.binary(max_size=200))
def test_entries_of_hostile_indexes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="clip"):
        Clip.load(data)


@given(
    durations=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4000)), min_size=1, max_size=5),
    begin=st.integers(-(2**40), 2**40),
    data=st.data(),
)
def test_entries_are_read_as_they_were_written(
    durations: list[tuple[int, int]], begin: int, data: st.DataObject
) -> None:
    num_packets = sum(count for count, _ in durations)
    keys = {0, *data.draw(st.sets(st.integers(0, num_packets - 1)))}
    shifts: Int64Array = np.array(
        data.draw(st.one_of(st.just([]), st.lists(st.integers(-99, 99), min_size=num_packets, max_size=num_packets))),
        np.int64,
    )
    clip = Clip(
        begin=begin,
        shift=-begin,
        num_packets=num_packets,
        sizes_at=7,
        durations=np.array(durations),
        shifts=shifts,
        keys=np.array(sorted(keys)),
    )
    read = Clip.load(clip.dump())
    assert (read.begin, read.shift, read.num_packets, read.sizes_at) == (begin, -begin, num_packets, 7)
    for name in ("durations", "shifts", "keys"):
        assert getattr(read, name).tolist() == getattr(clip, name).tolist()


def test_clips_are_whole_videos_of_other_players(clips: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(unpacked(cut(clips["b_frames"], [0, 24]))[1])
    with av.open(str(path), "r") as container:
        video = container.streams.video[0]
        assert (video.frames, video.width, video.height) == (36, 64, 64)
        container.seek(round(2.0 / float(video.time_base or 1)), stream=video)
        assert number_of(next(container.decode(video)).to_ndarray(format="rgb24")) >= 36
