"""A few rows of a shard that is far away: only their bytes are fetched, not the shard."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import CorruptShardError
from penstock.formats.base import get_format
from penstock.formats.offsets import table_bytes, write_offsets
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.data.shards import ShardTable
    from penstock.formats.base import ShardReader
    from penstock.index.model import ShardInfo
    from penstock.types import Int64Array

# Past this part of its rows, or this many of them, a shard is worth fetching whole.
_MAX_PART = 1 / 8
_MAX_ROWS = 64
_SMALL_TABLE_BYTES = 256 << 10
_MOST_THREADS = 32


class RangedRows:
    """Reads rows by ranges for as long as that is less than fetching their shards."""

    def __init__(self, table: ShardTable) -> None:
        self._table = table
        self._num_read: dict[int, int] = {}

    def is_worth_it(self, shard: int, num_rows: int) -> bool:
        """Tell whether rows of a shard should be read by ranges: it is absent, stored raw, and hardly used so far."""
        stream, info = self._table.find(shard)
        place = self._table.places[stream]
        if place.cached is None or place.in_place is not None:
            return False
        if info.layout.format != "mds" or info.parts[0].packed is not None or place.validates:
            return False
        num_read = self._num_read.get(shard, 0) + num_rows
        if num_read > min(_MAX_ROWS, max(1, int(info.num_samples * _MAX_PART))):
            return False
        return not self._table.cache.is_present(place.cached, info)

    def open(self, wanted: Sequence[tuple[int, Int64Array]]) -> list[ShardReader]:
        """Fetch rows of several shards at the same time, and give for each a reader of these rows alone, in order."""
        if len(wanted) == 1:
            return [self._open(*wanted[0])]
        with ThreadPoolExecutor(min(len(wanted), _MOST_THREADS), thread_name_prefix="penstock-ranges") as pool:
            return list(pool.map(self._open, *zip(*wanted, strict=True)))

    def _open(self, shard: int, rows: Int64Array) -> ShardReader:
        stream, info = self._table.find(shard)
        cached, file = self._table.places[stream].cached, info.parts[0].raw
        cache = self._table.cache
        if cached is None:
            raise CorruptShardError(f"{info.name} is not in a store", shard=info.name)
        self._num_read[shard] = self._num_read.get(shard, 0) + len(rows)
        bounds = self._read_bounds(cached, info, rows)
        is_wrong = (
            (bounds[:, 0] > bounds[:, 1])
            | (bounds[:, 0] < table_bytes(info.num_samples))
            | (bounds[:, 1] > file.num_bytes)
        )
        if is_wrong.any():
            row = int(rows[int(np.argmax(is_wrong))])
            raise CorruptShardError(
                f"{info.name}, row {row}: its offsets lie outside of the shard", shard=info.name, row=row
            )
        pieces = cache.read_many(cached, file.basename, [Span(begin, end) for begin, end in bounds.tolist()])
        # A shard of these rows alone, which the format reads as it reads any other.
        ends = np.cumsum([len(piece) for piece in pieces])
        data = write_offsets(ends, table_bytes(len(pieces))) + b"".join(pieces)
        return get_format("mds").open([data], replace(info, num_samples=len(pieces)), self._table.options)

    def _read_bounds(self, cached: int, info: ShardInfo, rows: Int64Array) -> Int64Array:
        """Say where rows begin and end: from the whole table of the shard, if it is small, else from their places."""
        cache, key, size = self._table.cache, info.parts[0].raw.basename, table_bytes(info.num_samples)
        if size <= _SMALL_TABLE_BYTES and len(rows) > 1:
            table = np.frombuffer(cache.read(cached, key, Span(4, size)), dtype="<u4").astype(np.int64)
            return np.stack([table[rows], table[rows + 1]], axis=1)
        places = cache.read_many(cached, key, [Span(4 + 4 * row, 12 + 4 * row) for row in rows.tolist()])
        return np.frombuffer(b"".join(places), dtype="<u4").reshape(-1, 2).astype(np.int64)
