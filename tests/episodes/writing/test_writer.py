"""Datasets that are written here: read back whole, several files, and never seen half done."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from penstock import LeRobotWriter, StreamingLeRobotDataset
from penstock.errors import (
    ColumnRangeError,
    ColumnTypeError,
    ColumnValueError,
    ConfigError,
    ExtraColumnError,
    MissingColumnError,
    OutputBusyError,
    OutputExistsError,
    WriterClosedError,
)
from tests.episodes.clips import SIZE, picture
from tests.episodes.recording import FEATURES, IMAGE, LENGTHS, TASKS, TOP, frame, frames_of, write
from tests.episodes.test_meta import numbers_in
from tests.jobs import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.s3 import S3Server

NUM_FRAMES = sum(LENGTHS)


def check(sample: dict[str, Any], number: int) -> None:
    assert numbers_in(sample[TOP]) == [number]
    assert torch.equal(sample[IMAGE], torch.full((3, 8, 8), number / 255))
    assert sample["action"].tolist() == [number] * 3
    assert sample["matrix"].tolist() == [[number] * 3] * 2
    assert (sample["reward"].item(), sample["done"].item()) == (number, number % 2 == 0)
    assert sample["note"] == f"frame {number}"
    assert sample["index"].item() == number


def check_all(root: str | Path, **arguments: Any) -> None:
    with StreamingLeRobotDataset(root=root, shuffle=False, **arguments) as dataset:
        assert dataset.meta.episodes.lengths.tolist() == LENGTHS
        for number, sample in enumerate(dataset):
            check(sample, number)
            assert sample["task"] == TASKS[int(sample["episode_index"]) % 2]
            assert sample["timestamp"].item() == pytest.approx(int(sample["frame_index"]) / 10)
        assert number == NUM_FRAMES - 1


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_what_was_written_is_read(tmp_path: Path, codec: Any) -> None:
    write(tmp_path / "set", video_codec=codec, chunks_size=2)
    check_all(tmp_path / "set")
    assert not list(tmp_path.glob(".*"))


def test_files_lie_where_the_layout_wants_them(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write(root, chunks_size=2, video_files_size_in_mb=0.002, robot_type="arm")
    info = json.loads((root / "meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["robot_type"]) == ("v3.0", 10, "arm")
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (5, NUM_FRAMES, 2)
    assert info["splits"] == {"train": "0:5"}
    assert list(info["features"])[-5:] == ["timestamp", "frame_index", "episode_index", "index", "task_index"]
    assert info["features"][TOP]["info"]["video.codec"] == "h264"
    assert info["features"]["action"]["names"] == ["x", "y", "grip"]
    episodes = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    ends = np.cumsum(LENGTHS).tolist()
    assert [(row["dataset_from_index"], row["dataset_to_index"]) for row in episodes] == list(
        zip([0, *ends[:-1]], ends, strict=True)
    )
    files = [(row[f"videos/{TOP}/chunk_index"], row[f"videos/{TOP}/file_index"]) for row in episodes]
    assert len(set(files)) >= 3
    assert files[-1][0] == 1  # of a second chunk, as two files fill one
    for row in episodes:
        begin, end = row[f"videos/{TOP}/from_timestamp"], row[f"videos/{TOP}/to_timestamp"]
        assert end - begin == pytest.approx(row["length"] / 10)
        assert row["tasks"] == [TASKS[row["episode_index"] % 2]]
        path = root / f"data/chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
        assert row["episode_index"] in pq.read_table(path)["episode_index"].to_pylist()
        assert (row["meta/episodes/chunk_index"], row["meta/episodes/file_index"]) == (0, 0)
    data = pq.ParquetFile(root / "data/chunk-000/file-000.parquet")
    assert data.num_row_groups >= 2  # one for each episode
    assert TOP not in data.schema_arrow.names
    assert b"Array2D" in data.schema_arrow.metadata[b"huggingface"]
    assert json.loads(pq.read_schema(root / "meta/tasks.parquet").metadata[b"pandas"])["index_columns"] == ["task"]


def test_statistics_are_those_of_all_frames(tmp_path: Path) -> None:
    write(tmp_path / "set")
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        stats = dataset.meta.stats
    assert stats is not None
    numbers = np.arange(NUM_FRAMES)
    for name, expected in (("min", 0), ("max", NUM_FRAMES - 1), ("mean", numbers.mean()), ("std", numbers.std())):
        assert stats["action"][name] == pytest.approx([expected] * 3)
        assert np.shape(stats["matrix"][name]) == (2, 3)
        assert np.asarray(stats[IMAGE][name]).ravel() == pytest.approx([expected / 255] * 3)
        assert np.shape(stats[IMAGE][name]) == (3, 1, 1)
    assert stats["action"]["count"] == [NUM_FRAMES]
    assert stats["reward"]["q01"][0] < stats["reward"]["q50"][0] < stats["reward"]["q99"][0]
    assert "note" not in stats
    pixels = np.stack([picture(number) for number in range(NUM_FRAMES)]) / 255
    assert np.ravel(stats[TOP]["mean"]) == pytest.approx(pixels.mean(axis=(0, 1, 2)))
    assert np.ravel(stats[TOP]["std"]) == pytest.approx(pixels.std(axis=(0, 1, 2)))


def test_features_are_read_off_the_first_frame(tmp_path: Path) -> None:
    with LeRobotWriter(tmp_path / "set", fps=10, use_videos=False) as writer:
        for number in range(3):
            writer.add_frame({"camera": Image.fromarray(picture(number)), "state": [0.5, number], "on": True}, "look")
        writer.save_episode()
        assert writer.features["camera"]["dtype"] == "image"
    with StreamingLeRobotDataset(root=tmp_path / "set", dtypes="stored") as dataset:
        assert numbers_in(dataset[2]["camera"]) == [2]
        assert dataset[2]["state"].tolist() == [0.5, 2]
        assert dataset[2]["state"].dtype == torch.float64


def test_pictures_may_come_in_any_form(tmp_path: Path) -> None:
    pixels, file = picture(5), io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    features = {"a": {"dtype": "video", "shape": [SIZE, SIZE, 3]}, "b": {"dtype": "image", "shape": [SIZE, SIZE, 3]}}
    forms = [pixels, np.moveaxis(pixels, -1, 0), torch.tensor(pixels / 255), Image.fromarray(pixels), file.getvalue()]
    with LeRobotWriter(tmp_path / "set", fps=10, features=features) as writer:
        writer.write_episode([{"a": form, "b": form} for form in forms], "look")
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        for sample in dataset:
            assert numbers_in(sample["a"]) == numbers_in(sample["b"]) == [5]


BAD_FRAMES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "missing": ({"note": ...}, MissingColumnError, "'note' is missing"),
    "extra": ({"speed": 1.0}, ExtraColumnError, "'speed', which is not among"),
    "added": ({"index": 1}, ExtraColumnError, "'index', which the writer adds"),
    "shape": ({"action": np.zeros(4, np.float32)}, ColumnValueError, r"'action' .* shape \[4\]"),
    "text": ({"action": "left"}, ColumnTypeError, "'action' .* 'left'"),
    "number": ({"note": 3}, ColumnTypeError, "'note' is a string"),
    "size": ({TOP: np.zeros((32, 32, 3), np.uint8)}, ColumnValueError, r"\[64, 64, 3\].*\[32, 32, 3\]"),
    "floats": ({TOP: np.full((64, 64, 3), 2.0)}, ColumnValueError, "not all from 0 to 1"),
    "no_image": ({IMAGE: b"hello"}, ColumnValueError, "no picture"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_frame_that_does_not_fit_is_named_and_left_out(tmp_path: Path, name: str) -> None:
    change, kind, message = BAD_FRAMES[name]
    bad = {key: value for key, value in {**frame(1), **change}.items() if value is not ...}
    with LeRobotWriter(tmp_path / "set", fps=10, features=FEATURES) as writer:
        writer.add_frame(frame(0), "lift")
        with pytest.raises(kind, match=f"frame 1 of episode 0: .*{message}"):
            writer.add_frame(bad, "lift")
        writer.add_frame(frame(1), "lift")
        writer.save_episode()
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        assert dataset.num_frames == 2
        check(dataset[1], 1)


def test_numbers_that_do_not_fit_their_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no episode was written"):
        with LeRobotWriter(tmp_path / "set", fps=10, features={"n": {"dtype": "uint8", "shape": [1]}}) as writer:
            for value, kind in ((256, ColumnRangeError), (-1, ColumnRangeError), (0.5, ColumnTypeError)):
                with pytest.raises(kind, match="'n' is a uint8"):
                    writer.add_frame({"n": value}, "count")
            with pytest.raises(ColumnTypeError, match="needs a task"):
                writer.add_frame({"n": 1})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fps": 0}, "fps=0"),
        ({"features": {"a": {"dtype": "video", "shape": [63, 64, 3]}}}, "even height"),
        ({"features": {"a": {"dtype": "complex64", "shape": [1]}}}, "dtype 'complex64'"),
        ({"features": {"a": {"dtype": "float32", "shape": []}}}, r"use \[1\]"),
        ({"features": {"a/b": {"dtype": "float32", "shape": [1]}}}, "a / in its name"),
        ({"features": {"index": {"dtype": "int64", "shape": [1]}}}, "added by the writer"),
        ({"features": {}}, "empty"),
        ({"video_codec": "vp9"}, "unknown video_codec"),
        ({"gop": 0}, "gop"),
        ({"data_files_size_in_mb": 0}, "data_files_size_in_mb"),
    ],
)
def test_wrong_settings_are_refused_at_once(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LeRobotWriter(tmp_path / "set", **{"fps": 10, "features": FEATURES, **settings})
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    write(tmp_path / "set")
    with pytest.raises(OutputExistsError, match="is not empty"):
        LeRobotWriter(tmp_path / "set", fps=10)
    check_all(tmp_path / "set")


def test_nothing_is_left_of_a_writer_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with LeRobotWriter(tmp_path / "set", fps=10, features=FEATURES) as writer:
            writer.write_episode(frames_of(0), "lift")
            raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with pytest.raises(WriterClosedError):
        writer.add_frame(frame(0), "lift")
    with pytest.raises(ConfigError, match="2 frames after episode 0 are not saved"):
        with LeRobotWriter(tmp_path / "set", fps=10, features=FEATURES) as writer:
            writer.write_episode(frames_of(0), "lift")
            for each in frames_of(1)[:2]:
                writer.add_frame(each, "lift")
    assert not list(tmp_path.iterdir())


def test_an_episode_can_be_discarded(tmp_path: Path) -> None:
    with LeRobotWriter(tmp_path / "set", fps=10, features=FEATURES) as writer:
        writer.add_frame(frame(7), "lift")
        writer.discard_episode()
        for episode in range(len(LENGTHS)):
            writer.write_episode(frames_of(episode), TASKS[episode % 2])
        with pytest.raises(ConfigError, match="episode 5 has no frames"):
            writer.save_episode()
    check_all(tmp_path / "set")


def test_a_writer_that_is_killed_leaves_no_dataset_and_its_successor_cleans_up(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.episodes.recording import *; w = LeRobotWriter(sys.argv[1], fps=10, features=FEATURES);"
        " w.write_episode(frames_of(0), 'lift'); print('written', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "set")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        with pytest.raises(OutputBusyError, match="another process is making"):
            LeRobotWriter(tmp_path / "set", fps=10)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert not (tmp_path / "set").exists()
    write(tmp_path / "set")
    check_all(tmp_path / "set")
    assert not list(tmp_path.glob(".*"))


def test_a_dataset_is_written_to_a_bucket(moto: S3Server) -> None:
    moto.make_bucket("written-episodes")
    url = "s3://written-episodes/arm"
    write(url, storage_options=moto.options)
    check_all(url, storage_options=moto.options)
    with pytest.raises(OutputExistsError):
        LeRobotWriter(url, fps=10, storage_options=moto.options)
