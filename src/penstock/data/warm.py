"""`warm_cache`: fetches a whole dataset before anybody trains on it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cachedir.layout import place_of
from penstock.data.open_streams import open_streams
from penstock.data.stream import Stream
from penstock.formats.base import ReadOptions
from penstock.interrupts import trims_traceback

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping


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
    return _warm(stream, on_progress)


def _warm(stream: Stream, on_progress: Callable[[int, int], None] | None) -> WarmedCache:
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
