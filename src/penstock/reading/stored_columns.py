"""Stored values of several shards, each at its place, to be decoded when all of a batch are there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from penstock.formats.column_errors import decode_error
from penstock.formats.encodings.base import FixedEncoding
from penstock.formats.gather import as_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from penstock.errors import PenstockError
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.gather import Pieces
    from penstock.types import Columns, Int64Array

    Values: TypeAlias = npt.NDArray[Any] | list[Any]
    View: TypeAlias = Callable[[npt.NDArray[Any]], Values]  # of stored values of fixed size

# For values this large, copying costs more than a step of Python each: they are copied once, in the order of the batch.
_LARGE_VALUE_BYTES = 2048


class GathersColumns(Protocol):
    """A shard reader that gives stored values, to be decoded when all of a batch are there."""

    name: str
    encodings: dict[str, Encoding]

    def fill(self, name: str, rows: Int64Array, places: Int64Array, out: npt.NDArray[Any]) -> None:
        """Put the stored values of a column of fixed size at their places in an array of void items."""
        ...

    def locate(self, name: str, rows: Int64Array) -> tuple[memoryview, Int64Array]:
        """Say where the stored values of such a column lie: in which bytes, and where each begins."""
        ...

    def gather(self, name: str, rows: Int64Array) -> Pieces:
        """Give the stored values of a column of variable size."""
        ...


class GatheredColumn(Protocol):
    """Takes the stored values of shard after shard, then gives the values of some rows."""

    def add(self, reader: GathersColumns, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard."""
        ...

    def finish(self, places: Sequence[Int64Array]) -> None:
        """All are there, of each shard at these places: find out whether they can be read."""
        ...

    def take(self, begin: int, end: int | None) -> Values:
        """Give the values of all rows from one to another, once all are there."""
        ...

    def so_far(self, places: Int64Array) -> Values:
        """Give the values that were added, which is at these places."""
        ...


