"""`Block`: some rows as one value that does not change, as samples or as columns.

A format gives blocks, a stage makes other blocks of them, a loader makes batches. What only passes rows on (shards in
turn, ranks, the shuffle buffer) cuts, picks and joins them in either form by the same calls, so that positions and
random numbers are computed in one place. Which form a block has never shows in what a user gets.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache, partial
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import MissingColumnError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from penstock.types import Int64Array, Sample

    # The values of a field: an array where `np.array` would make one of them, as they are in samples; else a list.
    FieldValues = npt.NDArray[Any] | list[Any]
    # Describes the position after so many rows of a block.
    PositionAfter = Callable[[int], dict[str, Any]]


class Block:
    """Some rows. They do not change, so parts of them may share their memory; each row becomes one sample at most.

    Args:
        samples: The rows.
        columns: The rows by field, if they are no samples: numbers of 64 bits, or arrays of one shape stacked, as an
            array; anything else as a list of what samples have.
        num_rows: How many rows the columns have.
        after: What describes the position after so many of the rows, where they were read; it stays right when more is
            read, be it in another thread.
    """

    __slots__ = ("_columns", "_num_rows", "_samples", "after")

    def __init__(
        self,
        samples: list[Sample] | None = None,
        columns: Mapping[str, FieldValues] | None = None,
        num_rows: int = 0,
        after: PositionAfter | None = None,
    ) -> None:
        self.after = after
        self._samples = [] if samples is None and columns is None else samples
        self._columns = columns
        self._num_rows = num_rows if self._samples is None else len(self._samples)

    def __len__(self) -> int:
        return self._num_rows

    @property
    def is_columnar(self) -> bool:
        """Whether no samples were made of the rows so far."""
        return self._samples is None

    def cut(self, begin: int, end: int) -> Block:
        """Return the rows from one on, up to another or to the end."""
        if not begin and end >= self._num_rows:
            return self
        if begin >= self._num_rows:
            return Block(after=self._after_rows(begin))
        after = self._after_rows(begin)
        if self._samples is not None:
            return Block(self._samples[begin:end], after=after)
        assert self._columns is not None  # noqa: S101
        columns = {name: values[begin:end] for name, values in self._columns.items()}
        return Block(None, columns, min(end, self._num_rows) - begin, after)

    def _after_rows(self, first: int) -> PositionAfter | None:
        after = self.after
        if not first or after is None:
            return after
        if isinstance(after, partial) and after.func is _after_more:  # one call, however often a block is cut
            return partial(_after_more, after.args[0], after.args[1] + first)
        return partial(_after_more, after, first)

    def split(self, num_rows: int) -> tuple[Block, Block]:
        """Return so many of the rows, or all, and those that are left."""
        return self.cut(0, num_rows), self.cut(min(num_rows, self._num_rows), self._num_rows)

    def pick(self, places: Int64Array) -> Block:
        """Return copies of the rows at these places, in this order; memory of the others can be freed then."""
        if self._samples is not None:
            return Block(list(map(self._samples.__getitem__, places.tolist())))
        assert self._columns is not None  # noqa: S101
        return Block(None, {name: _pick(values, places) for name, values in self._columns.items()}, len(places))

    def samples(self) -> list[Sample]:
        """Return the rows as samples, which are made once."""
        if self._samples is None:
            assert self._columns is not None  # noqa: S101
            self._samples = join_columns(tuple(self._columns), list(map(_listed, self._columns.values())), len(self))
            self._columns = None
        return self._samples

    def columns(self) -> Mapping[str, FieldValues]:
        """Return the values of each field, in arrays that may be changed; all samples must have the same fields."""
        if self._columns is not None:
            return {
                name: values if isinstance(values, list) else values.copy() for name, values in self._columns.items()
            }
        return columns_of(self.samples())

    def at(self, after: PositionAfter | None) -> Block:
        """Return the rows with what describes the positions after them, if they tell it."""
        return Block(self._samples, self._columns, self._num_rows, after)

    def matches(self, other: Block) -> bool:
        """Return whether both are columnar with the same fields, so that they can be joined as they are."""
        return self._columns is not None and other._columns is not None and [*self._columns] == [*other._columns]


def join_blocks(parts: Sequence[Block]) -> Block:
    """Return the rows of all blocks, one after the other: as columns if all of them have the same ones."""
    if len(parts) == 1:
        return parts[0]
    after = _positions(parts)
    if parts and all(map(parts[0].matches, parts)):
        each = [part._columns or {} for part in parts]
        joined = {name: _join([columns[name] for columns in each]) for name in each[0]}
        return Block(None, joined, sum(map(len, parts)), after)
    return Block([sample for part in parts for sample in part.samples()], after=after)


def _positions(parts: Sequence[Block]) -> PositionAfter | None:
    """Return what describes the positions in blocks one after the other, if all of them tell theirs."""
    begins = accumulate(map(len, parts), initial=0)
    told = [(begin, part.after) for begin, part in zip(begins, parts, strict=False) if part.after is not None]
    return partial(_position_in_parts, told) if parts and len(told) == len(parts) else None


def _position_in_parts(parts: Sequence[tuple[int, PositionAfter]], given: int) -> dict[str, Any]:
    before, after = parts[max(0, bisect_left(parts, given, key=itemgetter(0)) - 1)]  # that of the row given last
    return after(given - before)


def _after_more(after: PositionAfter, first: int, given: int) -> dict[str, Any]:
    return after(first + given)


def columns_of(samples: Sequence[Sample]) -> dict[str, FieldValues]:
    """Return the values of each field of samples, all of which must have the same fields."""
    if not samples:
        return {}
    names = samples[0].keys()
    for sample in samples:
        if len(sample) != len(names) or sample.keys() != names:
            different = ", ".join(sorted(map(str, sample.keys() ^ names)))
            raise MissingColumnError(
                f"some samples of a batch have {different} and some do not: select the fields that all have, or pass"
                " collate_fn="
            )
    return {name: [sample[name] for sample in samples] for name in names}


# Numbers that an array holds as they are, where all of a column are of one kind.
_KINDS: dict[frozenset[type], type] = {
    frozenset({int}): np.int64,
    frozenset({float}): np.float64,
    frozenset({bool}): np.bool_,
}


def to_columns(samples: Sequence[Sample], names: Iterable[str]) -> dict[str, FieldValues]:
    """Return columns of these names, with None where a sample lacks one."""
    return {name: to_column([sample.get(name) for sample in samples]) for name in names}


def to_column(values: list[Any]) -> FieldValues:
    """Return an array if all values are numbers of one kind that 64 bits hold, else the list."""
    kind = _KINDS.get(frozenset(map(type, values)))
    if kind is None:
        return values
    try:
        return np.array(values, kind)
    except OverflowError:  # wider than 64 bits
        return values


def _pick(values: FieldValues, places: Int64Array) -> FieldValues:
    if isinstance(values, np.ndarray):
        return values.take(places, axis=0)
    picked = list(map(values.__getitem__, places.tolist()))
    if set(map(type, picked)) != {np.ndarray}:
        return picked
    # An array that is a part of one with the values of many rows would hold on to all of it.
    return [value if value.base is None else value.copy() for value in picked]


def _join(parts: list[FieldValues]) -> FieldValues:
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        return np.concatenate(arrays)
    return [value for part in parts for value in _listed(part)]


def _listed(values: FieldValues) -> list[Any]:
    """Return the values of a field as they are in samples, whose arrays may be changed."""
    if isinstance(values, list):
        return values
    return values.tolist() if values.ndim == 1 else list(values.copy())


def join_columns(names: Sequence[str], columns: Sequence[Iterable[Any]], num_rows: int) -> list[Sample]:
    """Make one dict per row out of one list per column."""
    if not names:
        return [{} for _ in range(num_rows)]
    return _row_maker(len(names))(*names, *columns)


@lru_cache(maxsize=256)
def _row_maker(num_columns: int) -> Callable[..., list[Sample]]:
    """Compile a function that makes dicts by a literal: four times as fast as `dict(zip(...))`.

    Only the number of columns enters its source text; their names are arguments.
    """
    keys = ", ".join(f"k{i}" for i in range(num_columns))
    columns = ", ".join(f"c{i}" for i in range(num_columns))
    values = ", ".join(f"v{i}" for i in range(num_columns))
    items = ", ".join(f"k{i}: v{i}" for i in range(num_columns))
    source = f"lambda {keys}, {columns}: [{{{items}}} for {values}, in zip({columns})]"
    maker: Callable[..., list[Sample]] = eval(source)  # noqa: S307
    return maker
