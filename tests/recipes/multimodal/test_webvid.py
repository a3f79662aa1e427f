"""Videos inside shards and beside them: taken out by number, fetched when asked for, or ahead by the plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from penstock import MDSWriter, StreamingDataLoader
from penstock.errors import CorruptShardError, ObjectNotFoundError
from penstock.recipes.multimodal.webvid import (
    StreamingInsideWebVid,
    StreamingOutsideDTWebVid,
    StreamingOutsideGIWebVid,
)
from tests.recipes.web_videos import NUM_VIDEOS, make_webvid, video, video_row

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_webvid(tmp_path_factory.mktemp("webvid"))


def outside(data: Path, kept: Path, kind: Any = StreamingOutsideGIWebVid, **options: Any) -> Any:
    places = {"local": str(data / "outside"), "extra_remote": str(data / "videos"), "extra_local": str(kept)}
    return kind(**{**places, "batch_size": 4, **options})


def test_videos_inside_shards_are_bytes(data: Path) -> None:
    rows = [*map(video_row, range(NUM_VIDEOS))]
    assert [*StreamingInsideWebVid(local=str(data / "inside"), batch_size=1)] == rows


@pytest.mark.parametrize("kind", [StreamingOutsideGIWebVid, StreamingOutsideDTWebVid])
def test_a_shuffled_pass_in_workers_has_all_videos(data: Path, tmp_path: Path, kind: Any) -> None:
    dataset = outside(data, tmp_path, kind, shuffle=True)
    samples = list(DataLoader(dataset, batch_size=None, num_workers=2))
    assert sorted(sample["duration"] for sample in samples) == [*range(NUM_VIDEOS)]
    assert all(sample["content"] == video(sample["duration"]) for sample in samples)
    assert len(list(tmp_path.rglob("*.mp4"))) == NUM_VIDEOS


def test_videos_come_ahead_of_their_samples_by_the_plan(data: Path, tmp_path: Path) -> None:
    dataset = outside(data, tmp_path, StreamingOutsideDTWebVid, shuffle=True, predownload=20)
    begun = iter(StreamingDataLoader(dataset, batch_size=4))
    first = next(begun)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.rglob("*.mp4"))) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(list(tmp_path.rglob("*.mp4"))) < NUM_VIDEOS
    assert first["content"] == [video(number) for number in first["duration"].tolist()]
    assert sum(len(batch["videoid"]) for batch in begun) == NUM_VIDEOS - 4
    dataset.close()
    assert outside(data, tmp_path / "other", StreamingOutsideDTWebVid)[7]["content"] == video(7)


def test_videos_are_read_where_they_are_told_to_be(data: Path, tmp_path: Path) -> None:
    assert "content" not in outside(data, tmp_path, extra_remote=None, extra_local=None)[3]
    assert outside(data, tmp_path, extra_local=None)[3]["content"] == video(3)
    assert not list(tmp_path.iterdir())
    assert outside(data, data / "videos", extra_remote=None)[3]["content"] == video(3)


def test_videos_that_are_missing_or_of_another_size_are_errors(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"003\.mp4"):
        outside(data, tmp_path, extra_remote=str(tmp_path / "none"))[3]
    kept = tmp_path / "kept/000/003.mp4"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"half")
    dataset = outside(data, tmp_path / "kept")
    with pytest.raises(CorruptShardError, match=r"000/003\.mp4 has 4 bytes instead of"):
        dataset[3]
    assert dataset[3]["content"] == video(3)


def test_old_datasets_and_names_outside_their_folder(data: Path, tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / "old"), columns={"videoid": "str", "content_path": "str"}) as writer:
        writer.write({"videoid": "5", "content_path": "000/005.mp4"})
        writer.write({"videoid": "6", "content_path": "../outside/index.json"})
    dataset = outside(data, tmp_path / "kept", local=str(tmp_path / "old"))
    assert dataset[0]["content"] == video(5)
    with pytest.raises(ValueError, match="not a valid key"):
        dataset[1]
