"""A few rows of a shard that is far away: only their bytes are fetched, not the shard."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import CorruptShardError
from penstock.formats.base import get_format
from penstock.formats.offsets import table_bytes, write_offsets
from penstock.types import Span

if TYPE_CHECKING:
    from penstock.data.shards import ShardTable
    from penstock.types import Int64Array, Sample

# Past this part of its rows, or this many of them, a shard is worth fetching whole.
_MAX_PART = 1 / 8
_MAX_ROWS = 64


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

    def read(self, shard: int, rows: Int64Array) -> list[Sample]:
        """Give the samples at these rows: where they are first, then their bytes, all at once."""
        stream, info = self._table.find(shard)
        cached, file = self._table.places[stream].cached, info.parts[0].raw
        cache = self._table.cache
        if cached is None:
            raise CorruptShardError(f"{info.name} is not in a store", shard=info.name)
        self._num_read[shard] = self._num_read.get(shard, 0) + len(rows)
        places = cache.read_many(cached, file.basename, [Span(4 + 4 * row, 12 + 4 * row) for row in rows.tolist()])
        bounds = np.frombuffer(b"".join(places), dtype="<u4").reshape(-1, 2).astype(np.int64)
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
        reader = get_format("mds").open([data], replace(info, num_samples=len(pieces)), self._table.options)
        try:
            return reader.read(range(len(pieces)))
        finally:
            reader.close()
