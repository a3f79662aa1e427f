"""MDS: binary rows behind a table of offsets, read a whole batch at a time with NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import BadIndexError, CorruptShardError, UnsafeTypeError
from penstock.formats.base import RowRanges, ShardFormat, get_format
from penstock.formats.body import BodyBuilder
from penstock.formats.encodings.table import get_encoding, infer_encodings
from penstock.formats.mds_encode import compile_encoder
from penstock.formats.mds_reader import MDSReader
from penstock.formats.rows import check_projection, max_samples, table_bytes, write_offsets
from penstock.index.model import Column
from penstock.index.mosaic_json import dump_header
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

    from penstock.formats.base import ReadOptions, ShardBytes, ShardReader
    from penstock.formats.body import ChunkPool
    from penstock.index.model import ShardInfo, ShardLayout
    from penstock.types import Int64Array, Sample

# Asking for one range costs about as much as so many bytes.
_TABLE_BYTES_PER_ROW = 256 << 10
_SHARDS_PART_OF_TABLE = 32  # of tiny samples it is much of the shard, which may come as a whole soon
# Rows of various sizes begin about where rows of their mean size would. How far away grows with the square root of the
# rows before them: by this factor, if the sizes vary as much as their mean is, and nearly all should be found.
_SPREAD = 4
_HEADER_BYTES = 4 << 10  # that seldom take more, and lie before the first row
_MOST_LIKELY = 8  # times the bytes that are wanted


class MDSRowRanges(RowRanges):
    """Finds rows by the table of offsets: all of it, if that is little for so many rows, or their entries."""

    def spans_to_locate(self, info: ShardInfo, rows: Int64Array) -> list[Span]:
        """Return what to read of the table."""
        if _takes_whole_table(info, rows):
            return [Span(4, table_bytes(info.num_samples))]
        return [Span(4 + 4 * row, 12 + 4 * row) for row in rows.tolist()]

    def spans_of_rows(self, info: ShardInfo, rows: Int64Array, found: Sequence[bytes]) -> list[Span]:
        """Return from what was read where each row begins and ends."""
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
                f"{info.name}, row {row}: its offsets are outside the shard", shard=info.name, row=row
            )
        return [Span(begin, end) for begin, end in bounds.tolist()]

    def likely_spans(self, info: ShardInfo, rows: Int64Array) -> list[Span] | None:
        """Samples of one size fill the end of their shard; of others, neighbours lie about where they would."""
        sizes = [column.num_bytes for column in info.layout.columns]
        if None in sizes:
            return _likely_span(info, rows)
        sample_bytes = sum(size or 0 for size in sizes)
        first = info.parts[0].raw.num_bytes - info.num_samples * sample_bytes
        if first < table_bytes(info.num_samples):
            return None
        return [Span(first + row * sample_bytes, first + (row + 1) * sample_bytes) for row in rows.tolist()]

    def open(self, info: ShardInfo, pieces: Sequence[bytes], options: ReadOptions) -> ShardReader:
        """Make a shard of these rows alone, which is read as any other."""
        ends = np.cumsum([len(piece) for piece in pieces])
        data = write_offsets(ends, table_bytes(len(pieces))) + b"".join(pieces)
        return get_format(info.layout.format).open([data], replace(info, num_samples=len(pieces)), options)


def _likely_span(info: ShardInfo, rows: Int64Array) -> list[Span] | None:
    """Return the spans of neighbouring rows, if their sizes vary at random; None: that would be far too many."""
    first, last = int(rows.min()), int(rows.max())
    if len(rows) < 2 or last - first >= len(rows):
        return None
    begin, end = table_bytes(info.num_samples), info.parts[0].raw.num_bytes
    mean = (end - begin) / info.num_samples
    likely = Span(
        begin + max(0, int(mean * (first - _SPREAD * first**0.5))),
        min(end, begin + _HEADER_BYTES + int(mean * (last + 1 + _SPREAD * (last + 1) ** 0.5))),
    )
    return [likely] if len(likely) <= _MOST_LIKELY * mean * len(rows) else None


def _takes_whole_table(info: ShardInfo, rows: Int64Array) -> bool:
    little = min(_TABLE_BYTES_PER_ROW * (len(rows) - 1), info.parts[0].raw.num_bytes // _SHARDS_PART_OF_TABLE)
    return table_bytes(info.num_samples) <= little


class MDSFormat(ShardFormat):
    """Opens and builds MDS shards."""

    row_ranges = MDSRowRanges()

    def max_samples(self, raw_sizes: Sequence[int]) -> int:
        """Each sample has an offset."""
        return max_samples(raw_sizes[0])

    def columns(self, encodings: Mapping[str, str]) -> tuple[Column, ...]:
        """Sort the columns by name, each with the size of its values if that is fixed."""
        return tuple(Column(name, text, get_encoding(text).num_bytes) for name, text in sorted(encodings.items()))

    def infer(self, sample: Sample) -> dict[str, str]:
        """Choose the encoding of each column by the values of a first sample."""
        return infer_encodings(sample)

    def check(self, layout: ShardLayout, options: ReadOptions) -> None:
        """Refuse unknown and unsafe encodings, sizes that do not fit them, and columns that are not there."""
        for column in layout.columns:
            encoding = get_encoding(column.encoding, options.image_decoder)
            if encoding.is_unsafe and not options.allow_unsafe_types:
                raise UnsafeTypeError(
                    f"column {column.name!r} has the encoding {column.encoding!r}, which can run code when it is"
                    " read: pass allow_unsafe_types=True if you trust whoever wrote it"
                )
            sizes = {encoding.num_bytes, column.num_bytes}
            if len(sizes) > 1 and not (encoding.follows_index and None in sizes):
                raise BadIndexError(
                    f"the index says that column {column.name!r} of encoding {column.encoding!r} has"
                    f" {column.num_bytes} bytes, but it has {encoding.num_bytes}"
                )
        check_projection(layout, options)

    def open(self, parts: Sequence[ShardBytes], info: ShardInfo, options: ReadOptions) -> MDSReader:
        """Open a shard; its values are found when they are read."""
        self.check(info.layout, options)
        return MDSReader(parts[0], info, options)

    def open_checked(self, parts: Sequence[ShardBytes], info: ShardInfo, options: ReadOptions) -> MDSReader:
        """Open a shard, and find all of its values now."""
        reader = self.open(parts, info, options)
        reader.find_all()
        return reader

    def builder(self, layout: ShardLayout, pool: ChunkPool) -> MDSBuilder:
        """Begin a shard."""
        return MDSBuilder(layout, pool)


# --- Writing ------------------------------------------------------------------------------------------------


class MDSBuilder(BodyBuilder):
    """One MDS shard in the making; its size is exact."""

    sample_overhead = 4  # its offset

    def __init__(self, layout: ShardLayout, pool: ChunkPool, *, takes_empty: bool = False) -> None:
        self._header = dump_header(layout)
        super().__init__(
            pool,
            num_bytes=table_bytes(0) + len(self._header),
            front_bytes=table_bytes(_most_samples(layout, pool.chunk_bytes)) + len(self._header),
        )
        self.encode = compile_encoder(layout.columns, takes_empty=takes_empty)

    def build(self) -> list[list[Buffer]]:
        """Return the offsets, the settings and the samples as the pieces of one file."""
        begin = table_bytes(self.num_samples) + len(self._header)
        return [self._body.pieces(write_offsets(self._body.ends(), begin) + self._header)]


def _most_samples(layout: ShardLayout, num_bytes: int) -> int:
    """Return how many samples fit in so many bytes: each has an offset, fixed values, and the sizes of the others."""
    fewest_bytes = 4 + sum(4 if column.num_bytes is None else column.num_bytes for column in layout.columns)
    return num_bytes // fewest_bytes
