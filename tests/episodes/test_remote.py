"""Datasets in stores: rows and videos come through the cache of the node, and are the same as on disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from penstock import StreamingLeRobotDataset
from penstock.errors import ObjectNotFoundError
from penstock.storage.base import open_store, resolve_store
from tests.episodes.golden import LENGTHS, NUM_FRAMES, ROOT, TOP, WRIST, codes_of
from tests.servers.hub import HubServer, Repo, running_hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.s3 import S3Server

FILES = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*")) if path.suffix in {".json", ".parquet"}}
VIDEOS = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.mp4"))}
NUM_CLIPS = 2 * len(LENGTHS)
QUERIES = [0, 22, 23, 61, 100, 162]


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with running_hub() as server:
        yield server


def upload(moto: S3Server, bucket: str, files: dict[str, Path]) -> str:
    moto.make_bucket(bucket)
    store = open_store(resolve_store(f"s3://{bucket}/arm", moto.options))
    for name, path in files.items():
        store.upload(path, name)
    return f"s3://{bucket}/arm"


def fetched_clips(places: Path, bucket: str) -> list[Path]:
    return list((places / "cache").rglob(f"*{bucket}-arm*/**/*.clip1"))


def check_as_on_disk(dataset: StreamingLeRobotDataset) -> None:
    with StreamingLeRobotDataset(root=ROOT) as here:
        for number in QUERIES:
            there, sample = dataset[number], here[number]
            assert list(there) == list(sample)
            for key, value in sample.items():
                assert torch.equal(there[key], value) if isinstance(value, torch.Tensor) else there[key] == value


def test_a_bucket_gives_what_the_folder_gives(moto: S3Server, places: Path) -> None:
    url = upload(moto, "episodes", FILES | VIDEOS)
    with StreamingLeRobotDataset(root=url, storage_options=moto.options, batch_size=16) as dataset:
        check_as_on_disk(dataset)
        seen = []
        for batch in DataLoader(dataset, batch_size=16, num_workers=2, timeout=60):
            seen += batch["index"].tolist()
            assert codes_of(batch[WRIST]) == [1000 + number for number in batch["index"].tolist()]
    assert sorted(seen) == list(range(NUM_FRAMES))
    # The video of each episode was fetched into the cache, for all processes.
    assert len(fetched_clips(places, "episodes")) == NUM_CLIPS


def test_rows_and_videos_may_be_elsewhere(moto: S3Server, tmp_path: Path) -> None:
    for name, path in FILES.items():
        if name.startswith("meta/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(path.read_bytes())
    url = upload(moto, "episodes-elsewhere", FILES | VIDEOS)
    options = {"s3": moto.options}  # which the folder has no use for
    with StreamingLeRobotDataset(root=tmp_path, data_files_root=url, storage_options=options) as dataset:
        check_as_on_disk(dataset)


def test_videos_of_the_next_episodes_are_fetched_before_they_are_wanted(moto: S3Server, places: Path) -> None:
    url = upload(moto, "episodes-ahead", FILES | VIDEOS)
    with StreamingLeRobotDataset(root=url, storage_options=moto.options, batch_size=1, shuffle=False) as dataset:
        assert int(next(iter(dataset))["index"]) == 0  # of the first files; the others belong to later episodes
        deadline = time.monotonic() + 60
        while len(fetched_clips(places, "episodes-ahead")) < NUM_CLIPS:
            assert time.monotonic() < deadline, "the videos of later episodes were not fetched"
            time.sleep(0.02)


def test_a_missing_video_is_named(moto: S3Server) -> None:
    url = upload(moto, "episodes-missing", FILES)
    with pytest.raises(ObjectNotFoundError, match=r"videos/.*mp4"):
        StreamingLeRobotDataset(root=url, storage_options=moto.options)


def test_a_dataset_of_the_hub(hub: HubServer) -> None:
    repo = hub.repos["datasets/me/arm"] = Repo()
    old = repo.commit("main", {name: path.read_bytes() for name, path in (FILES | VIDEOS).items()})
    repo.commit("main", {"README.md": b"all gone"})
    arguments: dict[str, Any] = {"storage_options": hub.options(), "revision": old, "delta_timestamps": {TOP: [0.1]}}
    with StreamingLeRobotDataset("me/arm", **arguments) as dataset:
        assert codes_of(dataset[0][TOP]) == [1]
        assert codes_of(dataset[22][TOP]) == [22]
