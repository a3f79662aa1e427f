"""The shards of all streams, end to end: where each one is, and how it is opened."""

from __future__ import annotations

import logging
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.cache.cache import Cache, CachedStream
from penstock.cachedir.layout import default_directory
from penstock.data.folder import LocalFolder
from penstock.data.local import check_layouts
from penstock.errors import ConfigError, EmptyDatasetError, ObjectNotFoundError, PenstockError
from penstock.files import check_path
from penstock.formats.parts import open_files
from penstock.index.paths import resolve_inside
from penstock.order.spans import Spans
from penstock.reading.open_shards import OpenShard
from penstock.storage.base import StoreSettings, resolve_store, shown_url, url_scheme

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.data.stream import Stream
    from penstock.formats.base import ReadOptions
    from penstock.index.model import Index, ShardInfo
    from penstock.types import Int64Array

log = logging.getLogger("penstock.data")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """Where the files of one stream are: as they lie in a folder, in the cache, or some here and some there."""

    index: Index
    in_place: LocalFolder | None
    cached: int | None  # its number in the cache
    validates: bool = False  # whole files only: a digest says nothing of a part


class ShardTable:
    """All shards by number, the streams laid end to end."""

    def __init__(self, places: Sequence[StreamPlace], cache: Cache, options: ReadOptions) -> None:
        self.places = tuple(places)
        self.cache = cache
        self.options = options
        lengths = [place.index.lengths for place in self.places]
        self.spans = Spans(np.concatenate(lengths))
        self.first_shards = np.cumsum([0, *map(len, lengths)])
        self.first_ids = np.cumsum([0, *(int(each.sum()) for each in lengths)])

    def find(self, shard: int) -> tuple[int, int, ShardInfo]:
        """Give the stream of a shard, its number there, and what the index says of it."""
        stream = int(self.first_shards.searchsorted(shard, side="right")) - 1
        number = shard - int(self.first_shards[stream])
        return stream, number, self.places[stream].index.shards[number]

    def open(self, shard: int) -> OpenShard:
        """Open a shard, fetching it first if need be; it stays on the disk until it is closed."""
        stream, number, info = self.find(shard)
        place = self.places[stream]
        if place.in_place is not None and (place.cached is None or place.in_place.is_raw(info)):
            return OpenShard(place.in_place.open_shard(info, self.options))
        if place.cached is None:
            raise ConfigError(f"stream {stream} has neither a folder nor a store")
        lease = self.cache.lease(place.cached, number, f"shard {shard + 1}/{len(self.spans)}")
        try:
            return OpenShard(open_files(lease.paths, info, self.options), lease)
        except BaseException:
            lease.close()
            raise

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:
        """Tell the cache which shards will be wanted, soonest first."""
        wanted = []
        for shard, ahead in zip(shards.tolist(), batches_ahead.tolist(), strict=True):
            stream, number, info = self.find(shard)
            place = self.places[stream]
            if place.cached is not None and not (place.in_place is not None and place.in_place.is_raw(info)):
                wanted.append((place.cached, number, ahead))
        self.cache.expect(wanted)

    def cached_shards(self, shards: Int64Array | None) -> Iterator[tuple[int, list[int]]]:
        """Number some shards, or all, that are not simply read where they lie, by their stream in the cache."""
        for number, place in enumerate(self.places):
            if place.cached is None:
                continue
            first, end = int(self.first_shards[number]), int(self.first_shards[number + 1])
            if shards is None:
                yield place.cached, list(range(end - first))
            else:
                yield place.cached, (shards[(shards >= first) & (shards < end)] - first).tolist()

    def fetch(self, url: str, local: str | None, remotes: Sequence[str | None], *, ahead: bool) -> Path:
        """Bring an object that lies below the remote of one of the streams, and say where it is."""
        for place, remote in zip(self.places, remotes, strict=True):
            below = "" if remote is None else f"{remote.rstrip('/')}/"
            if url_scheme(url) is not None and not (below and url.startswith(below)):
                continue
            key = url.removeprefix(below)
            if place.in_place is not None and place.cached is None:
                path = resolve_inside(place.in_place.path, key)
                if not path.is_file():
                    raise ObjectNotFoundError(f"{path} is missing, or is no file", path=str(path))
                return path
            if place.cached is not None:
                if ahead:
                    return self._fetch_ahead(place.cached, key, local)
                return self.cache.fetch_object(place.cached, key, local)
        shown = shown_url(url)
        raise ConfigError(f"{shown} is not below the remote of any stream: give the key of an object beside the shards")

    def _fetch_ahead(self, cached: int, key: str, local: str | None) -> Path:
        def fetch() -> None:
            try:
                self.cache.fetch_object(cached, key, local)
            except PenstockError as error:  # whoever comes for it is told again
                log.warning("fetching %s ahead failed: %s", key, error)

        threading.Thread(target=fetch, name="penstock-ahead", daemon=True).start()
        return resolve_inside(self.cache.streams[cached].directory, local or key)

    def describe_cache(self) -> dict[str, Any]:
        """Count what this process leased, waited for and caused to be fetched, in all and by stream."""
        counts = self.cache.stats()
        by_stream = [{} if place.cached is None else asdict(counts.streams[place.cached]) for place in self.places]
        return {**asdict(counts.total), "streams": by_stream}

    @property
    def needs_cache(self) -> bool:
        """Whether any shard is not simply read where it lies."""
        return bool(self.cache.streams)

    def raw_bytes(self) -> Int64Array:
        """Give the size of each shard on disk: raw, and packed where that is kept or passes through."""
        sizes = [
            sum(part.raw.num_bytes for part in shard.parts) for place in self.places for shard in place.index.shards
        ]
        return np.array(sizes, dtype=np.int64)


