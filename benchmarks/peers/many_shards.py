"""Rows in shards under many names: a few gigabytes of distinct files, each of which is linked under several names.

It writes them as penstock and mosaicml-streaming read them (`mds`), as litdata does, or as plain records.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from benchmarks.peers.common import TEXT_BYTES, Result, corpus, main, timed

COLUMNS = {"column_encodings": ["int64", "str"], "column_names": ["id", "text"], "column_sizes": [8, None]}
SETTINGS = {**COLUMNS, "compression": None, "format": "mds", "hashes": [], "size_limit": 1 << 26, "version": 2}
LITDATA_SPEC = [
    1,
    {
        "type": "builtins.dict",
        "context": '["id", "text"]',
        "children_spec": [{"type": None, "context": None, "children_spec": []}] * 2,
    },
]
LITDATA_CONFIG = {
    **dict.fromkeys(["chunk_bytes", "compression", "compression_batch_size", "compression_level", "encryption"]),
    "ipc_compression": None,
    "data_format": ["int", "str"],
    "data_spec": json.dumps(LITDATA_SPEC),
    "item_loader": "PyTreeLoader",
    "types": {"id": "int", "text": "str"},
}
PLAIN = np.dtype([("id", "<i8"), ("text", f"S{TEXT_BYTES}")])
# What stands before the values of each sample: the sizes of some of them.
SIZES = {"mds": [TEXT_BYTES], "litdata": [8, TEXT_BYTES], "plain": []}
MOST_NAMES = 60_000  # of a file, on the usual file systems


def file_name(number: int) -> str:
    return f"shard.{number:07}.bin"


def make_records(form: str, first: int, count: int, text: bytes) -> bytes:
    """The rows that `make_rows` numbers from `first` on, as they are stored."""
    sizes = SIZES[form]
    rows = np.empty(count, [("sizes", "<u4", (len(sizes),)), *PLAIN.descr])
    room = len(text) - TEXT_BYTES
    rows["sizes"], rows["id"] = sizes, np.arange(first, first + count)
    starts = rows["id"] * TEXT_BYTES % room
    rows["text"] = np.ndarray((room + 1,), f"S{TEXT_BYTES}", text, 0, (1,))[starts]
    return rows.tobytes()


def make_head(form: str, samples: int) -> bytes:
    """The number of samples and where each begins, as both formats have it; ours has its settings after that."""
    if form == "plain":
        return b""
    settings = json.dumps(SETTINGS, sort_keys=True).encode() if form == "mds" else b""
    first = 4 + 4 * (samples + 1) + len(settings)
    offsets = first + (4 * len(SIZES[form]) + PLAIN.itemsize) * np.arange(samples + 1, dtype=np.int64)
    return np.uint32(samples).tobytes() + offsets.astype("<u4").tobytes() + settings


def write(directory: str, form: str, rows: int, distinct: int, counts: str) -> Result:
    """A dataset in a folder for each of the numbers of samples, in shards of so many rows."""
    folder = Path(directory)
    folder.mkdir(parents=True)
    head, text = make_head(form, rows), corpus().encode()
    numbers = [int(float(count)) for count in counts.split()]

    def work() -> int:
        for number in range(min(distinct, -(-max(numbers) // rows))):
            (folder / file_name(number)).write_bytes(head + make_records(form, number * rows, rows, text))
        num_bytes = (folder / file_name(0)).stat().st_size
        for count, words in zip(numbers, counts.split(), strict=True):
            num_shards = -(-count // rows)
            (folder / words).mkdir()
            for number in range(num_shards):
                os.link(folder / file_name(number % distinct), folder / words / file_name(number))
            (folder / words / "index.json").write_text(make_index(form, num_shards, rows, num_bytes))
        return sum(numbers)

    return timed(work)


def write_index(directory: str, shards: int, rows: int) -> Result:
    """Only an index, of shards that are never read."""
    Path(directory).mkdir(parents=True, exist_ok=True)

    def work() -> int:
        path = Path(directory, "index.json")
        path.write_text(make_index("mds", shards, rows, 220 * rows))
        os.utime(path, (1e9, 1e9))  # long ago: one that may be changed again in the same moment is not kept
        return shards

    return timed(work)


def make_index(form: str, shards: int, rows: int, num_bytes: int) -> str:
    if form == "litdata":
        entry: dict[str, object] = {"chunk_bytes": num_bytes, "chunk_size": rows, "dim": None, "filename": "NAME"}
    else:
        raw = {"basename": "NAME", "bytes": num_bytes, "hashes": {}}
        entry = {**SETTINGS, "raw_data": raw, "samples": rows, "zip_data": None}
    text = json.dumps(entry, sort_keys=True)
    entries = ",".join(text.replace("NAME", file_name(number)) for number in range(shards))
    if form == "litdata":
        config = json.dumps({**LITDATA_CONFIG, "chunk_size": rows})
        return f'{{"chunks": [{entries}], "config": {config}, "updated_at": "0"}}'
    return f'{{"shards": [{entries}], "version": 2}}'


if __name__ == "__main__":
    main({"write": write, "write_index": write_index})
