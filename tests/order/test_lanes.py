"""Positions and lanes: lanes share the positions evenly, and are read in strides."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.order.lanes import Chunk, lane_length, lane_start, read_lanes


@pytest.mark.parametrize(("num_positions", "num_lanes"), [(0, 3), (2, 3), (12, 4), (103, 7)])
def test_lanes_share_all_positions(num_positions: int, num_lanes: int) -> None:
    lengths = [len(range(lane, num_positions, num_lanes)) for lane in range(num_lanes)]
    assert [lane_length(num_positions, num_lanes, lane) for lane in range(num_lanes)] == lengths
    starts = [lane_start(num_positions, num_lanes, lane) for lane in range(num_lanes)]
    assert starts == [sum(lengths[:lane]) for lane in range(num_lanes)]


@pytest.mark.parametrize("positions", [range(100), range(5, 90, 3), range(7, 100, 4), range(10, 10)])
def test_positions_are_read_from_chunks_of_their_lanes(positions: range) -> None:
    num_lanes, chunk_length = 4, 6

    def chunk_at(lane: int, place: int) -> Chunk:
        start = place - place % chunk_length
        return start, np.arange(start, start + chunk_length) * num_lanes + lane

    assert read_lanes(positions, num_lanes, chunk_at).tolist() == list(positions)
