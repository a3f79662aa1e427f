"""Files that appear whole or not at all, and whose errors are ours."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from penstock.errors import AccessDeniedError, ObjectNotFoundError, PenstockError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

PART_SUFFIX = ".part"
_COPY_BYTES = 1 << 20
_MOST_PIECES = 1024  # of one call, on every system we know
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD of Linux, and the flag that Linux and macOS both have


@contextmanager
def atomic_write(path: Path, *, flush: bool = False) -> Iterator[Path]:
    """Yield a hidden name beside `path` to write to; it becomes `path` if the block ends well, and vanishes if not.

    Any number of processes may do so at once: the last one wins, and half a file is never seen. With `flush` that
    holds for machines that lose power, too: the bytes are on the disk before they get their name. The name itself is
    once the folder is flushed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}{PART_SUFFIX}")
    try:
        yield part
        if flush:
            flush_file(part)
        os.replace(part, path)  # noqa: PTH105  tests record the order of such calls
    finally:
        part.unlink(missing_ok=True)


def write_file(path: Path, pieces: Sequence[Buffer], *, flush: bool) -> None:
    """Write a file that appears whole or not at all, also on a machine that loses power if it is flushed."""
    with os_errors(path), atomic_write(path, flush=flush) as part, part.open("xb", buffering=0) as file:
        left = [memoryview(piece).cast("B") for piece in pieces]
        while left:  # with as few calls as can be: after each the thread queues for the interpreter lock
            written = os.writev(file.fileno(), left[:_MOST_PIECES])
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]


def flush_file(path: Path) -> None:
    """Flush the bytes of a file to the disk."""
    _flush(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, _flush_data)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, as they are now."""
    with os_errors(folder):
        _flush(folder, os.O_RDONLY | os.O_DIRECTORY, os.fsync)


def _flush(path: Path, flags: int, flush: Callable[[int], None]) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        flush(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have no such thing
            raise
    finally:
        os.close(descriptor)


def _flush_data(descriptor: int) -> None:
    """Flush the bytes of a file to the disk, not only to the memory of the system or of the disk."""
    if sys.platform == "darwin":  # where fsync leaves them in the memory of the disk
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def exchange(first: Path, second: Path) -> bool:
    """Swap two folders at one stroke, so that there is never neither; False if this system or disk cannot."""
    import ctypes  # which is seldom needed

    library = ctypes.CDLL(None, use_errno=True)
    one, two = os.fsencode(first), os.fsencode(second)
    if hasattr(library, "renameat2"):
        done = library.renameat2(_HERE, one, _HERE, two, _EXCHANGE)
    elif hasattr(library, "renamex_np"):
        done = library.renamex_np(one, two, _EXCHANGE)
    else:
        return False
    return bool(done == 0)


def copy_file(source: Path, target: Path) -> None:
    """Copy the bytes of a file, and nothing else of it."""
    with source.open("rb") as file, target.open("wb") as out:
        while chunk := file.read(_COPY_BYTES):
            out.write(chunk)


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those that hold it, with these rights (less the umask); what is there stays as it is."""
    if not folder.exists():
        make_folders(folder.parent, mode)
        with suppress(FileExistsError):  # another process was quicker
            folder.mkdir(mode)


_ADVICE = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some space, your quota is used up",
    errno.EROFS: "its disk is read-only, so choose another folder",
    errno.EEXIST: "what is there is no folder: remove it, or choose another place",
    errno.EMFILE: "raise the limit of open files, which `ulimit -n` shows",
}


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Translate errors of the operating system into ours, naming the file."""
    try:
        yield
    except PenstockError:
        raise  # some of ours are errors of the operating system too
    except (OSError, UnicodeEncodeError) as error:
        raise our_error(error, path) from error


def our_error(error: OSError | UnicodeEncodeError, path: Path) -> StoreError:
    """Return our error for one of the operating system about a file, to be raised from that."""
    if isinstance(error, UnicodeEncodeError):
        return ObjectNotFoundError(f"no file can be called {str(path)!r}")
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return ObjectNotFoundError(f"{path} is missing, or is not a file ({error.strerror})", path=str(path))
    if isinstance(error, PermissionError):
        return AccessDeniedError(f"no permission to access {path}: {error.strerror}", path=str(path))
    advice = f" ({_ADVICE[error.errno]})" if error.errno in _ADVICE else ""
    return StoreError(f"{path}: {error.strerror or error}{advice}", path=str(path))


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; others, such as pipes, would wait for a writer.

    Its kind is asked of the open file, so a pipe cannot take its place between the question and the opening.
    """
    with os_errors(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket, or a device that is not there
                raise _not_regular(path) from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _not_regular(path)
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise


def check_path(path: Path) -> None:
    """Raise if nothing can ever be there, because the path is too long."""
    with os_errors(path), suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        path.lstat()


def read_file(path: Path) -> bytes:
    """Read a regular file."""
    with os_errors(path), open_file(path) as file:
        return file.read()


def _not_regular(path: Path) -> ObjectNotFoundError:
    return ObjectNotFoundError(f"{path} is not a regular file", path=str(path))


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left in a folder that no other process is writing to."""
    for path in folder.glob(f".*{PART_SUFFIX}"):
        path.unlink(missing_ok=True)
