"""Frames as RGB: the pixels that PyAV gives, whatever the size and the colors, and each in memory of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import av
import numpy as np
import pytest

from penstock import LeRobotWriter, StreamingLeRobotDataset
from penstock.episodes.samples import SampleOptions, stack_pictures, to_picture
from penstock.episodes.video.pyav import PyavPictures

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv420p10le", "gray"])
@pytest.mark.parametrize("size", [(64, 48), (66, 50), (34, 18), (24, 40), (33, 47), (8, 2)])
def test_pixels_are_those_of_pyav(kind: str, size: tuple[int, int]) -> None:
    width, height = size
    random, rgb = np.random.default_rng(0), PyavPictures()
    for colorspace in (1, 2, 5):
        frame = av.VideoFrame(width, height, kind)
        frame.colorspace, frame.color_range = colorspace, 1
        for plane in frame.planes:
            samples = random.integers(0, 1024, plane.buffer_size // 2, np.uint16)
            plane.update(samples.tobytes() if "10" in kind else random.bytes(plane.buffer_size))
        expected = frame.to_ndarray(format="rgb24")
        assert np.array_equal(rgb.to_rgb(frame), expected)
        assert np.array_equal(rgb.to_rgb(rgb.pack(frame)[0]), expected)


def test_windows_are_the_pictures_one_after_the_other() -> None:
    by_pixel = np.random.default_rng(0).integers(0, 256, (3, 6, 8, 3), np.uint8)
    by_color = [np.moveaxis(np.moveaxis(each, -1, 0).copy(), 0, -1) for each in by_pixel]
    for pictures in (list(by_pixel), by_color):
        window = to_picture(stack_pictures(pictures), SampleOptions(return_uint8=True))
        assert window.is_contiguous()
        assert np.array_equal(window.numpy(), np.moveaxis(by_pixel, -1, 1))


def test_no_two_samples_share_the_memory_of_a_picture(tmp_path: Path) -> None:
    """The frames before the first one are all the first one."""
    features = {"cam": {"dtype": "video", "shape": [64, 64, 3]}, "action": {"dtype": "float32", "shape": [1]}}
    with LeRobotWriter(tmp_path / "arm", fps=10, features=features) as writer:
        for number in range(6):
            writer.add_frame({"cam": np.full((64, 64, 3), 20 * number, np.uint8), "action": [number]}, task="lift")
        writer.save_episode()
    windows = {"cam": [-0.2]}
    with StreamingLeRobotDataset(
        root=tmp_path / "arm", shuffle=False, delta_timestamps=windows, return_uint8=True
    ) as arm:
        pictures = [sample["cam"] for sample in arm]
    before = [picture.clone() for picture in pictures]
    pictures[0].zero_()
    assert all(one.equal(other) for one, other in zip(pictures[1:], before[1:], strict=True))
    assert before[0].equal(before[2])
