"""A dataset as it is kept: its index, its files, each shard of files without an index. Is it whole, and is it here?"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache.cache import Cache
from penstock.cache.proxied import lend_proxied, open_proxied
from penstock.cachedir.editions import Edition
from penstock.cachedir.layout import place_of
from penstock.codecs.digest import check_digest
from penstock.codecs.unpack import release, unpack_to_memory
from penstock.data.open_streams import open_streams
from penstock.data.stream import Stream
from penstock.data.stream_files import LocalFiles, cached_stream, files_of
from penstock.errors import CorruptShardError, MissingExtraError, PenstockError
from penstock.formats.base import ReadOptions, get_format
from penstock.formats.parts import load_file, open_files
from penstock.index.catalog import parse_index
from penstock.index.files_json import STORED_NAME
from penstock.index.paths import INDEX_NAME, resolve_inside
from penstock.interrupts import trims_traceback
from penstock.reading.local_folder import read_local_index
from penstock.storage.base import shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.url_names import join_url
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.data.stream_files import FilesOfStream
    from penstock.formats.base import ShardBytes, ShardReader
    from penstock.index.model import FileInfo, Index, IndexedShard, Part
    from penstock.scan.patterns import Given
    from penstock.storage.base import Store

    # Of one part of a shard: the stored file and, if that is compressed, the raw one.
    Forms = list[tuple[ShardBytes, FileInfo]]

# How many samples are decoded at once: images take much more memory than they are stored in.
_ROWS = 8
_LITTLE_BYTES = 1 << 30
_SHARDS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """A dataset in a folder of this machine, or in a store, past all caches."""

    place: Path | Store
    shown: str  # without secrets

    @classmethod
    @contextmanager
    def at(
        cls, place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> Iterator[StoredDataset]:
        """Find a dataset by its path or URL; what the options leave out, the environment says."""
        url = os.fspath(place)
        if url_scheme(url) in (None, "file"):
            folder = Path(url).expanduser() if url_scheme(url) is None else LocalStore.from_url(url).root
            yield cls(folder, str(folder))
            return
        with lend_proxied(url, storage_options) as store:
            yield cls(store, shown_url(url))

    def read_index(self) -> Index:
        """Read the index as it is now."""
        if isinstance(self.place, Path):
            return read_local_index(self.place)
        return parse_index(self.place.read(INDEX_NAME), f"{self.shown.rstrip('/')}/{INDEX_NAME}")

    @contextmanager
    def stored_shard(self, shard: IndexedShard) -> Iterator[Path]:
        """Yield a folder where the stored files of a shard are: the dataset's, or one that they were brought to."""
        if isinstance(self.place, Path):
            yield self.place
            return
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            for part in shard.parts:
                path = resolve_inside(Path(folder), part.stored.basename)
                path.parent.mkdir(parents=True, exist_ok=True)
                self.place.download(*_object_of(part, path))
            yield Path(folder)


def _object_of(part: Part, path: Path) -> tuple[str, Path, Span | None]:
    """Return which object to download for a part, to which file, and which of its bytes."""
    span = part.span
    if span is None:
        return part.stored.basename, path, None
    return span.basename, path, Span(span.offset, span.offset + span.num_bytes)


@dataclass(frozen=True, slots=True)
class FilesLook:
    """Files that have no index of their own, with the one that was made of them."""

    files: FilesOfStream
    index: Index
    index_path: Path
    cache: Cache
    storage_options: Mapping[str, Any] | None

    @classmethod
    @contextmanager
    def at(
        cls,
        place: Given,
        *,
        storage_options: Mapping[str, Any] | None = None,
        is_fresh: bool = False,
        **settings: Any,
    ) -> Iterator[FilesLook | None]:
        """Index files by what a `Stream` calls them; None: it is a dataset with an index.

        With `is_fresh` nothing is taken from the cache, and nothing is left in it.
        """
        stream = Stream(remote=place, storage_options=storage_options, **settings)
        stream.apply_default({})
        files = files_of(stream, None)
        if files is None:
            yield None
            return
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-"))) if is_fresh else None
            settled = cached_stream(stream, files, folder)
            cache = stack.enter_context(Cache([settled]))
            index = cache.open_index(0)
            known = cache.indexes[0]
            if not index.columns.content or known is None:
                yield None
                return
            path = Edition(settled.directory, known[0]).index_path
            if is_fresh:  # no more of them lie there at once than have to
                limit = max(_LITTLE_BYTES, _SHARDS_AT_ONCE * int(index.columns.raw_sizes.max(initial=0)))
                cache = stack.enter_context(Cache([settled], limit_bytes=limit))
                cache.open_index(0)
            yield cls(files, index, path, cache, storage_options)

    def store_index(self) -> str:
        """Leave the index beside the files, for everybody who reads them, and say where."""
        if self.files.folder is not None:
            shutil.copyfile(self.index_path, self.files.folder / STORED_NAME)
        else:
            open_proxied(self.files.root, self.storage_options).upload(self.index_path, STORED_NAME)
        return join_url(shown_url(self.files.root), STORED_NAME)

    @contextmanager
    def open_shard(self, number: int, options: ReadOptions) -> Iterator[ShardReader]:
        """Open a shard, where it lies or fetched for the time being."""
        info = self.index.shards[number]
        here = None if self.files.folder is None else LocalFiles(self.files.folder)
        with ExitStack() as stack:
            if here is not None and here.is_raw(info):
                reader = here.open_shard(info, options)
            else:
                reader = open_files(stack.enter_context(self.cache.lease(0, number)).paths, info, options)
            stack.callback(reader.close)
            yield reader


