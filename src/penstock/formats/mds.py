"""MDS: binary rows behind a table of offsets, read a whole batch at a time with NumPy."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import (
    BadIndexError,
    ColumnSizeError,
    ColumnTypeError,
    CorruptShardError,
    ShardTooLargeError,
    UnsafeTypeError,
)
from penstock.formats.base import RowRanges, ShardFormat, get_format
from penstock.formats.body import BodyBuilder
from penstock.formats.column_errors import encode_error
from penstock.formats.encodings.base import Encoding, FixedEncoding
from penstock.formats.encodings.numbers import (
    NUMPY_TYPES,
    ArrayEncoding,
    FixedArrayEncoding,
    IntEncoding,
    NumberEncoding,
)
from penstock.formats.encodings.table import get_encoding, infer_encodings
from penstock.formats.encodings.text import StrEncoding
from penstock.formats.mds_reader import MDSReader
from penstock.formats.rows import max_samples, table_bytes, write_offsets
from penstock.index.model import MAX_SHARD_BYTES, Column
from penstock.index.mosaic_json import dump_header
from penstock.types import Span
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Buffer

    from penstock.blocks.block import Block
    from penstock.formats.base import ReadOptions, ShardBytes, ShardReader
    from penstock.formats.body import ChunkPool
    from penstock.index.model import IndexedShard, ShardLayout
    from penstock.types import Int64Array, Sample

_OF_ONE_SIZE = (IntEncoding, NumberEncoding, FixedArrayEncoding)


def compile_encoder(columns: Sequence[Column], *, takes_empty: bool = False) -> Callable[[Sample], bytes]:
    """Make the function that turns a sample of these columns into a record.

    A record is the sizes of the variable values, then all values. The function is written out for the columns, with
    neighbouring numbers packed in one call, which makes it three times as fast as a loop. Only kinds of columns enter
    its source text; names and encoders are values. What the quick way cannot take, the careful way decides:
    so also for arrays without elements, which it refuses unless `takes_empty`.
    """
    source, values = _write_source(columns)
    values["careful"] = careful_encoder(columns, takes_empty=takes_empty)
    values["join"] = b"".join
    exec(source, values)  # noqa: S102
    encoder: Callable[[Sample], bytes] = values["encode"]
    return encoder


def _write_source(columns: Sequence[Column]) -> tuple[str, dict[str, Any]]:
    values: dict[str, Any] = {}
    statements: list[str] = []
    sizes = [f"len(p{i})" for i, column in enumerate(columns) if column.num_bytes is None]
    pieces: list[str] = []
    run_codes, run_items = "I" * len(sizes), sizes  # numbers that stand side by side, packed together

    def end_run() -> None:
        nonlocal run_codes, run_items
        if run_codes:
            pack = f"pack{len(pieces)}"
            values[pack] = struct.Struct("<" + run_codes).pack
            pieces.append(f"{pack}({', '.join(run_items)})")
        run_codes, run_items = "", []

    for i, column in enumerate(columns):
        encoding = get_encoding(column.encoding)
        values[f"k{i}"], values[f"e{i}"] = column.name, encoding.encode
        statements.append(f"v{i} = sample[k{i}]")
        if isinstance(encoding, IntEncoding):  # packing would take truth values too
            statements.append(f"if v{i}.__class__ is not int: return careful(sample)")
        if isinstance(encoding, NumberEncoding):
            values[f"t{i}"] = NUMPY_TYPES[encoding.plain_type]
            test = f"v{i}.__class__ is not {encoding.plain_type.__name__} and v{i}.__class__ not in t{i}"
            if encoding.plain_type is float:  # whole numbers up to here are the same as floats
                most = 2 ** (np.finfo(column.encoding).nmant + 1)
                test += f" and not (v{i}.__class__ is int and {-most} <= v{i} <= {most})"
            statements.append(f"if {test}: return careful(sample)")
        # Packing goes through 64 bits, which some bits of a NaN do not survive.
        if column.encoding in ("float16", "float32"):
            statements.append(f"if v{i} != v{i}: return careful(sample)")
        if isinstance(encoding, (NumberEncoding, IntEncoding)):
            run_codes, run_items = run_codes + encoding.code, [*run_items, f"v{i}"]
            continue
        end_run()
        if isinstance(encoding, StrEncoding):
            values[f"e{i}"] = str.encode
        if isinstance(encoding, FixedEncoding):
            statements.append(f"p{i} = e{i}(v{i})")
        else:
            values[f"s{i}"] = encoding.check_stored
            statements.append(f"p{i} = {_encoded(i, encoding)}")
            if column.num_bytes is not None:
                statements.append(
                    f"if p{i}.__class__ is not bytes or len(p{i}) != {column.num_bytes}: return careful(sample)"
                )
        pieces.append(f"p{i}")
    end_run()
    body = "".join(f"        {statement}\n" for statement in statements)
    joined = " + ".join(pieces) if len(pieces) <= 2 else f"join(({', '.join(pieces)}))"
    return (
        "def encode(sample):\n"
        "    try:\n"
        f"{body}"
        f"        return {joined}\n"
        "    except Exception:\n"
        "        return careful(sample)\n"
    ), values


def _encoded(i: int, encoding: Encoding) -> str:
    """Write how a value of any length is encoded, unless it comes as it is stored."""
    is_checked = type(encoding).check_stored is not Encoding.check_stored
    stored = f"s{i}(v{i})" if is_checked else f"v{i}"
    encoded = f"{stored} if isinstance(v{i}, bytes) else e{i}(v{i})"
    if isinstance(encoding, StrEncoding):  # nearly all that comes is text, and this the shortest way
        return f"v{i}.encode() if v{i}.__class__ is str else {encoded}"
    return encoded


def encode_columns(columns: Sequence[Column], block: Block) -> tuple[bytes, Int64Array] | None:
    """Return the records of rows that are columns, joined, and the size of each, as `compile_encoder` makes them.

    That is for the columns that most rows have: texts, bytes, and numbers and arrays that are of the column's type. Of
    others, or of values that do not fit, row by row has to say what to do: then None.
    """
    values = block.columns()
    parts = [_encoded_column(column, values.get(column.name), len(block)) for column in columns]
    lengths = [np.fromiter(map(len, part), "<u4", len(block)) for part in parts if isinstance(part, list)]
    if len(block) == 0 or any(part is None for part in parts):
        return None
    runs: list[Any] = [[sizes.view(np.uint8).reshape(len(block), 4) for sizes in lengths]]
    for part in parts:
        if isinstance(part, list):
            runs += [part, []]
        else:
            runs[-1].append(part)
    pieces = [run if run and isinstance(run[0], bytes) else _rows_of(run) for run in runs if run]
    fixed = sum(part.shape[1] for part in parts if isinstance(part, np.ndarray)) + 4 * len(lengths)
    joined: list[bytes] = [b""] * (len(pieces) * len(block))
    for place, piece in enumerate(pieces):
        joined[place :: len(pieces)] = piece
    return b"".join(joined), np.sum([np.full(len(block), fixed, np.int64), *lengths], axis=0)


def _encoded_column(column: Column, values: Any, num_rows: int) -> Any:
    """Return the stored values as a list of bytes, or, if they are of one size, as an array of bytes; None: neither."""
    encoding = get_encoding(column.encoding)
    if isinstance(values, list) and column.encoding in ("str", "bytes"):
        kinds = set(map(type, values))
        with suppress(UnicodeEncodeError):
            return values if kinds == {bytes} else [*map(str.encode, values)] if kinds == {str} else None
    if isinstance(values, np.ndarray) and isinstance(encoding, _OF_ONE_SIZE) and encoding.holds(values):
        stored = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
        return stored.reshape(num_rows, -1).view(np.uint8)
    return None


def _rows_of(parts: list[Any]) -> list[bytes]:
    """Return the rows of arrays of bytes that lie side by side."""
    joined = np.ascontiguousarray(np.concatenate(parts, axis=1))
    rows: list[bytes] = joined.view(f"V{joined.shape[1]}").ravel().tolist()
    return rows


def careful_encoder(columns: Sequence[Column], *, takes_empty: bool = False) -> Callable[[Sample], bytes]:
    """Make the function that encodes a sample column by column, so that an error can name the column."""
    encodings = [get_encoding(column.encoding) for column in columns]
    if takes_empty:
        encodings = [each.taking_empty() if isinstance(each, ArrayEncoding) else each for each in encodings]
    known = [(column.name, how, column.num_bytes) for column, how in zip(columns, encodings, strict=True)]
    return partial(_encode_carefully, known)


def _encode_carefully(columns: Sequence[tuple[str, Encoding, int | None]], sample: Sample) -> bytes:
    sizes: list[int] = []
    pieces: list[bytes] = []
    name = ""
    try:
        for name, encoding, num_bytes in columns:
            value = sample[name]
            # A value that comes as bytes is encoded already.
            piece = encoding.check_stored(value) if isinstance(value, bytes) else encoding.encode(value)
            if not isinstance(piece, bytes):
                raise ColumnTypeError(f"is encoded as {type(piece).__name__}, but an encoding must return bytes")
            if num_bytes is None:
                sizes.append(len(piece))
            elif len(piece) != num_bytes:
                raise ColumnSizeError(f"takes {num_bytes} bytes, got {len(piece)}")
            pieces.append(piece)
    except Exception as error:
        raise encode_error(sample, name, error) from error
    if sum(sizes) > MAX_SHARD_BYTES:
        raise ShardTooLargeError(f"the sample takes {format_bytes(sum(sizes))}, but a shard must stay below 4 GB")
    return b"".join([struct.pack(f"<{len(sizes)}I", *sizes), *pieces])


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

    def spans_to_locate(self, info: IndexedShard, rows: Int64Array) -> list[Span]:
        """Return what to read of the table."""
        if _takes_whole_table(info, rows):
            return [Span(4, table_bytes(info.num_samples))]
        return [Span(4 + 4 * row, 12 + 4 * row) for row in rows.tolist()]

    def spans_of_rows(self, info: IndexedShard, rows: Int64Array, found: Sequence[bytes]) -> list[Span]:
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

    def likely_spans(self, info: IndexedShard, rows: Int64Array) -> list[Span] | None:
        """Samples of one size fill the end of their shard; of others, neighbours lie about where they would."""
        sizes = [column.num_bytes for column in info.layout.columns]
        if None in sizes:
            return _likely_span(info, rows)
        sample_bytes = sum(size or 0 for size in sizes)
        first = info.parts[0].raw.num_bytes - info.num_samples * sample_bytes
        if first < table_bytes(info.num_samples):
            return None
        return [Span(first + row * sample_bytes, first + (row + 1) * sample_bytes) for row in rows.tolist()]

    def open(self, info: IndexedShard, pieces: Sequence[bytes], options: ReadOptions) -> ShardReader:
        """Make a shard of these rows alone, which is read as any other."""
        ends = np.cumsum([len(piece) for piece in pieces])
        data = write_offsets(ends, table_bytes(len(pieces))) + b"".join(pieces)
        return get_format(info.layout.format).open([data], replace(info, num_samples=len(pieces)), options)


def _likely_span(info: IndexedShard, rows: Int64Array) -> list[Span] | None:
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


def _takes_whole_table(info: IndexedShard, rows: Int64Array) -> bool:
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
            encoding = get_encoding(column.encoding, options.image_decoder, options.unpickle)
            if encoding.is_unsafe and not options.allow_unsafe_types:
                raise UnsafeTypeError(
                    f"column {column.name!r} has the encoding {column.encoding!r}, which can run code when it is"
                    " read: pass allow_unsafe_types=True if you trust its writer"
                )
            sizes = {encoding.num_bytes, column.num_bytes}
            if len(sizes) > 1 and not (encoding.follows_index and None in sizes):
                raise BadIndexError(
                    f"the index says that column {column.name!r} of encoding {column.encoding!r} has"
                    f" {column.num_bytes} bytes, but it has {encoding.num_bytes}"
                )
        super().check(layout, options)

    def open(self, parts: Sequence[ShardBytes], info: IndexedShard, options: ReadOptions) -> MDSReader:
        """Open a shard; its values are found when they are read."""
        self.check(info.layout, options)
        return MDSReader(parts[0], info, options)

    def open_checked(self, parts: Sequence[ShardBytes], info: IndexedShard, options: ReadOptions) -> MDSReader:
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
        # Each sample has an offset, fixed values, and the sizes of the others.
        fewest_bytes = 4 + sum(4 if column.num_bytes is None else column.num_bytes for column in layout.columns)
        super().__init__(
            pool,
            num_bytes=table_bytes(0) + len(self._header),
            front_bytes=table_bytes(pool.chunk_bytes // fewest_bytes) + len(self._header),
        )
        self.encode = compile_encoder(layout.columns, takes_empty=takes_empty)

    def build(self) -> list[list[Buffer]]:
        """Return the offsets, the settings and the samples as the pieces of one file."""
        begin = table_bytes(self.num_samples) + len(self._header)
        return [self.pieces(write_offsets(self.ends(), begin) + self._header)]
