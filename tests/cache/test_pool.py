"""Pieces: in order of urgency, as many as allowed, given up when they hang."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from queue import Queue
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from penstock.errors import StoreError, StoreTimeoutError
from penstock.fetcher.pieces import LOWEST, MOST_AT_ONCE, PartFile, PieceOwner, PiecePool, StoreHandle
from penstock.fetcher.reads import AwaitedPieces
from penstock.storage.base import open_store
from tests.cache.kit import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def pool() -> Iterator[PiecePool]:
    pool = PiecePool()
    yield pool
    pool.close()


def source(timeout_s: float = 30) -> StoreHandle:
    return StoreHandle(store=open_store("memory://test-pool"), url="memory://test-pool", timeout_s=timeout_s)


def test_results_come_in_the_order_asked_for(pool: PiecePool) -> None:
    owner = PieceOwner(0)
    pieces = [pool.submit(owner, 1, source(), "x", lambda i=i: i) for i in range(100)]  # type: ignore[misc]
    assert pool.wait(pieces) == list(range(100))


def test_small_ones_all_begin_at_once_though_a_thread_is_idle(pool: PiecePool) -> None:
    owner, together = PieceOwner(0), threading.Barrier(MOST_AT_ONCE)
    pool.wait([pool.submit(owner, 1, source(), "x", lambda: None)])
    pieces = [pool.submit(owner, 1, source(), "x", lambda: together.wait(20)) for _ in range(MOST_AT_ONCE)]
    assert sorted(pool.wait(pieces)) == list(range(MOST_AT_ONCE))


def test_never_more_than_the_bound_and_fewer_beside_large_ones(pool: PiecePool) -> None:
    gate = threading.Event()
    large = [pool.submit(PieceOwner(1), 1 << 20, source(), "x", gate.wait) for _ in range(3 * pool.limit)]
    wait_until(lambda: pool.num_running == pool.limit)
    assert pool.limit < MOST_AT_ONCE
    small = [pool.submit(PieceOwner(0), 1, source(), "x", gate.wait) for _ in range(3 * MOST_AT_ONCE)]
    time.sleep(0.1)
    assert pool.limit < pool.num_running < MOST_AT_ONCE
    gate.set()
    pool.wait([*large, *small])


def test_what_comes_next_is_done_when_the_last_has_come(pool: PiecePool) -> None:
    told: Queue[tuple[list[int], BaseException | None]] = Queue()
    pieces = [pool.submit(PieceOwner(0), 1, source(), "x", lambda i=i: i) for i in range(50)]  # type: ignore[misc]
    AwaitedPieces(pool, pieces, lambda found, error: told.put((found, error)))
    assert told.get(timeout=30) == (list(range(50)), None)
    AwaitedPieces(pool, [], lambda found, error: told.put((found, error)))
    assert told.get(timeout=30) == ([], None)


def test_a_failure_is_told_once_and_ends_the_others(pool: PiecePool) -> None:
    told: Queue[tuple[list[int], BaseException | None]] = Queue()
    failure, gate = StoreError("broken"), threading.Event()

    def fail() -> None:
        gate.wait()
        raise failure

    pieces = [pool.submit(PieceOwner(0), 1, source(), "x", fail) for _ in range(50)]
    AwaitedPieces(pool, pieces, lambda found, error: told.put((found, error)))
    gate.set()
    assert told.get(timeout=30) == ([], failure)
    assert pool.wait([pool.submit(PieceOwner(0), 1, source(), "x", lambda: 7)]) == [7]
    assert told.empty()


def test_what_hangs_is_ended_for_those_who_do_not_wait(pool: PiecePool) -> None:
    told: Queue[tuple[list[int], BaseException | None]] = Queue()
    gate = threading.Event()
    try:
        pieces = [pool.submit(PieceOwner(0), 1, source(0.01), "a/key", gate.wait)]
        AwaitedPieces(pool, pieces, lambda found, error: told.put((found, error)))
        while told.empty():
            time.sleep(0.01)
            pool.end_hanging(pieces)
        assert isinstance(told.get()[1], StoreTimeoutError)
    finally:
        gate.set()


def test_the_most_urgent_goes_first(pool: PiecePool) -> None:
    gate, log = threading.Event(), []
    lock = threading.Lock()
    large = 1 << 20
    holders = [pool.submit(PieceOwner(0), large, source(), "x", gate.wait) for _ in range(pool.limit)]

    def note(rank: int) -> None:
        with lock:
            log.append(rank)

    ranks = [5, 3, 1, 4, 2] * 20
    pieces = [pool.submit(PieceOwner(rank), large, source(), "x", lambda r=rank: note(r)) for rank in ranks]  # type: ignore[misc]
    assert pool.num_running <= pool.limit
    gate.set()
    pool.wait([*holders, *pieces])
    assert sum(log[:20]) < sum(log[40:60]) < sum(log[80:])


def test_large_pieces_are_bounded_by_their_bytes(pool: PiecePool) -> None:
    gate = threading.Event()
    pieces = [pool.submit(PieceOwner(0), 60 << 20, source(), "x", gate.wait) for _ in range(8)]
    assert pool.num_running <= 2
    gate.set()
    pool.wait(pieces)


def test_few_large_pieces_begin_beside_small_ones(pool: PiecePool) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)
    small = pool.submit(PieceOwner(0), 1, source(), "x", gate.wait)

    def hold() -> None:
        begun.release()
        gate.wait()

    large = [pool.submit(PieceOwner(1), 1 << 20, source(), "x", hold) for _ in range(pool.limit)]
    for _ in range(LOWEST):
        assert begun.acquire(timeout=30)
    assert not begun.acquire(timeout=0.2)
    gate.set()
    pool.wait([small, *large])


def test_the_first_failure_ends_the_rest(pool: PiecePool) -> None:
    def fail() -> None:
        raise StoreError("broken")

    owner = PieceOwner(0)
    pieces = [pool.submit(owner, 1, source(), "x", fail) for _ in range(50)]
    with pytest.raises(StoreError, match="broken"):
        pool.wait(pieces)
    assert pool.wait([pool.submit(owner, 1, source(), "x", lambda: 7)]) == [7]


def test_a_piece_that_hangs_is_given_up_and_blocks_no_other(pool: PiecePool) -> None:
    gate = threading.Event()
    try:
        for _ in range(3):
            hanging = [pool.submit(PieceOwner(0), 1, source(0.05), "a/key", gate.wait) for _ in range(pool.limit)]
            with pytest.raises(StoreTimeoutError, match=r"memory://test-pool/a/key.*0\.15 s"):
                pool.wait(hanging)
        assert pool.wait([pool.submit(PieceOwner(0), 1, source(), "x", lambda: 7)]) == [7]
    finally:
        gate.set()


def test_a_piece_that_shows_signs_of_life_takes_as_long_as_it_takes(
    pool: PiecePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of the test's own: a machine that stands still for a while is no piece that hangs."""
    now_s = 0.0
    monkeypatch.setattr("penstock.fetcher.pieces.time", SimpleNamespace(monotonic=lambda: now_s))

    def trickle() -> int:
        nonlocal now_s
        for _ in range(30):
            time.sleep(0.02)
            now_s += 0.25
            pool.note_life()
        return 7

    assert pool.wait([pool.submit(PieceOwner(0), 1, source(0.1), "x", trickle)]) == [7]


