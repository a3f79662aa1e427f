"""How much private memory a process takes to read robot episodes, beyond its decoders and the frames it may keep.

Each figure comes from a process of its own: one reads samples, the next has as many files open and decodes random
frames. Both count from after their imports.
"""

from __future__ import annotations

import multiprocessing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_MB = 30
_COUNTED_EVERY = 20  # samples
_FRAMES_OF_EACH = 10


def private_mb() -> float:
    """Return the memory that is this process's alone, and no page of a file."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:")) / 1024


def _load() -> float:
    """Import what either process needs, and give the memory after that."""
    import av  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch

    import penstock.episodes.dataset
    import penstock.episodes.video  # noqa: F401

    torch.zeros(1)
    return private_mb()


def read(root: Path, count: int, arguments: dict[str, Any]) -> dict[str, float]:
    """Read samples one by one; give the most memory beyond the frames that are kept, or that were at some time."""
    before = _load()
    from penstock import StreamingLeRobotDataset

    most, most_kept, num_open = 0.0, 0.0, 0
    with StreamingLeRobotDataset(root=root, return_uint8=True, video_decode_threads=0, **arguments) as dataset:
        for number, _ in enumerate(islice(iter(dataset), count)):
            videos = dataset._sources[0].files.videos.get()
            most_kept = max(most_kept, videos._kept.num_bytes / 2**20)
            if number % _COUNTED_EVERY == _COUNTED_EVERY - 1:
                most, num_open = max(most, private_mb() - before), max(num_open, videos.num_open)
    return {"private_mb": most, "kept_mb": most_kept, "num_open": num_open}


def decode(root: Path, num_open: int) -> float:
    """Open so many files and decode random frames, some of each; give the memory that this takes."""
    before = _load()
    from penstock.episodes.video.pyav import PyavFile, PyavPictures

    paths, rgb, rng = sorted(root.rglob("*.mp4")), PyavPictures(), np.random.default_rng(0)
    files = [PyavFile(str(paths[number % len(paths)])) for number in range(num_open)]
    for _ in range(_FRAMES_OF_EACH):
        for file in files:
            number = int(rng.integers(len(file.index)))
            for _, make in file.decode(number, number):
                last = make()
            rgb.to_rgb(last)
    return private_mb() - before


def beyond_decoders(root: Path, count: int, arguments: dict[str, Any]) -> dict[str, float]:
    """Return the memory of reading beside that of decoders alone, and what is left."""
    found: dict[str, float] = _alone(read, root, count, arguments)
    found["decoders_mb"] = _alone(decode, root, int(found["num_open"]))
    found["beyond_mb"] = found["private_mb"] - found["kept_mb"] - found["decoders_mb"]
    return found


def _alone(function: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)
