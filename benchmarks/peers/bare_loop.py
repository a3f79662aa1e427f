"""The floor under any writer: one file, to which a loop appends the bytes of each sample."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.common import Result, Sample, main, make_samples, timed

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO


def append_rows(file: BinaryIO, samples: list[Sample]) -> None:
    write, pack = file.write, struct.Struct("<q").pack
    for sample in samples:
        write(pack(sample["id"]) + sample["text"].encode())


def append_tokens(file: BinaryIO, samples: list[Sample]) -> None:
    write = file.write
    for sample in samples:
        write(sample["tokens"])


APPEND: dict[str, Callable[[BinaryIO, list[Sample]], None]] = {"rows": append_rows, "tokens": append_tokens}


def write(directory: str, kind: str, count: int, flush: bool = False) -> Result:
    """Writes once to warm up and once for the clock, as the writers do."""
    samples = make_samples(kind, count)

    def work() -> int:
        Path(directory).mkdir(parents=True)
        with Path(directory, "samples.bin").open("wb") as file:
            APPEND[kind](file, samples)
            if flush:
                file.flush()
                os.fdatasync(file.fileno())
        return count

    work()
    shutil.rmtree(directory)
    return timed(work)


if __name__ == "__main__":
    main({"write": write})
