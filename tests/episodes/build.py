"""Small LeRobot datasets of any layout, v3.0 or v2.1, made with pyarrow and PyAV."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.episodes.clips import SIZE, write_clip

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CAMERA = "observation.images.front"
IMAGE = "observation.image"
TASKS = ["lift", "place", "turn"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a dataset is laid out: which episodes share a file, and how long each is."""

    data_files: Sequence[Sequence[int]] = ((4, 9, 1), (6, 3))
    video_files: Sequence[Sequence[int]] = ((4, 9), (1, 6, 3))
    fps: int = 10
    gop: int = 4
    task_column: str = "task"
    row_group_size: int | None = None
    is_v3: bool = True
    has_video: bool = True
    has_images: bool = False
    marks_images: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def lengths(self) -> list[int]:
        return [length for file in self.data_files for length in file]


def features(layout: Layout) -> dict[str, Any]:
    def feature(dtype: str, shape: list[int]) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "names": None}

    found = {
        "action": feature("float32", [2]),
        "matrix": feature("float64", [2, 3]),
        "grip": feature("bool", [1]),
        "note": feature("string", [1]),
        "timestamp": feature("float32", [1]),
        **{key: feature("int64", [1]) for key in ("frame_index", "episode_index", "index", "task_index")},
    }
    if layout.has_video:
        found[CAMERA] = feature("video", [SIZE, SIZE, 3])
    if layout.has_images:
        found[IMAGE] = feature("image", [8, 8, 3])
    return found


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


def rows_of(layout: Layout, episodes: Sequence[int]) -> pa.Table:
    starts = np.cumsum([0, *layout.lengths])
    frames = [(episode, frame) for episode in episodes for frame in range(layout.lengths[episode])]
    index = np.array([starts[episode] + frame for episode, frame in frames])
    columns = {
        "action": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(index, 2).astype(np.float32)), 2),
        "matrix": pa.array([[[float(i)] * 3, [0.5] * 3] for i in index], pa.list_(pa.list_(pa.float64()))),
        "grip": pa.array(index % 2 == 0),
        "note": pa.array([f"frame {i}" for i in index]),
        "timestamp": pa.array(np.array([frame / layout.fps for _, frame in frames], np.float32)),
        "frame_index": pa.array([frame for _, frame in frames]),
        "episode_index": pa.array([episode for episode, _ in frames]),
        "index": pa.array(index),
        "task_index": pa.array(index % len(TASKS)),
        "not_declared": pa.array([{"a": 1}] * len(index)),
    }
    schema_metadata = {}
    if layout.has_images:
        columns[IMAGE] = pa.array([{"bytes": png(int(i)), "path": f"{i}.png"} for i in index])
        hub = {"info": {"features": {IMAGE: {"_type": "Image"}}}}
        schema_metadata = {"huggingface": json.dumps(hub)} if layout.marks_images else {}
    return pa.table(columns).replace_schema_metadata(schema_metadata or None)


def write_dataset(root: Path, layout: Layout) -> None:
    """Write a dataset; the video of frame i shows the number i."""
    (root / "meta").mkdir(parents=True)
    info = {
        "codebase_version": "v3.0" if layout.is_v3 else "v2.1",
        "fps": layout.fps,
        "features": features(layout),
        "total_episodes": len(layout.lengths),
        "total_frames": sum(layout.lengths),
        "chunks_size": 1000 if layout.is_v3 else 2,
        **layout.extra,
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    (_write_v3 if layout.is_v3 else _write_v2)(root, layout)


def _write_parquet(path: Path, table: pa.Table, row_group_size: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)


def _write_v3(root: Path, layout: Layout) -> None:
    starts = np.cumsum([0, *layout.lengths])
    data_of = np.repeat(np.arange(len(layout.data_files)), [len(file) for file in layout.data_files])
    for number in range(len(layout.data_files)):
        path = root / f"data/chunk-000/file-{number:03d}.parquet"
        _write_parquet(path, rows_of(layout, np.flatnonzero(data_of == number).tolist()), layout.row_group_size)
    columns: dict[str, Any] = {
        "episode_index": np.arange(len(layout.lengths)),
        "tasks": [TASKS[:1] for _ in layout.lengths],
        "length": layout.lengths,
        "dataset_from_index": starts[:-1],
        "dataset_to_index": starts[1:],
        "data/chunk_index": np.zeros(len(layout.lengths), np.int64),
        "data/file_index": data_of,
        "stats/action/mean": [[0.0, 0.0] for _ in layout.lengths],
    }
    if layout.has_video:
        video_of = np.repeat(np.arange(len(layout.video_files)), [len(file) for file in layout.video_files])
        begins = [sum(file[:place]) / layout.fps for file in layout.video_files for place in range(len(file))]
        columns[f"videos/{CAMERA}/chunk_index"] = np.zeros(len(layout.lengths), np.int64)
        columns[f"videos/{CAMERA}/file_index"] = video_of
        columns[f"videos/{CAMERA}/from_timestamp"] = begins
        _write_videos(root, layout)
    half = len(layout.lengths) // 2
    table = pa.table(columns)
    _write_parquet(root / "meta/episodes/chunk-000/file-000.parquet", table.slice(0, half))
    _write_parquet(root / "meta/episodes/chunk-000/file-001.parquet", table.slice(half))
    # Not in the order of their numbers, and not from the front: they are found by value.
    order = [2, 0, 1]
    tasks = pa.table({"task_index": order, layout.task_column: [TASKS[number] for number in order]})
    _write_parquet(root / "meta/tasks.parquet", tasks)


def _write_videos(root: Path, layout: Layout) -> None:
    first = 0
    for number, file in enumerate(layout.video_files):
        path = root / f"videos/{CAMERA}/chunk-000/file-{number:03d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_clip(path, sum(file), gop=layout.gop, fps=layout.fps, first=first)
        first += sum(file)


def _write_v2(root: Path, layout: Layout) -> None:
    starts = np.cumsum([0, *layout.lengths])
    lines = [{"episode_index": e, "tasks": TASKS[:1], "length": length} for e, length in enumerate(layout.lengths)]
    (root / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    tasks = [{"task_index": number, "task": task} for number, task in enumerate(TASKS)]
    (root / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    for episode, length in enumerate(layout.lengths):
        chunk = f"chunk-{episode // 2:03d}"
        _write_parquet(root / f"data/{chunk}/episode_{episode:06d}.parquet", rows_of(layout, [episode]))
        if layout.has_video:
            path = root / f"videos/{chunk}/{CAMERA}/episode_{episode:06d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_clip(path, length, gop=layout.gop, fps=layout.fps, first=int(starts[episode]))
