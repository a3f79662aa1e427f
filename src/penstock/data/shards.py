"""The shards of all streams, end to end: where each one is, and how it is opened."""

from __future__ import annotations

import logging
import threading
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.cache.cache import Cache, CachedStream
from penstock.cache.layout import default_directory
from penstock.data.local import check_layouts, read_local_index
from penstock.data.readers import OpenShard
from penstock.errors import (
    AccessDeniedError,
    ConfigError,
    EmptyDatasetError,
    ObjectNotFoundError,
    PenstockError,
    StoreError,
)
from penstock.files import check_path, read_file
from penstock.formats.parts import open_shard
from penstock.index.mosaic_json import INDEX_NAME, parse_index
from penstock.index.paths import resolve_inside
from penstock.order.spans import Spans
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
    in_place: Path | None
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

    def find(self, shard: int) -> tuple[int, ShardInfo]:
        """Give the stream of a shard, and what its index says of it."""
        stream = int(self.first_shards.searchsorted(shard, side="right")) - 1
        return stream, self.places[stream].index.shards[shard - int(self.first_shards[stream])]

    def open(self, shard: int) -> OpenShard:
        """Open a shard, fetching it first if need be; it stays on the disk until it is closed."""
        stream, info = self.find(shard)
        place = self.places[stream]
        if place.in_place is not None and (place.cached is None or _is_raw(place.in_place, info)):
            return OpenShard(open_shard(place.in_place, info, self.options))
        if place.cached is None:
            raise ConfigError(f"stream {stream} has neither a folder nor a store")
        lease = self.cache.lease(place.cached, info, f"shard {shard + 1}/{len(self.spans)}")
        try:
            return OpenShard(open_shard(self.cache.streams[place.cached].directory, info, self.options), lease)
        except BaseException:
            lease.close()
            raise

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:
        """Tell the cache which shards will be wanted, soonest first."""
        wanted = []
        for shard, ahead in zip(shards.tolist(), batches_ahead.tolist(), strict=True):
            stream, info = self.find(shard)
            place = self.places[stream]
            if place.cached is not None and not (place.in_place is not None and _is_raw(place.in_place, info)):
                wanted.append((place.cached, info, ahead))
        self.cache.expect(wanted)

    def cached_shards(self, shards: Int64Array | None) -> Iterator[tuple[int, list[ShardInfo]]]:
        """Give some shards, or all, that are not simply read where they lie, by their stream in the cache."""
        for number, place in enumerate(self.places):
            if place.cached is None:
                continue
            first, end = int(self.first_shards[number]), int(self.first_shards[number + 1])
            if shards is None:
                chosen = list(place.index.shards)
            else:
                here = shards[(shards >= first) & (shards < end)]
                chosen = [place.index.shards[shard - first] for shard in here.tolist()]
            yield place.cached, chosen

    def fetch(self, url: str, local: str | None, remotes: Sequence[str | None], *, ahead: bool) -> Path:
        """Bring an object that lies below the remote of one of the streams, and say where it is."""
        for place, remote in zip(self.places, remotes, strict=True):
            below = "" if remote is None else f"{remote.rstrip('/')}/"
            if url_scheme(url) is not None and not (below and url.startswith(below)):
                continue
            key = url.removeprefix(below)
            if place.in_place is not None and place.cached is None:
                path = resolve_inside(place.in_place, key)
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
    found: list[tuple[Index | None, Path | None, int | None]] = []
    for stream in streams:
        in_place = stream.in_place
        index = None if in_place is None else read_local_index(in_place)
        if index is not None and not any(part.packed for shard in index.shards for part in shard.parts):
            found.append((index, in_place, None))
        else:
            found.append((index, in_place, len(cached)))
            cached.append(_cached_stream(stream))
    cache = Cache(cached, limit_bytes=limit_bytes)
    places = [
        StreamPlace(
            index=_fetch_index(cache, number, cached[number]) if index is None and number is not None else index,  # type: ignore[arg-type]
            in_place=in_place,
            cached=number,
            validates=stream.validate_hash is not None,
        )
        for stream, (index, in_place, number) in zip(streams, found, strict=True)
    ]
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


def _fetch_index(cache: Cache, number: int, cached: CachedStream) -> Index:
    """Fetch the index anew, since the data may have been written anew; the last one serves if the store is away."""
    where = f"{shown_url(cached.store.url).rstrip('/')}/{INDEX_NAME}"
    path = cached.directory / INDEX_NAME
    try:
        path = cache.fetch_object(number, INDEX_NAME, refresh=True)
    except (ObjectNotFoundError, AccessDeniedError):
        raise
    except StoreError as error:
        if not path.exists():
            raise
        warnings.warn(f"{where} cannot be read, so its last copy in {path.parent} is used: {error}", stacklevel=6)
    return parse_index(read_file(path), where)


def _is_raw(folder: Path, info: ShardInfo) -> bool:
    """Tell whether all files of a shard lie here as they are read."""
    for part in info.parts:
        path = resolve_inside(folder, part.raw.basename)
        try:
            if path.stat().st_size != part.raw.num_bytes:
                return False
        except FileNotFoundError:
            return False
    return True