def test_a_piece_that_is_given_up_ends_its_pause_and_its_tries(pool: PiecePool) -> None:
    begun, ended, owner = threading.Event(), threading.Event(), PieceOwner(0)

    def try_for_ever() -> None:
        begun.set()
        try:
            pool.pause(3600)
        except CancelledError:
            ended.set()
            raise

    pieces = [pool.submit(owner, 1, source(), "x", try_for_ever)]
    assert begun.wait(30)
    pool.cancel_all_of(owner)
    assert ended.wait(30)
    with pytest.raises(CancelledError):
        pool.wait(pieces)


def test_signs_of_life_and_pauses_outside_of_a_piece(pool: PiecePool) -> None:
    pool.note_life()
    pool.pause(0.001)


def test_cancelling_wakes_the_waiter(pool: PiecePool) -> None:
    gate, owner = threading.Event(), PieceOwner(0)
    try:
        pieces = [pool.submit(owner, 1, source(), "x", gate.wait) for _ in range(20)]
        threading.Timer(0.05, lambda: pool.cancel_all_of(owner)).start()
        with pytest.raises(CancelledError):
            pool.wait(pieces)
    finally:
        gate.set()


def test_a_late_piece_writes_nowhere(tmp_path: Path) -> None:
    part = PartFile(tmp_path / "x.part", 10)
    part.write(b"12345", 5)
    part.write(b"abcde", 0)
    part.close()
    part.write(b"late!", 0)
    assert (tmp_path / "x.part").read_bytes() == b"abcde12345"
    part.discard()
    assert not (tmp_path / "x.part").exists()
