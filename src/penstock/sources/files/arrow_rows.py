"""Rows of Arrow's record batches in order, and files of stores as Arrow reads them."""

from __future__ import annotations

import io
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import ConfigError, CorruptShardError, PenstockError
from penstock.formats.columnar.arrow_types import pyarrow, validated
from penstock.order.state_fields import COUNT
from penstock.sources.iterators import SampleIterator, State, row_after, saved_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.order.state_fields import Fields
    from penstock.scan.objects import ScannedObject
    from penstock.sources.columns import Rows
    from penstock.sources.iterators import PositionAfter

    # Opens a file at a row, and gives samples, and how many rows they were made of.
    OpenBatches = Callable[[int], Iterator[tuple[Rows, int]]]


def open_for_arrow(opened: ScannedObject) -> Any:
    """Open a file for Arrow, which reads one of this machine itself, without a copy of the bytes in between."""
    path = opened.local_path()
    return ArrowInput(opened) if path is None else pyarrow().OSFile(str(path))


class ArrowInput(io.RawIOBase):
    """A file of a store, read by ranges."""

    def __init__(self, opened: ScannedObject) -> None:
        super().__init__()
        self._opened, self._at = opened, 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be read anywhere."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._opened.num_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Say where it is."""
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read from here on."""
        end = self._opened.num_bytes if size is None or size < 0 else min(self._at + size, self._opened.num_bytes)
        data = self._opened.read(min(self._at, end), end)
        self._at += len(data)
        return data


class BatchIterator(SampleIterator):
    """Samples of batches of rows; where rows are left out, the position is a row and how many samples came after it."""

    state_fields: ClassVar[Fields] = {"row": COUNT}

    def __init__(self, open_batches: OpenBatches, row: int, num_rows: int | None = None) -> None:
        super().__init__()
        self._open_batches, self._row, self._num_rows = open_batches, row, num_rows
        self._batches: Iterator[tuple[Rows, int]] | None = None
        self._is_whole = True  # the chunk has a sample for each of its rows

    def close(self) -> None:
        """Close the file."""
        batches, self._batches = self._batches, iter(())
        close = getattr(batches, "close", None)
        if close is not None:
            close()

    def _read_chunk(self) -> Rows:
        if self._batches is None:
            self._batches = self._open_batches(self._row)
        for samples, num_rows in self._batches:
            self._row += num_rows
            self._is_whole = len(samples) == num_rows
            if len(samples):
                return samples
        return []

    def _position(self) -> State:
        return {"row": self._row}

    def _positions_in_chunk(self, start: State) -> PositionAfter:
        if not self._is_whole:
            return super()._positions_in_chunk(start)
        # Batches without a sample were passed over: the chunk begins with the last batch that was read.
        return partial(row_after, self._row - len(self._chunk))

    def _seek(self, position: State) -> None:
        self.close()
        self._row, self._batches = saved_row(position, self._num_rows), None


def checked(batch: Any, first: int, where: str) -> Any:
    """Refuse text that is not UTF-8, and offsets that would end the process; `first` is the batch's first row."""
    try:
        return validated(batch)
    except (pyarrow().ArrowException, ValueError) as error:
        begin, end = _bad_rows(batch)
        row = first + begin
        rows = f"row {row}" if end - begin == 1 else f"rows {row} to {first + end - 1}"
        raise CorruptShardError(f"{where}, {rows}, cannot be read: {error}", path=where, row=row) from error


def _bad_rows(batch: Any) -> tuple[int, int]:
    """Find the first row with a bad value, or all that it may be: what is nested cannot be looked at row by row."""
    column = next((each for each in batch.columns if not _is_valid(each)), None)
    begin, end = 0, batch.num_rows
    if column is None or column.type.num_fields or pyarrow().types.is_dictionary(column.type):
        return begin, end
    while end - begin > 1:
        middle = (begin + end) // 2
        if _is_valid(column.slice(begin, middle - begin)):
            begin = middle
        else:
            end = middle
    return begin, end


def _is_valid(column: Any) -> bool:
    try:
        column.validate(full=True)
    except (pyarrow().ArrowException, ValueError):
        return False
    return True


def check_columns(wanted: Sequence[str] | None, names: Sequence[str], where: str) -> None:
    """Refuse columns that a file does not have."""
    missing = [name for name in wanted or () if name not in names]
    if missing:
        raise ConfigError(
            f"{where} has no column {', '.join(map(repr, missing))}: it has {', '.join(names)}", path=where
        )


def check_alike(first: Any, other: Any, wanted: Sequence[str] | None, names: tuple[str, str]) -> None:
    """Refuse a file with other columns than the first one, or with other kinds of values in them."""
    where, there = names[1], names[0]
    if wanted is None and set(first.names) != set(other.names):
        raise CorruptShardError(
            f"{where} has the columns {', '.join(other.names)}, but {there} has {', '.join(first.names)}: pass columns="
            " that all files have, or make a source of each kind",
            path=where,
        )
    for name in first.names if wanted is None else wanted:
        kinds = [schema.field(name).type for schema in (first, other) if name in schema.names]
        if len(kinds) == 2 and not _are_alike(*kinds):
            raise CorruptShardError(
                f"{where} has {kinds[1]} in its column {name!r}, but {there} has {kinds[0]}: write them with the same"
                " types, or make a source of each kind",
                path=where,
            )


def _are_alike(first: Any, other: Any) -> bool:
    """Tell whether values of two types may stand in one column: samples have integers, whatever their width."""
    types = pyarrow().types
    if first.equals(other) or types.is_null(first) or types.is_null(other):
        return True
    if types.is_dictionary(first) or types.is_dictionary(other):
        return _are_alike(*(each.value_type if types.is_dictionary(each) else each for each in (first, other)))
    if all(map(_is_list, (first, other))):
        return _are_alike(first.value_type, other.value_type)
    return any(all(map(is_kind, (first, other))) for is_kind in _kinds())


def _is_list(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _kinds() -> list[Callable[[Any], bool]]:
    """Give tests for families of types."""
    types = pyarrow().types
    return [
        lambda kind: types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind),
        lambda kind: types.is_string(kind) or types.is_large_string(kind),
        lambda kind: types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind),
        types.is_temporal,
        types.is_struct,
        types.is_map,
    ]


@contextmanager
def naming(where: str, part: str = "") -> Iterator[None]:
    """Turn what Arrow says of a broken file, or of a part of it, into an error that names it."""
    try:
        yield
    except PenstockError:
        raise
    except (pyarrow().ArrowException, OSError, ValueError, ArithmeticError, LookupError) as error:
        raise CorruptShardError(f"{where}{part} cannot be read: {error}", path=where) from error
