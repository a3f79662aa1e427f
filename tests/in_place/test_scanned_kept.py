"""What is read to index files of lines goes to the cache: a first pass after that fetches nothing again."""

from __future__ import annotations

import gzip
import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock import StreamingDataset
from tests.servers.faults import FaultProxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.nginx import WebServer

ROW_BYTES = 200_000
HEADS = 20_000  # of all answers to what little is asked for later


def write(path: Path, rows: int, first: int = 0) -> int:
    """Write a file of long lines, some minutes old: the server's tags of younger ones may stand for two versions."""
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps({"id": first + row, "text": f"{row:05}" * (ROW_BYTES // 5)}) + "\n" for row in range(rows)]
    data = "".join(lines).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    old = time.time() - 600
    os.utime(path, (old, old))
    return len(data)


def bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.jsonl*"))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_the_first_pass_fetches_nothing_again(nginx: WebServer, tmp_path: Path, suffix: str) -> None:
    folder = nginx.files / f"kept{suffix}"
    many = 200 if suffix == ".jsonl" else 20  # the first file has two shards, unless it is compressed
    num_bytes = write(folder / f"a{suffix}", many) + write(folder / f"b{suffix}", 10, many)
    with FaultProxy(nginx.url) as proxy:
        urls = [f"{proxy.url}/kept{suffix}/{name}{suffix}" for name in "ab"]
        with StreamingDataset(remote=urls, local=tmp_path, shuffle=True, batch_size=5) as dataset:
            assert num_bytes <= bytes_of(tmp_path) + 1000
            proxy.counts.clear()
            assert sorted(sample["id"] for sample in dataset) == list(range(many + 10))
            assert proxy.counts["bytes"] < HEADS
        with StreamingDataset(remote=urls, local=tmp_path, shuffle=True, batch_size=5) as dataset:
            assert dataset[many]["id"] == many
        assert proxy.counts["bytes"] < HEADS


def test_a_limit_bounds_what_is_kept(nginx: WebServer, tmp_path: Path) -> None:
    folder = nginx.files / "kept-within"
    num_bytes, *_ = [write(folder / f"{number}.jsonl", 20, 100 + number * 20) for number in range(4)]
    urls = [f"{nginx.url}/kept-within/{number}.jsonl" for number in range(4)]
    options: dict[str, Any] = {"cache_limit": num_bytes * 5 // 2, "batch_size": 5}
    with StreamingDataset(remote=urls, local=tmp_path, **options) as dataset:
        assert bytes_of(tmp_path) == num_bytes * 2  # two of four fit, and none had to go for another
        assert sorted(sample["id"] for sample in dataset) == list(range(100, 180))
        assert bytes_of(tmp_path) <= options["cache_limit"]


def test_what_is_larger_than_the_limit_is_only_read(nginx: WebServer, tmp_path: Path) -> None:
    num_bytes = write(nginx.files / "kept-too-large" / "a.jsonl", 200)
    urls = [f"{nginx.url}/kept-too-large/a.jsonl"]
    with StreamingDataset(remote=urls, local=tmp_path, cache_limit=num_bytes - 1) as dataset:
        assert dataset.num_samples == 200
        assert bytes_of(tmp_path) == 0
