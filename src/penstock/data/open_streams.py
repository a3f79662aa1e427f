"""From streams to the source that their samples are read from: indexes are read, no shard is touched."""

from __future__ import annotations

import logging
import threading
import warnings
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from penstock.cache.cache import Cache, CachedStream
from penstock.cache.progress import single_progress_line
from penstock.cache.stats import CacheCounts
from penstock.cachedir.layout import default_directory
from penstock.data.getitem import resolve_ids
from penstock.data.in_place.identity import DataIdentity
from penstock.data.in_place.local_files import LocalFiles
from penstock.data.in_place.streams import fetched_share, files_of
from penstock.data.stats import make_stats
from penstock.errors import ConfigError, EmptyDatasetError, ObjectNotFoundError, PenstockError, StoreError
from penstock.files import check_path
from penstock.index.entry import formats
from penstock.index.paths import resolve_inside
from penstock.interrupts import trims_traceback
from penstock.order.options import UNPACKING_COSTS, StreamShards
from penstock.reading.local_folder import LocalFolder
from penstock.reading.shard_table import ShardTable, StreamFiles, check_layouts
from penstock.reading.source import HasStretches, JoinedSources, MakesSource, ShardRange, Source, sources
from penstock.storage.base import StoreSettings, resolve_store, shown_url, url_scheme
from penstock.storage.url_names import real_name, with_queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.counters import Counters
    from penstock.data.in_place.streams import FilesOfStream
    from penstock.data.stats import LoopStats, Stats
    from penstock.data.stream import Stream
    from penstock.formats.base import ReadOptions
    from penstock.reading.shard_table import InPlace
    from penstock.reading.source import CodeDigest
    from penstock.types import Int64Array

    Numbers = slice | Sequence[int] | Int64Array

log = logging.getLogger("penstock.data")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedStreams:
    """The source of all samples, and which of them belong to each stream."""

    source: Source
    lengths: tuple[Int64Array, ...]  # the samples of each shard, by stream
    table: ShardTable | None  # of the streams that lie in stores and folders, if there are any
    files: tuple[StreamFiles | None, ...]  # of each stream, if it is one of those
    contents: tuple[str, ...]  # what tells the samples of each stream from others, if it has a source of its own
    code_digests: tuple[Sequence[CodeDigest], ...]  # of functions that make the samples of each stream
    stretches: tuple[Int64Array | None, ...]  # of each stream whose source says where they begin

    @property
    def index_bytes(self) -> int:
        """What the indexes take in the folders of the cache."""
        return 0 if self.table is None else self.table.cache.index_bytes

    def describe(self, names: Sequence[str], streams: Sequence[Stream]) -> list[StreamShards]:
        """Return of each stream what the order sees of it."""
        return [
            StreamShards(
                name=name,
                lengths=lengths,
                weight=stream.weight,
                window=stream.window,
                stretches=stretches,
                **(_counted(files) or {"content": content}),
            )
            for name, lengths, stream, files, content, stretches in zip(
                names, self.lengths, streams, self.files, self.contents, self.stretches, strict=True
            )
        ]

    def identity(self, names: Sequence[str], streams: Sequence[Stream]) -> DataIdentity:
        """Return which data these are, besides what the order sees of them."""
        code = {
            name: [[*each[:2]] for each in code] for name, code in zip(names, self.code_digests, strict=True) if code
        }
        identity = DataIdentity(tuple(stream.described_place for stream in streams), code=code)
        for name, files in zip(names, self.files, strict=True):
            if files is None or self.table is None:
                continue
            if versions := files.index.columns.versions:
                identity.versions[name] = versions
            if files.cached is not None and (revision := self.table.cache.revisions[files.cached]):
                identity.revisions[name] = revision
        return identity

    @property
    def first_ids(self) -> Int64Array:
        """The first id of each stream, and the end of the last."""
        return np.cumsum([0, *(int(each.sum()) for each in self.lengths)])

    def refresh_counts(self) -> None:
        """Count now what was fetched for this process."""
        if self.table is not None:
            self.table.cache.refresh_counts()

    def node_counts(self) -> dict[str, Any]:
        """Return the counts of the node's fetcher, if there is one."""
        return {} if self.table is None else self.table.cache.node_stats()

    def cached_shards(self, shards: Int64Array | None) -> Iterator[tuple[Cache, int, list[int]]]:
        """Number some shards, or all, that are kept in the cache: the cache, the stream in it, the shards of that."""
        if self.table is None:
            return
        if shards is not None and isinstance(self.source, JoinedSources):
            _, shards = self.source.numbers_in(self.table, shards)
        for stream, numbers in self.table.cached_shards(shards):
            yield self.table.cache, stream, numbers


