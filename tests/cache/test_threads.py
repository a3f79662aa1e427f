"""How many threads the fetcher needs under load."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import MDSWriter
from tests.cache.kit import fetcher_pids, finish, start_client
from tests.servers.faults import FaultProxy, Faults

if TYPE_CHECKING:
    from subprocess import Popen

    from tests.servers.nginx import WebServer


CLIENT = """
import sys
from penstock import StreamingDataset
remote, local = sys.argv[1:]
dataset = StreamingDataset(remote=remote, local=local, shuffle=True, batch_size=8)
samples = iter(dataset)
next(samples)
print("begun", flush=True)
sys.stdin.readline()
print(1 + sum(1 for _ in samples))
dataset.close()
"""
FIRST = """
import json, sys
from penstock import StreamingDataset
remote, local, options = sys.argv[1:]
dataset = StreamingDataset(
    remote=remote, local=local, shuffle=True, batch_size=256, predownload=256, storage_options=json.loads(options)
)
print(len(dataset), flush=True)
sys.stdin.readline()
print(sum(1 for _ in zip(range(256), dataset)))
dataset.close()
"""
OPENING = """
import sys
from penstock import StreamingDataset
root, local, count = sys.argv[1:]
first = StreamingDataset(remote=[f"{root}/0.parquet"], local=local)  # so that there is a fetcher
print("begun", flush=True)
sys.stdin.readline()
dataset = StreamingDataset(remote=[f"{root}/{number}.parquet" for number in range(int(count))], local=local)
print(len(dataset))
dataset.close()
first.close()
"""
NUM_FOOTERS = 300
NUM_SHARDS, PER_SHARD, SAMPLE_BYTES = 40, 25, 50_000
NUM_TOKENS = 8000


def go(clients: list[Popen[str]], runtime: Path) -> int:
    """Let clients go on that wait for it, and give the largest number of threads that their fetcher had."""
    (pid,) = fetcher_pids(runtime)
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
    most = 0
    while any(client.poll() is None for client in clients):
        with suppress(FileNotFoundError):  # it leaves with the last of them
            most = max(most, len(list(Path(f"/proc/{pid}/task").iterdir())))
        time.sleep(0.005)
    return most


def begun(clients: list[Popen[str]]) -> list[str]:
    return [client.stdout.readline() for client in clients if client.stdout is not None]


def test_fewer_than_40_while_several_clients_stream(nginx: WebServer, tmp_path: Path, runtime: Path) -> None:
    draw, folder = np.random.default_rng(0), nginx.files / "load"
    columns, size = {"data": "bytes"}, PER_SHARD * (SAMPLE_BYTES + 100)
    with MDSWriter(out=folder, columns=columns, size_limit=size, compression="zstd") as writer:
        for _ in range(NUM_SHARDS * PER_SHARD):
            writer.write({"data": draw.bytes(SAMPLE_BYTES)})
    with FaultProxy(nginx.url, Faults(latency_s=0.2)) as proxy:
        clients = [start_client(CLIENT, f"{proxy.url}/load", tmp_path / f"{number}") for number in range(4)]
        assert begun(clients) == ["begun\n"] * len(clients)
        most = go(clients, runtime)
        assert [finish(client).split() for client in clients] == [[str(NUM_SHARDS * PER_SHARD)]] * len(clients)
    assert 20 < most < 40


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_fewer_than_40_in_the_first_batch(nginx: WebServer, tmp_path: Path, runtime: Path, scheme: str) -> None:
    """Of some hundred small ranges, all of which are wanted at once, one by one or several by one call."""
    folder, columns = nginx.files / scheme, {"tokens": "ndarray:int32:2000"}
    with MDSWriter(out=folder, columns=columns, size_limit=16 << 20) as writer:
        for number in range(NUM_TOKENS):
            writer.write({"tokens": np.full(2000, number, np.int32)})
    with FaultProxy(nginx.url, Faults(latency_s=0.1)) as proxy:
        bucket = {"key": "k", "secret": "s", "endpoint_url": proxy.url, "region": "us-east-1"}
        remote, options = ("s3://s3", bucket) if scheme == "s3" else (f"{proxy.url}/http", {})
        clients = [start_client(FIRST, remote, tmp_path / f"{number}", json.dumps(options)) for number in range(2)]
        assert begun(clients) == [f"{NUM_TOKENS}\n"] * len(clients)
        before = proxy.counts["requests"]
        most = go(clients, runtime)
        assert [finish(client).split() for client in clients] == [["256"]] * len(clients)
        assert proxy.counts["requests"] - before > 200
    assert 20 < most < 40


def test_fewer_than_40_while_footers_are_read(nginx: WebServer, tmp_path: Path, runtime: Path) -> None:
    folder = nginx.files / "footers"
    folder.mkdir()
    pq.write_table(pa.table({"id": range(10)}), folder / "0.parquet")
    for number in range(1, NUM_FOOTERS):
        (folder / f"{number}.parquet").write_bytes((folder / "0.parquet").read_bytes())
    with FaultProxy(nginx.url, Faults(latency_s=0.05)) as proxy:
        client = start_client(OPENING, f"{proxy.url}/footers", tmp_path / "local", str(NUM_FOOTERS))
        assert begun([client]) == ["begun\n"]
        most = go([client], runtime)
        assert finish(client).split() == [str(NUM_FOOTERS * 10)]
        assert proxy.counts["requests"] >= 2 * NUM_FOOTERS  # each is looked for, and read
    assert 10 < most < 40
