"""What `stats()` says of robot episodes: rows, videos, latencies and skipped frames, over all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

from penstock import StreamingDataLoader, StreamingLeRobotDataset
from penstock.counters import private_row
from penstock.episodes.counters import _BUCKETS, count_latency, latency_ms
from penstock.errors import CorruptShardError, ObjectNotFoundError
from tests.episodes.build import CAMERA, Layout, write_dataset
from tests.episodes.golden import NUM_FRAMES
from tests.episodes.test_remote import FILES, VIDEOS, upload

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.s3 import S3Server


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_fetched_and_decoded_is_counted_over_all_workers(moto: S3Server, workers: int) -> None:
    url = upload(moto, f"episodes-counted-{workers}", FILES | VIDEOS)
    with StreamingLeRobotDataset(root=url, storage_options=moto.options, batch_size=16) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=16, num_workers=workers)
        assert sum(len(batch["index"]) for batch in loader) == NUM_FRAMES
        stats = loader.stats(by_worker=True)
    assert stats.samples == NUM_FRAMES
    rows = {name: path for name, path in FILES.items() if name.startswith("data/")}
    assert stats.downloads >= len(rows)
    assert stats.downloaded_bytes > 0
    assert stats.streams[0].downloads == stats.downloads
    assert sum(worker.downloads for worker in stats.workers.values()) == stats.downloads
    assert stats.seconds_waiting > 0
    assert stats.node.bytes >= stats.downloaded_bytes
    flat = stats.flat()
    videos = sum(path.stat().st_size for path in VIDEOS.values())
    assert 0.5 * videos < flat["video.bytes_used"] < videos  # all but the tables
    assert flat["video.bytes_used"] < flat["video.bytes_fetched"] < 1.5 * videos
    assert stats.downloaded_bytes > flat["video.bytes_fetched"]
    assert flat["video.frames_used"] == 2 * NUM_FRAMES
    assert flat["video.misses"] >= 4
    assert 0 < flat["latency.p50_ms"] <= flat["latency.p99_ms"]


def test_percentiles_are_right_within_a_tenth() -> None:
    row = private_row(_BUCKETS)
    assert latency_ms(row.read(), 0.5) is None
    for milliseconds in range(1, 101):
        count_latency(row, 4, 4 * milliseconds * 1_000_000)
    for share in (0.5, 0.95, 0.99):
        assert latency_ms(row.read(), share) == pytest.approx(100 * share, rel=0.1)
    count_latency(row, 10**6, 0)
    count_latency(row, 1, 10**18)  # neither too short nor too long to count
    assert latency_ms(row.read(), 0.5) == pytest.approx(0.001, rel=0.2)


@pytest.mark.parametrize("workers", [0, 2])
def test_frames_that_cannot_be_read_are_skipped_and_counted(tmp_path: Path, workers: int) -> None:
    write_dataset(tmp_path / "set", Layout())
    (tmp_path / "set" / f"videos/{CAMERA}/chunk-000/file-001.mp4").unlink()  # of the last three episodes: 10 frames
    with StreamingLeRobotDataset(root=tmp_path / "set", on_error="skip", batch_size=8, seed=3) as dataset:
        loader = DataLoader(dataset, batch_size=8, num_workers=workers)
        seen = [number for batch in loader for number in batch["index"].tolist()]
        assert len(seen) == 23
        assert set(seen) == set(range(13))
        assert dataset.stats().skipped == 10


def test_an_error_names_episode_frame_file_and_time(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout())
    video = tmp_path / "set" / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    whole = video.read_bytes()
    video.unlink()
    with StreamingLeRobotDataset(root=tmp_path / "set") as dataset:
        with pytest.raises(
            ObjectNotFoundError, match=r"episode 3 of .*, frame 2 at 0\.200 s: .*file-001\.mp4"
        ) as caught:
            dataset[16]
    assert (caught.value.facts["episode"], caught.value.facts["frame"]) == (3, 2)
    assert caught.value.facts["seconds"] == pytest.approx(0.2)
    video.write_bytes(whole[:600])
    with StreamingLeRobotDataset(root=tmp_path / "set", batch_size=23) as dataset:
        with pytest.raises(CorruptShardError, match=r"episode [234] of .*, frame \d at 0\.\d00 s: .*file-001\.mp4"):
            list(dataset)
