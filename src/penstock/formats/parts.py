"""From a dataset's folder to an open shard: find its files, check them, unpack them if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.codecs.digest import check_digest
from penstock.codecs.unpack import map_file, release, unpack_to_file, unpack_to_memory
from penstock.errors import CorruptShardError
from penstock.files import translated
from penstock.formats.base import ReadOptions, get_format
from penstock.index.paths import resolve_inside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.formats.base import ShardBytes, ShardReader
    from penstock.index.model import FileInfo, Part, ShardInfo


def open_shard(
    folder: Path,
    info: ShardInfo,
    options: ReadOptions = ReadOptions(),  # noqa: B008  frozen
    *,
    validate_hash: str | None = None,
    unpack_dir: Path | None = None,
) -> ShardReader:
    """Open a shard of a local dataset.

    Compressed parts are unpacked into memory, or into `unpack_dir`, where the next reader finds them. With
    `validate_hash` the digest of each stored file is checked first.
    """
    parts: list[ShardBytes] = []
    try:
        for part in info.parts:
            parts.append(load_part(folder, part, info.layout.compression, validate_hash, unpack_dir))
        return get_format(info.layout.format).open(parts, info, options)
    except BaseException:
        for data in parts:
            release(data)
        raise


def open_files(paths: Sequence[Path], info: ShardInfo, options: ReadOptions) -> ShardReader:
    """Open a shard by its raw files."""
    parts: list[ShardBytes] = []
    try:
        for path, part in zip(paths, info.parts, strict=True):
            parts.append(load_file(path, part.raw, None))
        return get_format(info.layout.format).open(parts, info, options)
    except BaseException:
        for data in parts:
            release(data)
        raise


def load_part(
    folder: Path, part: Part, compression: str | None, validate_hash: str | None, unpack_dir: Path | None
) -> ShardBytes:
    """Give the raw bytes of one file of a shard, checked against the index."""
    raw = resolve_inside(folder, part.raw.basename)
    if part.packed is None or compression is None:
        return load_file(raw, part.raw, validate_hash)
    if _has_size(raw, part.raw):
        return load_file(raw, part.raw, validate_hash)
    unpacked = None if unpack_dir is None else resolve_inside(unpack_dir, part.raw.basename)
    if unpacked is not None and _has_size(unpacked, part.raw):
        try:
            return load_file(unpacked, part.raw, validate_hash)
        except CorruptShardError:  # our own copy, which can be made anew
            unpacked.unlink(missing_ok=True)
    stored = resolve_inside(folder, part.packed.basename)
    packed = load_file(stored, part.packed, validate_hash)
    try:
        if unpacked is None:
            return unpack_to_memory(packed, compression, part.raw.num_bytes, str(stored))
        unpack_to_file(packed, compression, part.raw.num_bytes, unpacked, str(stored))
    finally:
        release(packed)
    return load_file(unpacked, part.raw, None)


def _has_size(path: Path, info: FileInfo) -> bool:
    with translated(path):
        return path.is_file() and path.stat().st_size == info.num_bytes


def load_file(path: Path, info: FileInfo, validate_hash: str | None) -> ShardBytes:
    """Map a stored file whose size, and digest if asked for, are those of the index."""
    data = map_file(path)
    try:
        if len(data) != info.num_bytes:
            raise CorruptShardError(
                f"{path} has {len(data)} bytes, but the index says {info.num_bytes}: fetch or write it again",
                path=str(path),
            )
        if validate_hash is not None:
            check_digest(data, info.digests, validate_hash, str(path))
    except BaseException:
        release(data)
        raise
    return data
