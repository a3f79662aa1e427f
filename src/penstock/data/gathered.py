"""One column of a batch in the making: stored values of several shards, each at its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from penstock.formats.blame import decode_error
from penstock.formats.encodings.base import FixedEncoding
from penstock.formats.gather import as_list

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from penstock.formats.encodings.base import Encoding, VariableEncoding
    from penstock.formats.gather import Pieces
    from penstock.types import Int64Array

    Values: TypeAlias = npt.NDArray[Any] | list[Any]

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


def gathered_column(name: str, encoding: Encoding, num_rows: int) -> GatheredColumn:
    """Begin a column of so many rows, in the way that suits its values."""
    if not isinstance(encoding, FixedEncoding):
        return _DecodedColumn(name, encoding)
    if encoding.num_bytes >= _LARGE_VALUE_BYTES:
        return _LocatedColumn(name, encoding, num_rows)
    return _FilledColumn(name, encoding, num_rows)


class _FilledColumn:
    """Small values of fixed size go straight to their places."""

    def __init__(self, name: str, encoding: FixedEncoding, num_rows: int) -> None:
        self._name, self._encoding = name, encoding
        self._stored: npt.NDArray[Any] = np.empty(num_rows, f"V{encoding.num_bytes}")

    def add(self, reader: GathersColumns, rows: Int64Array, places: Int64Array) -> None:
        reader.fill(self._name, rows, places, self._stored)

    def finish(self, places: Sequence[Int64Array]) -> None:
        """Any bytes are a value."""

    def take(self, begin: int, end: int | None) -> npt.NDArray[Any]:
        return self._encoding.to_array(self._stored[begin:end])

    def so_far(self, places: Int64Array) -> npt.NDArray[Any]:
        return self._encoding.to_array(self._stored[places])


class _LocatedColumn:
    """Of large values of fixed size it is noted where they lie: they are copied when their batch is asked for."""

    def __init__(self, name: str, encoding: FixedEncoding, num_rows: int) -> None:
        self._name, self._encoding = name, encoding
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

    def take(self, begin: int, end: int | None) -> npt.NDArray[Any]:
        return self._copy(self._source_of[begin:end], self._begins[begin:end])

    def so_far(self, places: Int64Array) -> npt.NDArray[Any]:
        return self._copy(self._source_of[places], self._begins[places])

    def _copy(self, source_of: Int64Array, begins: Int64Array) -> npt.NDArray[Any]:
        sources, num_bytes = self._sources, self._encoding.num_bytes
        ends = begins + num_bytes
        pieces = [
            sources[source][first:last]
            for source, first, last in zip(source_of.tolist(), begins.tolist(), ends.tolist(), strict=True)
        ]
        return self._encoding.to_array(np.frombuffer(bytearray().join(pieces), f"V{num_bytes}"))


class _Group(NamedTuple):
    """Stored values of one shard."""

    pieces: Pieces
    shard: str
    rows: Int64Array


class _DecodedColumn:
    """Values of any length are put in order as they are stored, and decoded all at once."""

    def __init__(self, name: str, encoding: VariableEncoding) -> None:
        self._name, self._encoding = name, encoding
        self._groups: list[_Group] = []
        self._values: Values = []

    def add(self, reader: GathersColumns, rows: Int64Array, places: Int64Array) -> None:  # noqa: ARG002
        self._groups.append(_Group(reader.gather(self._name, rows), reader.name, rows))

    def finish(self, places: Sequence[Int64Array]) -> None:
        self._values = self._decode(_in_one_list([group.pieces for group in self._groups], places))
        self._groups = []

    def take(self, begin: int, end: int | None) -> Values:
        return self._values[begin:end]

    def so_far(self, places: Int64Array) -> Values:  # noqa: ARG002
        return self._decode([piece for group in self._groups for piece in as_list(group.pieces)])

    def _decode(self, pieces: list[bytes]) -> Values:
        try:
            return self._encoding.to_column(pieces)
        except Exception as error:
            raise self._blame(error) from error

    def _blame(self, error: Exception) -> Exception:
        """Find the shard and the row whose value cannot be decoded."""
        decode = self._encoding.to_column
        for pieces, shard, rows in self._groups:
            try:
                decode(as_list(pieces))
            except Exception as culprit:  # noqa: BLE001  decoders are foreign code on foreign bytes
                return decode_error(decode, as_list(pieces), rows.tolist(), shard, self._name, culprit)
        return error


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
