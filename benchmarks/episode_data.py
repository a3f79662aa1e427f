"""Makes LeRobot datasets of moving pictures for the benchmark: a few episodes are encoded, then copied into files."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CAMERA = "observation.images.top"
_ENCODED = 4  # episodes that differ: decoding a copy takes as long


@dataclass(frozen=True)
class Size:
    """How many episodes, how long, how large, and how far their keyframes are apart."""

    num_episodes: int = 64
    num_frames: int = 300
    gop: int = 30
    width: int = 640
    height: int = 480
    fps: int = 30
    episodes_per_file: int = 8


def make_dataset(folder: Path, size: Size) -> Path:
    """Return a dataset of this size below a folder, made now or earlier."""
    name = "-".join(f"{key}{value}" for key, value in asdict(size).items())
    root = folder / name
    if (root / "meta/info.json").exists():
        return root
    with tempfile.TemporaryDirectory(dir=_made(folder)) as scratch:
        clips = [Path(scratch, f"{number}.mp4") for number in range(min(_ENCODED, size.num_episodes))]
        for number, clip in enumerate(clips):
            _encode(clip, size, seed=number)
        for file, episodes in enumerate(_files(size)):
            path = root / f"videos/{CAMERA}/chunk-000/file-{file:03d}.mp4"
            _join([clips[episode % len(clips)] for episode in episodes], _made(path.parent) / path.name, size)
    _write_rows(root, size)
    return root


def _files(size: Size) -> list[range]:
    return [
        range(first, min(first + size.episodes_per_file, size.num_episodes))
        for first in range(0, size.num_episodes, size.episodes_per_file)
    ]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _encode(path: Path, size: Size, seed: int) -> None:
    """Encode a pattern that moves, and some noise that no encoder can foresee."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[: size.height, : size.width].astype(np.float32)
    noise = random.integers(0, 24, (8, size.height, size.width, 1), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=size.fps)
        stream.width, stream.height, stream.pix_fmt = size.width, size.height, "yuv420p"
        stream.time_base = Fraction(1, size.fps)
        stream.options = {"g": str(size.gop), "bf": "0", "sc_threshold": "0", "preset": "ultrafast", "crf": "23"}
        for number in range(size.num_frames):
            waves = np.stack([np.sin(x / 40 + number / 9), np.cos(y / 30 - number / 7), np.sin((x + y) / 90)], -1)
            pixels = (waves * 100 + 120).astype(np.uint8) + noise[number % 8]
            left = number * 5 % (size.width - 80)
            pixels[100:180, left : left + 80] = [250, 40, 40]
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _join(clips: list[Path], path: Path, size: Size) -> None:
    """Copy packets of several clips into one file, one clip after the other."""
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = None
        for number, clip in enumerate(clips):
            with av.open(str(clip)) as source:
                video = source.streams.video[0]
                if stream is None:
                    stream = container.add_stream_from_template(video)
                    stream.time_base = video.time_base
                begin = round(number * size.num_frames / size.fps / float(video.time_base or 1))
                for packet in source.demux(video):
                    if packet.dts is None or packet.pts is None:
                        continue
                    packet.pts, packet.dts = packet.pts + begin, packet.dts + begin
                    packet.stream = stream
                    container.mux(packet)


def _write_rows(root: Path, size: Size) -> None:
    lengths = np.full(size.num_episodes, size.num_frames)
    starts = np.cumsum(lengths) - lengths
    index = np.arange(int(lengths.sum()))
    episodes = np.repeat(np.arange(size.num_episodes), lengths)
    frames = index - starts[episodes]
    rows = {
        "action": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(index, 7).astype(np.float32)), 7),
        "timestamp": (frames / size.fps).astype(np.float32),
        "frame_index": frames,
        "episode_index": episodes,
        "index": index,
        "task_index": np.zeros(len(index), np.int64),
    }
    file_of = np.arange(size.num_episodes) // size.episodes_per_file
    table = {
        "episode_index": np.arange(size.num_episodes),
        "tasks": [["lift"]] * size.num_episodes,
        "length": lengths,
        "dataset_from_index": starts,
        "dataset_to_index": starts + lengths,
        "data/chunk_index": np.zeros_like(lengths),
        "data/file_index": np.zeros_like(lengths),
        f"videos/{CAMERA}/chunk_index": np.zeros_like(lengths),
        f"videos/{CAMERA}/file_index": file_of,
        f"videos/{CAMERA}/from_timestamp": np.arange(size.num_episodes)
        % size.episodes_per_file
        * (size.num_frames / size.fps),
    }
    _write(root / "data/chunk-000/file-000.parquet", rows, row_group_size=size.num_frames)
    _write(root / "meta/episodes/chunk-000/file-000.parquet", table)
    _write(root / "meta/tasks.parquet", {"task_index": [0], "task": ["lift"]})
    features: dict[str, Any] = {
        key: {"dtype": str(values.dtype), "shape": [1], "names": None}
        for key, values in rows.items()
        if key != "action"
    }
    features["action"] = {"dtype": "float32", "shape": [7], "names": None}
    features[CAMERA] = {
        "dtype": "video",
        "shape": [size.height, size.width, 3],
        "names": ["height", "width", "channels"],
    }
    info = {"codebase_version": "v3.0", "fps": size.fps, "features": features}
    (root / "meta/info.json").write_text(json.dumps(info))


def _write(path: Path, columns: dict[str, Any], row_group_size: int | None = None) -> None:
    _made(path.parent)
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
