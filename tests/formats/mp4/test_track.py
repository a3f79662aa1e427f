"""Boxes are found and written; frames are found by the times at which they are shown."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.formats.mp4.track import Box, FrameIndex, boxes, child, find, find_moov, make_box, make_table, table

FREE, MOOV = make_box(b"free", b"1234"), make_box(b"moov", make_box(b"trak", b"a"), make_box(b"trak", b"bc"))


def test_boxes_within_boxes() -> None:
    whole = Box(b"moov", 8, len(MOOV))
    assert [MOOV[box.begin : box.end] for box in boxes(MOOV, 8, len(MOOV))] == [b"a", b"bc"]
    assert find(MOOV, whole, b"mdia") is None
    with pytest.raises(ValueError, match="there is no box b'mdia'"):
        child(MOOV, whole, b"mdia")
    with pytest.raises(ValueError, match="has a size of 3"):
        list(boxes(b"\0\0\0\3abcd", 0, 8))


@pytest.mark.parametrize("data", [FREE + MOOV, MOOV + FREE])
def test_the_box_that_describes_a_file(data: bytes) -> None:
    found = find_moov(lambda begin, end: data[begin:end], len(data))
    assert found is not None
    assert data[found.begin : found.end] == MOOV[8:]


@pytest.mark.parametrize("data", [FREE, FREE + make_box(b"moof") + MOOV, FREE + MOOV[:-1], b""])
def test_files_without_such_a_box(data: bytes) -> None:
    assert find_moov(lambda begin, end: data[begin:end], len(data)) is None


def test_tables() -> None:
    values = np.array([[1, 2], [3, 2**32 - 1]])
    data = make_table(b"stts", values)
    assert table(data, Box(b"stts", 8, len(data)), 2).tolist() == values.tolist()
    with pytest.raises(ValueError, match="cut off"):
        table(data, Box(b"stts", 8, len(data) - 1), 2)


def test_frames_by_time() -> None:
    index = FrameIndex.of(np.array([20, 0, 10]), np.array([False, True, True]), 0.1, np.array([7, 5, 6]))
    assert index.ticks.tolist() == [0, 10, 20]
    assert index.keyframes.tolist() == [0, 1]
    frames, off = index.nearest(np.array([-1.0, 0.4, 0.5, 1.6, 9.0]))
    assert frames.tolist() == [0, 0, 0, 2, 2]
    assert off.round(6).tolist() == [1.0, 0.4, 0.5, 0.4, 7.0]
    assert index.num_bytes(np.array([0, 2])) == 12
    assert index.keyframe_of(np.array([0, 1, 2])).tolist() == [0, 1, 1]
