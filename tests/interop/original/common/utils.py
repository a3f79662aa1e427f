"""Files and settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from streaming import MDSWriter


def copy_all_files(source: str, destination: str) -> None:
    """Copy the files of a folder, without those below it."""
    Path(destination).mkdir(parents=True, exist_ok=True)
    for path in Path(source).iterdir():
        if path.is_file():
            shutil.copy(path, destination)


def get_config_in_bytes(
    kind: str,
    size_limit: int,
    column_names: list[str],
    column_encodings: list[str],
    column_sizes: list[Any],
) -> bytes:
    """Return the settings as they stand in the header of a shard."""
    config = {
        "version": 2,
        "format": kind,
        "compression": None,
        "hashes": [],
        "size_limit": size_limit,
        "column_names": column_names,
        "column_encodings": column_encodings,
        "column_sizes": column_sizes,
    }
    return json.dumps(config, sort_keys=True).encode()


def convert_to_mds(
    out_root: str,
    dataset_name: str,
    num_samples: int = 117,
    *,
    offset: int = 0,
    compression: str | None = None,
    hashes: list[str] | None = None,
    size_limit: int = 1 << 8,
) -> None:
    """Write numbered samples, whose numbers begin with `offset` if it is given."""
    assert dataset_name == "sequencedataset"
    with MDSWriter(
        out=out_root,
        columns={"id": "str", "sample": "int"},
        compression=compression,
        hashes=hashes,
        size_limit=size_limit,
    ) as writer:
        for number in range(num_samples):
            writer.write({"id": f"{number:06}", "sample": offset + 3 * number})
