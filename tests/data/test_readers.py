"""Open shards are closed at once, or as soon as whoever reads them is done; nobody waits for that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock import StreamingDataset
from tests.streaming import ids_of, write_samples

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def dataset(tmp_path: Path) -> StreamingDataset:
    return StreamingDataset(local=write_samples(tmp_path, 40))


def test_closing_while_another_thread_reads(dataset: StreamingDataset) -> None:
    shelf = dataset._here().open_shards
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
    shelf = dataset._here().open_shards
    with shelf:
        shelf.get(0)
        dataset.close()  # as a signal handler may do
        assert len(shelf) == 1
    assert len(shelf) == 0
