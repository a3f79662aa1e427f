"""Datasets with very many samples and shards on little disk: rows of one int, all zero and never written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from benchmarks.peers.common import Result, main, timed

COLUMNS = {"column_encodings": ["int"], "column_names": ["id"], "column_sizes": [8]}
SETTINGS = {**COLUMNS, "compression": None, "format": "mds", "hashes": [], "size_limit": 1 << 26, "version": 2}
# A file has at most 65 000 names on the usual file systems.
NAMES_PER_FILE = 10_000


def shard_head(samples: int) -> bytes:
    config = json.dumps(SETTINGS, sort_keys=True).encode()
    first = 4 + 4 * (samples + 1) + len(config)
    offsets = first + 8 * np.arange(samples + 1, dtype=np.int64)
    return np.uint32(samples).tobytes() + offsets.astype(np.uint32).tobytes() + config


def write_shard(path: Path, head: bytes, samples: int) -> None:
    """Only the head takes room: what follows is a hole."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 8 * samples)


def write(directory: str, count: int, shards: int, linked: bool = False) -> Result:
    """`linked`: the shards are names of few files, which is enough for measuring time and not memory."""
    folder = Path(directory)
    folder.mkdir(parents=True)
    samples = count // shards
    head = shard_head(samples)
    entries = []

    def work() -> int:
        for number in range(shards):
            name = f"shard.{number:05}.mds"
            if linked and number % NAMES_PER_FILE:
                os.link(folder / f"shard.{number - number % NAMES_PER_FILE:05}.mds", folder / name)
            else:
                write_shard(folder / name, head, samples)
            raw = {"basename": name, "bytes": len(head) + 8 * samples, "hashes": {}}
            entries.append({**SETTINGS, "raw_data": raw, "samples": samples, "zip_data": None})
        (folder / "index.json").write_text(json.dumps({"shards": entries, "version": 2}, sort_keys=True))
        return count

    return timed(work)


if __name__ == "__main__":
    main({"write": write})
