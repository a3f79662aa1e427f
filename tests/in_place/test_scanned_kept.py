"""What is read to index files of lines goes to the cache: a first pass after that fetches nothing again."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from penstock import StreamingDataset
from tests.cache.kit import fetcher_pids, wait_until
from tests.servers.faults import FaultProxy, Faults

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.nginx import WebServer

ROW_BYTES = 200_000
HEADS = 20_000  # of all answers to what little is asked for later


def write(path: Path, rows: int, first: int = 0) -> int:
    """Write a file of large rows, some minutes old: the server's tags of younger ones may stand for two versions."""
    path.parent.mkdir(exist_ok=True)
    samples = [{"id": first + row, "text": f"{row:05}" * (ROW_BYTES // 5)} for row in range(rows)]
    if ".tar" in path.suffixes:
        data = tar_of(samples)
    elif ".csv" in path.suffixes:
        data = "".join(["id,text\n", *(f"{sample['id']},{sample['text']}\n" for sample in samples)]).encode()
    else:
        data = "".join(json.dumps(sample) + "\n" for sample in samples).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    old = time.time() - 600
    os.utime(path, (old, old))
    return len(data)


def text_of(row: int) -> str:
    return f"{row % 40:05}" * (ROW_BYTES // 5)


def tar_of(samples: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for sample in samples:
            for name, value in (("cls", sample["id"]), ("txt", sample["text"])):
                data = f"{value}".encode()
                member = tarfile.TarInfo(f"{sample['id']:05}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["cls" if "cls" in sample else "id"])


def bytes_of(directory: Path) -> int:
    names = [path for kind in ("jsonl", "csv", "tar") for path in directory.glob(f"*.{kind}*")]
    return sum(path.stat().st_size for path in names)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".tar", ".tar.gz"])
def test_the_first_pass_fetches_nothing_again(nginx: WebServer, tmp_path: Path, suffix: str) -> None:
    folder = nginx.files / f"kept{suffix}"
    many = 200 if suffix == ".jsonl" else 20  # the first file has two shards, unless it is compressed
    num_bytes = write(folder / f"a{suffix}", many) + write(folder / f"b{suffix}", 10, many)
    with FaultProxy(nginx.url) as proxy:
        urls = [f"{proxy.url}/kept{suffix}/{name}{suffix}" for name in "ab"]
        with StreamingDataset(remote=urls, local=tmp_path, shuffle=True, batch_size=5) as dataset:
            assert num_bytes <= bytes_of(tmp_path) + 1000
            proxy.counts.clear()
            assert sorted(map(number_of, dataset)) == list(range(many + 10))
            assert proxy.counts["bytes"] < HEADS
        with StreamingDataset(remote=urls, local=tmp_path, shuffle=True, batch_size=5) as dataset:
            assert number_of(dataset[many]) == many
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


@pytest.mark.parametrize("suffix", [".jsonl", ".tar"])
def test_a_fetcher_that_is_killed_while_it_counts(nginx: WebServer, tmp_path: Path, places: Path, suffix: str) -> None:
    folder = nginx.files / f"kept-killed{suffix}"
    num_bytes = sum(write(folder / f"{number}{suffix}", 40, number * 40) for number in range(3))
    with FaultProxy(nginx.url, Faults(bytes_per_s=num_bytes)) as proxy, ThreadPoolExecutor(1) as thread:
        urls = [f"{proxy.url}/kept-killed{suffix}/{number}{suffix}" for number in range(3)]
        opening = thread.submit(StreamingDataset, remote=urls, local=tmp_path, shuffle=True, batch_size=5)
        for share in (0.3, 0.7):
            wait_until(lambda share=share: proxy.counts["bytes"] > share * num_bytes)  # type: ignore[misc]
            for pid in fetcher_pids(places / "run"):
                os.kill(pid, signal.SIGKILL)
        with opening.result() as dataset:
            samples = list(dataset)
            assert sorted(map(number_of, samples)) == list(range(120))
            assert all(sample.get("text", sample.get("txt")) == text_of(number_of(sample)) for sample in samples)
        assert bytes_of(tmp_path) == num_bytes  # each once, and nothing half
        assert not list((tmp_path / ".penstock").rglob("*.part"))
