"""Statistics of an episode are those of all its frames."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.episodes.writing.episode import PictureStats, stats_of_numbers


def test_numbers() -> None:
    found = stats_of_numbers([np.array([n, 2 * n], np.float32) for n in range(5)])
    assert (found["min"], found["max"], found["mean"]) == ([0, 0], [4, 8], [2, 4])
    assert (found["q50"], found["count"]) == ([2, 4], [5])


def test_pictures_on_a_scale_from_0_to_1() -> None:
    stats = PictureStats(1)
    for level in (0, 51, 255):
        stats.add(np.full((300, 200, 1), level, np.uint8))
    found = stats.result()
    assert (found["min"], found["max"], found["count"]) == ([[[0.0]]], [[[1.0]]], [3])
    assert found["mean"][0][0][0] == pytest.approx(0.4)
    assert found["q50"][0][0][0] == pytest.approx(0.2)
