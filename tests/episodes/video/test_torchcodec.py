"""Videos decoded by torchcodec: the frames, counts and errors that PyAV gives."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from torch.utils.data import DataLoader

from penstock import LeRobotStream, StreamingLeRobotDataset, StreamingLeRobotMix
from penstock.episodes.video.pyav import PyavBackend
from penstock.episodes.video.torchcodec import TorchcodecBackend
from penstock.errors import ConfigError, CorruptShardError, FrameTimeError, ObjectNotFoundError, PenstockError
from tests.episodes.build import CAMERA, Layout, write_dataset
from tests.episodes.clips import number_of, write_clip
from tests.episodes.golden import ROOT, expected, recorded_windows
from tests.episodes.test_depth import write_depths
from tests.episodes.test_golden import check
from tests.episodes.test_ranged import FILES, serving, video
from tests.episodes.video.test_pyav import KINDS

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.episodes.video.backend import VideoBackend

pytestmark = pytest.mark.torchcodec

LENGTHS = [60, 45, 60, 52, 60]
# Codec, pixels, size, keyframe every so many, and whether frames last for different times.
CODINGS = {
    "h264": ("libx264", "yuv420p", (640, 480), 30, False),
    "odd_size": ("libx264", "yuv420p", (98, 54), 30, False),
    "full_range": ("libx264", "yuvj420p", (128, 96), 12, False),
    "yuv444p": ("libx264", "yuv444p", (128, 96), 12, False),
    "variable_rate": ("libx264", "yuv420p", (64, 64), 12, True),
    "hevc": ("libx265", "yuv420p", (162, 122), 12, False),
    "av1": ("libsvtav1", "yuv420p", (162, 122), 2, False),
}


def write_noise(path: Path, codec: str, pixels: str, size: tuple[int, int], gop: int, varies: bool) -> None:
    """Write moving noise, 50 frames of it."""
    random = np.random.default_rng(0)
    width, height = size
    whole = random.integers(0, 64, (height + 50, width, 3), np.uint8) + np.linspace(0, 190, width)[:, None]
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.time_base = stream.codec_context.time_base = Fraction(1, 300)
        stream.options = {"g": str(gop)} | ({"x265-params": "log-level=0"} if codec == "libx265" else {})
        shown = 0
        for number in range(50):
            frame = av.VideoFrame.from_ndarray(whole[number : number + height].astype(np.uint8), format="rgb24")
            frame.pts = shown
            shown += int(random.integers(3, 25)) if varies else 10
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def check_same(path: Path) -> None:
    """Check that all frames of a file are the same, in random order, and that as many are decoded on the way."""
    backends: list[VideoBackend] = [PyavBackend(), TorchcodecBackend()]
    files = [backend.open(str(path), path.name) for backend in backends]
    convert = [backend.make_pictures(0).to_rgb for backend in backends]
    assert len(files[0].index) == len(files[1].index)
    stretches = np.random.default_rng(0).integers(0, len(files[0].index), (20, 2))
    for first, last in np.sort(stretches, axis=1).tolist():
        one, two = (list(file.decode(first, last)) for file in files)
        assert [number for number, _ in one][-1] == [number for number, _ in two][-1] == last
        pictures = dict(one)
        for number, frame in two:
            if number >= first:
                assert np.array_equal(convert[0](pictures[number]()), convert[1](frame())), number
    for file in files:
        file.close()


@pytest.mark.parametrize("kind", KINDS)
def test_small_videos_are_the_same(tmp_path: Path, kind: str) -> None:
    write_clip(tmp_path / "a.mp4", 60, **KINDS[kind])  # type: ignore[arg-type]
    check_same(tmp_path / "a.mp4")


@pytest.mark.parametrize("coding", CODINGS)
def test_videos_of_all_codings_are_the_same(tmp_path: Path, coding: str) -> None:
    write_noise(tmp_path / "a.mp4", *CODINGS[coding])
    check_same(tmp_path / "a.mp4")


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.mp4")), ids=lambda path: "-".join(path.parts[-3:]))
def test_recorded_videos_are_the_same(path: Path) -> None:
    check_same(path)


def test_ten_bits_are_nearly_the_same(tmp_path: Path) -> None:
    """FFmpeg's releases round them differently; pictures of noise are the worst case."""
    write_noise(tmp_path / "a.mp4", "libx264", "yuv420p10le", (128, 96), 12, False)
    one, two = (
        np.stack(
            [
                backend.make_pictures(0).to_rgb(make())
                for _, make in backend.open(str(tmp_path / "a.mp4"), "").decode(0, 49)
            ]
        )
        for backend in (PyavBackend(), TorchcodecBackend())
    )
    assert np.abs(one.astype(int) - two.astype(int)).mean() < 1.5


