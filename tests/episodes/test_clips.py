"""Where stretches of the order that fits the video begin: at the same keyframes that each episode's file tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock import StreamingLeRobotDataset
from penstock.episodes.clips import cut
from penstock.formats.mp4.track import read_frame_index
from tests.episodes.build import CAMERA, Layout, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.types import Int64Array

LENGTHS = [60, 45, 60, 110, 60, 60, 45]


def keyframes_of(root: Path, dataset: StreamingLeRobotDataset, episode: int) -> Int64Array:
    spans = dataset.meta.episodes.videos[CAMERA]
    index = read_frame_index(str(root / spans.path(episode)))
    assert index is not None
    keyframes = index.keyframes - index.nearest(spans.begins[episode : episode + 1])[0]
    return keyframes[(keyframes >= 0) & (keyframes < LENGTHS[episode])]


@pytest.mark.parametrize("gop", [7, 34])
def test_episodes_are_cut_at_keyframes_of_their_files(tmp_path: Path, gop: int) -> None:
    root = tmp_path / "set"
    write_dataset(root, Layout(data_files=[LENGTHS], video_files=[LENGTHS[:3], LENGTHS[3:5], LENGTHS[5:]], gop=gop))
    with StreamingLeRobotDataset(root=root, video_locality="gop", drop_n_first_frames=2) as dataset:
        counts = np.array(LENGTHS) - 2
        starts = np.cumsum(counts) - counts
        expected = [
            starts[episode] + cut(keyframes_of(root, dataset, episode) - 2, int(counts[episode]))
            for episode in range(len(LENGTHS))
        ]
        found = dataset._sources[0].files.stretches
        assert found is not None
        assert found.tolist() == np.concatenate(expected).tolist()
    with StreamingLeRobotDataset(root=root, video_locality="gop", episodes=[1, 4, 5]) as dataset:
        few = dataset._sources[0].files.stretches
        wholes = [cut(keyframes_of(root, dataset, episode), LENGTHS[episode]) for episode in (1, 4, 5)]
        assert few is not None
        assert few.tolist() == np.concatenate([wholes[0], 45 + wholes[1], 105 + wholes[2]]).tolist()
