"""From a dataset's folder to an open shard: find its files, check them, unpack them if need be."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from penstock.codecs.digest import check_digest
from penstock.codecs.unpack import MappedFile, map_file, release, unpack_into, unpack_to_memory
from penstock.errors import ConfigError, CorruptShardError, ObjectNotFoundError, StoreError
from penstock.files import atomic_write, open_file, os_errors, read_file
from penstock.formats.base import ReadOptions, get_format
from penstock.index.paths import resolve_inside
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from penstock.formats.base import ShardBytes, ShardReader
    from penstock.index.model import FileInfo, IndexedShard, ObjectSpan, Part


def open_shard(
    folder: Path,
    info: IndexedShard,
    options: ReadOptions = ReadOptions(),  # noqa: B008  frozen
    *,
    validate_hash: str | None = None,
    unpack_dir: Path | None = None,
    memory_limit: int | None = None,
) -> ShardReader:
    """Open a shard of a local dataset.

    Compressed parts are unpacked into memory, up to `memory_limit`, or into `unpack_dir`, where the next reader finds
    them. With `validate_hash` the digest of each stored file is checked first.
    """

    def load() -> Iterator[ShardBytes]:
        room = memory_limit
        for part in info.parts:
            data = load_part(folder, part, info.layout.compression, validate_hash, unpack_dir, room)
            if room is not None and not isinstance(data, MappedFile):
                room -= len(data)
            yield data

    return _open(load(), info, options)


def open_files(paths: Sequence[Path], info: IndexedShard, options: ReadOptions) -> ShardReader:
    """Open a shard by its raw files."""
    pairs = zip(paths, info.parts, strict=True)
    return _open((load_file(path, part.raw, None) for path, part in pairs), info, options)


def _open(loading: Iterable[ShardBytes], info: IndexedShard, options: ReadOptions) -> ShardReader:
    """Open a shard of parts that are loaded one after another; if one fails, those before are let go."""
    with ExitStack() as loaded:
        parts: list[ShardBytes] = []
        for data in loading:
            parts.append(data)
            loaded.callback(release, data)
        reader = get_format(info.layout.format).open(parts, info, options)
        loaded.pop_all()
    return reader


def load_part(
    folder: Path,
    part: Part,
    compression: str | None,
    validate_hash: str | None,
    unpack_dir: Path | None,
    room: int | None = None,
) -> ShardBytes:
    """Return the raw bytes of one file of a shard, checked against the index."""
    if part.span is not None:
        return _load_span(folder, part, part.span, compression, validate_hash, room)
    raw = resolve_inside(folder, part.raw.basename)
    if part.packed is None or compression is None:
        return load_file(raw, part.raw, validate_hash)
    stored = resolve_inside(folder, part.packed.basename)
    if _has_size(raw, part.raw) and not _is_outdated(raw, stored):
        return load_file(raw, part.raw, validate_hash)
    copy = None if unpack_dir is None else resolve_inside(unpack_dir, part.raw.basename)
    if copy is not None and _has_size(copy, part.raw) and _is_current(copy, stored):
        try:
            return load_file(copy, part.raw, validate_hash)
        except CorruptShardError:  # our own copy, which can be made anew
            copy.unlink(missing_ok=True)
    made_from = [] if copy is None else _describe_file(stored)
    packed = load_file(stored, part.packed, validate_hash)
    try:
        if copy is not None:
            return _make_copy(copy, packed, compression, part.raw.num_bytes, packed=stored, made_from=made_from)
        _check_room(stored, part.raw.num_bytes, room)
        return unpack_to_memory(packed, compression, part.raw.num_bytes, str(stored))
    finally:
        release(packed)


def _load_span(
    folder: Path, part: Part, span: ObjectSpan, compression: str | None, validate_hash: str | None, room: int | None
) -> ShardBytes:
    """Read a part from within a larger file, into memory: it need not begin where a page does."""
    path = resolve_inside(folder, span.basename)
    _check_room(path, part.raw.num_bytes, room)
    with os_errors(path), open_file(path) as file:
        file.seek(span.offset)
        data = file.read(span.num_bytes)
    if len(data) != span.num_bytes:
        raise CorruptShardError(
            f"{path} ends before byte {span.offset + span.num_bytes}, where {part.stored.basename} should end:"
            " download or write it again",
            path=str(path),
        )
    if validate_hash is not None:
        check_digest(data, part.stored.digests, validate_hash, str(path))
    if part.packed is None or compression is None:
        return data
    return unpack_to_memory(data, compression, part.raw.num_bytes, str(path))


def _check_room(path: Path, num_bytes: int, room: int | None) -> None:
    if room is not None and num_bytes > room:
        raise ConfigError(
            f"{path} needs {format_bytes(num_bytes)} when decompressed, more than memory_limit allows: raise"
            " memory_limit, or set unpack_dir, so that shards are decompressed to files",
            path=str(path),
        )


def _has_size(path: Path, info: FileInfo) -> bool:
    with os_errors(path):
        return path.is_file() and path.stat().st_size == info.num_bytes


def load_file(path: Path, info: FileInfo, validate_hash: str | None) -> ShardBytes:
    """Map a stored file whose size, if it is known, and digest, if asked for, are those of the index."""
    data = map_file(path)
    try:
        if info.is_exact and len(data) != info.num_bytes:
            raise CorruptShardError(
                f"{path} has {len(data)} bytes, but the index says {info.num_bytes}: download or write it again",
                path=str(path),
            )
        if validate_hash is not None:
            check_digest(data, info.digests, validate_hash, str(path))
    except BaseException:
        release(data)
        raise
    return data


# --- Raw copies of compressed files, kept in a folder for this and later readers -----------------------------

# A copy counts only if it was made from the packed file that lies there now. Beside each lies a small hidden file that
# says what it was made from and which file it is itself; both by size, time and inode. It is written before the copy
# gets its name: a process that is killed in between leaves a note about a file that is not there, which fits none.
_LONGEST_NOTE = 4096


def note_path(copy: Path) -> Path:
    """Return the hidden file that says what a copy was made from."""
    return copy.with_name(f".{copy.name}.made-from")


def _describe_file(path: Path) -> list[int]:
    """Return which file lies here, so that another one, also of the same name and size, is told apart."""
    with os_errors(path):
        status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _is_current(copy: Path, packed: Path) -> bool:
    """Return whether a copy was made of the packed file that lies there now."""
    note = _read_note(copy)
    return note is not None and note == {"packed": _describe_file(packed), "copy": _describe_file(copy)}


def _is_outdated(raw: Path, packed: Path) -> bool:
    """Return whether a raw file beside its packed one is a copy that was made of an earlier one.

    Files without a note were put there by others, who know what they do.
    """
    try:
        return _read_note(raw) is not None and not _is_current(raw, packed)
    except ObjectNotFoundError:
        return False  # the raw file is all there is


def _make_copy(
    copy: Path, data: ShardBytes, compression: str, num_bytes: int, *, packed: Path, made_from: list[int]
) -> ShardBytes:
    """Unpack a packed file, which `made_from` describes as it was before it was read, and map the copy."""
    with os_errors(copy), atomic_write(copy, flush=True) as part:
        unpack_into(data, compression, num_bytes, part, str(packed))
        note = {"packed": made_from, "copy": _describe_file(part)}
        with atomic_write(note_path(copy)) as note_part:
            note_part.write_text(json.dumps(note))
        return map_file(part)


def _read_note(copy: Path) -> Any:
    try:
        data = read_file(note_path(copy))
        return json.loads(data) if len(data) <= _LONGEST_NOTE else None
    except (StoreError, ValueError):
        return None
