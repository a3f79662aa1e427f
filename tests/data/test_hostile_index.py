"""An index from outside cannot reach for files of the user in a folder that holds more than a cache."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock import LocalDataset, StreamingDataset
from penstock.errors import BadIndexError
from tests.streaming import write_samples

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", [".bashrc", ".git/hooks/pre-commit", ".penstock/x", "sub/index.json"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_names_of_others_are_refused(tmp_path: Path, name: str, compression: str | None) -> None:
    remote = write_samples(tmp_path / "remote", 20, compression=compression)
    index = json.loads((remote / "index.json").read_bytes())
    part = index["shards"][1]["raw_data" if compression is None else "zip_data"]
    (remote / name).parent.mkdir(parents=True, exist_ok=True)
    (remote / part["basename"]).rename(remote / name)
    part["basename"] = name
    (remote / "index.json").write_text(json.dumps(index))
    local = tmp_path / "local"
    (local / name).parent.mkdir(parents=True, exist_ok=True)
    (local / name).write_bytes(b"mine")
    for folder in (str(local), None):
        with pytest.raises(BadIndexError, match="which is not allowed"):
            list(StreamingDataset(remote=str(remote), local=folder, cache_limit="10kb"))
    with pytest.raises(BadIndexError, match="which is not allowed"):
        LocalDataset(remote)
    assert (local / name).read_bytes() == b"mine"
