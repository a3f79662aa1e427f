"""How much memory images may take when they are decoded: a small file can hold a very large image."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from penstock.errors import ColumnValueError
from penstock.processes import abandon_in_children
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

# Pillow refuses larger images as decompression bombs; arrays are held to the same bound.
MAX_PIXELS = 2 * (1024**3 // 4 // 3)
_RGB_BYTES = 3
# What one call may give back: eight images of that size, or 1400 of a million pixels.
MAX_DECODED_BYTES = 4 << 30
# What threads may use at the same time while they decode, unless one image alone takes more. Smaller images do not
# queue: eight threads with one of them each stay well below.
MAX_WORKING_BYTES = 1 << 30
_SMALL_BYTES = 32 << 20


class WorkingMemory:
    """Lets threads work side by side as long as what they use fits; one alone may always work."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.abandon()

    def abandon(self) -> None:
        """Begin anew: threads that were at work when this process was forked stayed behind with what they use."""
        self._used_bytes = 0
        self._changed = threading.Condition()
        abandon_in_children(self)

    @contextmanager
    def use(self, num_bytes: int) -> Iterator[None]:
        """Wait for room, which those who have it give back when they are done with their image."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used_bytes or self._used_bytes + num_bytes <= self._max_bytes)
            self._used_bytes += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._used_bytes -= num_bytes
                self._changed.notify_all()


class DecodeBudget:
    """Room for the images of one call, which are all in memory at its end."""

    def __init__(self, max_bytes: int | None = None, working: WorkingMemory | None = None) -> None:
        self._max_bytes = MAX_DECODED_BYTES if max_bytes is None else max_bytes
        self._working = working or _working
        self._taken_bytes = 0
        self._lock = threading.Lock()

    def take(self, width: int, height: int) -> None:
        """Count an image that shall be decoded, or raise if it, or all of them, would be too large."""
        if width * height > MAX_PIXELS:
            raise ColumnValueError(f"holds an image of {width} × {height} pixels, more than {MAX_PIXELS}")
        with self._lock:
            self._taken_bytes += width * height * _RGB_BYTES
            is_too_much = self._taken_bytes > self._max_bytes
        if is_too_much:
            raise ColumnValueError(
                f"holds images that would take more than {format_bytes(self._max_bytes)} when decoded at once: read"
                " fewer samples at a time, or with image_decoder='pil' or 'raw'"
            )

    def working(self, num_bytes: int) -> AbstractContextManager[None]:
        """Decode within the memory that all threads share."""
        return _nothing_to_wait_for if num_bytes <= _SMALL_BYTES else self._working.use(num_bytes)


_working = WorkingMemory(MAX_WORKING_BYTES)
_nothing_to_wait_for = nullcontext()
