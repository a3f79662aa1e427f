"""Rows of several shards → samples, or columns, in the order that was asked for.

Stored values are gathered first, each at its place, and decoded when all of a batch are there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeGuard, TypeVar

import numpy as np

from penstock.errors import ConfigError
from penstock.formats.column_errors import decode_error
from penstock.formats.encodings.base import FixedEncoding
from penstock.formats.encodings.decoding import BufferPool
from penstock.formats.gather import ColumnKind, as_list, in_order
from penstock.formats.rows import join_columns
from penstock.reading.gathered_rows import RowGathering, gathers_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from penstock.errors import PenstockError
    from penstock.formats.base import ShardReader
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.gather import GatheredColumn, Pieces, Values
    from penstock.types import Columns, Int64Array, Sample

    View: TypeAlias = Callable[[npt.NDArray[Any]], Values]  # of stored values of fixed size

T = TypeVar("T")

# For values this large, copying costs more than a step of Python each: they are copied once, in the order of the batch.
_LARGE_VALUE_BYTES = 2048
# Batches of them are made in memory that batches before have left.
_joined = BufferPool(max_bytes=64 << 20)


class GathersColumns(Protocol):
    """A shard reader that gives stored values, to be decoded when all of a batch are there."""

    name: str
    encodings: dict[str, Encoding | ColumnKind]

    def fill(self, name: str, rows: Int64Array, places: Int64Array, out: npt.NDArray[Any]) -> None:
        """Put the stored values of a column of fixed size at their places in an array of void items."""
        ...

    def locate(self, name: str, rows: Int64Array) -> tuple[memoryview, Int64Array]:
        """Say where the stored values of such a column lie: in which bytes, and where each begins."""
        ...

    def gather(self, name: str, rows: Int64Array) -> Pieces:
        """Give the stored values of a column of variable size."""
        ...


class Gathering:
    """All columns of so many rows, of shards that store them alike; `by_sample`, each a list of values for samples."""

    def __init__(self, encodings: dict[str, Encoding | ColumnKind], num_rows: int, *, by_sample: bool) -> None:
        self._encodings = encodings
        self._columns = {
            name: _begin_column(name, encoding, num_rows, by_sample=by_sample) for name, encoding in encodings.items()
        }
        self._places: list[Int64Array] = []

    def takes(self, reader: ShardReader) -> bool:
        """Tell whether a shard stores its columns like those before."""
        return gathers_columns(reader) and reader.encodings == self._encodings

    def add(self, reader: GathersColumns, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard. It may be closed then: what is still looked at stays mapped."""
        self._places.append(places)
        for column in self._columns.values():
            column.add(reader, rows, places)

    def finish(self) -> None:
        """All rows are there: decode what may turn out to be no value."""
        for column in self._columns.values():
            column.finish(self._places)

    def columns(self, begin: int = 0, end: int | None = None) -> Columns:
        """Give the columns of all rows from one to another, once all are there."""
        return {name: column.take(begin, end) for name, column in self._columns.items()}

    def samples(self) -> list[Sample]:
        """Give all samples, once all are there."""
        return join_columns(tuple(self._columns), list(self.columns().values()), sum(map(len, self._places)))

    def columns_so_far(self) -> tuple[Int64Array, Columns]:
        """Give the columns of the rows that were added, and their places."""
        places = np.concatenate(self._places)
        return places, {name: column.so_far(places) for name, column in self._columns.items()}

    def samples_so_far(self) -> tuple[Int64Array, list[Sample]]:
        """Give the samples that were added, and their places."""
        places, columns = self.columns_so_far()
        return places, join_columns(tuple(columns), list(columns.values()), len(places))


def _begin_column(name: str, encoding: Encoding | ColumnKind, num_rows: int, *, by_sample: bool) -> GatheredColumn:
    """Begin a column in the way that suits its values."""
    if isinstance(encoding, ColumnKind):
        return encoding.begin(name, num_rows, by_sample=by_sample)
    if not isinstance(encoding, FixedEncoding):
        if by_sample:  # whoever reads samples asks for few large ones at a time
            return _DecodedColumn(name, encoding.decode_many)
        return (_ExpandingColumn if encoding.expands else _DecodedColumn)(name, encoding.to_column)
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
        joined = _joined.join(pieces, len(pieces) * self._num_bytes)
        return self._view(np.frombuffer(joined, f"V{self._num_bytes}"))


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


class _ExpandingColumn(_DecodedColumn):
    """Values that take far more memory than their stored bytes: they are decoded when their batch is asked for."""

    def finish(self, places: Sequence[Int64Array]) -> None:
        self._pieces = _in_one_list([group.pieces for group in self._groups], places)
        self._origins = in_order([(group.shard, row) for group in self._groups for row in group.rows.tolist()], places)
        self._groups = []

    def take(self, begin: int, end: int | None) -> Values:
        pieces, origins = self._pieces[begin:end], self._origins[begin:end]
        try:
            return self._decode(pieces)
        except Exception as error:
            for piece, (shard, row) in zip(pieces, origins, strict=True):
                try:
                    self._decode([piece])
                except Exception as culprit:  # noqa: BLE001  decoders are foreign code on foreign bytes
                    raise decode_error(self._decode, [piece], [row], shard, self._name, culprit) from error
            raise


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


