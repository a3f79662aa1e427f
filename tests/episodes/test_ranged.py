"""Videos in a store: only the bytes of the episodes that are read are fetched, once, and no more stay than may."""

from __future__ import annotations

import re
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from torch.utils.data import DataLoader

from penstock import StreamingLeRobotDataset
from tests.episodes.build import CAMERA, Layout, write_dataset
from tests.episodes.clips import number_of, write_clip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FPS = 10
FILES = [[40, 40, 40, 40], [30, 50, 30, 50]]
LENGTHS = [length for file in FILES for length in file]
STARTS = np.cumsum([0, *LENGTHS])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset of two video files, whose tables come first in one and last in the other."""
    folder = tmp_path_factory.mktemp("ranged") / "set"
    write_dataset(folder, Layout(data_files=FILES, video_files=FILES, gop=10))
    write_clip(video(folder, 0), 160, gop=10, noise=90, movflags="faststart")
    write_clip(video(folder, 1), 160, gop=10, first=160, noise=90)
    return folder


def video(root: Path, number: int) -> Path:
    return root / f"videos/{CAMERA}/chunk-000/file-{number:03d}.mp4"


def episode_bytes(root: Path, episodes: list[int]) -> int:
    """Count the bytes of the packets of some episodes."""
    total = 0
    for number, lengths in enumerate(FILES):
        with av.open(str(video(root, number)), "r") as container:
            stream = container.streams.video[0]
            sizes = [packet.size for packet in container.demux(stream) if packet.pts is not None]
        starts = np.cumsum([0, *lengths])
        for place in range(len(lengths)):
            if place + 4 * number in episodes:
                total += sum(sizes[starts[place] : starts[place + 1]])
    return total


class Served:
    """A web server of a folder that counts the bytes that it gives of each file."""

    def __init__(self, folder: Path) -> None:
        self.num_bytes: Counter[str] = Counter()
        self.spans: list[tuple[str, int, int]] = []
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(handler) -> None:
                self.answer(handler, folder, lock, has_body=False)

            def do_GET(handler) -> None:
                self.answer(handler, folder, lock, has_body=True)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, handler: Any, folder: Path, lock: threading.Lock, *, has_body: bool) -> None:
        path = folder / handler.path.lstrip("/")
        if not path.is_file():
            handler.send_response(404)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        data = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        begin, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(data))
        handler.send_response(206 if asked else 200)
        if asked:
            handler.send_header("Content-Range", f"bytes {begin}-{min(end, len(data)) - 1}/{len(data)}")
        handler.send_header("Accept-Ranges", "bytes")
        handler.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        handler.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        handler.send_header("Content-Length", str(len(data[begin:end])))
        handler.end_headers()
        if has_body:
            with lock:
                self.num_bytes[path.suffix] += len(data[begin:end])
                if path.suffix == ".mp4":
                    self.spans.append((path.name, begin, end))
            handler.wfile.write(data[begin:end])


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    served = Served(folder)
    thread = threading.Thread(target=served.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.server.shutdown()
        served.server.server_close()
        thread.join()


def check_pass(dataset: StreamingLeRobotDataset, episodes: list[int], num_workers: int = 0) -> None:
    seen = []
    for batch in DataLoader(dataset, batch_size=8, num_workers=num_workers, timeout=60 if num_workers else 0):
        for index, pixels in zip(batch["index"].tolist(), batch[CAMERA], strict=True):
            assert number_of(pixels.permute(1, 2, 0).numpy()) == index
            seen.append(index)
    wanted = [frame for episode in episodes for frame in range(STARTS[episode], STARTS[episode + 1])]
    assert sorted(seen) == wanted


@pytest.mark.parametrize(
    ("episodes", "num_workers", "locality"),
    [([1, 3, 6], 0, None), (list(range(8)), 2, None), (list(range(8)), 0, "gop")],
)
def test_only_the_bytes_of_the_episodes_are_fetched(
    root: Path, places: Path, episodes: list[int], num_workers: int, locality: Any
) -> None:
    with serving(root) as served:
        arguments: dict[str, Any] = {"batch_size": 8, "return_uint8": True, "video_locality": locality}
        with StreamingLeRobotDataset(
            root=root, data_files_root=served.url, episodes=episodes, episode_pool_size=3, **arguments
        ) as dataset:
            check_pass(dataset, episodes, num_workers)
            check_pass(dataset, episodes, num_workers)  # from the cache
        assert served.num_bytes[".mp4"] <= 1.1 * episode_bytes(root, episodes)
    assert not list((places / "cache").rglob("*.mp4"))


def test_no_more_stays_in_the_cache_than_may(root: Path, places: Path) -> None:
    limit = episode_bytes(root, list(range(8))) // 2 + (1 << 19)
    with serving(root) as served:
        with StreamingLeRobotDataset(
            root=root,
            data_files_root=served.url,
            cache_limit=limit,
            episode_pool_size=2,
            batch_size=8,
            return_uint8=True,
        ) as dataset:
            for _ in range(2):
                check_pass(dataset, list(range(8)))
                folders = [path for path in (places / "cache").iterdir() if str(served.server.server_port) in path.name]
                clips = [clip for folder in folders for clip in folder.rglob("*.clip1")]
                assert 0 < sum(clip.stat().st_size for clip in clips) <= limit
        assert served.num_bytes[".mp4"] > 1.1 * episode_bytes(root, list(range(8)))  # some came twice


def test_a_file_that_cannot_be_cut_is_fetched_whole(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(data_files=FILES, video_files=FILES, gop=10))
    write_clip(video(tmp_path / "set", 0), 160, gop=10, movflags="frag_keyframe+empty_moov")
    with serving(tmp_path / "set") as served:
        for locality in (None, "gop"):
            with StreamingLeRobotDataset(
                root=tmp_path / "set",
                data_files_root=served.url,
                batch_size=8,
                return_uint8=True,
                video_locality=locality,
            ) as dataset:
                check_pass(dataset, list(range(8)))


def test_v2_files_of_one_episode_each(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Layout(data_files=[[7, 9]], is_v3=False))
    with serving(tmp_path / "set") as served:
        with StreamingLeRobotDataset(root=tmp_path / "set", data_files_root=served.url, return_uint8=True) as dataset:
            for index in range(16):
                assert number_of(dataset[index][CAMERA].permute(1, 2, 0).numpy()) == index
