"""Large blocks of memory that cost little to touch for the first time."""

from __future__ import annotations

import mmap
from contextlib import suppress


def new_memory(num_bytes: int) -> mmap.mmap:
    """Return zeroed memory of this process; what is never written takes none.

    It asks for large pages where the system has them: the first use of each page then costs a fraction, which for
    blocks as large as a shard is most of the cost of filling them.
    """
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # it is advice: a kernel without large pages refuses it, and all goes on
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
