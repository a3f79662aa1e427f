"""Datasets of any layout give the same samples: both versions, shared files, odd row groups, all kinds of features."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock import LeRobotWriter, StreamingLeRobotDataset
from penstock.errors import BadIndexError, ConfigError, CorruptShardError, FrameTimeError, MissingExtraError
from tests.episodes.build import CAMERA, IMAGE, TASKS, Layout, write_dataset
from tests.episodes.clips import number_of
from tests.episodes.recording import TYPES, number_of_type, write_types

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.reading.sample_rng import SampleRng

LAYOUTS = {
    "v3": Layout(),
    "older_tasks": Layout(task_column="__index_level_0__", gop=250),
    "small_row_groups": Layout(row_group_size=3, has_video=False, has_images=True),
    "v2": Layout(is_v3=False, has_images=True),
}
NUM_FRAMES = 23


def numbers_in(picture: torch.Tensor) -> list[int]:
    pixels = (picture * 255).round().to(torch.uint8) if picture.is_floating_point() else picture
    array = np.moveaxis(pixels.numpy(), -3, -1)
    return [number_of(each) for each in array.reshape(-1, *array.shape[-3:])]


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_layouts_give_the_same_samples(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    write_dataset(tmp_path / "set", layout)
    with StreamingLeRobotDataset(root=tmp_path / "set", shuffle=False) as dataset:
        assert dataset.num_frames == NUM_FRAMES
        assert dataset.num_episodes == 5
        for number, sample in enumerate(dataset):
            check(sample, number, layout)


def check(sample: dict[str, Any], number: int, layout: Layout) -> None:
    assert "not_declared" not in sample
    assert sample["action"].tolist() == [number, number]
    assert sample["matrix"].dtype == torch.float32
    assert sample["matrix"].tolist() == [[number] * 3, [0.5] * 3]
    assert sample["grip"].dtype == torch.bool
    assert (sample["grip"].item(), sample["note"]) == (number % 2 == 0, f"frame {number}")
    assert sample["index"].shape == ()
    assert sample["index"].item() == number
    assert sample["task"] == TASKS[number % 3]
    if layout.has_video:
        assert numbers_in(sample[CAMERA]) == [number]
    if layout.has_images:
        assert sample[IMAGE].shape == (3, 8, 8)
        assert torch.equal(sample[IMAGE], torch.full((3, 8, 8), number / 255))


def test_windows_of_every_kind_end_with_the_episode(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(has_images=True))
    deltas = {key: [-0.1, 0.0, 0.2] for key in ("action", "grip", "note", IMAGE, CAMERA)}
    with StreamingLeRobotDataset(root=tmp_path / "set", delta_timestamps={**deltas, "index": [0.1]}) as dataset:
        sample = dataset[12]  # the last frame of the second episode, whose neighbour is in the same files
        assert sample["action"].tolist() == [[11, 11], [12, 12], [12, 12]]
        assert sample["grip"].tolist() == [False, True, True]
        assert sample["note"] == ["frame 11", "frame 12", "frame 12"]
        assert numbers_in(sample[CAMERA]) == [11, 12, 12]
        assert (sample[IMAGE][:, 0, 0, 0] * 255).round().tolist() == [11, 12, 12]
        assert sample[f"{CAMERA}_is_pad"].tolist() == [False, False, True]
        assert (sample["index"].tolist(), sample["index_is_pad"].tolist()) == ([12], [True])
        first = dataset[4]
        assert numbers_in(first[CAMERA]) == [4, 4, 6]
        assert first["action_is_pad"].tolist() == [True, False, False]


def test_a_window_of_one_frame_is_squeezed_for_videos_alone(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(has_images=True))
    deltas = {CAMERA: [0.1], IMAGE: [0.1], "action": [0.1]}
    with StreamingLeRobotDataset(root=tmp_path / "set", delta_timestamps=deltas) as dataset:
        sample = dataset[0]
        assert sample[CAMERA].shape == (3, 64, 64)
        assert sample[IMAGE].shape == (1, 3, 8, 8)
        assert sample["action"].shape == (1, 2)
        assert [key for key in sample if key.endswith("_is_pad")] == [f"{key}_is_pad" for key in deltas]


def test_pictures_as_bytes_and_transformed_once_per_camera(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(has_images=True))
    shapes = []

    def halve(picture: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(picture.shape))
        return picture[..., ::2, ::2]

    with StreamingLeRobotDataset(
        root=tmp_path / "set", delta_timestamps={CAMERA: [0.0, 0.1]}, image_transforms=halve, return_uint8=True
    ) as dataset:
        sample = dataset[0]
    assert sorted(shapes) == [(2, 3, 64, 64), (3, 8, 8)]
    assert sample[CAMERA].dtype == sample[IMAGE].dtype == torch.uint8
    assert sample[CAMERA].shape == (2, 3, 32, 32)


def test_pictures_of_a_transform_that_draws_are_the_same_on_any_world(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(has_images=True))

    def noisy(picture: torch.Tensor, rng: SampleRng) -> torch.Tensor:
        return picture + float(rng.random())

    def frames(**seat: Any) -> dict[int, tuple[bytes, bytes]]:
        settings: Any = {"image_transforms": noisy, "epoch_end": "uneven", **seat}
        with StreamingLeRobotDataset(root=tmp_path / "set", **settings) as dataset:
            seen = list(dataset)
        return {
            int(frame["index"]): (frame[CAMERA].numpy().tobytes(), frame[IMAGE].numpy().tobytes()) for frame in seen
        }

    alone = frames()
    assert alone == frames(rank=0, world_size=2) | frames(rank=1, world_size=2)
    assert len(set(alone.values())) == len(alone)


def test_episodes_and_frames_can_be_left_out(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout())
    with StreamingLeRobotDataset(
        root=tmp_path / "set",
        episode_filter=lambda episode: episode["length"] > 3,
        drop_n_first_frames=1,
        drop_n_last_frames=2,
        delta_timestamps={"action": [-0.1, 0.1, 0.2]},
        shuffle=False,
    ) as dataset:
        seen = {int(sample["index"]): sample["action"][:, 0].tolist() for sample in dataset}
    assert list(seen) == [1, *range(5, 11), *range(15, 18)]
    assert (seen[1], seen[10]) == ([0, 2, 3], [9, 11, 12])  # windows reach into what was left out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": [7]}, "episode 7 does not exist"),
        ({"episode_filter": lambda _: False}, "no episode"),
        ({"delta_timestamps": {"action": [0.05]}}, "not a multiple"),
        ({"episode_pool_size": 0}, "episode_pool_size"),
        ({"tolerance_s": 0}, "tolerance_s"),
        ({"tolerance_s": "a"}, "tolerance_s"),
        ({"episodes": ["a"]}, "episodes\\[0\\]='a' is not a whole"),
        ({"episodes": [1.5]}, "episodes\\[0\\]=1.5 is not a whole"),
        ({"image_transforms": 5}, "image_transforms=5 must be a function"),
        ({"drop_n_first_frames": 5, "drop_n_last_frames": 4}, "no frame .* is left: its longest episode has 9"),
        ({"revision": "main"}, "revision"),
        ({"video_backend": "video_reader"}, "video_backend.*pyav.*torchcodec"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    write_dataset(tmp_path / "set", Layout(has_video=False))
    with pytest.raises(ConfigError, match=message):
        StreamingLeRobotDataset(root=tmp_path / "set", **arguments)


def test_a_decoder_that_is_not_installed_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "set", Layout())
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[torchcodec\]'; it also needs FFmpeg"):
        StreamingLeRobotDataset(root=tmp_path / "set", video_backend="torchcodec")


@pytest.mark.parametrize("name", ["buffer_size", "rng"])
def test_arguments_of_the_old_design_are_deprecated(tmp_path: Path, name: str) -> None:
    write_dataset(tmp_path / "set", Layout(has_video=False))
    old: dict[str, Any] = {name: 5}
    with pytest.warns(DeprecationWarning, match=f"{name}= has no effect"):
        StreamingLeRobotDataset(root=tmp_path / "set", **old).close()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"codebase_version": "v1.6"}, "convert the dataset"),
        ({"fps": 0}, "fps=0"),
        ({"data_path": "../{chunk_index:03d}.parquet"}, "outside its dataset"),
        ({"data_path": "data/{chunk_index.__class__}"}, "cannot be understood"),
        ({"data_path": "data/{chunk_index:0999999999d}"}, "cannot be understood"),
        ({"features": {}}, "no features"),
    ],
)
def test_metadata_that_cannot_be_trusted_is_refused(tmp_path: Path, extra: dict[str, Any], message: str) -> None:
    write_dataset(tmp_path / "set", Layout(has_video=False, extra=extra))
    with pytest.raises(BadIndexError, match=message):
        StreamingLeRobotDataset(root=tmp_path / "set")


def test_a_folder_that_is_no_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadIndexError, match="is no LeRobot dataset"):
        StreamingLeRobotDataset(root=tmp_path)


def test_errors_name_episode_frame_and_file(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout())
    (tmp_path / "set" / f"videos/{CAMERA}/chunk-000/file-001.mp4").write_bytes(b"no video")
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        assert int(dataset[12]["index"]) == 12
        with pytest.raises(CorruptShardError, match=r"episode 2 of .*, frame 0 at 0\.000 s: .*file-001\.mp4"):
            dataset[13]
    with StreamingLeRobotDataset(root=tmp_path / "set", on_error="skip", batch_size=8) as dataset:
        assert sorted({int(sample["index"]) for sample in dataset}) == list(range(13))
        assert dataset.stats(flat=True)["skipped"] == 10


def test_a_frame_that_a_video_does_not_have_is_an_error(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout())
    videos = tmp_path / "set" / f"videos/{CAMERA}/chunk-000"
    (videos / "file-001.mp4").replace(videos / "file-000.mp4")  # three frames too few
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        with pytest.raises(FrameTimeError, match=r"episode 1 of .*, frame 8 at 0\.800 s: .*no frame at 1\.2"):
            dataset[12]


def test_times_of_the_rows_count_and_not_the_rate(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout())
    info = (tmp_path / "set/meta/info.json").read_text()
    (tmp_path / "set/meta/info.json").write_text(info.replace('"fps": 10', '"fps": 9'))
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        assert numbers_in(dataset[11][CAMERA]) == [11]


def test_numbers_keep_the_types_that_they_are_stored_in(tmp_path: Path) -> None:
    write_types(tmp_path / "set")
    windows = {"int": [0.0, 0.1]}
    with StreamingLeRobotDataset(root=tmp_path / "set", dtypes="stored", delta_timestamps=windows) as dataset:
        for number in range(7):
            for key, (dtype, shape) in TYPES.items():
                value = dataset[number][key]
                assert str(value.dtype) == f"torch.{dtype}"
                current = value[0] if key in windows else value
                assert np.array_equal(current.numpy().reshape(shape), number_of_type(number, dtype, shape))


def test_integers_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    with LeRobotWriter(tmp_path / "set", fps=10, features={"n": {"dtype": "uint64", "shape": [1]}}) as writer:
        for number in (5, 1 << 63):
            writer.add_frame({"n": np.array([number], np.uint64)}, task="count")
        writer.save_episode()
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        with pytest.raises(CorruptShardError, match=r"'n' .* too large for int64, so read it with dtypes='stored'"):
            dataset[1]
    with StreamingLeRobotDataset(root=tmp_path / "set", dtypes="stored") as dataset:
        assert int(dataset[1]["n"].numpy()) == 1 << 63


def test_samples_of_some_cameras_and_features_read_no_others(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(has_images=True))
    numbers = ["timestamp", "frame_index", "episode_index", "index", "task_index"]
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        whole = dataset[14]
    shutil.rmtree(tmp_path / "set/videos")
    windows = {"action": [0.0, 0.1]}
    with StreamingLeRobotDataset(root=tmp_path / "set", keys=["action", IMAGE], delta_timestamps=windows) as dataset:
        sample = dataset[14]
        assert list(sample) == ["action", *numbers, IMAGE, "action_is_pad", "task"]
        assert sample["action"][0].equal(whole["action"])
        assert sample[IMAGE].equal(whole[IMAGE])
        assert (dataset.meta.video_keys, list(dataset.meta.features)) == ([], ["action", *numbers, IMAGE])
        assert sorted(int(each["index"]) for each in dataset) == list(range(NUM_FRAMES))
    with StreamingLeRobotDataset(root=tmp_path / "set", keys=[]) as dataset:
        assert list(dataset[0]) == [*numbers, "task"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": ["depth"]}, "keys= names 'depth', which .* does not have: it has action, matrix"),
        ({"keys": ["action"], "delta_timestamps": {"grip": [0.0]}}, "names 'grip', which is no feature"),
        ({"dtypes": "float"}, "unknown dtypes 'float'"),
    ],
)
def test_features_and_types_that_do_not_exist_are_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    write_dataset(tmp_path / "set", Layout(has_video=False))
    with pytest.raises(ConfigError, match=message):
        StreamingLeRobotDataset(root=tmp_path / "set", **arguments)


def test_images_are_found_without_the_features_of_the_hub(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(has_video=False, has_images=True, marks_images=False))
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        assert torch.equal(dataset[7][IMAGE], torch.full((3, 8, 8), 7 / 255))
