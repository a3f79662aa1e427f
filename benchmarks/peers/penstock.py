"""penstock itself, in the environment that runs the benchmark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.peers.common import (
    BATCH,
    SIZE_LIMIT,
    Result,
    check_rows,
    check_tokens,
    main,
    shard_orders,
    timed_warm,
    timed_writing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.formats.base import ShardReader


def write(
    directory: str,
    kind: str,
    count: int,
    compression: str | None = None,
    size_limit: int = SIZE_LIMIT,
    flush: bool = True,
) -> Result:
    """Without `flush`, what flushing costs can be told apart: no user can ask for that."""
    from penstock import MDSWriter

    if not flush:
        from penstock.publish.target import FilesTarget

        FilesTarget.flushes = property(lambda _: False, lambda _, __: None)  # type: ignore[assignment]
    return timed_writing(MDSWriter, directory, kind, count, compression, size_limit)


def read_rows_by_index(directory: str, shuffled: bool) -> Result:
    """What a user of `LocalDataset` gets: slices in order, or lists of row numbers at random."""
    from penstock import LocalDataset

    dataset = LocalDataset(directory)
    check_rows(dataset[0:BATCH], 0)
    total = len(dataset)
    [order] = shard_orders([total], shuffled)

    def in_order() -> int:
        rows = LocalDataset(directory)
        return sum(len(rows[begin : begin + BATCH]) for begin in range(0, total, BATCH))

    def at_random() -> int:
        rows = LocalDataset(directory)
        return sum(len(rows[order[begin : begin + BATCH]]) for begin in range(0, total, BATCH))

    return timed_warm(at_random if shuffled else in_order)


def read_rows_by_shard(directory: str, shuffled: bool) -> Result:
    """What the parts above the shard reader get: one shard after the other, its rows in any order."""
    return timed_by_shard(directory, shuffled, lambda reader, rows: len(reader.read(rows)))


def read_tokens(directory: str, shuffled: bool) -> Result:
    """Columnar batches, shard by shard."""
    from penstock import LocalDataset

    dataset = LocalDataset(directory)
    rows = shard_orders(dataset.index.lengths.tolist(), shuffled)[0][:BATCH]
    check_tokens(np.asarray(dataset.read_columns(rows)["tokens"]), rows, len(dataset))
    return timed_by_shard(directory, shuffled, lambda reader, rows: len(reader.read_columns(rows)["tokens"]))


def timed_by_shard(directory: str, shuffled: bool, read: Callable[[ShardReader, Any], int]) -> Result:
    """Opens one shard after the other and reads it in batches."""
    from penstock import LocalDataset
    from penstock.formats.parts import open_shard

    index = LocalDataset(directory).index
    orders = shard_orders(index.lengths.tolist(), shuffled)

    def work() -> int:
        samples = 0
        for shard, order in zip(index.shards, orders, strict=True):
            reader = open_shard(Path(directory), shard)
            for begin in range(0, len(order), BATCH):
                samples += read(reader, order[begin : begin + BATCH])
            reader.close()
        return samples

    return timed_warm(work)


def open_first_shard(directory: str) -> Result:
    """Opening means being able to read: the first row is part of it."""
    from penstock import LocalDataset
    from penstock.formats.parts import open_shard

    shard = LocalDataset(directory).index.shards[0]

    def work() -> int:
        reader = open_shard(Path(directory), shard)
        reader.read([0])
        reader.close()
        return 1

    return timed_warm(work)


def import_in_fresh_interpreter(statement: str) -> Result:
    """A process of its own, because this one has NumPy loaded already."""
    code = f"import time; begin = time.perf_counter(); {statement}; print(time.perf_counter() - begin)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {"samples": 1, "seconds": float(done.stdout)}


if __name__ == "__main__":
    main(
        {
            "write": write,
            "read_rows_by_index": read_rows_by_index,
            "read_rows_by_shard": read_rows_by_shard,
            "read_tokens": read_tokens,
            "open_first_shard": open_first_shard,
            "import": import_in_fresh_interpreter,
        }
    )
