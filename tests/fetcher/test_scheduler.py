"""A wait for room ends: with room, or with an error in time, whatever else goes on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cachedir.items import item_of_shard
from penstock.errors import CacheTooSmallError
from penstock.fetcher.main import open_scheduler
from penstock.wire.item import Item, Want
from tests.cache.kit import Dataset, wait_until, write_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.fetcher.scheduler import Scheduler


pytestmark = pytest.mark.usefixtures("runtime")

GROUP = (1, 1)
FAR_TOO_LONG_S = 60.0


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = open_scheduler()
    yield scheduler
    scheduler.close()
    assert scheduler.join(FAR_TOO_LONG_S)


@contextmanager
def running(action: Callable[[], Any], num_threads: int = 1) -> Iterator[None]:
    """Do something over and over again in the background."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            action()

    threads = [threading.Thread(target=run) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def item_of(data: Dataset, shard: int) -> Item:
    return item_of_shard(data.infos[shard], shard, "0e")


def test_a_storm_of_notes_hides_no_request_that_is_late(tmp_path: Path, scheduler: Scheduler) -> None:
    data = write_dataset(tmp_path)
    scheduler.register(GROUP, [data.stream(timeout_s=0.5)], 150_000)
    with data.cache() as reader, reader.lease(0, data.shards[0]), running(scheduler.released, 2):
        scheduler.ask(GROUP, 0, item_of(data, 0)).future.result(FAR_TOO_LONG_S)  # it is there: counted now
        requests = [scheduler.ask(GROUP, 0, item_of(data, shard)) for shard in data.shards[1:4]]
        for request in requests:
            with pytest.raises(CacheTooSmallError, match="no room for"):
                request.future.result(FAR_TOO_LONG_S)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_many_requests_and_a_limit_just_below_one_shard(tmp_path: Path, compression: str | None) -> None:
    """Prefetches, requests and clients that come and go, on a machine that has other things to do."""
    data = write_dataset(tmp_path, num_shards=8, compression=compression)

    def ask(number: int) -> None:
        with data.cache(limit_bytes=99_000, timeout_s=2) as cache:
            for shard in data.shards:
                cache.expect([(0, other, ahead) for ahead, other in enumerate(data.shards)])
                with pytest.raises(CacheTooSmallError, match="raise cache_limit"):
                    cache.lease(0, data.shards[(number + data.shards.index(shard)) % len(data.shards)])

    with running(lambda: sum(range(10_000)), 2), ThreadPoolExecutor(6) as pool:
        for asked in [pool.submit(ask, number) for number in range(6)]:
            asked.result(FAR_TOO_LONG_S)


# --- Two ways to wait for ever that there were: a job is queued anew, and those who wait for work do not hear of it ---


def start_drivers(scheduler: Scheduler, data: Dataset) -> None:
    """Have several threads rest, as after a busy time."""
    requests = [scheduler.ask(GROUP, 0, item_of(data, shard)) for shard in data.shards[2:]]
    for shard, request in zip(data.shards[2:], requests, strict=True):
        request.future.result(FAR_TOO_LONG_S)
        scheduler.taken(GROUP, 0, item_of(data, shard).identity)

    wait_until(lambda: not scheduler.stats().queued and not scheduler.stats().in_flight)


def test_a_prefetch_without_room_that_a_client_comes_to_wait_for(
    tmp_path: Path, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset(tmp_path, num_shards=12, compression="zstd")
    item = item_of(data, 0)
    scheduler.register(GROUP, [data.stream()], None)
    start_drivers(scheduler, data)
    scheduler.unregister(GROUP)
    # Room for the shard, but not for the packed file besides: a prefetch has to wait for that, a request has not.
    scheduler.register(GROUP, [data.stream()], item.raw_bytes + 100)
    asked = []
    wait_for_space = scheduler._wait_for_space

    def wait_late(job: Any, *, was_urgent: bool) -> None:
        asked.append(scheduler.ask(GROUP, 0, item))
        threading.Event().wait(0.2)  # the others go back to sleep
        wait_for_space(job, was_urgent=was_urgent)

    monkeypatch.setattr(scheduler, "_wait_for_space", wait_late)
    scheduler.expect(GROUP, [Want(0, item, 3, is_present=False)])
    wait_until(lambda: asked)
    assert asked[0].future.result(FAR_TOO_LONG_S).num_downloaded > 0


def test_a_job_that_was_cancelled_and_is_wanted_again(
    tmp_path: Path, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset(tmp_path, num_shards=12)
    item = item_of(data, 0)
    scheduler.register(GROUP, [data.stream()], None)
    start_drivers(scheduler, data)
    is_admitting, may_go_on = threading.Event(), threading.Event()
    bring, is_wanted_again = scheduler._bring, scheduler._is_wanted_again

    def admit_late(job: Any, running: Any) -> Any:
        is_admitting.set()
        may_go_on.wait(FAR_TOO_LONG_S)
        return bring(job, running)

    def look_late(job: Any) -> bool:
        threading.Event().wait(0.2)  # the others go back to sleep
        return is_wanted_again(job)

    monkeypatch.setattr(scheduler, "_bring", admit_late)
    monkeypatch.setattr(scheduler, "_is_wanted_again", look_late)
    scheduler.expect(GROUP, [Want(0, item, 3, is_present=False)])
    is_admitting.wait(FAR_TOO_LONG_S)
    scheduler.unregister(GROUP)  # the only one who wanted it leaves
    scheduler.register(GROUP, [data.stream()], None)
    request = scheduler.ask(GROUP, 0, item)  # and another one comes
    may_go_on.set()
    assert request.future.result(FAR_TOO_LONG_S).num_downloaded > 0
