"""Every recorded answer of lerobot's map-style reader, by number and from a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock import StreamingLeRobotDataset
from penstock.errors import SampleIndexError
from tests.episodes.golden import LENGTHS, NUM_FRAMES, ROOT, codes_of, expected, recorded_windows, recordings

if TYPE_CHECKING:
    from pathlib import Path

SUBSETS = [root for root in recordings() if "episodes_subset" in expected(root)]


def check(value: Any, answer: dict[str, Any], root: Path = ROOT) -> None:
    if answer["type"] == "str":
        assert value == answer["value"]
        return
    assert isinstance(value, torch.Tensor)
    assert str(value.dtype) == f"torch.{answer['dtype']}"
    assert list(value.shape) == answer["shape"]
    if answer["type"] == "tensor":
        assert np.array_equal(value.numpy(), np.array(answer["value"], dtype=answer["dtype"]))
        return
    assert codes_of(value) == answer["code"]
    means = (value.double() * 255).reshape(-1, *value.shape[-3:]).mean(dim=(2, 3)).numpy()
    assert np.abs(means - np.array(answer["mean_rgb"])).max() <= expected(root)["meta"]["tolerance_mean_rgb"]


@pytest.mark.parametrize(("root", "name"), recorded_windows())
def test_every_query_gives_what_the_map_style_reader_gives(root: Path, name: str) -> None:
    window = expected(root)["windows"][name]
    with StreamingLeRobotDataset(root=root, delta_timestamps=window["delta_timestamps"]) as dataset:
        for query in window["queries"]:
            sample = dataset[query["index"]]
            assert list(sample) == window["keys"]
            for key, answer in query["item"].items():
                check(sample[key], answer, root)


@pytest.mark.parametrize(("root", "name"), recorded_windows())
def test_a_stream_gives_the_same_samples_all_once(root: Path, name: str) -> None:
    window, num_frames = expected(root)["windows"][name], expected(root)["meta"]["total_frames"]
    answers = {query["index"]: query["item"] for query in window["queries"]}
    with StreamingLeRobotDataset(
        root=root, delta_timestamps=window["delta_timestamps"], episode_pool_size=4, batch_size=8
    ) as dataset:
        seen = []
        for sample in dataset:
            seen.append(int(sample["index"]))
            for key, answer in answers.get(seen[-1], {}).items():
                check(sample[key], answer, root)
    assert sorted(seen) == list(range(num_frames))
    assert seen != list(range(num_frames))


@pytest.mark.parametrize("root", SUBSETS, ids=lambda root: root.name)
def test_chosen_episodes_keep_their_absolute_numbers(root: Path) -> None:
    subset = expected(root)["episodes_subset"]
    with StreamingLeRobotDataset(root=root, episodes=subset["episodes"], shuffle=False) as dataset:
        assert len(dataset) == dataset.num_frames == subset["length"]
        for row, sample in zip(subset["rows"], dataset, strict=True):
            assert (int(sample["index"]), int(sample["episode_index"])) == (row["index"], row["episode_index"])


def test_recordings_are_found_whatever_they_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lerobot/other", "deep/er/one"):
        (tmp_path / name / "meta").mkdir(parents=True)
        (tmp_path / name / "meta/info.json").write_text("{}")
        (tmp_path / name / "expected.json").write_text("{}")
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders/expected.json").write_text("{}")
    monkeypatch.setenv("PENSTOCK_GOLDEN", str(tmp_path))
    assert [path.name for path in recordings()] == ["one", "other"]


def test_what_the_dataset_says_of_itself() -> None:
    with StreamingLeRobotDataset(root=ROOT) as dataset:
        meta = dataset.meta
        assert (meta.fps, meta.total_frames, meta.total_episodes) == (10, NUM_FRAMES, len(LENGTHS))
        assert meta.episodes.lengths.tolist() == LENGTHS
        assert (meta.total_tasks, meta.chunks_size, meta.robot_type) == (2, 1000, "golden_arm")
        assert meta.shapes["action"] == (4,)
        assert meta.names["action"] == ["dx", "dy", "dz", "grip"]
        assert (meta.data_path, meta.video_path) == (meta.info["data_path"], meta.info["video_path"])
        assert meta.video_keys == meta.camera_keys == ["observation.images.top", "observation.images.wrist"]
        assert sorted(meta.tasks.values()) == ["open the drawer", "pick up the red cube"]
        assert meta.stats is not None
        assert set(meta.stats) >= {"action", "observation.state"}
        for episode in (0, 8):
            assert (ROOT / meta.get_data_file_path(episode)).is_file()
            assert (ROOT / meta.get_video_file_path(episode, meta.video_keys[0])).is_file()
        assert [episode["length"] for episode in meta.episodes] == LENGTHS
        assert meta.episodes[-1]["dataset_to_index"] == NUM_FRAMES
        assert meta.episodes["length"] == LENGTHS
        assert meta.episodes["dataset_to_index"] == np.cumsum(LENGTHS).tolist()
        assert meta.episodes["tasks"][0] == meta.episodes[0]["tasks"]
        with pytest.raises(SampleIndexError, match="episodes have no 'size', but episode_index"):
            meta.episodes["size"]
        assert meta.tasks[meta.get_task_index("open the drawer") or 0] == "open the drawer"
        assert meta.get_task_index("dance") is None
        with pytest.raises(SampleIndexError, match="episode 9 does not exist"):
            meta.episodes[9]