def _counted(files: StreamFiles | None) -> dict[str, Any]:
    """Return what counts besides the lengths of shards, if these are files of other programs."""
    columns = None if files is None else files.index.columns
    if columns is None or not columns.content:
        return {}
    return {"sizes": columns.raw_sizes + (UNPACKING_COSTS - 1) * columns.unpacked_sizes, "content": columns.content}


def open_streams(
    streams: Sequence[Stream], options: ReadOptions, limit_bytes: int | None, counters: Counters | None = None
) -> OpenedStreams:
    """Open the source of each stream: of its own, or shards in a store or a folder, which all share one cache."""
    own = [_own_source(stream, options.columns, limit_bytes) for stream in streams]
    stored = {number: stream for number, stream in enumerate(streams) if own[number] is None}
    with single_progress_line():
        table = _open_stored(stored, options, limit_bytes, counters) if stored else None
    ranges: list[ShardRange] = []
    files: list[StreamFiles | None] = []
    first_shard = 0
    left = iter(table.streams if table is not None else ())
    for source in own:
        if source is not None:
            ranges.append(ShardRange(source, 0, len(source.spans)))
            files.append(None)
        elif table is not None:
            files.append(next(left))
            ranges.append(ShardRange(table, first_shard, len(files[-1].index.shards)))  # type: ignore[union-attr]
            first_shard += ranges[-1].num_shards
    is_one = len(ranges) == 1 or len(stored) == len(streams)
    whole = ranges[0].source if is_one else JoinedSources(ranges)
    if not whole.spans.num_samples and len(streams) == 1:
        where = shown_url(streams[0].url or str(streams[0].folder))
        whole.close()
        raise EmptyDatasetError(f"Stream contains no samples: {where}", path=where)
    lengths = tuple(part.lengths for part in ranges)
    contents = tuple("" if source is None else source.content for source in own)
    return OpenedStreams(
        source=whole,
        lengths=lengths,
        table=table,
        files=tuple(files),
        contents=contents,
        code_digests=tuple(() if source is None else source.code_digests for source in own),
        stretches=tuple(source.stretches if isinstance(source, HasStretches) else None for source in own),
    )


def _own_source(stream: Stream, columns: tuple[str, ...] | None, limit_bytes: int | None) -> Source | None:
    given = stream.source
    if given is None:
        return None
    made = sources.get(given)(stream) if isinstance(given, str) else given
    if isinstance(made, Source):
        return made
    if isinstance(made, MakesSource):
        return made.as_stream_source(columns, limit_bytes)
    raise ConfigError(f"source= of a stream is a {type(made).__name__}: give a ShardedSource, a Source or a name")


