"""litdata, in .peers/litdata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.peers.common import (
    BATCH,
    SIZE_LIMIT,
    Result,
    Sample,
    batches,
    check_rows,
    main,
    make_rows,
    timed,
    timed_warm,
)
from litdata import StreamingDataset, optimize

if TYPE_CHECKING:
    from collections.abc import Iterator


def all_rows(count: int) -> Iterator[Sample]:
    yield from make_rows(count)


def write(directory: str, count: int) -> Result:
    """Rows only, to have something to read: its writing is not compared."""

    def work() -> int:
        optimize(all_rows, [count], output_dir=directory, chunk_bytes=SIZE_LIMIT, num_workers=1)
        return count

    return timed(work)


def read_rows(directory: str, count: int) -> Result:
    """All `count` rows in order."""
    dataset = StreamingDataset(directory, shuffle=False)

    def work() -> int:
        return sum(len(batch) for batch in batches(dataset))

    check_rows([dataset[number] for number in range(BATCH)], 0)
    result = timed_warm(work)
    if result["samples"] != count:
        raise SystemExit(f"read {result['samples']} rows of {count}")
    return result


if __name__ == "__main__":
    main({"write": write, "read_rows": read_rows})
