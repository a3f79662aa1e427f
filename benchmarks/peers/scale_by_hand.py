"""What one writes without a library: a `numpy.memmap` of records for each file, and a permutation of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.peers.common import BATCH
from benchmarks.peers.many_shards import PLAIN
from benchmarks.peers.scaling import answer

if TYPE_CHECKING:
    from collections.abc import Iterable


def open_samples(directory: str, at: int | None) -> Iterable[Any]:
    tables = [np.memmap(path, PLAIN, mode="r") for path in sorted(Path(directory).glob("*.bin"))]
    per_table = len(tables[0])
    order = np.random.default_rng(0).permutation(per_table * len(tables))
    for begin in range(at or 0, len(order), BATCH):
        numbers, rows = np.divmod(order[begin : begin + BATCH], per_table)
        for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
            record = tables[number][row]
            yield {"id": int(record["id"]), "text": record["text"].decode()}


def make_state(directory: str, at: int) -> int:  # noqa: ARG001
    return at


if __name__ == "__main__":
    answer(open_samples, make_state)
