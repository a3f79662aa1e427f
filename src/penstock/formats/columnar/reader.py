"""An unpacked shard of columns: random rows of it, as samples or as columns, with NumPy alone."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.blocks.block import join_columns
from penstock.codecs.unpack import check_whole, drop_pages, release
from penstock.errors import CorruptShardError
from penstock.formats.column_errors import decode_all
from penstock.formats.columnar.found_rows import OpenColumns, layout_of
from penstock.formats.columnar.gathering import image_encoding, kind_of_column
from penstock.formats.columnar.nested import DictionaryNode, FixedListNode, ListNode, MapNode, StructNode
from penstock.formats.columnar.nodes import (
    BoolNode,
    BufferFile,
    BytesNode,
    DecimalNode,
    IntervalNode,
    Node,
    NullNode,
    NumberNode,
)
from penstock.formats.columnar.types import array_dtype, parse_type
from penstock.formats.encodings.base import Encoding
from penstock.formats.gather import as_list, in_order
from penstock.formats.rows import check_rows
from penstock.thread_times import decoding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from penstock.formats.base import ReadOptions, Rows, ShardBytes
    from penstock.formats.columnar.found_rows import ColumnRows, ColumnsLayout
    from penstock.formats.columnar.nodes import BoolArray
    from penstock.formats.columnar.types import ColumnType
    from penstock.formats.gather import ColumnKind, Values
    from penstock.index.model import ShardInfo
    from penstock.types import Columns, Int64Array, Sample

COLUMNS_FILE = "columns 1"  # what the description of such a file says it is; another one if their layout changes


class ColumnsReader:
    """One open file of columns."""

    def __init__(self, data: ShardBytes, info: ShardInfo, options: ReadOptions) -> None:
        self.name = info.name
        self._data = data
        file = BufferFile(data, info.name)
        columns, chunk_rows = _read_description(file)
        self._num_rows = sum(chunk_rows)
        if self._num_rows != info.num_samples:
            raise CorruptShardError(
                f"{self.name} holds {self._num_rows} rows, but the index says {info.num_samples}", shard=self.name
            )
        wanted = [column.name for column in info.layout.columns] if options.columns is None else options.columns
        self._columns: dict[str, Node] = {}
        encodings: dict[str, Encoding | ColumnKind] = {}
        for number, (name, kind) in enumerate(columns):
            if name in wanted:
                self._columns[name] = _open_column(kind, file, number, chunk_rows, options)
                encodings[name] = kind_of_column(kind.logical, options.image_decoder)
        self.layout = layout_of(tuple(encodings.items()))
        starts = [0, *accumulate(chunk_rows)][:-1]
        self._memory: OpenColumns | None = OpenColumns(info.name, data, file.place, len(data), self._columns, starts)
        lacking = [name for name in wanted if name not in self._columns]
        if lacking:
            raise CorruptShardError(f"{self.name} lacks the columns {', '.join(lacking)}", shard=self.name)

    def __len__(self) -> int:
        return self._num_rows

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        names = [name for name, _ in self.layout.encodings]
        numbers, values = self._read(rows, by_sample=True)
        with decoding:
            return join_columns(names, values, len(numbers))

    def read_columns(self, rows: Rows) -> Columns:
        """Return the same by column: an array where all values allow it, else a list."""
        names = [name for name, _ in self.layout.encodings]
        return dict(zip(names, self._read(rows, by_sample=False)[1], strict=True))

    def row_layout(self) -> ColumnsLayout:
        """Return how its rows are stored."""
        return self.layout

    def memory(self) -> OpenColumns:
        """Return what is open, to find rows of several files at once."""
        check_whole(self._data, self.name)
        assert self._memory is not None  # noqa: S101  it is open
        return self._memory

    def find(self, rows: Int64Array) -> ColumnRows:
        """Find the values of some rows, all of them in range: none if the file is closed."""
        shards = [] if self._memory is None else [self.memory()]
        return self.layout.find_rows(shards, [len(rows)] * len(shards), rows)

    def drop_pages(self) -> None:
        """Take the shard's pages out of memory."""
        drop_pages(self._data)

    def close(self) -> None:
        """Unmap the shard."""
        self._columns, self._memory = {}, None  # they point into the mapping, which closes only when nobody does
        self._num_rows = 0
        release(self._data)

    def _read(self, rows: Rows, *, by_sample: bool) -> tuple[Int64Array, list[Values]]:
        numbers = check_rows(rows, self._num_rows, self.name)
        found = self.find(numbers)
        return numbers, [
            self._read_column(name, kind, found, by_sample=by_sample) for name, kind in self.layout.encodings
        ]

    def _read_column(self, name: str, kind: Encoding | ColumnKind, found: ColumnRows, *, by_sample: bool) -> Values:
        rows = found.origins().rows
        if isinstance(kind, Encoding):
            pieces = as_list(found.pieces(name))
            decode: Callable[..., Values] = kind.decode_many if by_sample else kind.to_column
            with decoding:
                return decode_all(decode, pieces, rows, self.name, name)
        places = np.arange(len(rows))
        gathered = kind.begin(name, len(rows), by_sample=by_sample)
        gathered.add(found, places)
        with decoding:
            gathered.finish([places])
            return gathered.take(0, None)