def test_a_file_goes_on_where_it_stopped_and_converts_what_is_wanted(tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4", 60, gop=250)
    file = TorchcodecBackend().open(str(tmp_path / "a.mp4"), "")
    assert file.next_frame is None
    for number, (decoded, make) in enumerate(file.decode(4, 7)):
        assert (decoded, number_of(make())) == (number, number)
    assert file.next_frame == 8
    frames = {number: make() if number in (10, 12) else np.zeros(0) for number, make in file.decode(10, 12)}
    assert list(frames) == [8, 9, 10, 11, 12]
    assert number_of(frames[12]) == 12
    assert file.next_frame == 13
    assert [number for number, _ in file.decode(2, 2)] == [0, 1, 2]
    file.close()


@pytest.mark.parametrize(("root", "name"), recorded_windows())
def test_every_recorded_answer_by_number_and_from_a_stream(root: Path, name: str) -> None:
    window = expected(root)["windows"][name]
    answers = {query["index"]: query["item"] for query in window["queries"]}
    arguments: dict[str, Any] = {"delta_timestamps": window["delta_timestamps"], "video_backend": "torchcodec"}
    with StreamingLeRobotDataset(root=root, episode_pool_size=4, batch_size=8, **arguments) as dataset:
        seen = []
        for sample in [*(dataset[index] for index in answers), *dataset]:
            seen.append(int(sample["index"]))
            for key, answer in answers.get(seen[-1], {}).items():
                check(sample[key], answer, root)
    assert sorted(seen[len(answers) :]) == list(range(expected(root)["meta"]["total_frames"]))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchcodec") / "set"
    write_dataset(folder, Layout(data_files=[LENGTHS], video_files=[LENGTHS[:3], LENGTHS[3:]], gop=15))
    return folder


def check_pass(loader: Any) -> None:
    seen = []
    for batch in loader:
        for index, pixels in zip(batch["index"].tolist(), batch[CAMERA], strict=True):
            assert number_of(pixels.permute(1, 2, 0).numpy()) == index
            seen.append(index)
    assert sorted(seen) == list(range(len(seen)))


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("locality", [None, "gop"])
@pytest.mark.parametrize("cache_frames", [0, 40, 1000])
def test_as_many_frames_are_decoded(root: Path, num_threads: int, locality: Any, cache_frames: int) -> None:
    counts = []
    for backend, pixel_bytes in (("pyav", 1.5), ("torchcodec", 3)):
        with StreamingLeRobotDataset(
            root=root,
            video_backend=backend,  # type: ignore[arg-type]
            video_locality=locality,
            video_decode_threads=num_threads,
            frame_cache_bytes=int(cache_frames * 64 * 64 * pixel_bytes),
            episode_pool_size=5,
            return_uint8=True,
            batch_size=8,
        ) as dataset:
            check_pass(DataLoader(dataset, batch_size=8))
            counts.append(dataset.video_decoder_cache_stats())
    assert counts[0]["frames_used"] == counts[1]["frames_used"] == sum(LENGTHS)
    if cache_frames == 1000:
        assert counts[1]["frames_decoded"] <= 1.2 * counts[0]["frames_decoded"]
    if num_threads == 0 and locality:  # no timing and no dice decide
        names = ("frames_decoded", "frames_kept", "hits", "misses", "evictions")
        assert [counts[1][name] for name in names] == [counts[0][name] for name in names]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_decode_after_their_parent_did(root: Path, context: str) -> None:
    with StreamingLeRobotDataset(root=root, video_backend="torchcodec", return_uint8=True, batch_size=8) as dataset:
        assert number_of(dataset[100][CAMERA].permute(1, 2, 0).numpy()) == 100
        check_pass(DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context=context, timeout=120))
        assert number_of(dataset[7][CAMERA].permute(1, 2, 0).numpy()) == 7


