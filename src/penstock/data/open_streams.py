"""From streams to the source that their samples are read from: indexes are read, no shard is touched."""

from __future__ import annotations

import logging
import threading
import warnings
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import numpy as np

from penstock.counters import make_stats
from penstock.data.getitem import resolve_ids
from penstock.data.identity import DataIdentity
from penstock.errors import ConfigError, EmptyDatasetError, ObjectNotFoundError, PenstockError, StoreError
from penstock.index.entry import formats
from penstock.index.paths import resolve_inside
from penstock.interrupts import trims_traceback
from penstock.order.options import UNPACKING_COSTS, StreamShards
from penstock.reading.kept_rows import KeptSource, whole_of
from penstock.reading.local_folder import LocalFolder
from penstock.reading.shard_table import ShardTable, StreamFiles, check_layouts
from penstock.reading.source import HasStretches, JoinedSources, MakesSource, ShardRange, Source, sources
from penstock.storage.base import shown_url, url_scheme
from penstock.storage.url_names import real_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.cache.cache import Cache
    from penstock.counters import Counters, LoopStats, Stats
    from penstock.data.stream import Stream
    from penstock.formats.base import ReadOptions
    from penstock.index.model import Index
    from penstock.reading.kept_rows import KeptRows
    from penstock.reading.local_folder import InPlace
    from penstock.types import Int64Array
    from penstock.wire.settings import CachedStream

    Numbers = slice | Sequence[int] | Int64Array

log = logging.getLogger("penstock.data")