def _read_description(file: BufferFile) -> tuple[list[tuple[str, ColumnType]], list[int]]:
    match file.about:
        case {"kind": kind, "columns": list(columns), "rows": list(chunk_rows)} if kind == COLUMNS_FILE:
            are_pairs = all(isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in columns)
            if are_pairs and all(type(rows) is int and rows >= 0 for rows in chunk_rows):
                return [(name, parse_type(data, file.name)) for name, data in columns], chunk_rows
    raise CorruptShardError(
        f"{file.name} is not a file of columns that this release of penstock can read", shard=file.name
    )


# --- Columns of a file ----------------------------------------------------------------------------------------


def _open_column(kind: ColumnType, file: BufferFile, number: int, chunk_rows: list[int], options: ReadOptions) -> Node:
    chunks: list[Node] = []
    for chunk, num_rows in enumerate(chunk_rows):
        node = _open_node(kind, file, f"{chunk}.{number}", options)
        if node.length < num_rows:
            raise node.error(f"has room for {node.length} of the {num_rows} rows of chunk {chunk}")
        chunks.append(node)
    return chunks[0] if len(chunks) == 1 else _ChunkedNode(kind, file, f".{number}", chunks, chunk_rows)


def _open_node(kind: ColumnType, file: BufferFile, path: str, options: ReadOptions) -> Node:
    children = [_open_node(field, file, f"{path}.{number}", options) for number, (_, field) in enumerate(kind.fields)]
    match kind.kind:
        case "string" | "binary" | "fixed_binary":
            return BytesNode(kind, file, path, None)
        case "image":
            return BytesNode(kind, file, path, image_encoding(options.image_decoder))
        case "list":
            return ListNode(kind, file, path, *children)
        case "fixed_list":
            return FixedListNode(kind, file, path, *children)
        case "struct":
            return StructNode(kind, file, path, children)
        case "map":
            return MapNode(kind, file, path, *children)
        case "dictionary":
            return DictionaryNode(kind, file, path, *children)
        case _:
            simple = {"null": NullNode, "bool": BoolNode, "decimal": DecimalNode, "interval": IntervalNode}
            return simple.get(kind.kind, NumberNode)(kind, file, path)


class _ChunkedNode(Node):
    """A column that was unpacked in several chunks."""

    def __init__(
        self, kind: ColumnType, file: BufferFile, path: str, chunks: list[Node], chunk_rows: list[int]
    ) -> None:
        super().__init__(kind, file, path)
        self._chunks = tuple(chunks)
        self._starts = np.concatenate([[0], np.cumsum(chunk_rows, dtype=np.int64)])

    @property
    def chunks(self) -> Sequence[Node]:
        """The chunks, one after another."""
        return self._chunks

    def is_null(self, rows: Int64Array) -> BoolArray | None:
        """Return which rows are null."""
        found: BoolArray | None = None
        for chunk, within, places in self._split(rows):
            is_null = chunk.is_null(within)
            if is_null is not None:
                found = np.zeros(len(rows), np.bool_) if found is None else found
                found[places] = is_null
        return found

    def array(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Gather numbers of all chunks."""
        out = np.empty(len(rows), array_dtype(self.kind))
        for chunk, within, places in self._split(rows):
            out[places] = chunk.array(within)
        return out

    def pieces(self, rows: Int64Array) -> list[Any]:
        """Gather bytes of all chunks."""
        return self._join(rows, lambda chunk, within: as_list(chunk.pieces(within)))

    def arrays(self, rows: Int64Array) -> list[Any]:
        """Gather arrays of all chunks."""
        return self._join(rows, lambda chunk, within: chunk.arrays(within))

    def values(self, rows: Int64Array) -> list[Any]:
        """Gather values of all chunks."""
        return self._join(rows, lambda chunk, within: chunk.values(within))

    def _join(self, rows: Int64Array, read: Callable[[Node, Int64Array], list[Any]]) -> list[Any]:
        parts = [(read(chunk, within), places) for chunk, within, places in self._split(rows)]
        return in_order([value for values, _ in parts for value in values], [places for _, places in parts])

    def _split(self, rows: Int64Array) -> list[tuple[Node, Int64Array, Int64Array]]:
        """Return for each chunk that holds some of the rows: the rows within it, and their places among all."""
        of = np.searchsorted(self._starts, rows, side="right") - 1
        return [
            (self._chunks[chunk], rows[places] - self._starts[chunk], places)
            for chunk in np.unique(of).tolist()
            for places in [np.flatnonzero(of == chunk)]
        ]
