"""An unpacked shard of columns: random rows of it and of others like it, as samples or as columns, with NumPy alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import ColumnValueError, CorruptShardError
from penstock.formats.columnar.nodes import BufferFile, open_node
from penstock.formats.columnar.types import (
    COLUMNS_FILE,
    ColumnType,
    array_dtype,
    element_shape,
    has_array_elements,
    missing_value,
    parse_type,
    to_values,
    with_none,
)
from penstock.formats.encodings.base import OrNone
from penstock.formats.encodings.table import get_encoding
from penstock.formats.gather import (
    ColumnKind,
    FoundLayout,
    FoundRows,
    FoundRowsReader,
    GatheredColumn,
    as_list,
    copy_pieces,
    copy_values,
    in_order,
    join_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from penstock.formats.base import ReadOptions, ShardBytes
    from penstock.formats.columnar.nodes import BoolArray, Node
    from penstock.formats.encodings.base import Encoding, ImageDecoder
    from penstock.formats.gather import ShardMemory, StoredValues, Values
    from penstock.index.model import IndexedShard
    from penstock.types import Int64Array

# Samples are views of memory that they share: keeping one keeps that.
_SHARED_BYTES = 1 << 19


class OpenColumns(NamedTuple):
    """The columns of an open file."""

    columns: dict[str, list[Node]]  # a node for each chunk
    starts: Int64Array  # the row with which each chunk begins


class ColumnsReader(FoundRowsReader):
    """One open file of columns."""

    def __init__(self, data: ShardBytes, info: IndexedShard, options: ReadOptions) -> None:
        file = BufferFile(data, info.name)
        types, chunk_rows = _read_description(file)
        if sum(chunk_rows) != info.num_samples:
            raise CorruptShardError(
                f"{info.name} holds {sum(chunk_rows)} rows, but the index says {info.num_samples}", shard=info.name
            )
        wanted = [column.name for column in info.layout.columns] if options.columns is None else options.columns
        columns: dict[str, list[Node]] = {}
        encodings: dict[str, Encoding | ColumnKind] = {}
        image: Any = _kind_of_column(ColumnType("image"), options.image_decoder)
        for number, (name, kind) in enumerate(types):
            if name in wanted:
                chunks = [open_node(kind, file, f"{chunk}.{number}", image) for chunk in range(len(chunk_rows))]
                for chunk, (node, num_rows) in enumerate(zip(chunks, chunk_rows, strict=True)):
                    if node.length < num_rows:
                        raise node.error(f"has room for {node.length} of the {num_rows} rows of chunk {chunk}")
                columns[name] = chunks
                encodings[name] = _kind_of_column(kind.logical, options.image_decoder)
        lacking = [name for name in wanted if name not in columns]
        if lacking:
            raise CorruptShardError(f"{info.name} lacks the columns {', '.join(lacking)}", shard=info.name)
        starts = np.cumsum(chunk_rows, dtype=np.int64) - np.array(chunk_rows, np.int64)
        super().__init__(data, info, _layout_of(tuple(encodings.items())), OpenColumns(columns, starts))


def _read_description(file: BufferFile) -> tuple[list[tuple[str, ColumnType]], list[int]]:
    match file.about:
        case {"kind": kind, "columns": list(columns), "rows": list(chunk_rows)} if kind == COLUMNS_FILE:
            are_pairs = all(isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in columns)
            if are_pairs and all(type(rows) is int and rows >= 0 for rows in chunk_rows):
                return [(name, parse_type(data, file.name)) for name, data in columns], chunk_rows
    raise CorruptShardError(
        f"{file.name} is not a file of columns that this release of penstock can read", shard=file.name
    )


# --- Rows of several files ------------------------------------------------------------------------------------


class Located(NamedTuple):
    """Where the values of a column lie in memory, in the order that was asked for."""

    begins: Int64Array
    num_bytes: Int64Array | int  # of each value; one number if all are of that size
    is_null: BoolArray | None  # where there is no value, whatever lies there


class ColumnRows(FoundRows):
    """Some rows of files that have the same columns.

    Where a column lies alike in all files, its values are found together, and those rows are checked and no others.
    Otherwise each chunk of each file is asked, one after the other.
    """

    def __init__(
        self,
        layout: FoundLayout,
        shards: Sequence[ShardMemory],
        counts: Sequence[int],
        rows: Int64Array,
        order: Int64Array | None = None,
    ) -> None:
        super().__init__(layout, shards, counts, rows, order)
        self._is_split = any(len(shard.opened.starts) != 1 for shard in shards)
        if self._is_split:
            self._chunks, self._within = self._find_chunks()
        else:
            self._chunks, self._within = np.repeat(np.arange(len(shards)), counts), rows

    def locate(self, name: str) -> Located | None:
        """Find the values of a column; None: they do not lie one after another, or not alike in all files."""
        nodes = self._nodes(name)
        buffers = [node.buffers for node in nodes if node.buffers is not None]
        if len(buffers) < len(nodes) or len({(each.item_bytes, each.offset_bytes) for each in buffers}) != 1:
            return None
        item_bytes, offset_bytes = buffers[0].item_bytes, buffers[0].offset_bytes
        table = np.array([(each.data, each.num_bytes, each.offsets, each.validity) for each in buffers])
        data, ends, offsets, validity = table.T[:, self._chunks]
        is_null = self._find_nulls(validity) if (table[:, 3] >= 0).any() else None
        if not offset_bytes:
            return Located(self._ordered(data + self._within * item_bytes), item_bytes, is_null)
        stored = copy_values(offsets + self._within * offset_bytes, 2 * offset_bytes).view(f"<i{offset_bytes}")
        bounds = stored.reshape(-1, 2).astype(np.int64)
        begins, sizes = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
        is_bad = (begins < 0) | (sizes < 0) | (bounds[:, 1] > ends // item_bytes)
        if is_bad.any():
            raise nodes[int(self._chunks[np.argmax(is_bad)])].error("has offsets that point outside of it")
        return Located(self._ordered(data + begins * item_bytes), self._ordered(sizes * item_bytes), is_null)

    def pieces(self, name: str) -> StoredValues | list[Any]:
        """Copy the values of a column of strings, binary or images; None where there is none."""
        found = self.locate(name)
        if found is None:
            return self._each(name, lambda node, rows: as_list(node.pieces(rows)))
        pieces = copy_pieces(self.shards, self.counts, self.order, found.begins, found.begins + found.num_bytes)
        return pieces if found.is_null is None else with_none(as_list(pieces), found.is_null)

    def numbers(self, name: str, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], BoolArray | None]:
        """Copy the values of a column of numbers or times, and say where there are none."""
        found = self.locate(name)
        if found is not None and found.num_bytes == dtype.itemsize:
            return copy_values(found.begins, dtype.itemsize).view(dtype), found.is_null
        values, is_null = np.empty(len(self.rows), dtype), np.zeros(len(self.rows), np.bool_)
        for node, rows, places in self._split(name):
            nulls = node.is_null(rows)
            values[places], is_null[places] = node.array(rows), False if nulls is None else nulls
        return self._ordered(values), self._ordered(is_null) if is_null.any() else None

    def values(self, name: str) -> list[Any]:
        """Return the values of a column as samples hold them."""
        return self._each(name, lambda node, rows: node.values(rows))

    def _each(self, name: str, read: Callable[[Node, Int64Array], list[Any]]) -> list[Any]:
        parts = [(read(node, rows), places) for node, rows, places in self._split(name)]
        values = [value for part, _ in parts for value in part]
        if self._is_split:
            values = in_order(values, [places for _, places in parts])
        return values if self.order is None else list(map(values.__getitem__, self.order.tolist()))

    def _nodes(self, name: str) -> list[Node]:
        return list(chain.from_iterable(shard.opened.columns[name] for shard in self.shards))

    def _split(self, name: str) -> Iterator[tuple[Node, Int64Array, Int64Array]]:
        """Return for each chunk that holds some of the rows: the rows within it, and their places among all."""
        places = np.argsort(self._chunks, kind="stable")
        ends = np.cumsum(np.bincount(self._chunks)).tolist() if len(places) else []
        for node, begin, end in zip(self._nodes(name), [0, *ends], ends, strict=False):
            if end > begin:
                yield node, self._within[places[begin:end]], places[begin:end]

    def _ordered(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self.order is None else values[self.order]

    def _find_chunks(self) -> tuple[Int64Array, Int64Array]:
        """Return in which chunk of all files each row lies, and which row of it that is."""
        chunks, within = np.empty((2, len(self.rows)), np.int64)
        first = begin = 0
        for shard, count in zip(self.shards, self.counts, strict=True):
            of_shard = slice(begin, begin + count)
            found = np.searchsorted(shard.opened.starts, self.rows[of_shard], side="right") - 1
            chunks[of_shard], within[of_shard] = found + first, self.rows[of_shard] - shard.opened.starts[found]
            first, begin = first + len(shard.opened.starts), begin + count
        return chunks, within

    def _find_nulls(self, validity: Int64Array) -> BoolArray | None:
        """Look at the bit of each row of files that have some."""
        found = np.zeros(len(self.rows), np.bool_)
        at = np.flatnonzero(validity >= 0)
        stored = copy_values(validity[at] + (self._within[at] >> 3), 1).view(np.uint8)
        found[at] = (stored >> (self._within[at] & 7).astype(np.uint8)) & 1 == 0
        return self._ordered(found) if found.any() else None


# One object for files of such columns, which is quick to compare.
_layout_of = lru_cache(maxsize=256)(partial(FoundLayout, rows=ColumnRows))


# --- What becomes of the values of a column -------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _kind_of_column(kind: ColumnType, image_decoder: ImageDecoder) -> Encoding | ColumnKind:
    """Return how a column of such values is gathered; the same object for the same type, however that is stored."""
    if kind.kind in ("string", "binary", "fixed_binary"):
        return OrNone(get_encoding("str" if kind.kind == "string" else "bytes"))
    if kind.kind == "image":  # files of any kind: what reads JPEG files takes the others too
        return OrNone(get_encoding("jpeg", image_decoder))
    return TypedColumn(kind)


@dataclass(frozen=True, slots=True)
class TypedColumn(ColumnKind):
    """A column that knows by its type how it is gathered; images within it are read as its nodes were opened."""

    kind: ColumnType

    def begin(self, name: str, num_rows: int, *, by_sample: bool) -> GatheredColumn:
        """Begin in the way that suits the type."""
        dtype = array_dtype(self.kind)
        if dtype is not None:
            return _ArrayColumn(name, self.kind, np.empty(num_rows, dtype), by_sample=by_sample)
        if has_array_elements(self.kind):
            return _ListColumn(name, self.kind, num_rows, by_sample=by_sample)
        return _ValueColumn(name, num_rows)


class _ArrayColumn(GatheredColumn):
    """Numbers and times go straight to their places."""

    def __init__(self, name: str, kind: ColumnType, values: npt.NDArray[Any], *, by_sample: bool) -> None:
        self._name, self._kind, self._values, self._by_sample = name, kind, values, by_sample
        self._is_null: BoolArray | None = None
        self._shard = ""  # the first: what is no value by its type is none in any

    def add(self, rows: ColumnRows, places: Int64Array) -> None:
        self._shard = self._shard or rows.origins().names[0]
        values, is_null = rows.numbers(self._name, self._values.dtype)
        if is_null is not None and self._is_null is None:
            self._is_null = np.zeros(len(self._values), np.bool_)
        if self._is_null is not None:
            self._is_null[places] = False if is_null is None else is_null
        if len(places) == len(self._values):  # all at once, in order
            self._values = values
        else:
            self._values[places] = values

    def take(self, which: slice | Int64Array) -> Values:
        values, is_null = self._values[which], None if self._is_null is None else self._is_null[which]
        if is_null is not None and not is_null.any():
            is_null = None
        missing = missing_value(values.dtype)
        if not self._by_sample and is_null is None:
            return values
        if not self._by_sample and is_null is not None and missing is not None:
            values = values.copy()
            values[is_null] = missing
            return values
        try:
            return to_values(self._kind, values, is_null)
        except ColumnValueError as error:
            raise CorruptShardError(
                f"{self._shard}: column {self._name!r} {error.message}", shard=self._shard, column=self._name
            ) from error


class _ValueColumn(GatheredColumn):
    """Values are made shard by shard, and put in order."""

    def __init__(self, name: str, num_rows: int) -> None:
        self._name = name
        self._values: npt.NDArray[np.object_] = np.empty(num_rows, object)

    def add(self, rows: ColumnRows, places: Int64Array) -> None:
        self._values[places] = np.fromiter(rows.values(self._name), object, len(places))

    def take(self, which: slice | Int64Array) -> Values:
        values: list[Any] = self._values[which].tolist()
        return values


class _ListColumn(_ValueColumn):
    """Of lists that are arrays it is noted where they lie: they are copied when their batch is asked for, in its order.

    That holds as long as all of them lie in files, with no null within one. Otherwise each is an object of its own.
    """

    def __init__(self, name: str, kind: ColumnType, num_rows: int, *, by_sample: bool) -> None:
        super().__init__(name, num_rows)
        self._kind, self._by_sample = kind, by_sample
        self._begins, self._sizes = np.zeros((2, num_rows), np.int64)
        self._is_null = np.zeros(num_rows, np.bool_)
        self._held: list[tuple[ColumnRows, Int64Array]] = []  # keeps the bytes mapped that the places are in
        self._are_located = True

    def add(self, rows: ColumnRows, places: Int64Array) -> None:
        found = rows.locate(self._name) if self._are_located else None
        if found is not None:
            self._begins[places], self._sizes[places] = found.begins, found.num_bytes
            if found.is_null is not None:
                self._is_null[places] = found.is_null
            self._held.append((rows, places))
            return
        for held, at in self._held:
            super().add(held, at)
        self._held, self._are_located = [], False
        super().add(rows, places)

    def take(self, which: slice | Int64Array) -> Values:
        if not self._are_located:
            return self._stacked(self._values[which].tolist())
        is_null = self._is_null[which]
        if not is_null.any():
            return self._copy(self._begins[which], self._sizes[which])
        values = list(self._copy(self._begins[which], np.where(is_null, 0, self._sizes[which])))
        return with_none(values, is_null)

    def _stacked(self, values: list[Any]) -> Values:
        alike = {(getattr(each, "dtype", None), np.shape(each)) for each in values}
        if not self._by_sample and [dtype for dtype, _ in alike] == [element_shape(self._kind)[0]]:
            return np.stack(values)
        return values

    def _copy(self, begins: Int64Array, sizes: Int64Array) -> Values:
        """Copy them one after another: one array of all if they are of one length, or views of it."""
        dtype, shape = element_shape(self._kind)
        num_bytes = dtype.itemsize * math.prod(shape)
        size = int(sizes[0]) if len(sizes) else 0
        if size and (sizes == size).all():
            each = size // num_bytes, *shape
            if not self._by_sample:
                return copy_values(begins, size).view(dtype).reshape(-1, *each)
            step = max(1, _SHARED_BYTES // size)
            blocks = [copy_values(begins[at : at + step], size) for at in range(0, len(begins), step)]
            return list(chain.from_iterable(block.view(dtype).reshape(-1, *each) for block in blocks))
        flat = np.frombuffer(join_values(begins, sizes), dtype).reshape(-1, *shape)
        if not self._by_sample and len(sizes) and not sizes.any():
            return flat.reshape(len(sizes), 0, *shape)
        cuts = np.concatenate([[0], np.cumsum(sizes // num_bytes)]).tolist()
        return [flat[begin:end] for begin, end in pairwise(cuts)]
