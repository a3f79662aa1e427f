"""MDS: binary rows behind a table of offsets, read a whole batch at a time with NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from penstock.codecs.unpack import check_whole, release, rest
from penstock.errors import BadIndexError, CorruptShardError, UnsafeTypeError
from penstock.formats.base import RowRanges, ShardFormat, get_format
from penstock.formats.body import BodyBuilder
from penstock.formats.column_errors import decode_error
from penstock.formats.encodings.base import FixedEncoding
from penstock.formats.encodings.table import get_encoding, infer_encodings
from penstock.formats.gather import ValueGatherer, as_list, view_items
from penstock.formats.mds_encode import compile_encoder
from penstock.formats.rows import (
    check_projection,
    check_rows,
    join_columns,
    max_samples,
    read_offsets,
    table_bytes,
    write_offsets,
)
from penstock.index.model import Column
from penstock.index.mosaic_json import dump_header
from penstock.spent import decoding
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    from typing_extensions import Buffer

    from penstock.formats.base import ReadOptions, Rows, ShardBytes, ShardReader
    from penstock.formats.body import ChunkPool
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.gather import Pieces
    from penstock.index.model import ShardInfo, ShardLayout
    from penstock.types import Columns, Int64Array, Sample

T = TypeVar("T")

# Asking for one range costs about as much as so many bytes.
_TABLE_BYTES_PER_ROW = 256 << 10
_SHARDS_PART_OF_TABLE = 32  # of tiny samples it is much of the shard, which may come as a whole soon


class MDSRowRanges(RowRanges):
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
                f"{info.name}, row {row}: its offsets are outside the shard", shard=info.name, row=row
            )
        return [Span(begin, end) for begin, end in bounds.tolist()]

    def likely_spans(self, info: ShardInfo, rows: Int64Array) -> list[Span] | None:
        """Samples that all have one size fill the end of their shard."""
        sizes = [column.num_bytes for column in info.layout.columns]
        sample_bytes = sum(size or 0 for size in sizes)
        first = info.parts[0].raw.num_bytes - info.num_samples * sample_bytes
        if None in sizes or first < table_bytes(info.num_samples):
            return None
        return [Span(first + row * sample_bytes, first + (row + 1) * sample_bytes) for row in rows.tolist()]

    def open(self, info: ShardInfo, pieces: Sequence[bytes], options: ReadOptions) -> ShardReader:
        """Make a shard of these rows alone, which is read as any other."""
        ends = np.cumsum([len(piece) for piece in pieces])
        data = write_offsets(ends, table_bytes(len(pieces))) + b"".join(pieces)
        return get_format(info.layout.format).open([data], replace(info, num_samples=len(pieces)), options)


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
        """Open a shard, computing where every value of every column is."""
        self.check(info.layout, options)
        return MDSReader(parts[0], info, options)

    def builder(self, layout: ShardLayout, pool: ChunkPool) -> MDSBuilder:
        """Begin a shard."""
        return MDSBuilder(layout, pool)


# --- Reading ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FixedColumn:
    """Value i is the `num_bytes` bytes from `bases[i] + offset`."""

    name: str
    encoding: FixedEncoding
    bases: npt.NDArray[np.uint32]
    offset: int
    items: npt.NDArray[Any]  # item k: the `num_bytes` bytes that begin at byte k of the shard, wherever that is

    def gather(self, rows: Int64Array) -> npt.NDArray[Any]:
        return self.encoding.to_array(self.items[self.begins(rows)])

    def begins(self, rows: Int64Array) -> npt.NDArray[np.intp]:
        begins = self.bases[rows].astype(np.intp)
        begins += self.offset
        return begins


@dataclass(frozen=True, slots=True)
class _VariableColumn:
    """Value i is the bytes from `bases[i] + offset` to `ends[i]`."""

    name: str
    encoding: Encoding
    bases: npt.NDArray[np.uint32]
    offset: int
    ends: npt.NDArray[np.uint32]
    values: ValueGatherer

    def gather(self, rows: Int64Array) -> Pieces:
        begins = self.bases[rows].astype(np.int64)
        begins += self.offset
        return self.values.gather(begins, self.ends[rows].astype(np.int64))


class MDSReader:
    """One open MDS shard."""

    def __init__(self, data: ShardBytes, info: ShardInfo, options: ReadOptions) -> None:
        self._data = data
        self.name = info.name
        self._num_samples = info.num_samples
        columns = _locate_columns(data, info, options)
        if options.columns is not None:
            columns = [column for column in columns if column.name in options.columns]
        self._columns = columns
        self._names = tuple(column.name for column in columns)
        self._fixed = {column.name: column for column in columns if isinstance(column, _FixedColumn)}
        self._variable = {column.name: column for column in columns if isinstance(column, _VariableColumn)}
        self.encodings: dict[str, Encoding] = {column.name: column.encoding for column in columns}

    def __len__(self) -> int:
        return self._num_samples

    def read(self, rows: Rows) -> list[Sample]:
        """Give the samples at these rows, in this order."""
        numbers = self._check(rows)
        stored = [column.gather(numbers) for column in self._columns]
        with decoding:
            values = [self._values(*each, numbers) for each in zip(self._columns, stored, strict=True)]
            return join_columns(self._names, values, len(numbers))

    def read_columns(self, rows: Rows) -> Columns:
        """Give the same by column: an array where all values allow it, else a list."""
        numbers = self._check(rows)
        stored = {column.name: column.gather(numbers) for column in self._columns}
        with decoding:
            return {column.name: self._column(column, stored[column.name], numbers) for column in self._columns}

    def fill(self, name: str, rows: Int64Array, places: Int64Array, out: npt.NDArray[Any]) -> None:
        """Put the stored values of a column of fixed size at their places in an array of void items."""
        check_whole(self._data, self.name)
        column = self._fixed[name]
        out[places] = column.items[column.begins(rows)]

    def locate(self, name: str, rows: Int64Array) -> tuple[memoryview, Int64Array]:
        """Say where the stored values of a column of fixed size lie: in which bytes, and where each begins."""
        check_whole(self._data, self.name)
        return memoryview(self._data), self._fixed[name].begins(rows)

    def gather(self, name: str, rows: Int64Array) -> Pieces:
        """Give the stored values of a column of variable size."""
        check_whole(self._data, self.name)
        return self._variable[name].gather(rows)

    def rest(self) -> None:
        """Take the shard's pages out of memory."""
        rest(self._data)

    def close(self) -> None:
        """Unmap the shard."""
        # Their arrays point into the mapping, which closes only when nobody does.
        self._columns, self._fixed, self._variable = [], {}, {}
        self._num_samples = 0
        release(self._data)

    def _check(self, rows: Rows) -> Int64Array:
        numbers = check_rows(rows, self._num_samples, self.name)
        check_whole(self._data, self.name)
        return numbers

    def _values(self, column: _FixedColumn | _VariableColumn, stored: Any, rows: Int64Array) -> list[Any]:
        if isinstance(column, _FixedColumn):
            return column.encoding.to_values(stored)
        return self._decode(column, stored, rows, column.encoding.decode_many)

    def _column(
        self, column: _FixedColumn | _VariableColumn, stored: Any, rows: Int64Array
    ) -> npt.NDArray[Any] | list[Any]:
        if isinstance(column, _FixedColumn):
            return cast("npt.NDArray[Any]", stored)
        return self._decode(column, stored, rows, column.encoding.to_column)

    def _decode(
        self, column: _VariableColumn, stored: Pieces, rows: Int64Array, decode: Callable[[Sequence[bytes]], T]
    ) -> T:
        pieces = as_list(stored)
        try:
            return decode(pieces)
        except Exception as error:
            raise decode_error(decode, pieces, rows.tolist(), self.name, column.name, error) from error