def test_clips_of_a_store_and_files_that_are_fetched_whole(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(data_files=FILES, video_files=FILES, gop=10))
    write_clip(video(tmp_path / "set", 0), 160, gop=10, movflags="frag_keyframe+empty_moov")
    with serving(tmp_path / "set") as served:
        with StreamingLeRobotDataset(
            root=tmp_path / "set",
            data_files_root=served.url,
            batch_size=8,
            return_uint8=True,
            video_backend="torchcodec",
        ) as dataset:
            check_pass(DataLoader(dataset, batch_size=8))


def test_robots_are_mixed(root: Path) -> None:
    with StreamingLeRobotMix(
        [LeRobotStream(root=root), LeRobotStream(root=root)], video_backend="torchcodec", return_uint8=True
    ) as mix:
        for sample, _ in zip(mix, range(50), strict=False):
            assert number_of(sample[CAMERA].permute(1, 2, 0).numpy()) == int(sample["index"])


def test_errors_are_those_of_pyav(root: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout())
    path = tmp_path / "set" / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    whole = path.read_bytes()

    def errors(kind: type[PenstockError], match: str) -> None:
        facts = []
        for backend in ("pyav", "torchcodec"):
            with StreamingLeRobotDataset(
                root=tmp_path / "set",
                video_backend=backend,
            ) as dataset:
                with pytest.raises(kind, match=match) as caught:
                    dataset[16]
                facts.append({name: caught.value.facts[name] for name in ("episode", "frame", "file", "seconds")})
        assert facts[0] == pytest.approx(facts[1])

    path.unlink()
    errors(ObjectNotFoundError, r"episode 3 of .*, frame 2 at 0\.200 s: .*file-001\.mp4 is missing")
    path.write_bytes(whole[:600])
    errors(CorruptShardError, r"episode 3 of .*, frame 2 at 0\.200 s: .*file-001\.mp4")
    path.write_bytes(b"hello" * 100)
    errors(CorruptShardError, r"episode 3 of .*, frame 2 at 0\.200 s: .*file-001\.mp4 cannot be opened")
    write_clip(path, 2, gop=4)
    errors(FrameTimeError, r"episode 3 of .*, frame 2 at 0\.200 s: .*file-001\.mp4 has no frame at 0\.3")
    damaged = bytearray(whole)
    at = whole.find(b"mdat") + 4
    damaged[at : at + 2000] = bytes(2000)
    path.write_bytes(damaged)
    errors(CorruptShardError, r"episode 3 of .*, frame 2 at 0\.200 s: .*file-001\.mp4")


def test_frames_that_cannot_be_read_are_skipped_and_counted(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout())
    (tmp_path / "set" / f"videos/{CAMERA}/chunk-000/file-001.mp4").unlink()  # of the last three episodes: 10 frames
    with StreamingLeRobotDataset(
        root=tmp_path / "set", on_error="skip", batch_size=8, video_backend="torchcodec"
    ) as dataset:
        assert {int(sample["index"]) for sample in dataset} == set(range(13))
        assert dataset.stats().skipped == 10


def test_pixels_of_more_than_8_bits_are_refused(tmp_path: Path) -> None:
    write_depths(tmp_path / "a.mp4", "gray16le", 4)
    with pytest.raises(ConfigError, match=r"a\.mp4 has pixels of more than 8 bits, .*use video_backend='pyav'"):
        TorchcodecBackend().open(str(tmp_path / "a.mp4"), "a.mp4")
