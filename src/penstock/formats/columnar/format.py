"""What Parquet and Arrow share: shards are unpacked into files of columns, which NumPy reads."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from io import RawIOBase
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from penstock.blocks.block import Block
from penstock.blocks.stage import row_after, saved_row
from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.columnar.arrow_types import naming, number_dtype, pyarrow
from penstock.formats.columnar.reader import ColumnsReader
from penstock.formats.columnar.types import ColumnType, parse_type, with_none
from penstock.formats.columnar.write import CHUNK_BYTES, write_columns
from penstock.formats.files import FileFormat, ScannedFile, ScannedShard
from penstock.index.model import Column
from penstock.order.state_fields import COUNT
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO

    from penstock.blocks.block import FieldValues
    from penstock.blocks.stage import State
    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.formats.files import FileBytes
    from penstock.index.model import IndexedShard
    from penstock.order.state_fields import Fields

    # Opens a file at a row, and gives blocks, and how many stored rows they were made of.
    OpenBatches = Callable[[int], Iterator[tuple[Block, int]]]


class Ranges(Protocol):
    """Something of which any range can be read."""

    @property
    def num_bytes(self) -> int:
        """Its size."""

    def read(self, begin: int, end: int) -> bytes | memoryview:
        """Return the bytes `[begin, end)`."""


class LocalObject(Ranges, Protocol):
    """An object of a store, which may be a file of this machine."""

    def local_path(self) -> Path | None:
        """Return where it lies, if it is such a file."""

    def fetch_tail(self, num_bytes: int) -> None:
        """Read its end at once."""


def open_for_arrow(opened: LocalObject) -> Any:
    """Open a file for Arrow, which reads one of this machine itself, without a copy of the bytes in between."""
    path = opened.local_path()
    return SpansInput(opened) if path is None else pyarrow().OSFile(str(path))


class SpansInput(RawIOBase):
    """A file, or what was fetched of it, at its places there; `tail` is its end, if that is kept elsewhere.

    It speaks the words of Python's files; pyarrow asks for `read_buffer` where there is one.
    """

    def __init__(self, stored: Ranges, tail: bytes = b"") -> None:
        self._stored, self._tail, self._position = stored, memoryview(tail), 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; all of them if the number is negative."""
        return bytes(self._take(size))

    def read_buffer(self, size: int = -1) -> Any:
        """Return the next bytes as a buffer of Arrow's, where they lie."""
        return pyarrow().py_buffer(self._take(size))

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self._position = max(0, (0, self._position, self._stored.num_bytes)[whence] + offset)
        return self._position

    def tell(self) -> int:
        """Return the place."""
        return self._position

    def readable(self) -> bool:
        """It is."""
        return True

    seekable = readable

    def _take(self, size: int) -> bytes | memoryview:
        rest = max(self._stored.num_bytes - self._position, 0)
        if not rest:
            return b""
        begin, end = self._position, self._position + (rest if size < 0 else min(size, rest))
        self._position = end
        tail_begin = self._stored.num_bytes - len(self._tail)
        if tail_begin <= begin < end:
            return self._tail[begin - tail_begin : end - tail_begin]
        return self._stored.read(begin, end)


class JoinedSpans:
    """Some bytes, and after them some spans of a file, one after another, as if they were a file of their own."""

    def __init__(self, first: bytes, stored: Ranges, spans: Sequence[tuple[int, int]]) -> None:
        self._first, self._stored, self._spans = memoryview(first), stored, spans
        self._ends = list(accumulate((end - begin for begin, end in spans), initial=len(first)))
        self.num_bytes = self._ends[-1]

    def read(self, begin: int, end: int) -> bytes | memoryview:
        """Return a range, without a copy if it lies within one of the spans."""
        parts: list[bytes | memoryview] = [self._first[begin:end]] if begin < self._ends[0] else []
        number = max(bisect_right(self._ends, begin), 1)
        while begin < end and number < len(self._ends) and self._ends[number - 1] < end:
            shift = self._spans[number - 1][0] - self._ends[number - 1]
            low, high = max(begin, self._ends[number - 1]), min(end, self._ends[number])
            parts.append(self._stored.read(low + shift, high + shift))
            number += 1
        return parts[0] if len(parts) == 1 else b"".join(parts)