def open_streams(streams: Sequence[Stream], options: ReadOptions, limit_bytes: int | None) -> ShardTable:
    """Read the indexes of all streams. No shard is touched."""
    cached: list[CachedStream] = []
    folders: list[LocalFolder | None] = []
    numbers: list[int | None] = []
    for stream in streams:
        folder = None if stream.in_place is None else LocalFolder.open(stream.in_place, stream.validate_hash)
        folders.append(folder)
        if folder is not None and not folder.is_compressed:
            numbers.append(None)
        else:
            numbers.append(len(cached))
            cached.append(_cached_stream(stream))
    cache = Cache(cached, limit_bytes=limit_bytes)
    places = []
    for stream, folder, number in zip(streams, folders, numbers, strict=True):
        if number is not None:
            index = cache.open_index(number)
        elif folder is not None:
            index = folder.index
        else:
            raise ConfigError(f"{stream!r} has neither a folder nor a store")
        validates = stream.validate_hash is not None
        places.append(StreamPlace(index=index, in_place=folder, cached=number, validates=validates))
    for stream, place in zip(streams, places, strict=True):
        check_layouts(place.index, options)
        if not place.index.num_samples and len(streams) == 1:
            where = shown_url(stream.url or str(stream.folder))
            raise EmptyDatasetError(f"Stream contains no samples: {where}", path=where)
    return ShardTable(places, cache, options)


def _cached_stream(stream: Stream) -> CachedStream:
    in_place = stream.in_place
    url = str(stream.url if in_place is None else in_place.absolute())
    settings = resolve_store(url, stream.storage_options) if in_place is None else StoreSettings(url)
    directory = stream.folder if stream.folder is not None and in_place is None else default_directory(url, None)
    check_path(directory)
    return CachedStream(
        directory=directory.absolute(),
        store=settings,
        keep_zip=bool(stream.keep_zip),
        validate_hash=stream.validate_hash,
        retry=2 if stream.download_retry is None else stream.download_retry,
        timeout_s=60.0 if stream.download_timeout is None else stream.download_timeout,
    )
