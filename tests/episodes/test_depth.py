"""Depth maps and other pictures of one channel: no bit of them is lost, and what cannot be kept is an error."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from penstock import LeRobotStream, StreamingLeRobotDataset, StreamingLeRobotMix
from penstock.episodes.info import DepthScale, Feature, parse_feature
from penstock.episodes.samples import SampleOptions, decode_image, to_picture
from penstock.episodes.source import image_pixels
from penstock.episodes.video.pyav import PyavPictures
from penstock.errors import BadIndexError, CorruptShardError
from tests.episodes.build import CAMERA, Layout, features, write_dataset
from tests.episodes.clips import SIZE

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = [9, 6]
LAYOUT: dict[str, Any] = {"data_files": [LENGTHS], "video_files": [LENGTHS]}
CODINGS = {
    "gray12le": ("ffv1", {"g": "4"}),
    "gray16le": ("ffv1", {"g": "4"}),
    "yuv420p12le": ("libx265", {"x265-params": "keyint=4:bframes=0:log-level=none"}),
}
LEROBOT = {"video.depth_min": 0.01, "video.depth_max": 10.0, "video.shift": 3.5, "video.use_log": True}


def numbers(frame: int, limit: int) -> np.ndarray[Any, Any]:
    return (np.arange(SIZE * SIZE).reshape(SIZE, SIZE) * 15 + frame * 1000) % limit


def write_depths(path: Path, pixels: str, count: int) -> None:
    codec, options = CODINGS[pixels]
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=10)
        stream.width = stream.height = SIZE
        stream.pix_fmt, stream.time_base, stream.options = pixels, Fraction(1, 10), options
        for number in range(count):
            frame = av.VideoFrame(SIZE, SIZE, pixels)
            frame.planes[0].update(numbers(number, 4096 if "12" in pixels else 65536).astype(np.uint16).tobytes())
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_set(root: Path, pixels: str, notes: dict[str, Any] | None = None) -> None:
    layout = Layout(**LAYOUT)
    camera = {"dtype": "video", "shape": [SIZE, SIZE, 1], "info": {"video.pix_fmt": pixels, **(notes or {})}}
    write_dataset(root, Layout(**LAYOUT, extra={"features": {**features(layout), CAMERA: camera}}))
    write_depths(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", pixels, sum(LENGTHS))


@pytest.mark.parametrize("pixels", ["gray12le", "gray16le"])
def test_all_bits_of_a_channel_arrive(tmp_path: Path, pixels: str) -> None:
    write_set(tmp_path / "set", pixels)
    limit = 4096 if pixels == "gray12le" else 65536
    for windows in (None, {CAMERA: [-0.1, 0.0]}):
        with StreamingLeRobotDataset(root=tmp_path / "set", batch_size=4, delta_timestamps=windows) as dataset:
            batches = list(DataLoader(dataset, batch_size=4))
        assert sorted(int(index) for batch in batches for index in batch["index"]) == list(range(sum(LENGTHS)))
        for batch in batches:
            assert batch[CAMERA].dtype == torch.uint16
            assert batch[CAMERA].shape[-3:] == (1, SIZE, SIZE)
            for index, picture in zip(batch["index"].tolist(), batch[CAMERA].numpy(), strict=True):
                assert np.array_equal(picture.reshape(-1, SIZE, SIZE)[-1], numbers(index, limit))


@pytest.mark.parametrize("unit", ["mm", "m"])
def test_depths_of_lerobot_have_their_unit(tmp_path: Path, unit: str) -> None:
    """The expected values follow from how LeRobot makes codes: logarithms of (depth + shift) from 0 to 4095."""
    write_set(tmp_path / "set", "gray12le", {**LEROBOT, "is_depth_map": True, "depth_unit": unit})
    low, high = np.log(0.01 + 3.5), np.log(10 + 3.5)
    with StreamingLeRobotDataset(root=tmp_path / "set", return_uint8=True) as dataset:
        for index in (0, 7, 12):
            picture = dataset[index][CAMERA]
            meters = np.exp(numbers(index, 4096) / 4095 * (high - low) + low) - 3.5
            assert (picture.dtype, tuple(picture.shape)) == (torch.float32, (1, SIZE, SIZE))
            wanted, tolerance = (np.rint(meters * 1000), 1) if unit == "mm" else (meters, 1e-5)
            assert np.abs(picture[0].numpy() - wanted).max() <= tolerance
            if unit == "mm":
                assert np.array_equal(picture.numpy(), np.rint(picture.numpy()))


def test_depths_without_logarithms_are_linear() -> None:
    codes = np.array([0, 2048, 4095, 5000], np.uint16)
    assert DepthScale(1.0, 3.0, None, "m").lengths(codes).tolist() == pytest.approx([1, 2.000244, 3, 3])
    assert DepthScale(1.0, 3.0, None, "mm").lengths(codes).tolist() == [1000, 2000, 3000, 3000]


@pytest.mark.parametrize(
    ("pixels", "notes"),
    [
        ("yuv420p12le", {"is_depth_map": True}),
        ("yuv420p12le", {**LEROBOT, "video.is_depth_map": True}),
    ],
)
def test_what_cannot_be_kept_is_an_error(tmp_path: Path, pixels: str, notes: dict[str, Any]) -> None:
    write_set(tmp_path / "set", pixels, notes)
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        with pytest.raises(CorruptShardError, match=r"episode 0 of .*, frame 3 at 0\.300 s: .* bits"):
            dataset[3]


@pytest.mark.parametrize("pixels", ["grayf32le", "ya16le"])
def test_pixels_that_fit_no_integer_are_an_error(pixels: str) -> None:
    with pytest.raises(CorruptShardError, match=rf"format {pixels}, whose bits cannot be kept"):
        PyavPictures().to_rgb(av.VideoFrame(16, 16, pixels))


@pytest.mark.parametrize(
    "notes",
    [
        {"depth_min": 2},
        {"depth_max": "far"},
        {"depth_max": float("inf")},
        {"depth_min": float("nan")},
        {"depth_min": None},
        {"shift": -1},
        {"shift": 10**400},
        {"depth_unit": "feet"},
    ],
)
def test_a_range_of_depths_that_is_none_is_refused(notes: dict[str, Any]) -> None:
    info = {"is_depth_map": True, "depth_min": 0.01, "depth_max": 1, "shift": 1, **notes}
    with pytest.raises(BadIndexError, match=r"'depth' a range of depths"):
        parse_feature("depth", {"dtype": "video", "shape": [4, 4, 1], "info": info}, "info.json")


def test_robots_without_the_depths_of_others_have_zeros_of_their_type(tmp_path: Path) -> None:
    write_set(tmp_path / "raw", "gray12le")
    write_set(tmp_path / "scaled", "gray12le", {**LEROBOT, "is_depth_map": True})
    write_dataset(tmp_path / "plain", Layout(**LAYOUT, has_video=False))
    for name, dtype in (("raw", torch.uint16), ("scaled", torch.float32)):
        streams = [LeRobotStream(root=tmp_path / name), LeRobotStream(root=tmp_path / "plain")]
        with StreamingLeRobotMix(streams, return_uint8=True, batch_size=4) as mix:
            for batch in DataLoader(mix, batch_size=4):
                assert (batch[CAMERA].dtype, tuple(batch[CAMERA].shape[1:])) == (dtype, (1, SIZE, SIZE))


def test_images_of_16_bits_in_the_rows_stay_that() -> None:
    pixels = numbers(3, 65536).astype(np.uint16)
    feature = Feature(key="depth", dtype="image", shape=(SIZE, SIZE, 1))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    for value in ({"bytes": file.getvalue()}, pixels):
        picture = to_picture(image_pixels(value, feature, "here"), SampleOptions(), feature)
        assert (picture.dtype, tuple(picture.shape)) == (torch.uint16, (1, SIZE, SIZE))
        assert np.array_equal(picture[0].numpy(), pixels)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.float32)).save(file, "TIFF")
    with pytest.raises(CorruptShardError, match="32 bits a pixel"):
        decode_image({"bytes": file.getvalue()}, "here")
    with pytest.raises(CorruptShardError, match="no image"):
        image_pixels(np.zeros((4, 4, 3), np.uint16), feature, "here")
