"""A dataset whose streams are open: how large it is, and what the cache holds of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.data.getitem import resolve_ids
from penstock.data.open_streams import fetch_object
from penstock.interrupts import cuts_interrupts_short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.cache.cache import Cache
    from penstock.data.open_streams import OpenedStreams
    from penstock.data.stream import Stream
    from penstock.types import Int64Array

    Numbers = slice | Sequence[int] | Int64Array


class OpenedDataset:
    """What can be asked of a dataset without reading a sample."""

    streams: list[Stream]
    _opened: OpenedStreams

    @property
    def num_samples(self) -> int:
        """The number of samples that there are; `epoch_size` is what an epoch draws of them."""
        return self._opened.source.spans.num_samples

    @property
    def size(self) -> int:
        """The number of samples that there are."""
        return self.num_samples

    @property
    def samples_per_stream(self) -> Int64Array:
        """The number of samples that there are in each stream."""
        return np.diff(self._opened.first_ids)

    @property
    def num_shards(self) -> int:
        """The number of shards of all streams."""
        return len(self._opened.source.spans)

    @cuts_interrupts_short
    def warm(self, key: Numbers | None = None) -> None:
        """Fetch the shards of some samples, or all shards, before they are needed."""
        for cache, stream, shards in self._cached_shards(key):
            cache.warm(stream, shards)

    def pin(self, key: Numbers | None = None) -> None:
        """Keep the shards of some samples, or all shards, in the cache until they are unpinned, by whatever job."""
        for cache, stream, shards in self._cached_shards(key):
            cache.pin(stream, shards)

    def unpin(self, key: Numbers | None = None) -> None:
        """Let the cache remove these shards again when it needs the room."""
        for cache, stream, shards in self._cached_shards(key):
            cache.unpin(stream, shards)

    @cuts_interrupts_short
    def fetch(self, url: str, local: str | None = None, *, ahead: bool = False) -> Path:
        """Bring an object that lies beside the shards, such as a video, into the cache, and say where it is.

        With `ahead` it is fetched in the background: call again without when it is needed.

        `url` is a URL below the remote of one of the streams, or a key below the first one's. `local` is its name below
        the stream's folder. It counts against the cache limit and is evicted as shards are.
        """
        return fetch_object(self._opened, url, local, [stream.url for stream in self.streams], ahead=ahead)

    def _cached_shards(self, key: Numbers | None) -> Iterator[tuple[Cache, int, list[int]]]:
        if key is None:
            return self._opened.cached_shards(None)
        ids = resolve_ids(key, self.num_samples)
        ids = range(ids, ids + 1) if isinstance(ids, int) else ids
        shards, _ = self._opened.source.spans.locate(np.asarray(ids, np.int64))
        return self._opened.cached_shards(np.unique(shards))
