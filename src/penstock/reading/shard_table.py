"""The shards of all streams, end to end: where each one is, and how it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.codecs.compress import reading_codec
from penstock.errors import ConfigError
from penstock.formats.base import get_format
from penstock.formats.parts import open_files
from penstock.reading.ranged import FetchedShard, RangedRows
from penstock.reading.source import OpenShard, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.cache.cache import Cache
    from penstock.cache.shares import ShareListener
    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.index.model import Index, ShardInfo
    from penstock.reading.source import RowReader
    from penstock.types import Int64Array


class InPlace(Protocol):
    """Shards that can be read where they lie, on this machine."""

    @property
    def path(self) -> Path:
        """The folder that names are told below."""
        ...

    def is_raw(self, info: ShardInfo) -> bool:
        """Tell whether a shard lies there as it is read."""
        ...

    def open_shard(self, info: ShardInfo, options: ReadOptions) -> ShardReader:
        """Open a shard, checking that it is what the index says."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFiles:
    """Where the files of one stream are: as they lie in a folder, in the cache, or some here and some there."""

    where: str  # for errors
    index: Index
    in_place: InPlace | None
    cached: int | None  # its number in the cache
    validates: bool = False  # whole files only: a digest says nothing of a part
    share: float = 1.0  # about how much of its shards is fetched, where that is only some columns
    options: ReadOptions  # how its values are read


class ShardTable(Source):
    """The shards of all streams that lie in stores and folders, by number, the streams laid end to end."""

    def __init__(self, streams: Sequence[StreamFiles], cache: Cache) -> None:
        self.streams = tuple(streams)
        self.cache = cache
        lengths = [files.index.lengths for files in self.streams]
        super().__init__(np.concatenate(lengths))
        self.first_shards = np.cumsum([0, *map(len, lengths)])

    def find(self, shard: int) -> tuple[int, int, ShardInfo]:
        """Give the stream of a shard, its number there, and what the index says of it."""
        stream = int(self.first_shards.searchsorted(shard, side="right")) - 1
        number = shard - int(self.first_shards[stream])
        return stream, number, self.streams[stream].index.shards[number]

    def open(self, shard: int) -> OpenShard:
        """Open a shard, fetching it first if need be; it stays on the disk until it is closed."""
        stream, number, info = self.find(shard)
        files = self.streams[stream]
        if files.in_place is not None and (files.cached is None or files.in_place.is_raw(info)):
            return OpenShard(files.in_place.open_shard(info, files.options))
        if files.cached is None:
            raise ConfigError(f"stream {stream} has neither a folder nor a store")
        lease = self.cache.lease(files.cached, number, f"shard {shard + 1}/{len(self.spans)}")
        try:
            return OpenShard(open_files(lease.paths, info, files.options), lease)
        except BaseException:
            lease.close()
            raise

    def expect(self, shards: Int64Array, batches_ahead: Int64Array) -> None:
        """Tell the cache which shards will be wanted, soonest first."""
        wanted = []
        for shard, ahead in zip(shards.tolist(), batches_ahead.tolist(), strict=True):
            stream, number, info = self.find(shard)
            files = self.streams[stream]
            if files.cached is not None and not (files.in_place is not None and files.in_place.is_raw(info)):
                wanted.append((files.cached, number, ahead))
        self.cache.expect(wanted)

    def cached_shards(self, shards: Int64Array | None) -> Iterator[tuple[int, list[int]]]:
        """Number some shards, or all, that are not simply read where they lie, by their stream in the cache."""
        for number, files in enumerate(self.streams):
            if files.cached is None:
                continue
            first, end = int(self.first_shards[number]), int(self.first_shards[number + 1])
            if shards is None:
                yield files.cached, list(range(end - first))
            else:
                yield files.cached, (shards[(shards >= first) & (shards < end)] - first).tolist()

    def row_reader(self) -> RowReader | None:
        """Give what fetches a few rows alone."""
        return RangedRows(self.cache, self._find_fetched) if self.is_fetched else None

    def _find_fetched(self, shard: int) -> FetchedShard | None:
        """Give a shard that may be read in parts from its store; None: it lies in a folder, or is checked whole."""
        stream, number, info = self.find(shard)
        files = self.streams[stream]
        if files.cached is None or files.in_place is not None or files.validates:
            return None
        return FetchedShard(files.cached, number, info, files.options)

    def share_limit(self, holder: ShareListener) -> None:
        """Let those who share the cache limit what is kept open of it."""
        if self.is_fetched:
            self.cache.keep(holder)

    def describe_shard(self, shard: int) -> str:
        """Say where a shard is."""
        stream, _, info = self.find(shard)
        return f"{self.streams[stream].where}, {info.name}"

    def close(self) -> None:
        """Hang up on the fetcher."""
        self.cache.close()

    @property
    def is_fetched(self) -> bool:
        """Whether any shard is not simply read where it lies."""
        return bool(self.cache.streams)

    @cached_property
    def sizes(self) -> Int64Array:
        """The size of each shard on disk, as it is read."""
        sizes = [(files.index.columns.raw_sizes, files.share) for files in self.streams]
        return np.concatenate([each if share == 1 else np.ceil(each * share).astype(np.int64) for each, share in sizes])


def check_layouts(index: Index, options: ReadOptions) -> None:
    """Refuse now what could not be read later: unknown formats, codecs and encodings, unsafe columns."""
    for layout in index.columns.layouts:
        get_format(layout.format).check(layout, options)
        if layout.compression is not None:
            reading_codec(layout.compression)
