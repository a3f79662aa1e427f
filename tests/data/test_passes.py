"""The notebook of passes: whoever takes part agrees on the epoch, in whatever process."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.data import seat
from penstock.data.passes import NO_WORKER, PassState, SharedPasses
from penstock.errors import ResumeError
from penstock.order.cursor import Cursor


def next_start(notes: PassState) -> Cursor:
    if notes.is_state_new and notes.state is not None:
        return Cursor(notes.state["epoch"], notes.state["position"])
    return Cursor(notes.next_epoch, 0)


def test_each_pass_of_a_single_process_is_the_next_epoch() -> None:
    book = SharedPasses()
    assert [book.join(NO_WORKER, None, next_start).epoch for _ in range(3)] == [0, 1, 2]


def test_workers_of_one_pass_agree_and_their_next_pass_is_the_next_epoch() -> None:
    book = SharedPasses()
    joined = [(book.join(worker, key, next_start).epoch) for key in ("17", "99") for worker in (1, 0, 2)]
    assert joined == [0, 0, 0, 1, 1, 1]


def test_a_worker_that_comes_twice_under_one_key_begins_anew() -> None:
    """Persistent workers keep their seed, and a generator with a fixed seed gives the same one to each pass."""
    book = SharedPasses()
    assert [book.join(worker, "17", next_start).epoch for worker in (0, 1, 1, 0)] == [0, 0, 1, 1]


def test_announced_passes_are_joined_once_by_each_worker() -> None:
    book = SharedPasses()
    for epoch in range(3):
        announced = book.announce(2, next_start)
        assert announced.epoch == epoch
        assert [book.join(worker, "17", next_start).epoch for worker in (1, 0)] == [epoch, epoch]
    alone = book.announce(0, next_start)
    assert book.join(NO_WORKER, None, next_start).epoch == alone.epoch == 3


def test_setting_the_epoch_and_loading_a_state() -> None:
    book = SharedPasses()
    book.set_epoch(7)
    assert book.join(NO_WORKER, None, next_start).epoch == 7
    book.load({"epoch": 3, "position": 40})
    book.set_epoch(3)  # as trainers do before each epoch: the place within it stays
    assert book.join(NO_WORKER, None, next_start).at == Cursor(3, 40)
    assert book.join(NO_WORKER, None, next_start).at == Cursor(4, 0)
    book.load({"epoch": 3, "position": 40})
    book.set_epoch(9)
    assert book.join(NO_WORKER, None, next_start).at == Cursor(9, 0)
    with pytest.raises(ResumeError, match="epoch -1"):
        book.set_epoch(-1)


def _join(book: SharedPasses, worker: int, epochs: multiprocessing.Queue[int]) -> None:
    seat._worker_info = lambda: worker  # a loader's worker, as torch would say
    epochs.put(book.join(worker, "5", next_start).epoch)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_share_the_book(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    book, epochs = SharedPasses(), context.Queue()
    for expected in range(2):
        workers = [context.Process(target=_join, args=(book, worker, epochs)) for worker in range(2)]
        for worker in workers:
            worker.start()
        assert [epochs.get(timeout=60) for _ in workers] == [expected, expected]
        for worker in workers:
            worker.join()
    assert book.read().next_epoch == 2


def test_a_process_that_is_nobodys_worker_keeps_its_own_book() -> None:
    context: Any = multiprocessing.get_context("fork")
    book, epochs = SharedPasses(), context.Queue()
    book.set_epoch(3)
    ranks = [context.Process(target=_begin, args=(book, epochs)) for _ in range(2)]
    for rank in ranks:
        rank.start()
    assert [epochs.get(timeout=60) for _ in ranks] == [3, 3]
    for rank in ranks:
        rank.join()
    assert book.read().next_epoch == 3


def _begin(book: SharedPasses, epochs: multiprocessing.Queue[int]) -> None:
    epochs.put(book.join(NO_WORKER, None, next_start).epoch)


def test_a_copy_has_a_book_of_its_own() -> None:
    book = SharedPasses()
    book.set_epoch(4)
    copy = pickle.loads(pickle.dumps(book))
    assert copy.join(NO_WORKER, None, next_start).epoch == 4
    assert book.read().next_epoch == 4


def test_the_file_has_no_name() -> None:
    book = SharedPasses()
    assert "(deleted)" in str(Path(f"/proc/self/fd/{book._file.descriptor}").readlink())


def test_threads_begin_passes_of_their_own() -> None:
    book = SharedPasses()
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda _: book.join(NO_WORKER, None, next_start).epoch, range(200)))
    assert sorted(begun) == list(range(200))
