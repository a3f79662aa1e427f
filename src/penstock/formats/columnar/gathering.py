"""Columns of several shards in the making: values are taken shard by shard, and become what users see at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnValueError, CorruptShardError
from penstock.formats.columnar.nested import to_arrays
from penstock.formats.columnar.types import (
    ColumnType,
    array_dtype,
    element_shape,
    has_array_elements,
    missing_value,
    to_values,
)
from penstock.formats.encodings.base import Encoding
from penstock.formats.encodings.table import get_encoding
from penstock.formats.gather import ColumnKind, copy_values, join_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.formats.columnar.found_rows import ColumnRows
    from penstock.formats.encodings.base import ImageDecoder
    from penstock.formats.gather import GatheredColumn, Values
    from penstock.types import Int64Array

# Samples are views of memory that they share: whoever keeps one keeps that.
_SHARED_BYTES = 1 << 19


@lru_cache(maxsize=4096)
def kind_of_column(kind: ColumnType, image_decoder: ImageDecoder) -> Encoding | ColumnKind:
    """Return how a column of such values is gathered; the same object for the same type, however that is stored."""
    if kind.kind in ("string", "binary", "fixed_binary"):
        return OrNone(get_encoding("str" if kind.kind == "string" else "bytes"))
    if kind.kind == "image":
        return image_encoding(image_decoder)
    return TypedColumn(kind, image_decoder)


@lru_cache(maxsize=8)
def image_encoding(image_decoder: ImageDecoder) -> OrNone:
    """Read image files of any kind so; that of JPEG files takes the others too."""
    return OrNone(get_encoding("jpeg", image_decoder))


class OrNone(Encoding):
    """Values of another encoding, some of which are missing: None stands for their bytes, and for them."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self.expands = encoding.expands

    def encode(self, value: Any) -> bytes:
        """Encode a value that is there."""
        return self._encoding.encode(value)

    def decode(self, data: bytes) -> Any:
        """Decode one."""
        return self.decode_many([data])[0]

    def decode_many(self, pieces: Sequence[Any]) -> list[Any]:
        """Decode those that are there."""
        if None not in pieces:
            return self._encoding.decode_many(pieces)
        decoded = iter(self._encoding.decode_many([piece for piece in pieces if piece is not None]))
        return [None if piece is None else next(decoded) for piece in pieces]

    def to_column(self, pieces: Sequence[Any]) -> npt.NDArray[Any] | list[Any]:
        """Return one array if all are there and it can be."""
        return self.decode_many(pieces) if None in pieces else self._encoding.to_column(pieces)


@dataclass(frozen=True, slots=True)
class TypedColumn(ColumnKind):
    """A column that knows by its type how it is gathered."""

    kind: ColumnType
    image_decoder: ImageDecoder

    def begin(self, name: str, num_rows: int, *, by_sample: bool) -> GatheredColumn:
        """Begin in the way that suits the type."""
        dtype = array_dtype(self.kind)
        if dtype is not None:
            return _ArrayColumn(name, self.kind, np.empty(num_rows, dtype), by_sample=by_sample)
        if has_array_elements(self.kind):
            return _ListColumn(name, self.kind, num_rows, by_sample=by_sample)
        return _ValueColumn(name, num_rows)


class _ArrayColumn:
    """Numbers and times go straight to their places."""

    def __init__(self, name: str, kind: ColumnType, values: npt.NDArray[Any], *, by_sample: bool) -> None:
        self._name, self._kind, self._values, self._by_sample = name, kind, values, by_sample
        self._is_null: npt.NDArray[np.bool_] | None = None
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

    def finish(self, places: Sequence[Int64Array]) -> None:
        """Nothing is left to do: what is no value shows when it is taken."""

    def take(self, begin: int, end: int | None) -> Values:
        return self._give(self._values[begin:end], None if self._is_null is None else self._is_null[begin:end])

    def so_far(self, places: Int64Array) -> Values:
        return self._give(self._values[places], None if self._is_null is None else self._is_null[places])

    def _give(self, values: npt.NDArray[Any], is_null: npt.NDArray[np.bool_] | None) -> Values:
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


class _ValueColumn:
    """Values are made shard by shard, and put in order."""

    def __init__(self, name: str, num_rows: int) -> None:
        self._name, self._num_rows = name, num_rows
        self._values: list[Any] = []

    def add(self, rows: ColumnRows, places: Int64Array) -> None:
        self._put(rows.values(self._name), places)

    def finish(self, places: Sequence[Int64Array]) -> None:
        """Nothing is left to do: values are at their places."""

    def take(self, begin: int, end: int | None) -> Values:
        return self._values[begin:end]

    def so_far(self, places: Int64Array) -> Values:
        return [self._values[place] for place in places.tolist()]

    def _put(self, values: list[Any], places: Int64Array) -> None:
        if len(places) == self._num_rows:  # all at once, in order
            self._values = values
            return
        self._values = self._values or [None] * self._num_rows
        for place, value in zip(places.tolist(), values, strict=True):
            self._values[place] = value


class _ListColumn(_ValueColumn):
    """Of lists that are arrays it is noted where they lie: they are copied when their batch is asked for, in its order.

    That holds as long as all of them lie in files, with no null among them. Otherwise each is an object of its own.
    """

    def __init__(self, name: str, kind: ColumnType, num_rows: int, *, by_sample: bool) -> None:
        super().__init__(name, num_rows)
        self._kind, self._by_sample = kind, by_sample
        self._begins, self._sizes = np.zeros((2, num_rows), np.int64)
        self._held: list[tuple[ColumnRows, Int64Array]] = []  # keeps the bytes mapped that the places are in
        self._are_located = True

    def add(self, rows: ColumnRows, places: Int64Array) -> None:
        found = rows.locate(self._name) if self._are_located else None
        if found is not None and found.is_null is None:
            self._begins[places], self._sizes[places] = found.begins, found.num_bytes
            self._held.append((rows, places))
            return
        if self._are_located:
            self._are_located = False
            for held, at in self._held:
                self._put(held.arrays(self._name), at)
            self._held = []
        self._put(rows.arrays(self._name), places)

    def take(self, begin: int, end: int | None) -> Values:
        if self._are_located:
            return self._copy(self._begins[begin:end], self._sizes[begin:end])
        return self._give(self._values[begin:end])

    def so_far(self, places: Int64Array) -> Values:
        if self._are_located:
            return self._copy(self._begins[places], self._sizes[places])
        return self._give([self._values[place] for place in places.tolist()])

    def _give(self, values: list[Any]) -> Values:
        values = to_arrays(self._kind, values)
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