# Fetching bytes between two wanted columns is cheaper than asking twice.
_LARGEST_GAP = 16 << 10
# A few bytes can stand for any number of equal values: what unpacks to more than this is taken for a trap.
_MOST_UNPACKED_BYTES = 1 << 30
_MOST_TIMES_UNPACKED = 1000


class ColumnarFormat(FileFormat):
    """What formats share whose shards are unpacked into files of columns."""

    raw_version = "columns1"

    def open(self, parts: Sequence[FileBytes], info: IndexedShard, options: ReadOptions) -> ShardReader:
        """Open the file of columns."""
        self.check(info.layout, options)
        [data] = parts
        assert not isinstance(data, memoryview)  # noqa: S101  it is a file of its own
        return ColumnsReader(data, info, options)


def write_shard(
    batches: Iterator[Any], types: Sequence[tuple[str, ColumnType]], info: IndexedShard, out: BinaryIO
) -> None:
    """Write what pyarrow makes of a shard; that it cannot is an error that names the file."""
    write_columns(
        translated(batches, info.name),
        types,
        out,
        name=info.name,
        num_rows=info.num_samples,
        max_bytes=_MOST_UNPACKED_BYTES + _MOST_TIMES_UNPACKED * info.parts[0].stored.num_bytes,
    )
    if info.parts[0].raw.num_bytes > CHUNK_BYTES:
        # It keeps what it had in use at most, in case that it needs as much again.
        pyarrow().default_memory_pool().release_unused()


def translated(batches: Iterator[Any], name: str, part: str = "") -> Iterator[Any]:
    """Turn what pyarrow says of a file, or of a part of it, into errors that name it."""
    with naming(name, f" cannot be decoded{part}", shard=name):
        yield from batches


def read_types(info: IndexedShard, columns: tuple[str, ...] | None) -> list[tuple[str, ColumnType]]:
    """Return the types of the columns that are asked for, in their order in the file."""
    with reading_entry(info):
        types = [(name, parse_type(kind, info.name)) for name, kind in info.layout.settings["types"]]
        for name, _ in types:
            name.encode()  # so that pyarrow can look for it
    return [(name, kind) for name, kind in types if columns is None or name in columns]


def reading_entry(info: IndexedShard) -> AbstractContextManager[None]:
    """Understand what an index says of a shard: it may come from others, as the file does."""
    return naming(info.name, " has an entry in the index that cannot be read", shard=info.name)


def describe_file(
    name: str,
    read: Callable[[], tuple[tuple[str, ColumnType], ...]],
    shards: Iterable[ScannedShard],
    settings: Mapping[str, Any],
) -> ScannedFile:
    """Describe a file by its columns and shards; its name is put in front of what is wrong with its schema."""
    try:
        with naming(name, " has a schema that cannot be read", shard=name):
            columns = read()
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", path=name) from error
    types = [[column, kind.to_json()] for column, kind in columns]
    described = tuple(Column(column, str(kind)) for column, kind in columns)
    return ScannedFile(described, tuple(shards), {**settings, "types": types})


def join_shard(num_samples: int, bounds: Sequence[tuple[int, int]], raw_bytes: int, details: bytes) -> ScannedShard:
    """Describe a shard of some parts of a file, which unpack to about so many bytes."""
    span = Span(min(begin for begin, _ in bounds), max(end for _, end in bounds))
    return ScannedShard(num_samples, span, raw_bytes + 1024, is_exact=False, details=details)


def corrupt(name: str, reason: str) -> CorruptShardError:
    """Return what is wrong with a file."""
    return CorruptShardError(f"{name} {reason}", shard=name)


def join_spans(bounds: Iterable[tuple[int, int]], end: int | None, name: str) -> tuple[Span, ...]:
    """Join spans that are near one another; none is longer than the file of this name."""
    joined: list[tuple[int, int]] = []
    for begin, stop in sorted(bounds):
        stop = stop if end is None else min(stop, end)
        if not 0 <= begin <= stop:
            raise corrupt(name, f"has an entry in the index that points outside of it, to byte {begin}")
        if joined and begin <= joined[-1][1] + _LARGEST_GAP:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((begin, stop))
    return tuple(Span(begin, stop) for begin, stop in joined)


# Rows that are read at once: as many as fill these bytes, within bounds.
_BATCH_BYTES = 4 << 20
_FEWEST_ROWS, _MOST_ROWS = 16, 2048