def _open_stored(
    stored: Mapping[int, Stream], options: ReadOptions, limit_bytes: int | None, counters: Counters | None
) -> ShardTable:
    cached: list[CachedStream] = []
    names: list[str] = []  # what those are called among the counts
    folders: list[InPlace | None] = []
    numbers: list[int | None] = []
    for name, stream in stored.items():
        files = files_of(stream, stream.options(options).columns)
        stream.choose_folder(None if files is None else files.root)
        if files is not None:
            folder: InPlace | None = None if files.folder is None else LocalFiles(files.folder)
            is_cached = True
        else:
            indexed = None if stream.in_place is None else LocalFolder.open(stream.in_place, stream.validate_hash)
            folder, is_cached = indexed, indexed is None or indexed.is_compressed
        folders.append(folder)
        numbers.append(len(cached) if is_cached else None)
        if is_cached:
            cached.append(cached_stream(stream, files))
            names.append(str(name))
    counts = None if counters is None else CacheCounts(names, counters.row)
    cache = Cache(cached, limit_bytes=limit_bytes, counts=counts)
    with ExitStack() as undo:
        undo.enter_context(cache)
        found = []
        for stream, folder, number in zip(stored.values(), folders, numbers, strict=True):
            if number is not None:
                try:
                    with formats.loading("mds"):  # most datasets are of this format
                        index = cache.open_index(number)
                except StoreError as error:
                    complete = _complete_copy(stream, error)
                    instead = {name: complete if each is stream else each for name, each in stored.items()}
                    return _open_stored(instead, options, limit_bytes, counters)
            elif isinstance(folder, LocalFolder):
                index = folder.index
            else:
                raise ConfigError(f"{stream!r} has neither a folder nor a store: pass remote=, local= or both")
            own = stream.options(options)
            check_layouts(index, own)
            where = shown_url(stream.url or str(stream.folder))
            found.append(
                StreamFiles(
                    where=where,
                    index=index,
                    in_place=folder,
                    cached=number,
                    validates=stream.validate_hash is not None,
                    share=fetched_share(index, own.columns),
                    options=own,
                )
            )
        undo.pop_all()
    return ShardTable(found, cache)


def _complete_copy(stream: Stream, error: StoreError) -> Stream:
    """Return a stream whose local folder holds all of it without its remote, which cannot be read; else raise that."""
    if stream.in_place is not None or stream.folder is None:
        raise error
    try:
        folder = LocalFolder.open(stream.folder)
    except PenstockError:
        raise error from None
    if not all(folder.has(info) for info in folder.index.shards):
        raise error
    warnings.warn(
        f"cannot read {shown_url(str(stream.url))}, so penstock uses the complete copy in {stream.folder}. The"
        f" error was: {error}",
        stacklevel=2,
    )
    alone = copy(stream)
    alone.remote = None
    return alone


def _own_directory(stream: Stream, in_place: Path | None) -> Path | None:
    """Return the folder that a user named for copies; never the one with the files themselves, or one below it."""
    if stream.folder is None or in_place is None:
        return stream.folder
    folder, files = stream.folder.absolute(), in_place.absolute()
    return None if stream.remote is None or folder == files or files in folder.parents else stream.folder


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
    return CachedStream(
        directory=directory.absolute(),
        store=settings,
        keep_zip=bool(stream.keep_zip),
        validate_hash=stream.validate_hash,
        retry=2 if stream.download_retry is None else stream.download_retry,
        timeout_s=60.0 if stream.download_timeout is None else stream.download_timeout,
        files=None if files is None else files.request,
    )


# --- Objects beside the shards, such as videos -----------------------------------------------------------------


def fetch_object(
    opened: OpenedStreams, url: str, local: str | None, remotes: Sequence[str | None], *, ahead: bool
) -> Path:
    """Bring an object that lies below the remote of one of the streams, and say where it is."""
    for files, remote in zip(opened.files, remotes, strict=True):
        below = "" if remote is None else f"{remote.rstrip('/')}/"
        if files is None or (url_scheme(url) is not None and not (below and url.startswith(below))):
            continue
        key = real_name(url, url.removeprefix(below))
        if files.in_place is not None and files.cached is None:
            path = resolve_inside(files.in_place.path, key)
            if not path.is_file():
                raise ObjectNotFoundError(f"{path} is missing, or is not a file", path=str(path))
            return path
        if files.cached is not None and opened.table is not None:
            cache = opened.table.cache
            if ahead:
                return _fetch_ahead(cache, files.cached, key, local)
            return cache.fetch_object(files.cached, key, local)
    raise ConfigError(
        f"{shown_url(url)} is not below the remote of any stream: pass a name relative to the remote, or a URL below it"
    )


