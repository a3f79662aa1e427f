"""Small datasets to stream, a place for the fetcher and its cache, and what a pass gives."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import MDSWriter, merge_index
from tests.cache.kit import forkserver_pid, remove_places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.types import Sample

COLUMNS = {"id": "int", "text": "str", "x": "ndarray:float32:3"}


def sample(number: int) -> Sample:
    """A sample is known from its number."""
    return {"id": number, "text": f"row {number} " * 3, "x": np.full(3, number, np.float32)}


def write_shards(folder: Path, sizes: Iterable[int], *, first_id: int = 0, **options: Any) -> Path:
    """Write a dataset whose shards have so many samples each, numbered through."""
    number = first_id
    for shard, size in enumerate(sizes):
        with MDSWriter(out=folder / f"part.{shard:03}", columns=COLUMNS, **options) as writer:
            for _ in range(size):
                writer.write(sample(number))
                number += 1
    merge_index(folder)
    return folder


def write_samples(folder: Path, num_samples: int, *, per_shard: int = 10, first_id: int = 0, **options: Any) -> Path:
    """Write a dataset of equal shards."""
    sizes = [per_shard] * (num_samples // per_shard)
    rest = num_samples % per_shard
    return write_shards(folder, [*sizes, rest] if rest else sizes, first_id=first_id, **options)


@contextmanager
def private_places() -> Iterator[Path]:
    """A runtime and a cache folder of one's own, with a path short enough for a socket."""
    folder, server = Path(tempfile.mkdtemp(prefix="pst-", dir="/tmp")), forkserver_pid()
    names = {"PENSTOCK_RUNTIME_DIR": folder / "run", "PENSTOCK_CACHE_DIR": folder / "cache"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(path) for name, path in names.items()})
    try:
        yield folder
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        remove_places(folder, folder / "run", server)


def ids_of(samples: Iterable[Any]) -> list[int]:
    """The numbers of some samples."""
    return [int(each["id"]) for each in samples]


def batch_ids(batches: Iterable[Any]) -> list[list[int]]:
    """The numbers of the samples of some batches."""
    return [[int(number) for number in batch["id"]] for batch in batches]


def tree_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder: its bytes and when it was written."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
