"""The store is away for a while: the job waits, and goes on as if nothing had been. All settings are the defaults."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import StreamingDataset
from penstock.errors import AccessDeniedError, ObjectNotFoundError, StoreTimeoutError
from tests.servers.faults import FaultProxy, Faults
from tests.servers.script import Answer, run_script
from tests.streaming import ids_of, sample, write_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.nginx import WebServer

NUM_SAMPLES = 200
AWAY_S = 4.0  # three tries in a row were over long before
ADVANCE: dict[str, Any] = {
    "batch_size": 10,
    "predownload": 20,
}  # so that most shards are still to come when the store goes away


@pytest.fixture(scope="module", params=["raw", "zstd"])
def folder(nginx: WebServer, request: pytest.FixtureRequest) -> str:
    compression = None if request.param == "raw" else request.param
    name = f"outage-{request.param}"
    write_samples(nginx.files / name, NUM_SAMPLES, compression=compression)
    (nginx.files / name / "beside.txt").write_text("beside")
    return name


@pytest.fixture
def proxy(nginx: WebServer) -> Iterator[FaultProxy]:
    with FaultProxy(nginx.url) as proxy:
        yield proxy


@contextmanager
def away(proxy: FaultProxy, seconds: float = AWAY_S) -> Iterator[None]:
    """The store is gone when the block begins, and comes back by itself."""
    with _for_a_while(seconds, proxy.go_away, proxy.come_back):
        yield


@contextmanager
def busy(proxy: FaultProxy, seconds: float = AWAY_S) -> Iterator[None]:
    """The store answers 503 SlowDown to everything when the block begins, and recovers by itself."""

    def slow_down() -> None:
        proxy.faults = Faults(rate=1.0, kinds=("busy",))

    def recover() -> None:
        proxy.faults = Faults()

    with _for_a_while(seconds, slow_down, recover):
        yield
    assert proxy.counts["busy"] > 0


@contextmanager
def _for_a_while(seconds: float, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    begin()
    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def check(samples: list[Any]) -> None:
    """Every sample came once, and is what was written."""
    assert sorted(ids_of(samples)) == list(range(NUM_SAMPLES))
    for each in samples:
        written = sample(each["id"])
        assert each["text"] == written["text"]
        assert np.array_equal(each["x"], written["x"])


def finish_epoch(proxy: FaultProxy, folder: str, outage: Callable[[FaultProxy], Any]) -> None:
    """Read an epoch in the middle of which something happens to the store."""
    with StreamingDataset(remote=f"{proxy.url}/{folder}", **ADVANCE) as dataset:
        samples = iter(dataset)
        found = [next(samples) for _ in range(20)]
        with outage(proxy):
            found += samples
        check(found)
        assert dataset.stats().node.retries > 0


@pytest.mark.parametrize("outage", [away, busy])
def test_in_the_middle_of_an_epoch(proxy: FaultProxy, folder: str, outage: Callable[[FaultProxy], Any]) -> None:
    finish_epoch(proxy, folder, outage)


@pytest.mark.soak
def test_for_a_whole_minute(proxy: FaultProxy, folder: str) -> None:
    finish_epoch(proxy, folder, lambda proxy: away(proxy, 60.0))


def test_while_the_dataset_is_opened(proxy: FaultProxy, folder: str) -> None:
    with away(proxy), StreamingDataset(remote=f"{proxy.url}/{folder}") as dataset:
        check(list(dataset))


def test_while_samples_are_read_by_number(proxy: FaultProxy, folder: str) -> None:
    with StreamingDataset(remote=f"{proxy.url}/{folder}") as dataset, away(proxy):
        assert [each["id"] for each in dataset[[7, 190, 33]]] == [7, 190, 33]


def test_while_an_object_is_fetched(proxy: FaultProxy, folder: str) -> None:
    with StreamingDataset(remote=f"{proxy.url}/{folder}") as dataset, away(proxy):
        assert dataset.fetch("beside.txt").read_text() == "beside"


# --- What is no outage, and one that does not end -----------------------------------------------------------


def test_what_is_missing_or_forbidden_fails_at_once() -> None:
    """A reader that asks twice has waited for nothing."""
    for status, kind in ((404, ObjectNotFoundError), (403, AccessDeniedError)):
        with run_script(lambda _, status=status: Answer(status)) as server:  # type: ignore[misc]
            with pytest.raises(kind):
                StreamingDataset(remote=f"{server.url}/data")
            assert len(server.requests) == 1


def test_a_store_that_never_comes_back_is_given_up(proxy: FaultProxy, folder: str) -> None:
    url = f"{proxy.url}/{folder}"
    words = rf"{url}/part.*/shard.*: no data arrived for .* s, in \d+ attempts. The last error was: .*onnect"
    with StreamingDataset(remote=url, download_timeout=1.0, **ADVANCE) as dataset:
        samples = iter(dataset)
        next(samples)
        proxy.go_away()
        with pytest.raises(StoreTimeoutError, match=words):
            list(samples)
