"""Memory is used again when nobody looks at it, and not before."""

from __future__ import annotations

import gc
import threading
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from penstock.formats.encodings.decoding import BufferPool
from tests.formats.making import read_stored

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


def test_what_nobody_holds_is_used_again() -> None:
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
