"""Streams whose files are copied, or were written by other programs: what is asked of the fetcher for them.

A dataset that is read as it lies in a folder of this machine needs none of this.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.cache.proxied import open_proxied
from penstock.cachedir.layout import default_directory
from penstock.codecs.unpack import map_span, release
from penstock.errors import AccessDeniedError, ConfigError, ObjectChangedError, StoreError
from penstock.files import check_path, os_errors
from penstock.formats.base import get_format
from penstock.formats.files import get_file_format
from penstock.index.paths import INDEX_NAME
from penstock.reading.local_folder import LocalFolder
from penstock.scan.detect import format_of, known_suffixes
from penstock.scan.patterns import NamedFiles, find_source, has_magic, is_file_name
from penstock.storage.base import StoreSettings, resolve_store, url_scheme
from penstock.storage.hub_location import parse_hub_url
from penstock.storage.local import LocalStore
from penstock.storage.retry import RetryPolicy
from penstock.storage.url_names import with_queries
from penstock.wire.settings import CachedStream, FilesRequest

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.data.stream import Stream
    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.index.model import Index, IndexedShard
    from penstock.reading.local_folder import InPlace

_SHARDS_LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class FilesOfStream:
    """Where the files of a stream are, and what to look for there."""

    root: str
    request: FilesRequest

    @property
    def folder(self) -> Path | None:
        """The root, if it is a folder of this machine."""
        return LocalStore.from_url(self.root).root.absolute() if _is_here(self.root) else None


def place_files(stream: Stream, columns: tuple[str, ...] | None) -> tuple[InPlace | None, CachedStream | None]:
    """Return where the files of a stream lie on this machine, and what a cache is told of it; None: nothing is copied.

    A stream that leaves its folder open gets one.
    """
    files = files_of(stream, columns)
    stream.choose_folder(None if files is None else files.root)
    if files is not None:
        return None if files.folder is None else LocalFiles(files.folder), cached_stream(stream, files)
    folder = None if stream.in_place is None else LocalFolder.open(stream.in_place, stream.validate_hash)
    return folder, cached_stream(stream) if folder is None or folder.is_compressed else None


def files_of(stream: Stream, columns: tuple[str, ...] | None) -> FilesOfStream | None:
    """Return what is asked for if a stream is, or may be, files of other programs; None: it has an index."""
    if stream.format == "mds":
        if stream.queries:
            raise ConfigError("format='mds' is a folder with an index.json, and only URLs of single files have queries")
        return None
    name = None if stream.format is None else format_of(stream.format)
    source = _source(stream, is_said=name is not None)
    if source is None:
        for name in ("types", "subset"):
            if getattr(stream, name) is not None:
                raise ConfigError(f"{name}= does not apply to a dataset with an index, and this is one: leave it out")
        return None
    request = FilesRequest(
        patterns=source.patterns,
        format=name,
        settings={} if stream.types is None else {"types": dict(stream.types)},
        columns=columns,
        may_have_index=source.patterns == ("",) and name is None and not _is_here(source.root),
    )
    if _is_repository(source.root) and source.patterns == ("",):
        request = replace(request, is_repository=True, subset=stream.subset, split=stream.split or None)
    elif stream.subset is not None:
        raise ConfigError(
            "subset= is for whole repositories on the Hugging Face Hub: name the files with a glob instead"
        )
    return FilesOfStream(source.root, request)


def _is_repository(url: str) -> bool:
    """Return whether a URL names a dataset of the Hub, and nothing in it."""
    if url_scheme(url) != "hf":
        return False
    kind, _, _, path = parse_hub_url(url)
    return kind == "dataset" and not path


def _source(stream: Stream, *, is_said: bool) -> NamedFiles | None:
    if stream.patterns is not None:
        if stream.split:
            raise ConfigError("split= names a folder below remote, and a list of files has none: leave it out")
        return NamedFiles(str(stream.remote or stream.local), stream.patterns)
    if stream.remote is not None and _is_repository(stream.remote):
        # It is taken as a whole, unless its split is a folder with an index.
        is_indexed = stream.split and stream.format is None and _has_index(str(stream.url), stream)
        return None if is_indexed else NamedFiles(stream.remote, ("",))
    url = stream.url or str(stream.folder)
    if not _is_here(url):
        is_literal = has_magic(url) and not is_said and _has_index(url, stream)
        return None if is_literal else find_source(url, _suffixes(url))
    path = LocalStore.from_url(url).root  # a name that exists is taken as it is, whatever else it might mean
    with os_errors(path):
        if path.is_dir():
            has_index = (path / INDEX_NAME).exists()
            return None if has_index and not is_said else NamedFiles(url, ("",))
        if path.is_file():
            return NamedFiles(str(path.parent), (path.name,))
    return find_source(url, _suffixes(url)) if has_magic(url) or is_file_name(url, _suffixes(url)) else None


def _suffixes(url: str) -> tuple[str, ...]:
    """Return the endings that tell a file, if this name has one at all: to know them, every format has to be loaded."""
    return known_suffixes() if "." in url.rpartition("/")[2] else ()


def _has_index(url: str, stream: Stream) -> bool:
    """Return whether a folder of a store, of this very name, has an index."""
    with suppress(StoreError):
        retry = RetryPolicy.of(stream.download_retry, stream.download_timeout)
        open_proxied(url, stream.storage_options, retry=retry).stat(INDEX_NAME)
        return True
    return False


def fetched_share(index: Index, columns: tuple[str, ...] | None) -> float:
    """Return about how much of its shards is fetched for some columns: as much as of a few of them."""
    shards = index.shards
    if columns is None or not shards or not get_format(shards[0].layout.format).raw_version:
        return 1.0
    some = [shards[number] for number in range(0, len(shards), -(-len(shards) // _SHARDS_LOOKED_AT))]
    form = get_file_format(some[0].layout.format)
    fetched = sum(len(span) for info in some for span in form.spans(info, columns))
    return min(1.0, fetched / max(1, sum(info.parts[0].stored.num_bytes for info in some)))


def _is_here(url: str) -> bool:
    return url_scheme(url) in (None, "file")


# --- What a cache is told of a stream --------------------------------------------------------------------------------


def cached_stream(stream: Stream, files: FilesOfStream | None = None, directory: Path | None = None) -> CachedStream:
    """Return what a cache is told of a stream; its files have a directory of their own, unless one is given."""
    in_place = stream.in_place if files is None else files.folder
    url = str(in_place.absolute() if in_place is not None else stream.url if files is None else files.root)
    settings = StoreSettings(url)
    if in_place is None:
        settings = with_queries(resolve_store(url, stream.storage_options), stream.queries)
    if directory is None:
        directory = _own_directory(stream, in_place) or default_directory(url, None)
    check_path(directory)
    _check_can_be_made(directory)
    return CachedStream(
        directory=directory.absolute(),
        store=settings,
        keep_zip=bool(stream.keep_zip),
        validate_hash=stream.validate_hash,
        retry=2 if stream.download_retry is None else stream.download_retry,
        timeout_s=60.0 if stream.download_timeout is None else stream.download_timeout,
        files=None if files is None else files.request,
    )


def _check_can_be_made(directory: Path) -> None:
    """Refuse a folder for copies that cannot be made, or is none."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(
            f"{directory} cannot be the folder for copies, for {there} is a file: choose another folder with local="
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise AccessDeniedError(
            f"{directory}: no permission to write in {there}: choose another folder with local=", path=str(there)
        )


