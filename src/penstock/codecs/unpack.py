"""Compressed files to raw ones: into memory or into a file, never larger than the index declares."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.codecs.compress import reading_codec
from penstock.errors import CorruptShardError, StoreError
from penstock.files import atomic_write, open_file, os_errors
from penstock.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer


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


def map_file(path: Path) -> mmap.mmap | bytes:
    """Map a file for reading. The mapping holds a descriptor of its own; an empty file has nothing to map."""
    with os_errors(path), open_file(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)


class MappedFile(mmap.mmap):
    """A file mapped for reading, whose pages can be let go of at any time: they stay in the cache of the system."""

    begin = 0  # where in the file the mapping begins


def map_span(path: Path, begin: int, num_bytes: int) -> memoryview | bytes:
    """Map a part of a file for reading, which may begin anywhere; it must lie within the file."""
    with os_errors(path), open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if begin + num_bytes > size:
            raise CorruptShardError(
                f"{path} has {size} bytes, and ends before byte {begin + num_bytes}: fetch or write it again",
                path=str(path),
            )
        if num_bytes == 0:
            return b""
        before = begin % mmap.ALLOCATIONGRANULARITY  # a mapping begins where a page does
        mapped = MappedFile(file.fileno(), before + num_bytes, access=mmap.ACCESS_READ, offset=begin - before)
    mapped.begin = begin - before
    return memoryview(mapped)[before:]


def sliceable(data: mmap.mmap | bytes | memoryview) -> tuple[mmap.mmap | bytes, int]:
    """Return what slices to `bytes` in one step, and where in it the data begins: a view takes two steps."""
    if not isinstance(data, memoryview):
        return data, 0
    if isinstance(data.obj, MappedFile):  # a mapping that `map_span` made ends where the span does
        return data.obj, len(data.obj) - len(data)
    return bytes(data), 0


def _mapping(data: mmap.mmap | bytes | memoryview) -> object:
    """Return what bytes are a part of."""
    return data.obj if isinstance(data, memoryview) else data


def check_whole(data: mmap.mmap | bytes | memoryview, name: str) -> None:
    """Raise if a mapped file was cut: to read what is no longer there would end the process by a signal."""
    mapped = _mapping(data)
    if isinstance(mapped, MappedFile) and mapped.size() < mapped.begin + len(mapped):
        raise CorruptShardError(
            f"{name} was cut from {mapped.begin + len(mapped)} to {mapped.size()} bytes while it was being read:"
            " download or write it again",
            shard=name,
        )


def drop_pages(data: mmap.mmap | bytes | memoryview) -> None:
    """Take the pages of a mapped file out of this process's memory; what was unpacked into memory stays."""
    mapped = _mapping(data)
    if isinstance(mapped, MappedFile) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def release(data: mmap.mmap | bytes | memoryview) -> None:
    """Unmap bytes that are done with; what a traceback still looks at goes when the traceback does."""
    mapped = _mapping(data)
    with suppress(BufferError):
        if isinstance(data, memoryview):
            data.release()
        if isinstance(mapped, mmap.mmap):
            mapped.close()


def unpack_to_memory(data: Buffer, compression: str, num_bytes: int, where: str) -> mmap.mmap | bytes:
    """Decompress into anonymous memory of the declared size. Pages that are never written cost nothing."""
    codec = reading_codec(compression)
    if num_bytes == 0:
        codec.decompress_into(data, bytearray(), where)
        return b""
    try:
        out = new_memory(num_bytes)
    except OSError as error:
        raise StoreError(f"not enough memory for the {format_bytes(num_bytes)} of {where}: {error.strerror}") from error
    codec.decompress_into(data, out, where)
    return out


def unpack_to_file(data: Buffer, compression: str, num_bytes: int, path: Path, where: str) -> None:
    """Decompress into a file that appears complete or not at all, also when others do the same at once."""
    with os_errors(path), atomic_write(path) as part:
        unpack_into(data, compression, num_bytes, part, where)


def unpack_into(data: Buffer, compression: str, num_bytes: int, path: Path, where: str) -> None:
    """Decompress into a new file."""
    codec = reading_codec(compression)
    with os_errors(path), path.open("x+b") as file:
        if num_bytes == 0:
            codec.decompress_into(data, bytearray(), where)
            return
        take_space(file.fileno(), num_bytes)
        with mmap.mmap(file.fileno(), num_bytes) as out:
            codec.decompress_into(data, out, where)


def take_space(descriptor: int, num_bytes: int) -> None:
    """Make a file this long on the disk: writing to a mapping of a full disk is a signal, not an error.

    A length that the disk does not have is refused before anything is taken: others would see a full disk meanwhile.
    """
    disk = os.fstatvfs(descriptor)
    if num_bytes > disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:  # macOS has no such call
        os.ftruncate(descriptor, num_bytes)
