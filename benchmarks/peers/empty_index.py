"""An index of shards that are never read, for asking a library about its order alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_index(directory: Path, sizes: list[int]) -> None:
    """Describe one shard of each size."""
    shards = [
        {
            "column_encodings": ["int"],
            "column_names": ["x"],
            "column_sizes": [8],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "raw_data": {"basename": f"shard.{number:05}.mds", "bytes": 8 * size, "hashes": {}},
            "samples": size,
            "size_limit": 1 << 26,
            "version": 2,
            "zip_data": None,
        }
        for number, size in enumerate(sizes)
    ]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
