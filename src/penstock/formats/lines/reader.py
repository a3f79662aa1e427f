"""One open span of lines: any of its rows, parsed a whole batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.codecs.unpack import check_whole, release, rest, sliceable
from penstock.errors import CorruptShardError
from penstock.formats.lines.scan import find_rows, load_details
from penstock.formats.rows import check_rows
from penstock.spent import decoding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    import numpy.typing as npt

    from penstock.formats.base import Rows
    from penstock.formats.files import FileBytes
    from penstock.formats.lines.find import RowFinder
    from penstock.index.model import ShardInfo
    from penstock.types import Columns, Int64Array, Sample

    T = TypeVar("T")


class BadRow(ValueError):  # noqa: N818  readers turn it into an error that says where
    """A row that cannot be parsed, and why: it goes on where the place of the row ends."""


class RowParser(Protocol):
    """Makes samples of rows as they are stored. One that equals another makes the same of them."""

    def samples(self, rows: Sequence[bytes]) -> list[Sample]:
        """Parse rows; raise `BadRow` if any of them cannot be."""
        ...

    def columns(self, rows: Sequence[bytes]) -> Columns:
        """Give the same by column."""
        ...


class LineReader:
    """One open span of lines."""

    def __init__(self, data: FileBytes, info: ShardInfo, finder: RowFinder, parser: RowParser) -> None:
        self._data = data
        self.name, self.parser = info.name, parser
        span = info.parts[0].span
        self._file = info.name if span is None else span.basename
        skip, self._first_line = load_details(info.details, info.name)
        self._skip = min(skip, len(data))
        self._bounds = find_rows(data, self._skip, finder)
        self._num_samples = len(self._bounds) - 1
        if self._num_samples != info.num_samples:
            raise CorruptShardError(
                f"{info.name} holds {self._num_samples} rows, but the index says {info.num_samples}: make the index"
                " again, or fetch the file again",
                shard=info.name,
            )
        self._slices, self._shift = sliceable(data)

    def __len__(self) -> int:
        return self._num_samples

    def read(self, rows: Rows) -> list[Sample]:
        """Give the samples at these rows, in this order."""
        return self._parse(rows, self.parser.samples)

    def read_columns(self, rows: Rows) -> Columns:
        """Give the same by column: numbers as an array where all values allow it, else a list."""
        return self._parse(rows, self.parser.columns)

    def rest(self) -> None:
        """Take the shard's pages out of memory."""
        rest(self._data)

    def close(self) -> None:
        """Unmap the shard."""
        self._num_samples = 0
        self._slices = b""
        release(self._data)

    def gather_rows(self, rows: Int64Array) -> list[bytes]:
        """Give rows as they are stored, each with whatever ends it."""
        check_whole(self._data, self.name)
        begins = self._bounds[rows].astype(np.int64) + self._shift
        ends = self._bounds[rows + 1].astype(np.int64) + self._shift
        data = self._slices
        return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]

    def _parse(self, rows: Rows, parse: Callable[[Sequence[bytes]], T]) -> T:
        numbers = check_rows(rows, self._num_samples, self.name)
        lines = self.gather_rows(numbers)
        with decoding:
            try:
                return parse(lines)
            except BadRow as error:
                raise self.blame(numbers, lines, error) from error

    def blame(self, rows: Int64Array, lines: Sequence[bytes], error: BadRow) -> CorruptShardError:
        """Say which of some rows cannot be parsed, and in which line of the file it begins."""
        for row, line in zip(rows.tolist(), lines, strict=True):
            try:
                self.parser.samples([line])
            except BadRow as culprit:
                number = self._line_of(row)
                return CorruptShardError(
                    f"{self._file}, line {number}: {culprit}", shard=self.name, row=row, path=self._file, line=number
                )
        return CorruptShardError(f"{self._file}: {error}", shard=self.name, path=self._file)

    def _line_of(self, row: int) -> int:
        before: npt.NDArray[Any] = np.frombuffer(self._data, np.uint8)[self._skip : int(self._bounds[row])]
        return self._first_line + int(np.count_nonzero(before == ord("\n")))
