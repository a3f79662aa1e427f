"""Is a dataset whole? Every file, every size, every digest and, if asked, every value."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock.codecs.digest import check_digest
from penstock.codecs.unpack import release, unpack_to_memory
from penstock.data.stored import StoredDataset
from penstock.errors import MissingExtraError, PenstockError
from penstock.formats.base import ReadOptions, get_format
from penstock.formats.parts import load_file
from penstock.index.paths import resolve_inside

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from penstock.data.in_place.look import FilesLook
    from penstock.formats.base import ShardBytes
    from penstock.index.model import FileInfo, Part, ShardInfo

    # Of one part of a shard: the stored file and, if that is compressed, the raw one.
    Forms = list[tuple[ShardBytes, FileInfo]]

# How many samples are decoded at once: images take much more memory than they are stored in.
_ROWS = 8


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked, and what is wrong."""

    num_shards: int
    num_samples: int
    num_bytes: int  # as stored
    num_digests: int
    problems: tuple[str, ...]


def verify_dataset(
    place: str | os.PathLike[str],
    *,
    read_values: bool = False,
    allow_unsafe_types: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Check every stored file against the index and every shard against its own layout, whatever goes wrong.

    Files in a store are fetched anew, past all caches. With `read_values`, every value is decoded, and all pixels of
    every image.
    """
    options = ReadOptions(
        allow_unsafe_types=allow_unsafe_types or not read_values, image_decoder="array" if read_values else "raw"
    )
    problems = []
    num_digests = 0
    with StoredDataset.at(place, storage_options) as dataset:
        index = dataset.read_index()
        for shard in index.shards:
            try:
                with dataset.stored_shard(shard) as folder, _loaded(folder, shard) as forms:
                    for data, info in chain.from_iterable(forms):
                        num_digests += _check_all(data, info)
                    _read(forms, shard, options, read_values=read_values)
            except MissingExtraError:
                raise
            except (PenstockError, OSError) as error:
                problems.append(str(error))
    stored = [part.stored.num_bytes for shard in index.shards for part in shard.parts]
    return VerifyReport(len(index.shards), index.num_samples, sum(stored), num_digests, tuple(problems))


def verify_files(files: FilesLook, *, read_values: bool = False) -> VerifyReport:
    """Fetch, unpack and open every shard of files of other programs and, if asked, read every value."""
    options = ReadOptions(image_decoder="array" if read_values else "raw")
    problems = []
    for number, shard in enumerate(files.index.shards):
        try:
            with files.open_shard(number, options) as reader:
                if len(reader) != shard.num_samples:
                    problems.append(f"{shard.name} has {len(reader)} samples, and the index says {shard.num_samples}")
                for begin in range(0, len(reader) if read_values else 0, _ROWS):
                    reader.read(range(begin, min(begin + _ROWS, len(reader))))
        except MissingExtraError:
            raise
        except (PenstockError, OSError) as error:
            problems.append(str(error))
    num_bytes = int(files.index.columns.stored_sizes.sum())
    return VerifyReport(len(files.index.shards), files.index.num_samples, num_bytes, 0, tuple(problems))


@contextmanager
def _loaded(folder: Path, shard: ShardInfo) -> Iterator[list[Forms]]:
    """Yield the files of each part of a shard, and let go of them at the end."""
    forms = [_load(folder, part, shard.layout.compression) for part in shard.parts]
    try:
        yield forms
    finally:
        for data, _ in chain.from_iterable(forms):
            release(data)


def _read(forms: list[Forms], shard: ShardInfo, options: ReadOptions, *, read_values: bool) -> None:
    """Open a shard and, if asked, decode all of its values."""
    reader = get_format(shard.layout.format).open_checked([form[-1][0] for form in forms], shard, options)
    if read_values:
        for begin in range(0, len(reader), _ROWS):
            reader.read(range(begin, min(begin + _ROWS, len(reader))))
    reader.close()


def _load(folder: Path, part: Part, compression: str | None) -> Forms:
    """Return the stored file and, if that is compressed, the raw one, each with its description."""
    path = resolve_inside(folder, part.stored.basename)
    stored = load_file(path, part.stored, None)
    if compression is None:
        return [(stored, part.raw)]
    raw = unpack_to_memory(stored, compression, part.raw.num_bytes, str(path))
    return [(stored, part.stored), (raw, part.raw)]


def _check_all(data: ShardBytes, info: FileInfo) -> int:
    for name in info.digests:
        check_digest(data, info.digests, name, info.basename)
    return len(info.digests)
