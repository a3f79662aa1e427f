"""Sources of files of lines: JSON, CSV and plain text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.lines.blocks import LineBlocks, RowPlaces, check_policy
from penstock.formats.lines.csv import CSVParser, CSVRowFinder, read_header
from penstock.formats.lines.cut import LineFinder
from penstock.formats.lines.json_values import ValueBlocks, first_character
from penstock.formats.lines.jsonl import JSONParser
from penstock.formats.lines.text import COLUMN, TextParser
from penstock.scan.patterns import split_suffix
from penstock.sources.files.base import FileShardedSource, as_names
from penstock.sources.files.stored_indexes import StoredIndexes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.blocks.stage import State
    from penstock.formats.lines.blocks import OnError
    from penstock.scan.patterns import Given
    from penstock.sources.file_versions import FileBlocks
    from penstock.sources.files.found import FoundFile, FoundFiles


class _TextFiles(FileShardedSource):
    """Files of which only reading tells where a row begins. What was read once is remembered."""

    _rows_of: str | None = None  # the format whose index counts the same rows, if there is one

    def __init__(self, data_files: Given | FoundFiles, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(data_files, storage_options)
        self._known_rows: dict[int, RowPlaces] = {}
        self._indexes = StoredIndexes()
        self._looked_up: set[int] = set()  # files whose places an index was asked for

    def shard_cuts(self, shard_name: str, num_bytes: int) -> list[State]:
        """Find rows where a file can be cut into parts of about so many stored bytes; there are none in JSON arrays."""
        opened = self._open(self._number(shard_name), 0)
        return opened.find_cuts(num_bytes) if isinstance(opened, LineBlocks) else []

    def _places_for(self, number: int, row: int) -> RowPlaces:
        """Return the places that are known in a file; those of an index, once another row than the first is wanted."""
        places = self._known_rows.setdefault(number, RowPlaces())
        if row and self._rows_of is not None and number not in self._looked_up:
            self._looked_up.add(number)
            for place in self._indexes.places_in(self._files[number], self._rows_of):
                places.note(place)
        return places


class JsonShardedSource(_TextFiles):
    """JSON files, compressed or not: one object per line, or one array of objects, which is not read all at once.

    Args:
        data_files: A path or URL, a glob, a folder, or a list of them.
        storage_options: Credentials and settings of the store.
        jsonl: Lines or an array: by default, the first character of a file tells. False also reads objects that
            are written over several lines.
        columns: Keep these keys only.
        on_error: `"raise"` or `"skip"` for lines, or items of an array, that are not JSON objects. An array that is
            broken is always an error, because no one can tell where its next item begins.
    """

    format = _rows_of = "jsonl"

    def __init__(
        self,
        data_files: Given | FoundFiles,
        storage_options: Mapping[str, Any] | None = None,
        jsonl: bool = True,
        *,
        columns: Sequence[str] | None = None,
        on_error: OnError = "raise",
    ) -> None:
        self._jsonl, self._on_error = jsonl, check_policy(on_error)
        self._columns = as_names(columns)
        super().__init__(data_files, storage_options)

    def _settings(self) -> tuple[object, ...]:
        return self._jsonl, self._columns, self._on_error

    def _in_place(self) -> dict[str, Any] | None:
        is_lines = self._jsonl and self._on_error == "raise"
        are_lines = is_lines and not any(_may_be_array(file) for file in self._files)
        return {"format": "jsonl", "columns": self._columns} if are_lines else None

    def _open(self, number: int, row: int) -> FileBlocks:
        content = self._files[number].content()
        first = first_character([content.head()]) or first_character(content.read())
        if self._jsonl and first != "[":
            return LineBlocks(
                content,
                partial(LineFinder, skips_blank=True),
                lambda _: JSONParser((), self._columns),
                on_error=self._on_error,
                row=row,
                places=self._places_for(number, row),
            )
        return ValueBlocks(content, content.name, columns=self._columns, skips_others=self._on_error == "skip", row=row)


class CsvShardedSource(_TextFiles):
    """CSV files with a header line. Quoted fields may hold anything, including newlines.

    Args:
        data_files: A path or URL, a glob, a folder, or a list of them.
        storage_options: Credentials and settings of the store.
        delimiter: What separates fields: `"\\t"` for TSV.
        columns: Keep these columns only.
        types: Types of columns that are not text: `"int"`, `"float"`, `"bool"` or `"json"`.
        on_error: `"raise"` or `"skip"` for rows with too many or too few fields.
    """

    format = "csv_file"

    def __init__(
        self,
        data_files: Given | FoundFiles,
        storage_options: Mapping[str, Any] | None = None,
        delimiter: str = ",",
        *,
        columns: Sequence[str] | None = None,
        types: Mapping[str, str] | None = None,
        on_error: OnError = "raise",
    ) -> None:
        if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii():
            raise ConfigError(f"delimiter={delimiter!r} is not one ASCII character")
        if delimiter == "\t":
            self.format = "tsv_file"
        self._delimiter, self._types, self._on_error = delimiter, dict(types or {}), check_policy(on_error)
        self._columns = as_names(columns)
        self._rows_of = {",": "csv_file", "\t": "tsv_file"}.get(delimiter)
        self._first_header: tuple[str, list[str]] | None = None  # of the file that was opened first, and its name
        super().__init__(data_files, storage_options)

    def _settings(self) -> tuple[object, ...]:
        return self._delimiter, self._columns, self._types, self._on_error

    def _in_place(self) -> dict[str, Any] | None:
        kind = {",": "csv", "\t": "tsv"}.get(self._delimiter)
        if kind is None or self._on_error != "raise":
            return None
        return {"format": kind, "columns": self._columns, "types": self._types or None}

    def _open(self, number: int, row: int) -> FileBlocks:
        content = self._files[number].content()
        return LineBlocks(
            content,
            partial(CSVRowFinder, self._delimiter),
            partial(self._parser, content.name),
            has_header=True,
            on_error=self._on_error,
            row=row,
            places=self._places_for(number, row),
        )

    def _parser(self, name: str, header: bytes | None) -> CSVParser:
        names = read_header(header, self._delimiter, name) if header else []
        self._first_header = self._first_header or (name, names)
        first_name, first = self._first_header
        if self._columns is None and set(names) != set(first):
            raise CorruptShardError(
                f"{name} has the columns {', '.join(names)}, but {first_name} has {', '.join(first)}: pass columns="
                " that all files have, or make a source of each kind",
                path=name,
            )
        for wanted in (*(self._columns or ()), *self._types):
            if wanted not in names:
                raise ConfigError(f"{name} has no column {wanted!r}: it has {', '.join(names)}", path=name)
        types = tuple((each, self._types.get(each, "str")) for each in names)
        return CSVParser(self._delimiter, types, self._columns)


class TextShardedSource(_TextFiles):
    """Plain text files in UTF-8: each line is a sample, also an empty one, without its line ending.

    Args:
        data_files: A path or URL, a glob, a folder, or a list of them.
        storage_options: Credentials and settings of the store.
        text_field: The field of samples that holds the line.
        on_error: `"raise"` or `"skip"` for lines that are not UTF-8.
    """

    format = _rows_of = "text"

    def __init__(
        self,
        data_files: Given | FoundFiles,
        storage_options: Mapping[str, Any] | None = None,
        text_field: str = COLUMN,
        *,
        on_error: OnError = "raise",
    ) -> None:
        self._text_field, self._on_error = text_field, check_policy(on_error)
        super().__init__(data_files, storage_options)

    def _settings(self) -> tuple[object, ...]:
        return self._text_field, self._on_error

    def _in_place(self) -> dict[str, Any] | None:
        return {"format": "text"} if self._text_field == COLUMN and self._on_error == "raise" else None

    def _open(self, number: int, row: int) -> FileBlocks:
        return LineBlocks(
            self._files[number].content(),
            partial(LineFinder, skips_blank=False),
            lambda _: TextParser(self._text_field),
            on_error=self._on_error,
            row=row,
            places=self._places_for(number, row),
        )


def _may_be_array(file: FoundFile) -> bool:
    """Return whether a file may hold one array: its name does not say lines, and its beginning not either."""
    if split_suffix(file.info.key)[0].endswith((".jsonl", ".ndjson")):
        return False
    return first_character([file.content().head()]) != "{"
