"""A few rows of an MDS shard by ranges: first their entries in the table of offsets, then the rows themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import CorruptShardError
from penstock.formats.base import get_format
from penstock.formats.offsets import table_bytes, write_offsets
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.index.model import ShardInfo
    from penstock.types import Int64Array

# Asking for one range costs about as much as so many bytes.
_TABLE_BYTES_PER_ROW = 256 << 10


class MDSRowRanges:
    """Finds rows by the table of offsets: all of it, if that is little for so many rows, or their entries."""

    def spans_to_locate(self, info: ShardInfo, rows: Int64Array) -> list[Span]:
        """Say what to read of the table."""
        if _takes_whole_table(info, rows):
            return [Span(4, table_bytes(info.num_samples))]
        return [Span(4 + 4 * row, 12 + 4 * row) for row in rows.tolist()]

    def spans_of_rows(self, info: ShardInfo, rows: Int64Array, found: Sequence[bytes]) -> list[Span]:
        """Say from what was read where each row begins and ends."""
        words = np.frombuffer(b"".join(found), dtype="<u4").astype(np.int64)
        if _takes_whole_table(info, rows):
            bounds = np.stack([words[rows], words[rows + 1]], axis=1)
        else:
            bounds = words.reshape(-1, 2)
        is_wrong = (
            (bounds[:, 0] > bounds[:, 1])
            | (bounds[:, 0] < table_bytes(info.num_samples))
            | (bounds[:, 1] > info.parts[0].raw.num_bytes)
        )
        if is_wrong.any():
            row = int(rows[int(np.argmax(is_wrong))])
            raise CorruptShardError(
                f"{info.name}, row {row}: its offsets lie outside of the shard", shard=info.name, row=row
            )
        return [Span(begin, end) for begin, end in bounds.tolist()]

    def open(self, info: ShardInfo, pieces: Sequence[bytes], options: ReadOptions) -> ShardReader:
        """Make a shard of these rows alone, which is read as any other."""
        ends = np.cumsum([len(piece) for piece in pieces])
        data = write_offsets(ends, table_bytes(len(pieces))) + b"".join(pieces)
        return get_format(info.layout.format).open([data], replace(info, num_samples=len(pieces)), options)


def _takes_whole_table(info: ShardInfo, rows: Int64Array) -> bool:
    return table_bytes(info.num_samples) <= _TABLE_BYTES_PER_ROW * (len(rows) - 1)
