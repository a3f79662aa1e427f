"""Rows of CSV as `csv.reader` sees them: their fields, and where they begin in files that quote in their own way."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import numpy as np

from penstock.formats.lines.find import NEWLINE, FoundRows
from penstock.formats.lines.reader import BadRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.formats.lines.find import Bytes


def split_rows(rows: Sequence[bytes], separator: str) -> list[list[str]]:
    """Give the fields of each row; raise `BadRow` if one cannot be read alone."""
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

    def __init__(self, separator: str) -> None:
        self._separator = separator
        self._rest = b""  # the last row, which may go on
        self._is_known = False  # it was given out already
        self._position = 0

    def find(self, chunk: Bytes) -> FoundRows:
        """Give the rows that begin in this chunk."""
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
        return FoundRows(np.array(begins, np.int64), newlines)


def _read_row(reader: object) -> bool:
    """Read the next row, and tell whether it is one: neither blank nor the end of all."""
    try:
        return bool(next(reader))  # type: ignore[call-overload]
    except csv.Error:
        return True  # whoever reads it will see why