class Gathering:
    """All columns of so many rows, of shards that store them alike; `by_sample`, each a list of values for samples."""

    def __init__(self, encodings: dict[str, Encoding], num_rows: int, *, by_sample: bool) -> None:
        self._encodings = encodings
        self._columns = {
            name: _begin_column(name, encoding, num_rows, by_sample=by_sample) for name, encoding in encodings.items()
        }
        self._places: list[Int64Array] = []

    def takes(self, reader: GathersColumns) -> bool:
        """Tell whether a shard stores its columns like those before."""
        return reader.encodings == self._encodings

    def add(self, reader: GathersColumns, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard. It may be closed then: what is still looked at stays mapped."""
        self._places.append(places)
        for column in self._columns.values():
            column.add(reader, rows, places)

    def finish(self) -> None:
        """All rows are there: decode what may turn out to be no value."""
        for column in self._columns.values():
            column.finish(self._places)

    def take(self, begin: int = 0, end: int | None = None) -> Columns:
        """Give the columns of all rows from one to another, once all are there."""
        return {name: column.take(begin, end) for name, column in self._columns.items()}

    def so_far(self) -> tuple[Int64Array, Columns]:
        """Give the columns of the rows that were added, and their places."""
        places = np.concatenate(self._places)
        return places, {name: column.so_far(places) for name, column in self._columns.items()}


def _begin_column(name: str, encoding: Encoding, num_rows: int, *, by_sample: bool) -> GatheredColumn:
    """Begin a column in the way that suits its values."""
    if not isinstance(encoding, FixedEncoding):
        return _DecodedColumn(name, encoding.decode_many if by_sample else encoding.to_column)
    view = partial(_to_values, encoding) if by_sample else encoding.to_array
    kind = _LocatedColumn if encoding.num_bytes >= _LARGE_VALUE_BYTES else _FilledColumn
    return kind(name, view, encoding.num_bytes, num_rows)


def _to_values(encoding: FixedEncoding, stored: npt.NDArray[Any]) -> list[Any]:
    return encoding.to_values(encoding.to_array(stored))


class _FilledColumn:
    """Small values of fixed size go straight to their places."""

    def __init__(self, name: str, view: View, num_bytes: int, num_rows: int) -> None:
        self._name, self._view = name, view
        self._stored: npt.NDArray[Any] = np.empty(num_rows, f"V{num_bytes}")

    def add(self, reader: GathersColumns, rows: Int64Array, places: Int64Array) -> None:
        reader.fill(self._name, rows, places, self._stored)

    def finish(self, places: Sequence[Int64Array]) -> None:
        """Any bytes are a value."""

    def take(self, begin: int, end: int | None) -> Values:
        return self._view(self._stored[begin:end])

    def so_far(self, places: Int64Array) -> Values:
        return self._view(self._stored[places])


class _LocatedColumn:
    """Of large values of fixed size it is noted where they lie: they are copied when their batch is asked for."""

    def __init__(self, name: str, view: View, num_bytes: int, num_rows: int) -> None:
        self._name, self._view, self._num_bytes = name, view, num_bytes
        self._sources: list[memoryview] = []
        self._source_of = np.zeros(num_rows, np.int64)
        self._begins = np.zeros(num_rows, np.int64)

    def add(self, reader: GathersColumns, rows: Int64Array, places: Int64Array) -> None:
        source, begins = reader.locate(self._name, rows)
        self._source_of[places] = len(self._sources)
        self._begins[places] = begins
        self._sources.append(source)

    def finish(self, places: Sequence[Int64Array]) -> None:
        """Any bytes are a value."""

    def take(self, begin: int, end: int | None) -> Values:
        return self._copy(self._source_of[begin:end], self._begins[begin:end])

    def so_far(self, places: Int64Array) -> Values:
        return self._copy(self._source_of[places], self._begins[places])

    def _copy(self, source_of: Int64Array, begins: Int64Array) -> Values:
        sources, ends = self._sources, begins + self._num_bytes
        pieces = [
            sources[source][first:last]
            for source, first, last in zip(source_of.tolist(), begins.tolist(), ends.tolist(), strict=True)
        ]
        return self._view(np.frombuffer(bytearray().join(pieces), f"V{self._num_bytes}"))


class _Group(NamedTuple):
    """Stored values of one shard."""

    pieces: Pieces
    shard: str
    rows: Int64Array


class _DecodedColumn:
    """Values of any length are put in order as they are stored, and decoded all at once."""

    def __init__(self, name: str, decode: Callable[[Sequence[bytes]], Values]) -> None:
        self._name, self._decode = name, decode
        self._groups: list[_Group] = []
        self._values: Values = []

    def add(self, reader: GathersColumns, rows: Int64Array, places: Int64Array) -> None:  # noqa: ARG002
        self._groups.append(_Group(reader.gather(self._name, rows), reader.name, rows))

    def finish(self, places: Sequence[Int64Array]) -> None:
        self._values = self._decode_all(_in_one_list([group.pieces for group in self._groups], places))
        self._groups = []

    def take(self, begin: int, end: int | None) -> Values:
        return self._values[begin:end]

    def so_far(self, places: Int64Array) -> Values:  # noqa: ARG002
        return self._decode_all([piece for group in self._groups for piece in as_list(group.pieces)])

    def _decode_all(self, pieces: list[bytes]) -> Values:
        try:
            return self._decode(pieces)
        except Exception as error:
            blamed = self._blame()
            if blamed is None:
                raise
            raise blamed from error

    def _blame(self) -> PenstockError | None:
        """Find the shard and the row whose value cannot be decoded."""
        for pieces, shard, rows in self._groups:
            try:
                self._decode(as_list(pieces))
            except Exception as culprit:  # noqa: BLE001  decoders are foreign code on foreign bytes
                return decode_error(self._decode, as_list(pieces), rows.tolist(), shard, self._name, culprit)
        return None


def _in_one_list(groups: Sequence[Pieces], places: Sequence[Int64Array]) -> list[bytes]:
    """Put stored values of several shards at their places."""
    arrays = [pieces for pieces in groups if not isinstance(pieces, list)]
    if len(arrays) < len(groups):
        return in_order([piece for pieces in groups for piece in as_list(pieces)], places)
    if not arrays:
        return []
    out = np.zeros(sum(map(len, arrays)), f"S{max(array.itemsize for array in arrays)}")
    for array, at in zip(arrays, places, strict=True):
        out[at] = array
    return as_list(out)


def in_order(items: list[Any], places: Sequence[Int64Array]) -> list[Any]:
    """Put items that were gathered group by group at their places."""
    if not items:
        return items
    numbers = np.empty(len(items), dtype=np.int64)
    numbers[np.concatenate(places)] = np.arange(len(items))
    return list(map(items.__getitem__, numbers.tolist()))