class BatchBlocks:
    """Blocks of record batches; where rows are left out, a position is a row and how many samples came after it."""

    state_fields: ClassVar[Fields] = {"row": COUNT}

    def __init__(self, open_batches: OpenBatches, row: int, num_rows: int | None = None) -> None:
        self._open_batches, self._row, self._num_rows = open_batches, row, num_rows
        self._batches: Iterator[tuple[Block, int]] | None = None

    def close(self) -> None:
        """Close the file."""
        batches, self._batches = self._batches, iter(())
        close = getattr(batches, "close", None)
        if close is not None:
            close()

    def next(self) -> Block:
        """Read the next batch that has a row; one that is whole begins where the last one that was read does."""
        if self._batches is None:
            self._batches = self._open_batches(self._row)
        for block, num_rows in self._batches:
            row, self._row = self._row, self._row + num_rows
            if len(block):
                return block.at(partial(row_after, row)) if len(block) == num_rows else block
        return Block()

    def get_state(self) -> State:
        """Return which row is next."""
        return {"row": self._row}

    def set_state(self, state: State) -> None:
        """Go to a row."""
        self.close()
        self._row, self._batches = saved_row(state, self._num_rows), None


def rows_at_once(num_bytes: int, num_rows: int) -> int:
    """Return how many rows are read at once, where so many rows have so many bytes."""
    return min(_MOST_ROWS, max(_FEWEST_ROWS, _BATCH_BYTES * num_rows // max(1, num_bytes)))


def block_of(batch: Any, condition: Any = None, columns: Sequence[str] | None = None) -> Block:
    """Return the rows of a record batch that fit a condition, and some of its columns."""
    if condition is not None:
        table = pyarrow().Table.from_batches([batch]).filter(condition).combine_chunks()
        found = table.to_batches()
        if not found:
            return Block()
        [batch] = found
    if columns is not None and list(columns) != batch.schema.names:
        batch = batch.select(list(columns))
    values = {name: _values(batch.column(number)) for number, name in enumerate(batch.schema.names)}
    return Block(None, values, batch.num_rows)


def _values(column: Any) -> FieldValues:
    """Return the values of a column as they are in samples: numbers of Python, arrays of lists of numbers."""
    types, kind = pyarrow().types, column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        value = kind.value_type
        if _is_number(value) or types.is_boolean(value) or types.is_float16(value):
            return _lists(column, number_dtype(value))
    if column.null_count or types.is_uint64(kind) or not (_is_number(kind) or types.is_boolean(kind)):
        listed: list[Any] = column.to_pylist()
        return listed
    numbers = column.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "b":
        return np.asarray(numbers)
    return np.asarray(numbers, np.int64 if numbers.dtype.kind in "iu" else np.float64)


def _is_number(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind))


def _lists(column: Any, kind: np.dtype[Any]) -> FieldValues:
    """Return lists of numbers as arrays: as one if they are equally long, and nothing is missing."""
    if pyarrow().types.is_fixed_size_list(column.type):
        bounds = np.arange(column.offset, column.offset + len(column) + 1, dtype=np.int64) * column.type.list_size
    else:
        bounds = column.offsets.to_numpy().astype(np.int64)
    values = column.values.slice(bounds[0], bounds[-1] - bounds[0])
    bounds -= bounds[0]
    lengths = np.diff(bounds)
    has_gaps = kind.kind != "f" and values.null_count > 0
    if len(lengths) and not column.null_count and not has_gaps and (lengths == lengths[0]).all():
        return np.asarray(values.to_numpy(zero_copy_only=False), kind).reshape(len(lengths), int(lengths[0]))
    filled = values.fill_null(kind.type(0).item()) if has_gaps else values
    numbers = np.array(filled.to_numpy(zero_copy_only=False), kind)
    lists: list[Any] = [numbers[low:high] for low, high in pairwise(bounds.tolist())]
    if has_gaps:  # an array with a gap is one of objects
        for place, (low, high) in enumerate(pairwise(bounds.tolist())):
            own = values.slice(low, high - low)
            lists[place] = np.array(own.to_pylist(), object) if own.null_count else lists[place]
    return with_none(lists, column.is_null().to_numpy(zero_copy_only=False))
