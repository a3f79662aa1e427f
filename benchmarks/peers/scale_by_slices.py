"""The same as scale_by_hand.py without NumPy's records: slices of mapped files, the fastest that Python has by hand."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.peers.common import BATCH
from benchmarks.peers.many_shards import PLAIN
from benchmarks.peers.scale_by_hand import make_state
from benchmarks.peers.scaling import answer

if TYPE_CHECKING:
    from collections.abc import Iterable


def open_samples(directory: str, at: int | None) -> Iterable[Any]:
    tables = []
    for path in sorted(Path(directory).glob("*.bin")):
        with path.open("rb") as file:
            tables.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    size = PLAIN.itemsize
    per_table = len(tables[0]) // size
    order = np.random.default_rng(0).permutation(per_table * len(tables))
    for begin in range(at or 0, len(order), BATCH):
        numbers, rows = np.divmod(order[begin : begin + BATCH], per_table)
        for number, row in zip(numbers.tolist(), (rows * size).tolist(), strict=True):
            record = tables[number][row : row + size]
            yield {"id": int.from_bytes(record[:8], "little"), "text": record[8:].decode()}


if __name__ == "__main__":
    answer(open_samples, make_state)
