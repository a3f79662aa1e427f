"""litdata's StreamingDataset and StreamingDataLoader, in .peers/litdata.

It shuffles the order of chunks and the rows within each; the others here shuffle over many shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.peers.common import BATCH, SIZE_LIMIT, Result, Sample, main, make_rows, make_tokens, timed
from benchmarks.peers.streaming import WORKERS, check_samples, timed_batches, timed_samples
from litdata import StreamingDataLoader, StreamingDataset, optimize

if TYPE_CHECKING:
    from collections.abc import Iterator


def all_rows(count: int) -> Iterator[Sample]:
    yield from make_rows(count)


def all_tokens(count: int) -> Iterator[Sample]:
    for row in make_tokens(count):
        yield {"tokens": row}


def write(directory: str, kind: str, count: int, size_limit: int = SIZE_LIMIT) -> Result:
    make = all_rows if kind == "rows" else all_tokens

    def work() -> int:
        optimize(make, [count], output_dir=directory, chunk_bytes=size_limit, num_workers=1)
        return count

    return timed(work)


def one_by_one(directory: str, kind: str, count: int, seconds: float) -> Result:
    dataset = StreamingDataset(directory, shuffle=True)
    check_samples(kind, (dataset[number] for number in range(BATCH)), count)
    return timed_samples(lambda: dataset, seconds)


def loader(directory: str, column: str, seconds: float) -> Result:
    batches = StreamingDataLoader(
        StreamingDataset(directory, shuffle=True),
        batch_size=BATCH,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    return timed_batches(lambda: batches, seconds, column)


if __name__ == "__main__":
    main({"write": write, "one_by_one": one_by_one, "loader": loader})