def _locate_columns(data: ShardBytes, info: ShardInfo, options: ReadOptions) -> list[_FixedColumn | _VariableColumn]:
    """Find all values of all columns at once; a sample whose sizes do not add up makes the shard corrupt.

    Each sample is the sizes of its variable values, then all values in column order. So a value begins at a constant
    distance from the end of the last variable value before it, or from the start of the sample: one array per
    variable column says it all.
    """
    num_samples, name = info.num_samples, info.name
    offsets = read_offsets(data, num_samples, begin=table_bytes(num_samples), end=len(data), shard=name)
    starts, stops = offsets[:-1], offsets[1:]
    num_sizes = sum(column.num_bytes is None for column in info.layout.columns)
    sizes = _read_sizes(data, starts, stops, num_sizes, name)
    columns: list[_FixedColumn | _VariableColumn] = []
    bases, offset, ends = starts, 4 * num_sizes, starts.astype(np.int64) + 4 * num_sizes
    next_sizes = iter(sizes.T)
    for column in info.layout.columns:
        encoding = get_encoding(column.encoding, options.image_decoder)
        if isinstance(encoding, FixedEncoding):
            ends += encoding.num_bytes
            items = view_items(data, "V", encoding.num_bytes)
            columns.append(_FixedColumn(column.name, encoding, bases, offset, items))
            offset += encoding.num_bytes
        else:
            shortest = longest = column.num_bytes or 0  # a fixed size, but values that NumPy cannot hold
            if column.num_bytes is None:
                own_sizes = next(next_sizes)
                shortest, longest = (int(own_sizes.min()), int(own_sizes.max())) if num_samples else (0, 0)
            ends += own_sizes if column.num_bytes is None else column.num_bytes
            # Sizes that lie may run past 32 bits here; the check below sees it in `ends`.
            stored_ends = ends.astype(np.uint32)
            values = ValueGatherer(data, shortest, longest)
            columns.append(_VariableColumn(column.name, encoding, bases, offset, stored_ends, values))
            bases, offset = stored_ends, 0
    bad = np.flatnonzero(ends != stops)
    if len(bad):
        row = int(bad[0])
        raise CorruptShardError(
            f"{name}, row {row}: its values end at byte {ends[row]}, but the sample ends at byte {stops[row]}",
            shard=name,
            row=row,
        )
    return columns


