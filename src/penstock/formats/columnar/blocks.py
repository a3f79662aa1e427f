"""Arrow's record batches → blocks, in order: the values are what samples have, lists of numbers as arrays."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.blocks.block import Block
from penstock.blocks.stage import row_after, saved_row
from penstock.formats.columnar.arrow_types import number_dtype, pyarrow
from penstock.formats.columnar.nodes import with_none
from penstock.order.state_fields import COUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.blocks.block import FieldValues
    from penstock.blocks.stage import State
    from penstock.order.state_fields import Fields

    # Opens a file at a row, and gives blocks, and how many stored rows they were made of.
    OpenBatches = Callable[[int], Iterator[tuple[Block, int]]]

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
