"""mosaicml-streaming, in .peers/mosaic."""

from __future__ import annotations

from benchmarks.peers.common import (
    BATCH,
    Result,
    check_rows,
    main,
    timed_warm,
    timed_writing,
)
from streaming import LocalDataset, MDSWriter


def write(directory: str, kind: str, count: int, compression: str | None = None) -> Result:
    return timed_writing(MDSWriter, directory, kind, count, compression)


def read_rows(directory: str, count: int) -> Result:
    """The first `count` rows in order, with the faster of the library's two local readers."""
    dataset = LocalDataset(directory)

    def work() -> int:
        for begin in range(0, count, BATCH):
            dataset[begin : min(begin + BATCH, count)]
        return count

    check_rows(dataset[0:BATCH], 0)
    return timed_warm(work)


if __name__ == "__main__":
    main({"write": write, "read_rows": read_rows})
