"""The notebook of passes: all who take part agree on the epoch, in whatever process."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.data import ranks
from penstock.data.passes import NO_WORKER, Pass, PassState, SharedPasses
from penstock.errors import ResumeError
from penstock.order.cursor import Cursor


def next_start(notes: PassState) -> Cursor:
    if notes.is_state_new and notes.state is not None:
        return Cursor(notes.state["epoch"], notes.state["position"])
    return Cursor(notes.next_epoch, 0)


def join(book: SharedPasses, worker: int, key: str | None) -> Pass:
    with book.changed() as notes:
        begun = notes.find(worker, key, None) or notes.begin(next_start(notes), key=key)
        begun.workers.append(worker)
        return begun


def announce(book: SharedPasses, num_workers: int) -> Pass:
    with book.changed() as notes:
        return notes.begin(next_start(notes), expected=range(num_workers) or [NO_WORKER])


def test_each_pass_of_a_single_process_is_the_next_epoch() -> None:
    book = SharedPasses()
    assert [join(book, NO_WORKER, None).epoch for _ in range(3)] == [0, 1, 2]


def test_workers_of_one_pass_agree_and_their_next_pass_is_the_next_epoch() -> None:
    book = SharedPasses()
    joined = [(join(book, worker, key).epoch) for key in ("17", "99") for worker in (1, 0, 2)]
    assert joined == [0, 0, 0, 1, 1, 1]


def test_a_worker_that_comes_twice_under_one_key_begins_anew() -> None:
    """Persistent workers keep their seed, and a generator with a fixed seed gives the same one to each pass."""
    book = SharedPasses()
    assert [join(book, worker, "17").epoch for worker in (0, 1, 1, 0)] == [0, 0, 1, 1]


def test_announced_passes_are_joined_once_by_each_worker() -> None:
    book = SharedPasses()
    for epoch in range(3):
        announced = announce(book, 2)
        assert announced.epoch == epoch
        assert [join(book, worker, "17").epoch for worker in (1, 0)] == [epoch, epoch]
    alone = announce(book, 0)
    assert join(book, NO_WORKER, None).epoch == alone.epoch == 3


def test_setting_the_epoch_and_loading_a_state() -> None:
    book = SharedPasses()
    book.set_epoch(7)
    assert join(book, NO_WORKER, None).epoch == 7
    book.load({"epoch": 3, "position": 40})
    book.set_epoch(3)  # as trainers do before each epoch: the place within it stays
    assert join(book, NO_WORKER, None).at == Cursor(3, 40)
    assert join(book, NO_WORKER, None).at == Cursor(4, 0)
    book.load({"epoch": 3, "position": 40})
    book.set_epoch(9)
    assert join(book, NO_WORKER, None).at == Cursor(9, 0)
    with pytest.raises(ResumeError, match="epoch -1"):
        book.set_epoch(-1)


def _join(book: SharedPasses, worker: int, epochs: multiprocessing.Queue[int]) -> None:
    ranks._worker_info = lambda: worker  # a loader's worker, as torch would say
    epochs.put(join(book, worker, "5").epoch)


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


def test_a_process_that_is_no_worker_keeps_its_own_book() -> None:
    context: Any = multiprocessing.get_context("fork")
    book, epochs = SharedPasses(), context.Queue()
    book.set_epoch(3)
    others = [context.Process(target=_begin, args=(book, epochs)) for _ in range(2)]
    for other in others:
        other.start()
    assert [epochs.get(timeout=60) for _ in others] == [3, 3]
    for other in others:
        other.join()
    assert book.read().next_epoch == 3


def _begin(book: SharedPasses, epochs: multiprocessing.Queue[int]) -> None:
    epochs.put(join(book, NO_WORKER, None).epoch)


def test_a_copy_has_a_book_of_its_own() -> None:
    book = SharedPasses()
    book.set_epoch(4)
    copy = pickle.loads(pickle.dumps(book))
    assert join(copy, NO_WORKER, None).epoch == 4
    assert book.read().next_epoch == 4


def test_the_file_has_no_name() -> None:
    book = SharedPasses()
    assert "(deleted)" in str(Path(f"/proc/self/fd/{book._file.descriptor}").readlink())


def test_threads_begin_passes_of_their_own() -> None:
    book = SharedPasses()
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda _: join(book, NO_WORKER, None).epoch, range(200)))
    assert sorted(begun) == list(range(200))
