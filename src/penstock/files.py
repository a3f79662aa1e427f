"""Files that appear whole or not at all, and whose errors are ours."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from penstock.errors import AccessDeniedError, ObjectNotFoundError, PenstockError, StoreError

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


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into ours, naming the file."""
    try:
        yield
    except PenstockError:
        raise  # some of ours are errors of the operating system too
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise ObjectNotFoundError(f"{path} is missing, or is no file", path=str(path)) from error
    except PermissionError as error:
        raise AccessDeniedError(f"no permission for {path}: {error.strerror}", path=str(path)) from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}", path=str(path)) from error


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; others, such as pipes, would wait for somebody to write."""
    with translated(path):
        if not path.is_file():
            path.stat()
            raise ObjectNotFoundError(f"{path} is not a regular file", path=str(path))
        return path.open("rb")


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left in a folder that nobody else is writing to."""
    for path in folder.glob(f".*{PART_SUFFIX}"):
        path.unlink(missing_ok=True)