# --- Is it whole? ----------------------------------------------------------------------------------------------------


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
    with StoredDataset.at(place, storage_options) as dataset:

        def check(_: int, shard: IndexedShard) -> Iterator[str]:
            with dataset.stored_shard(shard) as folder, _loaded(folder, shard) as forms:
                for data, info in chain.from_iterable(forms):
                    for name in info.digests:
                        check_digest(data, info.digests, name, info.basename)
                        yield name
                _read(forms, shard, options, read_values=read_values)

        return _verify(dataset.read_index(), check)


def verify_files(files: FilesLook, *, read_values: bool = False) -> VerifyReport:
    """Fetch, unpack and open every shard of files of other programs and, if asked, read every value."""
    options = ReadOptions(image_decoder="array" if read_values else "raw")

    def check(number: int, shard: IndexedShard) -> Iterator[str]:
        yield from ()
        with files.open_shard(number, options) as reader:
            if len(reader) != shard.num_samples:
                raise CorruptShardError(
                    f"{shard.name} has {len(reader)} samples, and the index says {shard.num_samples}", shard=shard.name
                )
            if read_values:
                _read_values(reader)

    return _verify(files.index, check)


def _verify(index: Index, check: Callable[[int, IndexedShard], Iterator[str]]) -> VerifyReport:
    """Check each shard, whatever is wrong with the others; `check` yields each digest that it compared."""
    problems = []
    num_digests = 0
    for number, shard in enumerate(index.shards):
        try:
            for _ in check(number, shard):
                num_digests += 1
        except MissingExtraError:
            raise
        except (PenstockError, OSError) as error:
            problems.append(str(error))
    num_bytes = int(index.columns.stored_sizes.sum())
    return VerifyReport(len(index.shards), index.num_samples, num_bytes, num_digests, tuple(problems))


@contextmanager
def _loaded(folder: Path, shard: IndexedShard) -> Iterator[list[Forms]]:
    """Yield the files of each part of a shard, and let go of them at the end."""
    forms = [_load(folder, part, shard.layout.compression) for part in shard.parts]
    try:
        yield forms
    finally:
        for data, _ in chain.from_iterable(forms):
            release(data)


def _read(forms: list[Forms], shard: IndexedShard, options: ReadOptions, *, read_values: bool) -> None:
    """Open a shard and, if asked, decode all of its values."""
    reader = get_format(shard.layout.format).open_checked([form[-1][0] for form in forms], shard, options)
    if read_values:
        _read_values(reader)
    reader.close()


def _read_values(reader: ShardReader) -> None:
    for begin in range(0, len(reader), _ROWS):
        reader.read(range(begin, min(begin + _ROWS, len(reader))))


def _load(folder: Path, part: Part, compression: str | None) -> Forms:
    """Return the stored file and, if that is compressed, the raw one, each with its description."""
    path = resolve_inside(folder, part.stored.basename)
    stored = load_file(path, part.stored, None)
    if compression is None:
        return [(stored, part.raw)]
    raw = unpack_to_memory(stored, compression, part.raw.num_bytes, str(path))
    return [(stored, part.stored), (raw, part.raw)]


# --- All of it, fetched before training ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmedCache:
    """What the cache holds of a dataset after it was fetched."""

    source: str  # where it comes from, without secrets
    directory: str | None  # None: the dataset is read where it is, and nothing had to be fetched
    num_shards: int
    num_bytes: int
    fetched_bytes: int  # what was fetched just now: the rest was there already, or was unpacked


@trims_traceback
def warm_cache(
    url: str | os.PathLike[str],
    local: str | os.PathLike[str] | None = None,
    split: str | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    validate_hash: str | None = None,
    keep_zip: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> WarmedCache:
    """Fetch all shards of a dataset into the cache, and wait until they are there.

    Args:
        url: Where the dataset is: the `remote` that your jobs will use.
        local: The folder to keep the shards in: the `local` that your jobs will use, if any.
        split: A folder below both.
        storage_options: Credentials and settings of the store, under the names that fsspec uses.
        validate_hash: Name of a digest to check on each fetched file.
        keep_zip: Keep the compressed files of shards, too.
        on_progress: Called with the number of shards that are there, and the number of all shards.
    """
    stream = Stream(
        remote=url,
        local=local,
        split=split,
        storage_options=storage_options,
        validate_hash=validate_hash,
        keep_zip=keep_zip,
    )
    # Nothing is read: no column is too dangerous, and none needs a library that decodes it.
    opened = open_streams([stream], ReadOptions(allow_unsafe_types=True, image_decoder="raw"), None)
    with closing(opened.source):
        num_shards = num_done = 0

        def note_shard() -> None:
            nonlocal num_done
            num_done += 1
            if on_progress is not None:
                on_progress(num_done, num_shards)

        directory = None
        fetched_bytes = 0
        for cache, number, shards in opened.cached_shards(None):
            num_shards = len(shards)
            directory = str(cache.streams[number].directory)
            cache.warm(number, shards, note_shard)
            fetched_bytes = cache.stats().total.num_bytes
        return WarmedCache(
            source=place_of(str(stream.url)),
            directory=directory,
            num_shards=num_shards,
            num_bytes=int(opened.source.sizes.sum()) if num_shards else 0,
            fetched_bytes=fetched_bytes,
        )
