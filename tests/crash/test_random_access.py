"""One sample of a remote shard costs its own bytes, not the shard's; also when the fetcher dies in between."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.cache.kit import fetcher_pids, left_over
from tests.servers.faults import FaultProxy
from tests.streaming import private_places

from penstock import MDSWriter, StreamingDataset
from penstock.storage.base import open_store, resolve_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.s3 import S3Server

NUM_SAMPLES, SAMPLE_BYTES, SHARD_BYTES = 96, 125_000, 4_000_000
FEW_BYTES = 1_000_000
IDS = (0, 57, 95, 31)


def pixels(number: int) -> bytes:
    return np.random.default_rng(number).bytes(SAMPLE_BYTES)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "remote"
    with MDSWriter(out=folder, columns={"id": "int", "x": "bytes"}, size_limit=SHARD_BYTES) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"id": number, "x": pixels(number)})
    return folder


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


def check(dataset: StreamingDataset, ids: tuple[int, ...] = IDS) -> None:
    for number in ids:
        found = dataset[number]
        assert (found["id"], found["x"]) == (number, pixels(number))


def test_a_few_samples_of_large_shards(data: Path, tmp_path: Path, places: Path) -> None:
    with StreamingDataset(remote=data, local=tmp_path / "cache") as dataset:
        assert dataset.num_shards >= 3
        check(dataset)
        assert len(IDS) * SAMPLE_BYTES <= dataset.stats().node.bytes < FEW_BYTES
        (pid,) = fetcher_pids(places / "run")
        os.kill(pid, signal.SIGKILL)
        check(dataset, (40, 70))  # through its successor; a shard of which many are asked for is fetched whole
        assert dataset.stats().node.bytes < FEW_BYTES
    assert not list((tmp_path / "cache").rglob("shard*"))
    assert not left_over(places / "run")


def test_so_it_is_on_the_wire(data: Path, tmp_path: Path, moto: S3Server) -> None:
    moto.make_bucket("large")
    store = open_store(resolve_store("s3://large/shards", moto.options))
    for path in data.iterdir():
        store.upload(path, path.name)
    with (
        FaultProxy(moto.endpoint) as proxy,
        StreamingDataset(
            remote="s3://large/shards",
            local=tmp_path / "cache",
            storage_options={**moto.options, "endpoint_url": proxy.url},
        ) as dataset,
    ):
        check(dataset)
        assert len(IDS) * SAMPLE_BYTES <= proxy.counts["bytes"] < FEW_BYTES
