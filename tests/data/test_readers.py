"""Open shards are closed at once, or as soon as their reader is done; nothing waits for that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock import StreamingDataset
from penstock.wire.quota import OpenShardQuota
from tests.streaming import ids_of, write_samples

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def dataset(tmp_path: Path) -> StreamingDataset:
    return StreamingDataset(local=write_samples(tmp_path, 40))


def test_closing_while_another_thread_reads(dataset: StreamingDataset) -> None:
    shelf = dataset.readers.here.main.shards
    assert ids_of(dataset[[0, 15, 25]]) == [0, 15, 25]
    assert len(shelf) == 3
    is_reading, may_end = threading.Event(), threading.Event()

    def read_for_long() -> None:
        with shelf:
            shelf.get(0)
            is_reading.set()
            may_end.wait(30)

    thread = threading.Thread(target=read_for_long)
    thread.start()
    is_reading.wait(30)
    dataset.close()  # returns although the other thread is not done
    assert len(shelf) == 3
    may_end.set()
    thread.join()
    assert len(shelf) == 0
    assert ids_of(dataset[[0, 15, 25]]) == [0, 15, 25]
    assert len(shelf) == 3  # closed once, not for ever
    dataset.close()
    assert len(shelf) == 0


def test_closing_while_this_thread_reads(dataset: StreamingDataset) -> None:
    shelf = dataset.readers.here.main.shards
    with shelf:
        shelf.get(0)
        dataset.close()  # as a signal handler may do
        assert len(shelf) == 1
    assert len(shelf) == 0


def test_too_many_are_closed_at_once_or_after_use(dataset: StreamingDataset) -> None:
    shelf = dataset.readers.here.main.shards
    assert ids_of(dataset[[0, 15, 25, 35]]) == [0, 15, 25, 35]
    shelf.keep_to(OpenShardQuota(2 * int(shelf._mean_bytes) + 2))
    assert len(shelf) == 2
    assert 2 in shelf  # those used last stay
    assert 3 in shelf
    with shelf:
        shelf.get(2)
        shelf.keep_to(OpenShardQuota(None, True))
        assert len(shelf) == 2
    assert len(shelf) == 0
    assert ids_of(dataset[[0, 15]]) == [0, 15]
    assert len(shelf) == 0  # for as long as a process waits for room
    shelf.keep_to(OpenShardQuota())
    assert ids_of(dataset[[0, 15]]) == [0, 15]
    assert len(shelf) == 2


def test_who_waits_needs_nothing_that_is_open(dataset: StreamingDataset) -> None:
    shelf = dataset.readers.here.main.shards
    assert ids_of(dataset[[0, 15, 25]]) == [0, 15, 25]
    is_waiting, may_end = threading.Event(), threading.Event()
    left = []

    def wait_for_long() -> None:
        with shelf:
            with shelf.waiting():
                is_waiting.set()
                may_end.wait(30)
            left.append(len(shelf))
            shelf.get(3)
            left.append(len(shelf))

    thread = threading.Thread(target=wait_for_long)
    thread.start()
    is_waiting.wait(30)
    shelf.keep_to(OpenShardQuota(None, True))  # returns at once, although the other thread is not done
    assert len(shelf) == 0
    may_end.set()
    thread.join()
    assert left == [0, 1]
    assert len(shelf) == 0


@pytest.mark.parametrize("batch_size", [1, 16])
def test_the_first_sample_waits_for_its_own_shard_alone(tmp_path: Path, batch_size: int) -> None:
    dataset = StreamingDataset(local=write_samples(tmp_path, 200), shuffle=True, batch_size=batch_size)
    samples = iter(dataset)
    first = next(samples)
    assert len(dataset.readers.here.main.shards) == 1
    seen = [*ids_of([first]), *ids_of(list(samples))]
    assert sorted(seen) == list(range(200))
    assert dataset.stats().samples == 200