def _fetch_ahead(cache: Cache, stream: int, key: str, local: str | None) -> Path:
    def fetch() -> None:
        try:
            cache.fetch_object(stream, key, local)
        except PenstockError as error:  # whoever comes for it is told again
            log.warning("prefetching %s failed: %s", key, error)

    threading.Thread(target=fetch, name="penstock-ahead", daemon=True).start()
    return resolve_inside(cache.streams[stream].directory, local or key)


class OpenedDataset:
    """What can be asked of a dataset without reading a sample."""

    streams: list[Stream]
    counters: Counters
    _opened: OpenedStreams

    @property
    def num_samples(self) -> int:
        """The number of samples in all streams; `epoch_size` is how many of them an epoch takes."""
        return self._opened.source.spans.num_samples

    @property
    def size(self) -> int:
        """The number of samples in all streams."""
        return self.num_samples

    @property
    def samples_per_stream(self) -> Int64Array:
        """The number of samples in each stream."""
        return np.diff(self._opened.first_ids)

    @property
    def num_shards(self) -> int:
        """The number of shards of all streams."""
        return len(self._opened.source.spans)

    @trims_traceback
    def warm(self, key: Numbers | None = None) -> None:
        """Fetch the shards of some samples, or all shards, before they are needed."""
        for cache, stream, shards in self._cached_shards(key):
            cache.warm(stream, shards)

    def pin(self, key: Numbers | None = None) -> None:
        """Keep the shards of some samples, or all shards, in the cache until you unpin them, in any job."""
        for cache, stream, shards in self._cached_shards(key):
            cache.pin(stream, shards)

    def unpin(self, key: Numbers | None = None) -> None:
        """Allow the cache again to remove these shards when it needs space."""
        for cache, stream, shards in self._cached_shards(key):
            cache.unpin(stream, shards)

    @trims_traceback
    def fetch(self, url: str, local: str | None = None, *, ahead: bool = False) -> Path:
        """Fetch an object that is stored beside the shards, such as a video, into the cache, and return its path.

        With `ahead=True` it is fetched in the background; call this again without `ahead` when you need it.

        `url` is a URL below the remote of one of the streams, or a key below the remote of the first one. `local` is
        its name below the folder of the stream. It counts against the cache limit and is evicted like a shard.
        """
        return fetch_object(self._opened, url, local, [stream.url for stream in self.streams], ahead=ahead)

    @overload
    def stats(self, *, by_worker: bool = ..., flat: Literal[False] = ...) -> Stats: ...
    @overload
    def stats(self, *, by_worker: bool = ..., flat: Literal[True]) -> dict[str, float]: ...
    def stats(self, *, by_worker: bool = False, flat: bool = False) -> Stats | dict[str, float]:
        """Count what this rank has read, fetched and waited for, in this process and in all workers of its loaders.

        Workers are not asked: they count into a file that this process reads.

        Args:
            by_worker: Give the counts of each worker, too.
            flat: Give numbers by dotted name, for loggers, instead of an object with named fields.
        """
        stats = self.count(by_worker=by_worker)
        return stats.flat() if flat else stats

    def count(self, *, loop: LoopStats | None = None, by_worker: bool = False) -> Stats:
        """Return the counts of this rank, with those of a training loop."""
        self._opened.refresh_counts()
        node = self._opened.node_counts()
        return make_stats(self.counters.read(), len(self.streams), node=node, loop=loop, by_worker=by_worker)

    def _cached_shards(self, key: Numbers | None) -> Iterator[tuple[Cache, int, list[int]]]:
        if key is None:
            return self._opened.cached_shards(None)
        ids = resolve_ids(key, self.num_samples)
        ids = range(ids, ids + 1) if isinstance(ids, int) else ids
        shards, _ = self._opened.source.spans.locate(np.asarray(ids, np.int64))
        return self._opened.cached_shards(np.unique(shards))