class _Collector(ABC, Generic[T]):
    """Puts together rows of shard after shard.

    Where all shards store their columns alike, stored values are gathered first and decoded together; so are rows that
    are parsed alike. What is read of other shards is decoded shard by shard and joined.
    """

    def __init__(self, num_rows: int, *, by_sample: bool) -> None:
        self._num_rows, self._by_sample = num_rows, by_sample
        self._gathering: Gathering | RowGathering | None = None
        self._batches: list[tuple[Int64Array, T]] = []

    def add(self, reader: ShardReader, rows: Int64Array, places: Int64Array) -> None:
        """Take some rows of a shard, which belong to these places."""
        if self._gathering is None and not self._batches:
            self._gathering = self._begin(reader)
        if self._gathering is not None:
            if self._gathering.takes(reader):
                self._gathering.add(reader, rows, places)  # type: ignore[arg-type]  # it was asked
                return
            self._batches.append(self._so_far(self._gathering))
            self._gathering = None
        self._batches.append((places, self._read(reader, rows)))

    def _begin(self, reader: ShardReader) -> Gathering | RowGathering | None:
        """Choose how rows are gathered, by the first shard; None: its reader does not take part."""
        if gathers_columns(reader):
            return Gathering(reader.encodings, self._num_rows, by_sample=self._by_sample)
        return RowGathering(reader.parser) if gathers_rows(reader) else None

    def finish(self) -> None:
        """All rows are added: decode what was gathered."""
        if self._gathering is not None:
            self._gathering.finish()

    @abstractmethod
    def _read(self, reader: ShardReader, rows: Int64Array) -> T: ...

    @abstractmethod
    def _so_far(self, gathering: Gathering | RowGathering) -> tuple[Int64Array, T]: ...


class SampleCollector(_Collector[list["Sample"]]):
    """Puts samples together."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows, by_sample=True)

    def samples(self) -> list[Sample]:
        """Give all samples."""
        if self._gathering is not None:
            return self._gathering.samples()
        together = list(chain.from_iterable(samples for _, samples in self._batches))
        return in_order(together, [places for places, _ in self._batches])

    def _read(self, reader: ShardReader, rows: Int64Array) -> list[Sample]:
        return reader.read(rows)

    def _so_far(self, gathering: Gathering | RowGathering) -> tuple[Int64Array, list[Sample]]:
        return gathering.samples_so_far()


class ColumnCollector(_Collector["Columns"]):
    """Puts columns together, to be cut into batches."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows, by_sample=False)
        self._joined: Columns = {}

    def finish(self) -> None:
        """All rows are added: decode what was gathered, join the rest."""
        super().finish()
        self._joined, self._batches = join_batches(self._batches, self._num_rows), []

    def columns(self, begin: int = 0, end: int | None = None) -> Columns:
        """Give the columns of all rows, or of those from one to another."""
        if self._gathering is not None:
            return self._gathering.columns(begin, end)
        return {name: values[begin:end] for name, values in self._joined.items()}

    def _read(self, reader: ShardReader, rows: Int64Array) -> Columns:
        return reader.read_columns(rows)

    def _so_far(self, gathering: Gathering | RowGathering) -> tuple[Int64Array, Columns]:
        return gathering.columns_so_far()


def gathers_columns(reader: ShardReader) -> TypeGuard[GathersColumns]:
    """Tell whether a reader gives stored values."""
    return hasattr(reader, "gather")


def join_batches(batches: Sequence[tuple[Int64Array, Columns]], num_rows: int) -> Columns:
    """Put the columns of each batch at its places among `num_rows` rows.

    A column is an array if it is one in every batch, of one dtype and one shape; else it is a list.
    """
    if len(batches) == 1:
        places, columns = batches[0]
        if np.array_equal(places, np.arange(num_rows)):
            return columns
    names = batches[0][1].keys() if batches else {}
    if any(columns.keys() != names for _, columns in batches):
        all_names = set().union(*(columns for _, columns in batches))
        common = sorted(all_names.intersection(*(columns for _, columns in batches)))
        raise ConfigError(
            f"the shards have different columns: read the ones that all of them have, with columns={common}, or"
            " read samples instead of columns"
        )
    return {name: _join([(places, columns[name]) for places, columns in batches], num_rows) for name in names}


def _join(pieces: list[tuple[Int64Array, npt.NDArray[Any] | list[Any]]], num_rows: int) -> npt.NDArray[Any] | list[Any]:
    arrays = [values for _, values in pieces if isinstance(values, np.ndarray)]
    if len(arrays) == len(pieces) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        out = np.empty((num_rows, *arrays[0].shape[1:]), arrays[0].dtype)
        for places, values in pieces:
            out[places] = values
        return out
    return in_order(list(chain.from_iterable(values for _, values in pieces)), [places for places, _ in pieces])
