"""Memory of kept pictures: used again, bounded, and given back."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from penstock.episodes.video.pyav import LARGE_PICTURE_BYTES, PicturePages

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_SIZE = LARGE_PICTURE_BYTES
_LIMIT = 64 * _SIZE


def _address(picture: npt.NDArray[np.uint8]) -> int:
    return int(picture.__array_interface__["data"][0])


def test_memory_of_a_picture_that_is_gone_is_used_again() -> None:
    pages = PicturePages(_LIMIT)
    first = pages.take(_SIZE)
    address = _address(first)
    del first
    assert pages.num_free_bytes == _SIZE
    assert _address(pages.take(_SIZE)) == address
    assert pages.num_bytes == _SIZE


def test_a_part_of_a_picture_keeps_its_memory() -> None:
    pages = PicturePages(_LIMIT)
    part = pages.take(_SIZE).reshape(2, -1)[1:, 5:]
    part[...] = 7
    other = pages.take(_SIZE)
    other[...] = 1
    assert (part == 7).all()
    assert pages.num_bytes == 2 * _SIZE


def test_a_full_memory_is_used_again_as_one_picture_goes_for_another() -> None:
    pages = PicturePages(_LIMIT)
    kept = [pages.take(_SIZE) for _ in range(64)]
    gone = -1
    for number in range(100):
        kept.append(pages.take(_SIZE))
        assert number == 0 or _address(kept[-1]) == gone
        gone = _address(kept.pop(0))
    assert pages.num_bytes == 65 * _SIZE


def test_what_is_beyond_the_limit_goes_back_with_its_pictures_and_all_when_it_is_cleared() -> None:
    pages = PicturePages(_LIMIT)
    kept = [pages.take(_SIZE) for _ in range(200)]
    assert pages.num_bytes == 200 * _SIZE
    kept.clear()
    assert pages.num_bytes == pages.num_free_bytes <= _LIMIT + _LIMIT // 8
    pages.clear()
    assert pages.num_bytes == pages.num_free_bytes == 0


def test_memory_for_other_sizes_makes_room() -> None:
    pages = PicturePages(_LIMIT)
    kept = [pages.take(_SIZE) for _ in range(64)]
    kept.clear()
    large = [pages.take(2 * _SIZE) for _ in range(32)]
    assert pages.num_bytes <= _LIMIT + _LIMIT // 8
    assert len(large) == 32


def test_small_pictures_have_memory_as_everything_has() -> None:
    pages = PicturePages(_LIMIT)
    assert len(pages.take(_SIZE - 1)) == _SIZE - 1
    assert pages.num_bytes == 0


def test_threads_never_share_a_picture() -> None:
    pages = PicturePages(_LIMIT)

    def write(mark: int) -> bool:
        kept = []
        for _ in range(50):
            kept.append(pages.take(_SIZE))
            kept[-1][...] = mark
            if len(kept) == 5 and not (kept.pop(0) == mark).all():
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(write, range(8)))
    pages.clear()
    assert pages.num_bytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_lets_pictures_go_while_a_thread_of_its_parent_had_the_lock() -> None:
    pages = PicturePages(_LIMIT)
    kept = [pages.take(_SIZE)]
    with ThreadPoolExecutor(1) as threads:
        threads.submit(pages._lock.acquire).result()
        child = os.fork()
        if not child:
            kept.clear()
            os._exit(0)
        threads.submit(pages._lock.release).result()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
