"""Sources of files of lines: JSON, CSV and plain text."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.lines.csv import CSVParser
from penstock.formats.lines.csv_rows import CSVRowFinder, split_rows
from penstock.formats.lines.find import RETURN, LineFinder
from penstock.formats.lines.jsonl import JSONParser
from penstock.formats.lines.reader import BadRow
from penstock.formats.lines.text import COLUMN, TextParser
from penstock.scan.patterns import split_suffix
from penstock.sources.files.base import FileShardedSource, as_names
from penstock.sources.files.content import FileContent
from penstock.sources.files.json_values import ValueIterator, first_character
from penstock.sources.files.lines import LineIterator, OnError
from penstock.sources.files.row_places import RowPlaces, StoredIndexes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.formats.lines.reader import RowParser
    from penstock.scan.patterns import Given
    from penstock.sources.files.found import FoundFile, FoundFiles
    from penstock.sources.files.lines import RowBlock
    from penstock.sources.iterators import SampleIterator
    from penstock.types import Columns, Sample

_OPENING, _CLOSING = b"{}"


class _TextFiles(FileShardedSource):
    """Files of which only reading tells where a row begins. What was read once is remembered."""

    _rows_of: str | None = None  # the format whose index counts the same rows, if there is one

    def __init__(self, data_files: Given | FoundFiles, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(data_files, storage_options)
        self._known_rows: dict[int, RowPlaces] = {}
        self._indexes = StoredIndexes()
        self._looked_up: set[int] = set()  # files whose places an index was asked for

    def _places_for(self, number: int, row: int) -> RowPlaces:
        """Give the places that are known in a file; those of an index, once somebody wants another than the first."""
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
            broken is always an error, because nobody can tell where its next item begins.
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
        self._jsonl, self._on_error = jsonl, _check_policy(on_error)
        self._columns = as_names(columns)
        super().__init__(data_files, storage_options)

    def _settings(self) -> tuple[object, ...]:
        return self._jsonl, self._columns, self._on_error

    def _in_place(self) -> dict[str, Any] | None:
        is_lines = self._jsonl and self._on_error == "raise"
        are_lines = is_lines and not any(_may_be_array(file) for file in self._files)
        return {"format": "jsonl", "columns": self._columns} if are_lines else None

    def _open(self, number: int, row: int) -> SampleIterator:
        file = self._files[number]
        first = first_character([file.head()]) or first_character(FileContent(file).read())
        if self._jsonl and first != "[":
            parser = JSONParser((), self._columns)
            return LineIterator(
                file,
                partial(LineFinder, skips_blank=True),
                lambda _: parser,
                on_error=self._on_error,
                row=row,
                parse_block=_parse_objects if self._columns is None else None,
                places=self._places_for(number, row),
            )
        return ValueIterator(
            FileContent(file),
            file.url,
            columns=self._columns,
            skips_others=self._on_error == "skip",
            row=row,
        )


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
        self._delimiter, self._types, self._on_error = delimiter, dict(types or {}), _check_policy(on_error)
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

    def _open(self, number: int, row: int) -> SampleIterator:
        file = self._files[number]
        return LineIterator(
            file,
            partial(CSVRowFinder, self._delimiter),
            partial(self._parser, file.url),
            has_header=True,
            on_error=self._on_error,
            row=row,
            parse_block=_parse_together,
            places=self._places_for(number, row),
        )

    def _parser(self, name: str, header: bytes | None) -> RowParser[Any]:
        try:
            [names] = split_rows([header or b""], self._delimiter) if header else [[]]
        except BadRow as error:
            raise CorruptShardError(f"{name} has a header that cannot be read: {error}", path=name) from error
        twice = sorted({each for each in names if names.count(each) > 1})
        if twice:
            raise CorruptShardError(
                f"{name} has several columns called {', '.join(map(repr, twice))}: rename them in its header", path=name
            )
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
        self._text_field, self._on_error = text_field, _check_policy(on_error)
        super().__init__(data_files, storage_options)

    def _settings(self) -> tuple[object, ...]:
        return self._text_field, self._on_error

    def _in_place(self) -> dict[str, Any] | None:
        return {"format": "text"} if self._text_field == COLUMN and self._on_error == "raise" else None

    def _open(self, number: int, row: int) -> SampleIterator:
        parser = _NamedText(self._text_field)
        return LineIterator(
            self._files[number],
            partial(LineFinder, skips_blank=False),
            lambda _: parser,
            on_error=self._on_error,
            row=row,
            parse_block=_parse_together,
            places=self._places_for(number, row),
        )


class _NamedText:
    """Lines of text under another name."""

    def __init__(self, name: str) -> None:
        self._name, self._parser = name, TextParser()

    def parse(self, rows: Sequence[bytes]) -> list[str]:
        return self._parser.parse(rows)

    def parse_block(self, data: bytes, num_rows: int) -> list[str] | None:
        return self._parser.parse_block(data, num_rows)

    def samples(self, parsed: list[str]) -> list[Sample]:
        return [{self._name: text} for text in parsed]

    def columns(self, parsed: list[str], begin: int = 0, end: int | None = None) -> Columns:
        return {self._name: parsed[begin:end]}


def _parse_together(parser: Any, block: RowBlock) -> list[Sample] | None:
    """Make samples of all rows of a block, if the parser finds no fault in them."""
    try:
        parsed = parser.parse_block(block.data, block.num_rows)
    except BadRow:
        return None
    return None if parsed is None else parser.samples(parsed)


def _parse_objects(_: Any, block: RowBlock) -> list[Sample] | None:
    """Parse lines of JSON together; None if the quick parser is not there, or does not find one object in each row."""
    decoder = _decoder()
    if decoder is None or not _are_objects(block):
        return None
    try:
        samples: list[Any] = decoder.decode_lines(block.data)
    except (ValueError, RecursionError):
        return None
    return samples if len(samples) == block.num_rows else None


def _are_objects(block: RowBlock) -> bool:
    """Tell whether all rows begin and end as an object does.

    Between `}` and `{` without a comma an object ends and another begins, so no object lies over two rows: the parser,
    which takes a newline for any white space, finds as many as there are rows only if there is one in each.
    """
    codes = np.frombuffer(block.data, np.uint8)
    begins = block.bounds - block.bounds[0]
    last = codes[begins[1:-1] - 2]  # before the newline
    if (last == RETURN).any():
        last = np.where(last == RETURN, codes[begins[1:-1] - 3], last)
    return bool((codes[begins[:-1]] == _OPENING).all() and (last == _CLOSING).all())


@cache
def _decoder() -> Any:
    try:
        from msgspec.json import Decoder
    except ImportError:
        return None
    return Decoder()


def _may_be_array(file: FoundFile) -> bool:
    """Tell whether a file may hold one array: its name does not say lines, and its beginning not either."""
    if split_suffix(file.info.key)[0].endswith((".jsonl", ".ndjson")):
        return False
    return first_character([file.head()]) != "{"


def _check_policy(on_error: OnError) -> OnError:
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error={on_error!r} is unknown: use 'raise' or 'skip'")
    return on_error
