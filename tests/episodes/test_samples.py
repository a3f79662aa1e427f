from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.episodes.samples import frame_offsets, parse_windows, window_of
from penstock.errors import ConfigError


@given(
    length=st.integers(1, 60),
    offsets=st.lists(st.integers(-80, 80), min_size=1, max_size=12),
    data=st.data(),
)
def test_windows_hold_the_frame_at_each_offset_or_the_nearest_of_the_episode(
    length: int, offsets: list[int], data: st.DataObject
) -> None:
    frames = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=9))
    window = window_of(np.array(frames), np.array(offsets), length)
    for row, frame in enumerate(frames):
        for column, offset in enumerate(offsets):
            wanted = frame + offset
            is_inside = 0 <= wanted < length
            assert window.is_pad[row, column] == (not is_inside)
            assert window.frames[row, column] == (wanted if is_inside else 0 if wanted < 0 else length - 1)


@given(
    frames=st.lists(st.integers(-(10**6), 10**6), min_size=1), fps=st.sampled_from([1, 5, 10, 15, 24, 29.97, 30, 60])
)
def test_seconds_that_are_whole_frames_are_exact(frames: list[int], fps: float) -> None:
    assert frame_offsets([frame / fps for frame in frames], fps, 1e-4).tolist() == frames


@pytest.mark.parametrize("seconds", [[0.05], [0.1002], [float("nan")], [float("inf")], [1e300], [], [[0.1]]])
def test_other_seconds_are_refused(seconds: list[float]) -> None:
    with pytest.raises(ConfigError, match="delta_timestamps\\['action'\\]"):
        frame_offsets(seconds, 10, 1e-4, "action")


def test_the_tolerance_itself_is_allowed() -> None:
    assert frame_offsets([0.1001, -0.2999], 10, 1e-4).tolist() == [1, -3]


def test_unknown_keys_are_named() -> None:
    with pytest.raises(ConfigError, match="'hand', which is no feature"):
        parse_windows({"hand": [0.0]}, ["action"], 10, 1e-4)
    assert parse_windows(None, ["action"], 10, 1e-4) == {}
