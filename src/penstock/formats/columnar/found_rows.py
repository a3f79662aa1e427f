"""Rows of many files of columns at once: where each of their values lies, found by one gather for all files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.formats.columnar.nodes import with_none
from penstock.formats.gather import ColumnGathering, RowOrigins, as_list, copy_pieces, copy_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from penstock.formats.base import ShardBytes
    from penstock.formats.columnar.nodes import BoolArray, Node
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.gather import ColumnKind, StoredValues
    from penstock.types import Int64Array


class OpenColumns(NamedTuple):
    """The columns of an open file. Whoever holds this keeps its bytes in place, also when the file is closed."""

    name: str
    data: ShardBytes
    place: int
    num_bytes: int
    columns: Mapping[str, Node]
    starts: Sequence[int]  # the row with which each chunk begins


@dataclass(frozen=True, slots=True)
class ColumnsLayout:
    """Which columns the files have: those of equal ones are gathered together."""

    encodings: tuple[tuple[str, Encoding | ColumnKind], ...]

    def begin(self, num_rows: int, *, by_column: bool) -> ColumnGathering:
        """Begin to gather rows of such files."""
        return ColumnGathering(self, num_rows, by_column=by_column)

    def find_rows(
        self, shards: Sequence[OpenColumns], counts: Sequence[int], rows: Int64Array, order: Int64Array | None = None
    ) -> ColumnRows:
        """Find rows of several files, shard by shard, all of them in range."""
        return ColumnRows(shards, counts, rows, order)


@lru_cache(maxsize=256)
def layout_of(encodings: tuple[tuple[str, Encoding | ColumnKind], ...]) -> ColumnsLayout:
    """Return the one object for files of such columns, which is quick to compare."""
    return ColumnsLayout(encodings)


class Located(NamedTuple):
    """Where the values of a column lie in memory, in the order that was asked for."""

    begins: Int64Array
    num_bytes: Int64Array | int  # of each value; one number if all are of that size
    is_null: BoolArray | None  # where there is no value, whatever lies there


class ColumnRows:
    """Some rows of several files that have the same columns.

    Where a column lies alike in all files, its values are found together, and those rows are checked and no others.
    Otherwise each file is asked, one after the other.

    Args:
        shards: The files.
        counts: How many rows there are of each.
        rows: The numbers of the rows within their files, file by file; all of them are in range.
        order: Which of these rows stands at each place of what is given out; by default all, as they are.
    """

    def __init__(
        self, shards: Sequence[OpenColumns], counts: Sequence[int], rows: Int64Array, order: Int64Array | None
    ) -> None:
        self._shards, self._counts, self._rows, self._order = shards, counts, rows, order
        if all(len(shard.starts) == 1 for shard in shards):
            self._chunks, self._within = np.repeat(np.arange(len(shards)), counts), rows
        else:
            self._chunks, self._within = self._find_chunks()

    def origins(self) -> RowOrigins:
        """Return from which files the rows come."""
        return RowOrigins([shard.name for shard in self._shards], self._counts, self._rows, self._order)

    def locate(self, name: str) -> Located | None:
        """Find the values of a column; None: they do not lie one after another, or not alike in all files."""
        nodes = list(chain.from_iterable(shard.columns[name].chunks for shard in self._shards))
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
        pieces = copy_pieces(self._shards, self._counts, self._order, found.begins, found.begins + found.num_bytes)
        return pieces if found.is_null is None else with_none(as_list(pieces), found.is_null)

    def numbers(self, name: str, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], BoolArray | None]:
        """Copy the values of a column of numbers or times, and say where there are none."""
        found = self.locate(name)
        if found is not None and found.num_bytes == dtype.itemsize:
            return copy_values(found.begins, dtype.itemsize).view(dtype), found.is_null
        parts = [(node.array(rows), node.is_null(rows)) for node, rows in self._nodes(name)]
        nulls = [np.zeros(len(array), np.bool_) if is_null is None else is_null for array, is_null in parts]
        return (
            self._ordered(np.concatenate([np.empty(0, dtype), *(array for array, _ in parts)], dtype=dtype)),
            self._ordered(np.concatenate(nulls)) if any(is_null is not None for _, is_null in parts) else None,
        )

    def arrays(self, name: str) -> list[Any]:
        """Return the lists of a column of lists of numbers, as nodes do."""
        return self._each(name, lambda node, rows: node.arrays(rows))

    def values(self, name: str) -> list[Any]:
        """Return the values of a column as samples hold them."""
        return self._each(name, lambda node, rows: node.values(rows))

    def _nodes(self, name: str) -> Iterable[tuple[Node, Int64Array]]:
        ends = list(accumulate(self._counts))
        for shard, begin, end in zip(self._shards, [0, *ends], ends, strict=False):
            yield shard.columns[name], self._rows[begin:end]

    def _each(self, name: str, read: Callable[[Node, Int64Array], list[Any]]) -> list[Any]:
        values = list(chain.from_iterable(read(node, rows) for node, rows in self._nodes(name)))
        return values if self._order is None else list(map(values.__getitem__, self._order.tolist()))

    def _ordered(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self._order is None else values[self._order]

    def _find_chunks(self) -> tuple[Int64Array, Int64Array]:
        """Return in which chunk of all files each row lies, and which row of it that is."""
        firsts = np.concatenate([[0], np.cumsum([len(shard.starts) for shard in self._shards])[:-1]])
        chunks, within = np.empty(len(self._rows), np.int64), np.empty(len(self._rows), np.int64)
        begin = 0
        for shard, first, count in zip(self._shards, firsts.tolist(), self._counts, strict=True):
            rows, starts = self._rows[begin : begin + count], np.asarray(shard.starts, np.int64)
            found = np.searchsorted(starts, rows, side="right") - 1
            chunks[begin : begin + count], within[begin : begin + count] = found + first, rows - starts[found]
            begin += count
        return chunks, within

    def _find_nulls(self, validity: Int64Array) -> BoolArray | None:
        """Look at the bit of each row of files that have some."""
        found = np.zeros(len(self._rows), np.bool_)
        at = np.flatnonzero(validity >= 0)
        stored = copy_values(validity[at] + (self._within[at] >> 3), 1).view(np.uint8)
        found[at] = (stored >> (self._within[at] & 7).astype(np.uint8)) & 1 == 0
        return self._ordered(found) if found.any() else None
