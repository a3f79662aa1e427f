"""The floor under any reader: the same token bytes in one flat file, gathered by NumPy from a memory map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.peers.common import (
    BATCH,
    TOKENS_PER_ROW,
    Result,
    check_tokens,
    main,
    make_tokens,
    shard_orders,
    timed,
    timed_warm,
)


def write(directory: str, count: int) -> Result:
    Path(directory).mkdir(parents=True)
    tokens = make_tokens(count)

    def work() -> int:
        tokens.tofile(Path(directory, "tokens.bin"))
        return count

    return timed(work)


def read_tokens(directory: str, shard_sizes: list[int], shuffled: bool) -> Result:
    """Batches out of the same stretches of rows as a shard reader has, in the same order."""
    count = sum(shard_sizes)
    path = Path(directory, "tokens.bin")
    orders = shard_orders(shard_sizes, shuffled)

    def work() -> int:
        table = np.memmap(path, dtype=np.int32, mode="r", shape=(count, TOKENS_PER_ROW))
        first = 0
        for order in orders:
            shard = table[first : first + len(order)]
            for begin in range(0, len(order), BATCH):
                shard[order[begin : begin + BATCH]]
            first += len(order)
        return count

    table = np.memmap(path, dtype=np.int32, mode="r", shape=(count, TOKENS_PER_ROW))
    check_tokens(table[orders[0][:BATCH]], orders[0][:BATCH], count)
    return timed_warm(work)


if __name__ == "__main__":
    main({"write": write, "read_tokens": read_tokens})