@dataclass(frozen=True)
class OpenedStream:
    """A stream with its shards: of a source of its own, or of the table of all that lie in stores and folders."""

    name: str
    stream: Stream
    shards: ShardRange
    files: StreamFiles | None  # None: it has a source of its own

    @property
    def own(self) -> Source | None:
        """Its own source, if it has one."""
        return self.shards.source if self.files is None else None

    @cached_property
    def kept(self) -> KeptRows | None:
        """The rows that are read of it; None: all."""
        kept = self.stream.kept
        num_rows = int(self.shards.lengths.sum())
        if kept is not None and kept.num_rows != num_rows:
            raise ConfigError(
                f"stream {self.name!r} is a view of {kept.num_rows:,} rows, but there are {num_rows:,} now: make the"
                " view again"
            )
        return kept

    @property
    def lengths(self) -> Int64Array:
        """The samples of each shard."""
        lengths = self.shards.lengths
        return lengths if self.kept is None else self.kept.counts(np.cumsum([0, *lengths]))

    def describe(self) -> StreamShards:
        """Return what the order sees of it."""
        sizes, stretches, content, names = None, None, "", None
        if self.files is None:
            source = self.shards.source
            content, stretches = source.content, source.stretches if isinstance(source, HasStretches) else None
        elif columns := self.files.index.columns:
            content, names = columns.content, columns
            if content:  # files of other programs, whose shards may have any size
                sizes = columns.raw_sizes + (UNPACKING_COSTS - 1) * columns.unpacked_sizes
        if self.kept is not None:
            content, stretches, names = f"{content}-{self.kept.digest}", None, None
        return StreamShards(
            name=self.name,
            lengths=self.lengths,
            weight=self.stream.weight,
            window=self.stream.window,
            sizes=sizes,
            content=content,
            stretches=stretches,
            files=names,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedStreams:
    """The source of all samples, and which of them belong to each stream."""

    source: Source
    streams: tuple[OpenedStream, ...]
    table: ShardTable | None  # of the streams that lie in stores and folders, if there are any

    @property
    def cache(self) -> Cache | None:
        """Where copies are kept, if any may be needed."""
        return None if self.table is None else self.table.cache

    def identity(self) -> DataIdentity:
        """Return which data these are, besides what the order sees of them."""
        identity = DataIdentity(tuple(each.stream.described_place for each in self.streams))
        for each in self.streams:
            name, files = each.name, each.files
            if files is None:
                if code := each.shards.source.code_digests:
                    identity.code[name] = [[*digest[:2]] for digest in code]
                continue
            if versions := files.index.columns.versions:
                identity.versions[name] = versions
            if self.cache is not None and files.cached is not None and (revision := self.cache.revisions[files.cached]):
                identity.revisions[name] = revision
        return identity

    @property
    def first_ids(self) -> Int64Array:
        """The first id of each stream, and the end of the last."""
        return np.cumsum([0, *(int(each.lengths.sum()) for each in self.streams)])

    def cached_shards(self, shards: Int64Array | None) -> Iterator[tuple[Cache, int, list[int]]]:
        """Number some shards, or all, that are kept in the cache: the cache, the stream in it, the shards of that."""
        if self.table is None or self.table.cache is None:
            return
        whole = whole_of(self.source)
        if shards is not None and isinstance(whole, JoinedSources):
            _, shards = whole.numbers_in(self.table, shards)
        for stream, numbers in self.table.cached_shards(shards):
            yield self.table.cache, stream, numbers


def open_streams(
    streams: Sequence[Stream], options: ReadOptions, limit_bytes: int | None, counters: Counters | None = None
) -> OpenedStreams:
    """Open the source of each stream: of its own, or shards in a store or a folder, which all share one cache."""
    names = name_streams(streams)
    own = [_own_source(stream, options.columns, limit_bytes) for stream in streams]
    stored = {number: stream for number, stream in enumerate(streams) if own[number] is None}
    table = _open_stored(stored, options, limit_bytes, counters) if stored else None
    opened = []
    first_shard = 0
    left = iter(table.streams if table is not None else ())
    for name, stream, source in zip(names, streams, own, strict=True):
        if source is not None or table is None:
            shards, files = ShardRange(source, 0, len(source.spans)), None  # type: ignore[arg-type, union-attr]
        else:
            files = next(left)
            shards = ShardRange(table, first_shard, len(files.index.shards))
            first_shard += shards.num_shards
        opened.append(OpenedStream(name, stream, shards, files))
    is_one = len(opened) == 1 or len(stored) == len(streams)
    whole = opened[0].shards.source if is_one else JoinedSources([each.shards for each in opened])
    if any(each.kept is not None for each in opened):
        first_rows = np.cumsum([0, *(int(each.shards.lengths.sum()) for each in opened)])
        whole = KeptSource(whole, first_rows, [each.kept for each in opened])
    if not whole.spans.num_samples and len(streams) == 1:
        where = shown_url(streams[0].url or str(streams[0].folder))
        whole.close()
        raise EmptyDatasetError(f"Stream contains no samples: {where}", path=where)
    return OpenedStreams(source=whole, streams=tuple(opened), table=table)


def name_streams(given: Sequence[Stream]) -> list[str]:
    """Return every stream a name of its own: the one it has, or its number.

    The order of a stream depends on its name, so it must not depend on where the data are kept.
    """
    names = [str(number) if stream.name is None else stream.name for number, stream in enumerate(given)]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two streams are called {name!r}: give each stream its own name")
    return names


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


# --- Streams in stores and folders -----------------------------------------------------------------------------------


class _Stored(NamedTuple):
    """A stream before its index is read: its files on this machine, and what a cache is told of it."""

    stream: Stream
    in_place: InPlace | None
    cached: CachedStream | None  # None: nothing of it is ever copied


def _place(stream: Stream, options: ReadOptions) -> _Stored:
    if stream.is_dataset_here:
        folder = LocalFolder.open(stream.in_place, stream.validate_hash)  # type: ignore[arg-type]
        stream.choose_folder()
        if not folder.is_compressed:
            return _Stored(stream, folder, None)
    from penstock.data.stream_files import place_files  # which needs a third of the library

    return _Stored(stream, *place_files(stream, stream.options(options).columns))


def _open_stored(
    streams: dict[int, Stream], options: ReadOptions, limit_bytes: int | None, counters: Counters | None
) -> ShardTable:
    stored = {number: _place(stream, options) for number, stream in streams.items()}
    cached = {number: each.cached for number, each in stored.items() if each.cached is not None}
    found = []
    with ExitStack() as undo:
        cache = None
        if cached:
            cache = undo.enter_context(_open_cache(cached, limit_bytes, counters))
        for number, (stream, in_place, settings) in stored.items():
            in_cache = None if settings is None else [*cached].index(number)
            if cache is not None and in_cache is not None:
                try:
                    with formats.loading("mds"):  # most datasets are of this format
                        index = cache.open_index(in_cache)
                except StoreError as error:
                    instead = {**streams, number: _complete_copy(stream, error)}
                    return _open_stored(instead, options, limit_bytes, counters)
            elif isinstance(in_place, LocalFolder):
                index = in_place.index
            else:
                raise ConfigError(f"{stream!r} has neither a folder nor a store: pass remote=, local= or both")
            found.append(_describe(stream, index, in_place, in_cache, options))
        undo.pop_all()
    return ShardTable(found, cache)


def _open_cache(cached: Mapping[int, CachedStream], limit_bytes: int | None, counters: Counters | None) -> Cache:
    """Open the cache of some streams, by their numbers."""
    from penstock.cache.cache import Cache
    from penstock.cache.stats import CacheCounts

    counts = None if counters is None else CacheCounts(list(map(str, cached)), counters.row)
    return Cache(list(cached.values()), limit_bytes=limit_bytes, counts=counts)


def _describe(
    stream: Stream, index: Index, in_place: InPlace | None, cached: int | None, options: ReadOptions
) -> StreamFiles:
    own = stream.options(options)
    check_layouts(index, own, shown_url(stream.place))
    share = 1.0
    if own.columns is not None and cached is not None:
        from penstock.data.stream_files import fetched_share

        share = fetched_share(index, own.columns)
    return StreamFiles(
        where=shown_url(stream.url or str(stream.folder)),
        index=index,
        in_place=in_place,
        cached=cached,
        validates=stream.validate_hash is not None,
        share=share,
        options=own,
    )


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


# --- Objects beside the shards, such as videos -----------------------------------------------------------------


def fetch_object(opened: OpenedStreams, url: str, local: str | None, *, ahead: bool) -> Path:
    """Bring an object that lies below the remote of one of the streams, and say where it is."""
    for each in opened.streams:
        stream, files = each.stream, each.files
        below = "" if stream.url is None else f"{stream.url.rstrip('/')}/"
        if files is None or (url_scheme(url) is not None and not (below and url.startswith(below))):
            continue
        key = real_name(url, url.removeprefix(below))
        if files.in_place is not None and files.cached is None:
            path = resolve_inside(files.in_place.path, key)
            if not path.is_file():
                raise ObjectNotFoundError(f"{path} is missing, or is not a file", path=str(path))
            return path
        cache = opened.cache
        if files.cached is not None and cache is not None:
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
        except PenstockError as error:  # the call that comes for it raises it again
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

    def streams_without(self, column: str) -> list[str]:
        """Return the places of the streams whose index has columns, but not this one."""
        found = []
        for each in self._opened.streams:
            layouts = () if each.files is None else each.files.index.columns.layouts
            if layouts and all(column not in {field.name for field in layout.columns} for layout in layouts):
                found.append(shown_url(each.stream.place))
        return found

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
        return fetch_object(self._opened, url, local, ahead=ahead)

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
        cache = self._opened.cache
        node = {}
        if cache is not None:
            cache.refresh_counts()
            node = cache.node_stats()
        return make_stats(self.counters.read(), len(self.streams), node=node, loop=loop, by_worker=by_worker)

    def _cached_shards(self, key: Numbers | None) -> Iterator[tuple[Cache, int, list[int]]]:
        if key is None:
            return self._opened.cached_shards(None)
        ids = resolve_ids(key, self.num_samples)
        ids = range(ids, ids + 1) if isinstance(ids, int) else ids
        shards, _ = self._opened.source.spans.locate(np.asarray(ids, np.int64))
        return self._opened.cached_shards(np.unique(shards))
