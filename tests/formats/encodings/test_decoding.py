"""Images are decoded by several threads, within bounds, in memory that is used again when nothing points into it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from penstock import LocalDataset, MDSWriter
from penstock.errors import ColumnValueError, CorruptShardError
from penstock.formats.encodings import decoding
from penstock.formats.encodings.decoding import (
    MAX_PIXELS,
    BufferPool,
    DecodeBudget,
    WorkingMemory,
    map_in_threads,
    num_threads,
)
from tests.formats.making import read_stored

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def _four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def square(number: int) -> int:
    return number * number


@pytest.mark.usefixtures("_four_processors")
@pytest.mark.parametrize("count", [*range(10), 100])
def test_results_come_in_order(count: int) -> None:
    assert map_in_threads(square, range(count)) == [square(number) for number in range(count)]


@pytest.mark.usefixtures("_four_processors")
def test_threads_work_at_the_same_time() -> None:
    """Each waits for the others: one after the other they would never be done."""
    meeting = threading.Barrier(4, timeout=30)
    assert len(set(map_in_threads(lambda _: meeting.wait(), range(4)))) == 4


@pytest.mark.usefixtures("_four_processors")
@pytest.mark.parametrize("bad", [0, 1, 7])
def test_an_error_comes_out_when_all_are_done(bad: int) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == bad:
            raise ValueError(f"bad {number}")
        done.append(number)

    with pytest.raises(ValueError, match=f"bad {bad}"):
        map_in_threads(work, range(8))
    assert {number for number in range(8) if number % 4 != bad % 4} <= set(done)


@pytest.mark.usefixtures("_four_processors")
def test_a_forked_process_starts_its_own_threads() -> None:
    map_in_threads(square, range(8))
    pid = os.fork()
    if pid == 0:
        is_right = map_in_threads(square, range(8)) == [square(number) for number in range(8)]
        os._exit(0 if is_right and decoding._pool.made is not None else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_workers_have_one_processor_and_ranks_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert num_threads() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert num_threads() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert num_threads() == 1
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(num_threads) == 1


def test_one_call_has_a_bound() -> None:
    budget = DecodeBudget(max_bytes=300)
    budget.take(10, 5)
    budget.take(5, 10)
    with pytest.raises(ColumnValueError, match="take more than 300 B when decoded: read fewer samples"):
        budget.take(1, 1)
    with pytest.raises(ColumnValueError, match="more than"):
        DecodeBudget().take(MAX_PIXELS, 2)


def test_threads_share_what_they_may_use() -> None:
    """Twelve of forty bytes each, and never more than a hundred in use; one that is larger than all works alone."""
    memory = WorkingMemory(100)
    lock = threading.Lock()
    used, most = 0, 0

    def work(num_bytes: int) -> None:
        nonlocal used, most
        with memory.use(num_bytes):
            with lock:
                used += num_bytes
                most = max(most, used)
                assert used <= 100 or used == num_bytes
            with lock:
                used -= num_bytes

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [40] * 6 + [500] + [40] * 6))
    assert most == 500
    assert used == 0


def test_a_failure_gives_its_share_back() -> None:
    memory = WorkingMemory(100)
    with pytest.raises(ValueError, match="bad"), memory.use(100):
        raise ValueError("bad")
    with memory.use(100):
        pass


def test_a_forked_process_begins_anew() -> None:
    with decoding._working.use(1 << 40):
        pid = os.fork()
        if pid == 0:
            with decoding._working.use(1 << 40):
                os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def encoded(kind: str) -> bytes:
    out = BytesIO()
    Image.new("L", (200, 100)).save(out, format=kind)
    return out.getvalue()


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("png", encoded("PNG")),
        ("jpeg", encoded("JPEG")),
        ("pil", Image.new("1", (200, 100))),
        ("list[jpeg]", [Image.new("L", (200, 100))]),
        ("list[png]", [Image.new("L", (200, 100))]),
        ("jpeg_array", [encoded("JPEG")]),
    ],
)
def test_a_batch_of_large_images_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, value: Any
) -> None:
    """Sixty thousand bytes each; the bound is lowered, so that it need not be a gigabyte here."""
    with MDSWriter(out=tmp_path, columns={"image": encoding}) as writer:
        for _ in range(8):
            writer.write({"image": value})
    monkeypatch.setattr(decoding, "MAX_DECODED_BYTES", 5 * 60_000)
    dataset = LocalDataset(tmp_path, image_decoder="array")
    assert len(dataset[:5]) == 5
    with pytest.raises(CorruptShardError, match=r"column 'image' holds images that together take more than .*"):
        dataset[:6]
    assert len(LocalDataset(tmp_path, image_decoder="pil")[:]) == 8
    assert len(LocalDataset(tmp_path, image_decoder="raw")[:]) == 8


def test_large_images_are_decoded_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With threads for all of them, but memory for one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(decoding, "_SMALL_BYTES", 0)
    monkeypatch.setattr(decoding, "_working", WorkingMemory(1))
    with MDSWriter(out=tmp_path, columns={"image": "png"}) as writer:
        for _ in range(8):
            writer.write({"image": encoded("PNG")})
    images = LocalDataset(tmp_path, image_decoder="array")[:]
    assert [sample["image"].shape for sample in images] == [(100, 200, 3)] * 8


LIMIT = 1000


def address(memory: memoryview) -> int:
    array = np.frombuffer(memory, np.uint8)
    return int(array.ctypes.data)


def kept_bytes(recycled: BufferPool) -> int:
    return sum(memory.getbuffer().nbytes for memory in recycled._kept())


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 2 * LIMIT), st.integers(0, 10)), max_size=60))
def test_what_is_held_stays_as_it_was(steps: list[tuple[int, int]]) -> None:
    """Each step takes memory and writes a number of its own all over it, then lets go of one held before."""
    recycled = BufferPool(LIMIT)
    held: list[tuple[Any, int]] = []
    for number, (size, drop) in enumerate(steps):
        array = np.frombuffer(recycled.take(size), np.uint8)
        assert len(array) == size
        array[:] = number
        held.append((array, number))
        assert kept_bytes(recycled) <= LIMIT
        for value, written in held:
            assert (value == written).all()
        if drop < len(held):
            del held[drop]


def test_what_is_not_held_is_used_again() -> None:
    recycled = BufferPool(LIMIT)
    first = address(recycled.take(100))
    assert address(recycled.take(60)) == first
    held = np.frombuffer(recycled.take(100), np.uint8)[3:7].reshape(2, 2)  # a view of a view keeps all of it
    second = address(recycled.take(100))
    assert second != first
    del held
    assert {address(recycled.take(100)) for _ in range(8)} == {first, second}


def test_it_keeps_no_more_than_it_may() -> None:
    recycled = BufferPool(LIMIT)
    held = [recycled.take(300) for _ in range(50)]
    assert kept_bytes(recycled) <= LIMIT
    assert len({address(memory) for memory in held}) == 50
    assert len(recycled.take(LIMIT + 1)) == LIMIT + 1
    del held
    gc.collect()
    for size in (*range(10, 300, 10), 900, 900, 900):  # those that are used again grow
        assert len(recycled.take(size)) == size
        assert kept_bytes(recycled) <= LIMIT


def test_threads_have_their_own() -> None:
    recycled = BufferPool(LIMIT)
    mine = address(recycled.take(100))
    theirs: list[int] = []
    thread = threading.Thread(target=lambda: theirs.append(address(recycled.take(100))))
    thread.start()
    thread.join()
    assert theirs != [mine]


@pytest.mark.parametrize("keep", [1, 3, 40])
def test_images_that_are_kept_do_not_change(keep: int) -> None:
    """Of the images decoded one after the other, the last few are held, as training loops do."""
    stored = [jpeg(number) for number in range(12)]
    expected = [np.asarray(Image.open(BytesIO(data)).convert("RGB")) for data in stored]
    held: list[tuple[int, Any]] = []
    for number in [*range(12), 3, 3, 7, *range(12)]:
        array = read_stored("jpeg", stored[number], image_decoder="array")
        assert array.flags.writeable
        held = [*held, (number, array)][-keep:]
        for kept, value in held:
            assert np.abs(value.astype(int) - expected[kept]).max() <= 2


def jpeg(number: int) -> bytes:
    """A picture of a size of its own, all of one colour."""
    out = BytesIO()
    picture = np.full((40 + 5 * number, 60 - 3 * number, 3), 20 * number, np.uint8)
    Image.fromarray(picture).save(out, "JPEG", quality=95)
    return out.getvalue()
