"""Records of frames and of whole episodes become the dataset that a writer of frames makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from penstock import MDSWriter, StreamingLeRobotDataset, convert_to_lerobot
from tests.episodes.clips import picture
from tests.episodes.recording import FEATURES, LENGTHS, TASKS, TOP, frames_of, write
from tests.episodes.test_meta import numbers_in
from tests.episodes.writing.test_writer import check_all

if TYPE_CHECKING:
    from pathlib import Path


def test_frames_of_an_mds_dataset_become_episodes(tmp_path: Path) -> None:
    columns = {"episode": "int", "top": "png", "state": "ndarray:float32:3", "text": "str"}
    with MDSWriter(out=str(tmp_path / "mds"), columns=columns, size_limit="64kb") as mds:
        for episode, length in enumerate(LENGTHS):
            for place in range(length):
                number = sum(LENGTHS[:episode]) + place
                top = Image.fromarray(picture(number))
                state = np.full(3, number, np.float32)
                mds.write({"episode": episode, "top": top, "state": state, "text": TASKS[episode % 2]})
    keys = {"top": TOP, "state": "action"}
    num_episodes = convert_to_lerobot(
        tmp_path / "mds", tmp_path / "set", fps=10, episode_key="episode", task_key="text", keys=keys
    )
    assert num_episodes == len(LENGTHS)
    with StreamingLeRobotDataset(root=tmp_path / "set", shuffle=False) as dataset:
        assert dataset.meta.episodes.lengths.tolist() == LENGTHS
        for number, sample in enumerate(dataset):
            assert numbers_in(sample[TOP]) == [number]
            assert sample["action"].tolist() == [number] * 3
            assert sample["task"] == TASKS[int(sample["episode_index"]) % 2]


def test_records_of_whole_episodes_become_frames(tmp_path: Path) -> None:
    records = []
    for episode in range(len(LENGTHS)):
        frames = frames_of(episode)
        record: dict[str, Any] = {key: [each[key] for each in frames] for key in frames[0]}
        record["action"] = np.stack(record["action"])
        records.append({**record, "task": TASKS[episode % 2]})
    assert convert_to_lerobot(iter(records), tmp_path / "set", fps=10, features=FEATURES) == 5
    check_all(tmp_path / "set")


def test_a_dataset_is_converted_to_another_layout(tmp_path: Path) -> None:
    write(tmp_path / "one")
    with StreamingLeRobotDataset(root=tmp_path / "one") as dataset:
        convert_to_lerobot(dataset, tmp_path / "other", fps=10, features=FEATURES, gop=30, crf=10)
    check_all(tmp_path / "other")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"episode_index": 0, "a": 1.0}, {"episode_index": 1, "a": 1.0}, {"episode_index": 0, "a": 1.0}], "again"),
        ([{"episode_index": 0, "a": 1.0}, {"a": [1.0]}], "record 1: it has no number of an episode"),
        ([{"a": [1.0, 2.0], "b": [1.0]}], "record 0: .*different numbers of frames"),
        ([{"a": 1.0}], "record 0: it has neither"),
        ([[1]], "record 0: a record must be a dict"),
        ([{"episode_index": 0, "a": 1.0}, {"episode_index": 0, "a": "x"}], "record 1: frame 1 of episode 0: 'a'"),
    ],
)
def test_records_that_make_no_episodes_are_named(tmp_path: Path, records: list[Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        convert_to_lerobot(records, tmp_path / "set", fps=10, task="lift")
    assert not list(tmp_path.iterdir())