def _own_directory(stream: Stream, in_place: Path | None) -> Path | None:
    """Return the folder that a user named for copies; never the one with the files themselves, or one below it."""
    if stream.folder is None or in_place is None:
        return stream.folder
    folder, files = stream.folder.absolute(), in_place.absolute()
    return None if stream.remote is None or folder == files or files in folder.parents else stream.folder


# --- Files of this machine -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder below which the names of an index are told; its files are read where they lie, and never changed."""

    path: Path

    def is_raw(self, info: IndexedShard) -> bool:
        """Return whether a shard is read as it is stored; others are unpacked into the cache."""
        return info.parts[0].packed is None

    def open_shard(self, info: IndexedShard, options: ReadOptions) -> ShardReader:
        """Map the part of a file that holds a shard, if the file is still the one that was indexed."""
        (part,) = info.parts
        span = part.span
        if span is None:
            raise TypeError(f"{info.name} is not part of a file")
        path = self.path / span.basename
        data = map_span(path, span.offset, span.num_bytes)
        try:
            found = LocalStore(self.path).stat(span.basename)  # after it was opened: what is mapped stays as it is
            if found.num_bytes != span.object_bytes or span.version not in (None, found.version):
                raise ObjectChangedError(f"{path} changed after it was indexed: open the dataset again", path=str(path))
            return get_file_format(info.layout.format).open([data], info, options)
        except BaseException:
            release(data)
            raise