def _read_sizes(
    data: ShardBytes, starts: npt.NDArray[np.uint32], stops: npt.NDArray[np.uint32], num_sizes: int, name: str
) -> npt.NDArray[np.uint32]:
    """Give the size words of each sample, a row a sample and a column a variable column."""
    num_bytes = 4 * num_sizes
    if not num_sizes or not len(starts):
        return np.zeros((len(starts), num_sizes), np.uint32)
    if (stops - starts < num_bytes).any():
        row = int(np.argmax(stops - starts < num_bytes))
        raise CorruptShardError(f"{name}, row {row}: too short to hold the sizes of its values", shard=name, row=row)
    words: npt.NDArray[np.uint32] = view_items(data, "V", num_bytes)[starts.astype(np.intp)].view("<u4")
    return words.reshape(len(starts), num_sizes)


# --- Writing ------------------------------------------------------------------------------------------------


class MDSBuilder(BodyBuilder):
    """One MDS shard in the making; its size is exact."""

    sample_overhead = 4  # its offset

    def __init__(self, layout: ShardLayout, pool: ChunkPool) -> None:
        self._header = dump_header(layout)
        super().__init__(
            pool,
            num_bytes=table_bytes(0) + len(self._header),
            front_bytes=table_bytes(_most_samples(layout, pool.chunk_bytes)) + len(self._header),
        )
        self.encode = compile_encoder(layout.columns)

    def build(self) -> list[list[Buffer]]:
        """Give the offsets, the settings and the samples as the pieces of one file."""
        begin = table_bytes(self.num_samples) + len(self._header)
        return [self._body.pieces(write_offsets(self._body.ends(), begin) + self._header)]


def _most_samples(layout: ShardLayout, num_bytes: int) -> int:
    """Say how many samples fit in so many bytes: each has an offset, fixed values, and the sizes of the others."""
    fewest_bytes = 4 + sum(4 if column.num_bytes is None else column.num_bytes for column in layout.columns)
    return num_bytes // fewest_bytes
