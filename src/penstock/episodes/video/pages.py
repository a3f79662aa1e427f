"""Memory for kept pictures: pages of their own, so that they can go back, and used again, as new ones cost time."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

LARGE_PICTURE_BYTES = 256 << 10  # smaller ones lie between other things
_MOST_BESIDE = 8 << 20  # for a picture that comes just before another goes


def bytes_in_pages(num_bytes: int) -> int:
    """Return how much memory so many bytes take."""
    if num_bytes < LARGE_PICTURE_BYTES:
        return num_bytes
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class PicturePages:
    """Gives memory for pictures, and keeps what comes back for others of the same size. Safe for threads.

    The system clears pages before it gives them, which takes many times as long as it takes to write a picture. And in
    an order that fits the video almost all pictures go before the next ones come.

    Args:
        limit_bytes: When pictures and what lies ready take a little more than this, memory goes back to the system.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes + min(_MOST_BESIDE, limit_bytes // 8)
        self._free: defaultdict[int, list[mmap.mmap]] = defaultdict(list)
        self._process = os.getpid()
        self._lock = threading.RLock()  # a picture may go whenever the garbage collector comes by
        self.num_bytes = self.num_free_bytes = 0

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return memory for a picture; it comes back when nobody has the array any more, nor a part of it."""
        if num_bytes < LARGE_PICTURE_BYTES:
            return np.empty(num_bytes, np.uint8)
        with self._lock:
            free = self._free[num_bytes]
            pages = free.pop() if free else None
            if pages is not None:
                self.num_free_bytes -= bytes_in_pages(num_bytes)
            elif self.num_bytes + num_bytes > self._limit:  # the rest is for pictures of other sizes
                self.clear()
        if pages is None:
            try:
                pages = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError:  # there are too many
                return np.empty(num_bytes, np.uint8)
            with self._lock:
                self.num_bytes += bytes_in_pages(num_bytes)
        picture = np.frombuffer(pages, np.uint8)
        weakref.finalize(picture, self._take_back, pages).atexit = False
        return picture

    def _take_back(self, pages: mmap.mmap) -> None:
        if os.getpid() != self._process:  # in a forked child: another thread may have had the lock
            return
        num_bytes = len(pages)
        size = bytes_in_pages(num_bytes)
        with self._lock:
            if self.num_bytes > self._limit:
                self.num_bytes -= size
            else:
                self._free[num_bytes].append(pages)
                self.num_free_bytes += size

    def clear(self) -> None:
        """Release to the system what lies ready."""
        with self._lock:
            self._free.clear()
            self.num_bytes -= self.num_free_bytes
            self.num_free_bytes = 0
