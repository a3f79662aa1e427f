"""Columns of several shards in the making: values are taken shard by shard, and become what users see at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
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
from penstock.formats.gather import ColumnKind, in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.formats.encodings.base import ImageDecoder
    from penstock.formats.gather import GatheredColumn, Values
    from penstock.formats.stored_rows import ReaderRows
    from penstock.types import Int64Array


@lru_cache(maxsize=4096)
def kind_of_column(kind: ColumnType, image_decoder: ImageDecoder) -> Encoding | ColumnKind:
    """Say how a column of such values is gathered; the same object for the same type, however that is stored."""
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
        """Give one array if all are there and it can be."""
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
        return (_ListColumn if has_array_elements(self.kind) else _ValueColumn)(name, self.kind, by_sample=by_sample)


class _ArrayColumn:
    """Numbers and times go straight to their places."""

    def __init__(self, name: str, kind: ColumnType, values: npt.NDArray[Any], *, by_sample: bool) -> None:
        self._name, self._kind, self._values, self._by_sample = name, kind, values, by_sample
        self._is_null: npt.NDArray[np.bool_] | None = None

    def add(self, rows: ReaderRows, places: Int64Array) -> None:
        node = rows.column(self._name)
        self._values[places] = node.array(rows.numbers)
        is_null = node.is_null(rows.numbers)
        if is_null is not None and is_null.any():
            if self._is_null is None:
                self._is_null = np.zeros(len(self._values), np.bool_)
            self._is_null[places] = is_null

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
            raise CorruptShardError(f"column {self._name!r} {error.message}", column=self._name) from error


class _ValueColumn:
    """Values are made shard by shard, and put in order."""

    def __init__(self, name: str, kind: ColumnType, *, by_sample: bool) -> None:
        self._name, self._kind, self._by_sample = name, kind, by_sample
        self._values: list[Any] = []

    def add(self, rows: ReaderRows, places: Int64Array) -> None:  # noqa: ARG002
        self._values += self._read(rows.column(self._name), rows.numbers)

    def finish(self, places: Sequence[Int64Array]) -> None:
        self._values = in_order(self._values, places)

    def take(self, begin: int, end: int | None) -> Values:
        return self._give(self._values[begin:end])

    def so_far(self, places: Int64Array) -> Values:  # noqa: ARG002
        return self._give(self._values)

    def _read(self, node: Any, rows: Int64Array) -> list[Any]:
        values: list[Any] = node.values(rows)
        return values

    def _give(self, values: list[Any]) -> Values:
        return values


class _ListColumn(_ValueColumn):
    """Arrays that lie in the files are copied when their batch is asked for, one after another in its order."""

    def _read(self, node: Any, rows: Int64Array) -> list[Any]:
        arrays: list[Any] = node.arrays(rows)
        return arrays

    def _give(self, values: list[Any]) -> Values:
        kinds = set(map(type, values))
        if kinds == {memoryview}:
            return self._copy(values)
        values = to_arrays(self._kind, values)
        if kinds <= {memoryview, np.ndarray} and not self._by_sample and len({each.shape for each in values}) == 1:
            return np.stack(values)
        return values

    def _copy(self, pieces: list[memoryview]) -> Values:
        """Copy them one after another: one array of all if they are of one length, or views of it."""
        dtype, shape = element_shape(self._kind)
        num_bytes = dtype.itemsize * math.prod(shape)
        flat = np.frombuffer(bytearray().join(pieces), dtype).reshape(-1, *shape)
        sizes = set(map(len, pieces))
        if len(sizes) == 1:
            block = flat.reshape(len(pieces), sizes.pop() // num_bytes, *shape)
            return list(block) if self._by_sample else block
        cuts = accumulate((len(piece) // num_bytes for piece in pieces), initial=0)
        return [flat[begin:end] for begin, end in pairwise(cuts)]
