"""penstock on JSON lines and tars as others write them, and what a parser of JSON makes of the same lines alone."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.peers.common import BATCH, Result, main, make_rows, timed
from benchmarks.peers.streaming import check_samples, timed_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUM_FILES = 8
BLOB_BYTES = 50_000


def write(directory: str, kind: str, count: int) -> Result:
    """Files of one kind, to have something to read: their writing is not compared."""
    Path(directory).mkdir(parents=True)
    rows = make_rows(count)
    size = -(-count // NUM_FILES)

    def work() -> int:
        for number in range(NUM_FILES):
            some = rows[number * size : (number + 1) * size]
            if kind == "jsonl":
                Path(directory, f"{number:05}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
            else:
                write_tar(Path(directory, f"{number:05}.tar"), some)
        return count

    return timed(work)


def write_tar(path: Path, rows: list[dict[str, Any]]) -> None:
    """A blob that is no image, so that no library decodes it, and a little JSON."""
    blobs = np.random.default_rng(0).integers(0, 256, (len(rows), BLOB_BYTES), np.uint8)
    with tarfile.open(path, "w") as tar:
        for row, blob in zip(rows, blobs, strict=True):
            for extension, data in (("bin", blob.tobytes()), ("json", json.dumps(row).encode())):
                member = tarfile.TarInfo(f"{row['id']:09}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def open_shuffled(directory: str, **options: Any) -> Any:
    from penstock import StreamingDataset

    return StreamingDataset(local=directory, shuffle=True, batch_size=BATCH, **options)


def lines(directory: str, count: int, seconds: float) -> Result:
    check_samples("rows", iter(open_shuffled(directory)), count)
    dataset = open_shuffled(directory)
    return timed_samples(lambda: dataset, seconds)


def line_columns(directory: str, seconds: float) -> Result:
    dataset = open_shuffled(directory, columnar=True)

    def rows() -> Iterator[int]:
        for batch in dataset:
            yield from range(len(batch["id"]))

    return timed_samples(rows, seconds)


def tars(directory: str, count: int, seconds: float) -> Result:
    check_samples("rows", (sample["json"] for sample in open_shuffled(directory)), count)
    dataset = open_shuffled(directory)
    return timed_samples(lambda: dataset, seconds, chunk=BATCH)


def bare_parser(directory: str, seconds: float, parser: str) -> Result:
    """The same lines, shuffled and already in memory, parsed one after the other."""
    stored = [line for path in sorted(Path(directory).iterdir()) for line in path.read_bytes().splitlines()]
    random.Random(0).shuffle(stored)
    parse: Callable[[bytes], Any] = json.loads
    if parser == "msgspec":
        from msgspec.json import Decoder

        parse = Decoder().decode
    return timed_samples(lambda: map(parse, stored), seconds)


if __name__ == "__main__":
    main(
        {
            "write": write,
            "lines": lines,
            "line_columns": line_columns,
            "tars": tars,
            "bare_parser": bare_parser,
        }
    )
