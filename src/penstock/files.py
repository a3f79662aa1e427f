"""Files that appear whole or not at all."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PART_SUFFIX = ".part"


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Give a hidden name beside `path` to write to; it becomes `path` if the block ends well, and vanishes if not.

    Any number of processes may do so at once: the last one wins, and nobody ever sees half a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART_SUFFIX}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
