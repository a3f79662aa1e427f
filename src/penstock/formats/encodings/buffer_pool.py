"""Memory for large values, used again once nobody looks at it.

Fresh memory is slow: the system has to find and clear every page of it. A decoder that is handed what the images before
the last have left works in memory that is mapped, and maybe still in the processor's cache.
"""

from __future__ import annotations

import io
import threading
from collections import deque

# The oldest are free first, if any are.
_MOST_TRIES = 4


class BufferPool:
    """Hands out memory, and keeps up to so many bytes of it per thread to hand them out again."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._of_thread = threading.local()

    def take(self, num_bytes: int) -> memoryview:
        """Give memory to write to. It is the caller's for as long as anything points into it."""
        if num_bytes > self._max_bytes:
            return memoryview(bytearray(num_bytes))
        kept = self._kept()
        memory = _find_unused(kept)
        if memory is None:
            memory = io.BytesIO()
            kept.append(memory)
        if num_bytes > _num_bytes(memory):
            memory.seek(num_bytes - 1)
            memory.write(b"\0")
            while sum(map(_num_bytes, kept)) > self._max_bytes:
                kept.popleft()  # not the one just grown, which is the last; whoever looks at it keeps it
        return memory.getbuffer()[:num_bytes]

    def _kept(self) -> deque[io.BytesIO]:
        if not hasattr(self._of_thread, "kept"):
            self._of_thread.kept = deque()
        kept: deque[io.BytesIO] = self._of_thread.kept
        return kept


def _find_unused(kept: deque[io.BytesIO]) -> io.BytesIO | None:
    """Look at the oldest, which move to the end."""
    for _ in range(min(_MOST_TRIES, len(kept))):
        kept.rotate(-1)
        if _is_unused(kept[-1]):
            return kept[-1]
    return None


def _is_unused(memory: io.BytesIO) -> bool:
    """Tell whether nothing points into it any more: Python does not let it be written to before."""
    try:
        memory.write(b"")
    except BufferError:
        return False
    return True


def _num_bytes(memory: io.BytesIO) -> int:
    return memory.getbuffer().nbytes
