"""How often a first batch from a store waits for an answer before it can ask on: round trips, not time."""

from __future__ import annotations

import asyncio
import json
import os
import time
from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import MDSWriter, StreamingDataLoader, StreamingDataset
from penstock.fetcher.pieces import LOWEST
from tests.servers.faults import FaultProxy
from tests.streaming import ids_of

if TYPE_CHECKING:
    from tests.servers.nginx import WebServer

NUM_SAMPLES, PER_SHARD, BATCH = 2000, 200, 40
COLUMNS = {"rows": {"id": "int", "text": "str"}, "tokens": {"id": "int", "tokens": "ndarray:int32:64"}}
HOUR_AGO_NS = time.time_ns() - 3600 * 10**9
LARGE_BYTES = 1 << 20
QUIET_S = 0.3  # a client that asks for several things at once has asked for all of them by then


class RoundTrips(FaultProxy):
    """Answers nothing until nothing more is asked for: what is asked for after that waited for these answers."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.rounds: list[int] = []  # how many requests were answered in each
        self.num_large: list[int] = []  # how many of those asked for much
        self._held: list[asyncio.Event] = []
        self._num_large = 0
        self._releasing: asyncio.TimerHandle | None = None

    async def _answer(self, *exchange: Any) -> None:
        event = asyncio.Event()
        self._held.append(event)
        begin, _, end = exchange[0].get("range").removeprefix("bytes=").partition("-")
        self._num_large += int(end or 0) - int(begin or 0) >= LARGE_BYTES
        if self._releasing is not None:
            self._releasing.cancel()
        self._releasing = self._loop.call_later(QUIET_S, self._release)
        await event.wait()
        await super()._answer(*exchange)

    def _release(self) -> None:
        held, self._held = self._held, []
        self.rounds.append(len(held))
        self.num_large.append(self._num_large)
        self._num_large = 0
        for event in held:
            event.set()


@pytest.fixture(scope="module")
def data(nginx: WebServer) -> WebServer:
    for kind, columns in COLUMNS.items():
        for compression in (None, "zstd"):
            draw = np.random.default_rng(0)
            folder = nginx.files / f"trips-{kind}-{compression}"
            size = PER_SHARD * (400 if kind == "rows" else 270)
            rmtree(folder, ignore_errors=True)  # of the same tests, if others came between them
            with MDSWriter(out=folder, columns=columns, compression=compression, size_limit=size) as writer:
                for number in range(NUM_SAMPLES):
                    text = "a" * int(draw.integers(300, 400))
                    tokens = draw.integers(0, 2**31, 64, dtype=np.int32)
                    writer.write({"id": number, "text": text, "tokens": tokens})
            for path in folder.iterdir():  # of data that were written just now, it is asked whether they changed since
                os.utime(path, ns=(HOUR_AGO_NS, HOUR_AGO_NS))
    return nginx


def rounds_of_first(
    data: WebServer, name: str, *, shuffle: bool, columnar: bool = False
) -> tuple[list[int], list[int]]:
    """Return the ids of the first batch, and the requests of each round trip that it took after that for the index."""
    with RoundTrips(data.url) as proxy:
        remote = f"{proxy.url}/{name}"
        with StreamingDataset(remote=remote, shuffle=shuffle, batch_size=BATCH, shuffle_seed=1) as dataset:
            assert dataset.num_shards > 8
            assert proxy.rounds == [1]
            if columnar:
                ids = next(iter(StreamingDataLoader(dataset, columnar=True)))["id"].tolist()
            else:
                ids = ids_of([next(iter(dataset))])
            return ids, proxy.rounds[1:]


@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", COLUMNS)
def test_of_raw_shards_only_the_samples_come(data: WebServer, kind: str, shuffle: bool, columnar: bool) -> None:
    ids, rounds = rounds_of_first(data, f"trips-{kind}-None", shuffle=shuffle, columnar=columnar)
    assert ids == list(range(BATCH if columnar else 1)) or shuffle
    # Samples of one size are where the index lets one expect them, and neighbours about there. Others have to be found
    # first. Of many ranges, the last one of each shard comes after the others: it tells their version.
    assert len(rounds) == (1 if kind == "tokens" or not shuffle else 2) + (1 if shuffle else 0), rounds
    assert sum(rounds) <= (2 * BATCH if shuffle else 1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_of_compressed_ones_the_shards_of_the_first_batch_come_alone(data: WebServer, shuffle: bool) -> None:
    _, rounds = rounds_of_first(data, "trips-rows-zstd", shuffle=shuffle)
    assert len(rounds) == 1
    assert rounds[0] == 1 or shuffle


def test_one_sample(data: WebServer) -> None:
    with RoundTrips(data.url) as proxy, StreamingDataset(remote=f"{proxy.url}/trips-tokens-None") as dataset:
        assert dataset[1234]["id"] == 1234
        assert len(proxy.rounds) == 2


def test_samples_that_are_not_where_one_expects_them_are_found_by_the_table(data: WebServer) -> None:
    name = "trips-elsewhere"
    copytree(data.files / "trips-tokens-None", data.files / name)
    index = json.loads((data.files / name / "index.json").read_text())
    for shard in index["shards"]:
        path = data.files / name / shard["raw_data"]["basename"]
        path.write_bytes(path.read_bytes() + bytes(20))  # then they do not end with the shard
        shard["raw_data"]["bytes"] += 20
        os.utime(path, ns=(HOUR_AGO_NS, HOUR_AGO_NS))
    (data.files / name / "index.json").write_text(json.dumps(index))
    with RoundTrips(data.url) as proxy, StreamingDataset(remote=f"{proxy.url}/{name}") as dataset:
        assert dataset[1234]["id"] == 1234
        assert len(proxy.rounds) == 3


def test_neighbours_that_are_not_where_one_expects_them_are_found_by_the_table(data: WebServer) -> None:
    name = "trips-uneven"
    with MDSWriter(out=data.files / name, columns={"text": "str"}, size_limit=1 << 16) as writer:
        for number in range(3000):
            writer.write({"text": f"{number:{4000 if number % 100 < 2 else 1}}"})
    for path in (data.files / name).iterdir():
        os.utime(path, ns=(HOUR_AGO_NS, HOUR_AGO_NS))
    with RoundTrips(data.url) as proxy, StreamingDataset(remote=f"{proxy.url}/{name}", batch_size=8) as dataset:
        first = next(iter(StreamingDataLoader(dataset)))
        assert [int(text) for text in first["text"]] == list(range(8))
        assert len(proxy.rounds) == 3


def test_large_shards_are_fetched_beside_the_first_batch_and_few_of_them(data: WebServer) -> None:
    name, num_samples, batch = "trips-large", 320, 12
    with MDSWriter(out=data.files / name, columns={"x": "ndarray:int32:16384"}, size_limit=80 * 65_600) as writer:
        for number in range(num_samples):
            writer.write({"x": np.full(16384, number, np.int32)})
    for path in (data.files / name).iterdir():
        os.utime(path, ns=(HOUR_AGO_NS, HOUR_AGO_NS))
    with (
        RoundTrips(data.url) as proxy,
        StreamingDataset(remote=f"{proxy.url}/{name}", shuffle=True, batch_size=batch) as dataset,
    ):
        first = next(iter(StreamingDataLoader(dataset, columnar=True)))
        assert len(first["x"]) == batch
        assert 1 <= proxy.num_large[1] <= LOWEST  # in the round of the samples, which comes after that of the index
