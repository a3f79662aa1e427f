"""Rows of CSV as `csv.reader` sees them: their fields, and where they begin in files that quote in their own way."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import numpy as np

from penstock.formats.lines.find import NEWLINE, FoundLines, QuotedRowFinder
from penstock.formats.lines.reader import BadRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.formats.lines.find import Bytes


def split_columns(data: bytes, num_rows: int, num_columns: int, separator: str) -> list[list[str]] | None:
    """Return the fields of rows that stand one after the other, by column; None if they must be read one by one.

    Without any quote, fields are what lies between separators and newlines.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if '"' not in text:
        text = text.replace("\r\n", "\n") if "\r" in text else text
        lines = text.removesuffix("\n")
        is_regular = lines.count("\n") + 1 == num_rows and lines.count(separator) == num_rows * (num_columns - 1)
        if is_regular and "\r" not in lines and _have_fields(lines, num_columns, separator):
            fields = lines.replace("\n", separator).split(separator)
            return [fields[number::num_columns] for number in range(num_columns)]
    _allow_fields(len(text))
    try:
        rows = list(filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator)))
    except csv.Error:
        return None
    if len(rows) != num_rows or set(map(len, rows)) != {num_columns}:
        return None
    return [list(column) for column in zip(*rows, strict=True)]


def _have_fields(lines: str, num_columns: int, separator: str) -> bool:
    """Return whether each line has so many fields, if that is what they have on average: no line has fewer."""
    codes = np.frombuffer(lines.encode(), np.uint8)
    ends = np.flatnonzero((codes == NEWLINE) | (codes == ord(separator)))
    return bool((codes[ends[num_columns - 1 :: num_columns]] == NEWLINE).all())


def split_rows(rows: Sequence[bytes], separator: str) -> list[list[str]]:
    """Return the fields of each row; raise `BadRow` if one cannot be read alone."""
    try:
        texts = list(map(bytes.decode, rows))
    except UnicodeDecodeError as error:
        raise BadRow(f"the row is not UTF-8: {error}") from error
    _allow_fields(max(map(len, texts), default=0))
    try:
        # Each row is a "line" to the reader, whatever newlines it has within quotes.
        fields = list(csv.reader(texts, delimiter=separator))
    except csv.Error as error:
        raise BadRow(f"the row is not CSV: {error}") from error
    if len(fields) != len(rows):
        raise BadRow("the row does not end with its line: a quote is missing, or there is one too many")
    return fields


def _allow_fields(num_chars: int) -> None:
    """Let `csv` take fields of this length. It has one limit for the whole process, which may rise but never falls."""
    if num_chars > csv.field_size_limit():
        csv.field_size_limit(num_chars)


class IrregularRowFinder:
    """Finds the rows of files in which quotes stand anywhere, by reading them all with `csv.reader`."""

    def __init__(self, separator: str, rest: bytes = b"", *, is_known: bool = False, position: int = 0) -> None:
        self._separator = separator
        self._rest = rest  # the last row, which may go on
        self._is_known = is_known  # it was given out already
        self._position = position

    def find(self, chunk: Bytes) -> FoundLines:
        """Return the rows that begin in this chunk."""
        newlines = np.flatnonzero(chunk == NEWLINE) + self._position
        data = self._rest + chunk.tobytes()
        base = self._position - len(self._rest)
        self._position += len(chunk)
        _allow_fields(len(data))
        # The structure of rows is ASCII, so bytes may pass for characters.
        lines = list(io.StringIO(data.decode("latin-1"), newline="\n"))
        offsets = np.cumsum([0, *map(len, lines)]).tolist()
        reader = csv.reader(lines, delimiter=self._separator)
        begins: list[int] = []
        last, is_row, line = 0, False, 0
        while line < len(lines):
            last, is_row = offsets[line], _read_row(reader)
            if is_row and not (last == 0 and self._is_known):
                begins.append(base + last)
            line = reader.line_num
        self._rest = data[last:]
        self._is_known = is_row
        return FoundLines(np.array(begins, np.int64), newlines)


class CSVRowFinder:
    """Finds the rows of any file: by the parity of quotes for as long as that holds, and from there on with `csv`."""

    def __init__(self, separator: str) -> None:
        self._separator = separator
        self._by_parity = QuotedRowFinder(ord(separator))
        self._by_reading: IrregularRowFinder | None = None
        # The last row that was given out, as far as it was seen; if there is none, all that was seen.
        self._last, self._has_row, self._position = b"", False, 0

    def find(self, chunk: Bytes) -> FoundLines:
        """Return the rows that begin in this chunk."""
        if self._by_reading is not None:
            return self._by_reading.find(chunk)
        found = self._by_parity.find(chunk)
        if not self._by_parity.is_regular:
            self._by_reading = IrregularRowFinder(
                self._separator, self._last, is_known=self._has_row, position=self._position
            )
            return self._by_reading.find(chunk)
        first = int(found.begins[-1]) - self._position if len(found) else -1
        seen = self._last + chunk.tobytes() if first < 0 else chunk[first:].tobytes()
        self._last, self._has_row, self._position = seen, self._has_row or bool(len(found)), self._position + len(chunk)
        return found


def _read_row(reader: object) -> bool:
    """Read the next row, and tell whether it is one: neither blank nor the end of all."""
    try:
        return bool(next(reader))  # type: ignore[call-overload]
    except csv.Error:
        return True  # whoever reads it will see why
