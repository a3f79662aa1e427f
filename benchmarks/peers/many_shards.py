"""Rows in shards under many names: a few gigabytes of distinct files, each of which is linked under several names.

It writes what penstock and mosaicml-streaming read, and the same rows as plain records for whoever maps files himself.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from benchmarks.peers.common import TEXT_BYTES, Result, corpus, main, timed

COLUMNS = {"column_encodings": ["int64", "str"], "column_names": ["id", "text"], "column_sizes": [8, None]}
SETTINGS = {**COLUMNS, "compression": None, "format": "mds", "hashes": [], "size_limit": 1 << 26, "version": 2}
RECORD = np.dtype([("size", "<u4"), ("id", "<i8"), ("text", f"S{TEXT_BYTES}")])
PLAIN_RECORD = np.dtype([("id", "<i8"), ("text", f"S{TEXT_BYTES}")])


def shard_name(number: int) -> str:
    return f"shard.{number:07}.mds"


def make_records(first: int, count: int, text: bytes) -> np.ndarray:
    """The rows that `make_rows` numbers from `first` on, as they are stored."""
    room = len(text) - TEXT_BYTES
    starts = np.arange(first, first + count) * TEXT_BYTES % room
    rows = np.empty(count, RECORD)
    rows["size"], rows["id"] = TEXT_BYTES, np.arange(first, first + count)
    rows["text"] = np.ndarray((room + 1,), f"S{TEXT_BYTES}", text, 0, (1,))[starts]
    return rows


def shard_head(samples: int) -> bytes:
    config = json.dumps(SETTINGS, sort_keys=True).encode()
    first = 4 + 4 * (samples + 1) + len(config)
    offsets = first + RECORD.itemsize * np.arange(samples + 1, dtype=np.int64)
    return np.uint32(samples).tobytes() + offsets.astype("<u4").tobytes() + config


def write(directory: str, count: int, shards: int, distinct: int) -> Result:
    """So many samples in so many shards, of which `distinct` are files of their own."""
    folder = Path(directory)
    folder.mkdir(parents=True)
    samples = count // shards
    head, text = shard_head(samples), corpus().encode()

    def work() -> int:
        num_bytes = len(head) + RECORD.itemsize * samples
        for number in range(min(distinct, shards)):
            records = make_records(number * samples, samples, text)
            (folder / shard_name(number)).write_bytes(head + records.tobytes())
        for number in range(distinct, shards):
            os.link(folder / shard_name(number % distinct), folder / shard_name(number))
        entry = json.dumps(
            {**SETTINGS, "raw_data": {"basename": "NAME", "bytes": num_bytes, "hashes": {}}, "samples": samples}
            | {"zip_data": None},
            sort_keys=True,
        )
        entries = ",".join(entry.replace("NAME", shard_name(number)) for number in range(shards))
        (folder / "index.json").write_text(f'{{"shards": [{entries}], "version": 2}}')
        return count

    return timed(work)


if __name__ == "__main__":
    main({"write": write})
