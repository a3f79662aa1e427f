"""Sources of files of lines: JSON, CSV and plain text; and the indexes beside them, which tell where rows begin."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import ConfigError, DataError, StoreError
from penstock.formats.files import FilesReading
from penstock.formats.lines.csv import CSVFileFormat
from penstock.formats.lines.format import LineBlocks, places_in
from penstock.formats.lines.json_values import first_character
from penstock.formats.lines.jsonl import JSONLinesFormat
from penstock.formats.lines.text import COLUMN, TextFileFormat
from penstock.index.catalog import MAX_INDEX_BYTES
from penstock.index.files_json import STORED_NAME, load_files
from penstock.scan.patterns import split_suffix
from penstock.sources.files.base import FileShardedSource, as_names
from penstock.units import checks_making

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.blocks.stage import State
    from penstock.formats.content import RowPlace
    from penstock.formats.files import OnError
    from penstock.formats.lines.format import LineFormat
    from penstock.index.files_json import IndexedFile
    from penstock.scan.patterns import Given
    from penstock.sources.files.found import FoundFile, FoundFiles
    from penstock.sources.shard_info import FileBlocks
    from penstock.storage.base import Store


_log = logging.getLogger("penstock.sources")

# Smaller files are not looked up: an index would hardly name more than their first row.
_LARGE_BYTES = 4 << 20


class StoredIndexes:
    """The indexes that `penstock index --store` left beside files: each is read once, when it is first asked for."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[Store, dict[str, IndexedFile]]] = {}

    def places_in(self, file: FoundFile, form: str) -> list[RowPlace]:
        """Return the places in a file of a format, if an index knows it in this version."""
        if file.info.num_bytes < _LARGE_BYTES:
            return []
        if id(file.store) not in self._files:
            self._files[id(file.store)] = file.store, _read_index(file.store)
        found = self._files[id(file.store)][1].get(file.info.key)
        version = file.info.version
        if found is None or version is None or (found.num_bytes, found.version) != (file.info.num_bytes, version):
            return []
        if (found.layout.format, found.layout.compression) != (form, file.compression):
            return []
        try:
            return places_in(found)
        except DataError as error:
            _log.warning("%s is not used: %s", STORED_NAME, error)
            return []

    def __reduce__(self) -> tuple[type[StoredIndexes], tuple[()]]:
        return StoredIndexes, ()  # they are read where it arrives


def _read_index(store: Store) -> dict[str, IndexedFile]:
    try:
        if store.stat(STORED_NAME).num_bytes > MAX_INDEX_BYTES:
            return {}
        document = json.loads(bytes(store.read(STORED_NAME)))
        return {file.name: file for file in load_files(document, STORED_NAME)} if isinstance(document, dict) else {}
    except StoreError:
        return {}
    except (DataError, ValueError) as error:
        _log.warning("%s is not used: %s", STORED_NAME, error)
        return {}


class _TextFiles(FileShardedSource):
    """Files of which only reading tells where a row begins. What was read once is remembered."""

    _form: LineFormat
    _indexed: str | None  # the format whose index counts the same rows, if there is one

    def __init__(
        self, data_files: Given | FoundFiles, storage_options: Mapping[str, Any] | None, reading: FilesReading
    ) -> None:
        super().__init__(data_files, storage_options)
        self._reading = reading
        self._indexes = StoredIndexes()
        self._looked_up: set[int] = set()  # files whose places an index was asked for

    def shard_cuts(self, shard_name: str, num_bytes: int) -> list[State]:
        """Find rows where a file can be cut into parts of about so many stored bytes; there are none in JSON arrays."""
        opened = self._open(self._number(shard_name), 0)
        return opened.find_cuts(num_bytes) if isinstance(opened, LineBlocks) else []

    def _open(self, number: int, row: int) -> FileBlocks:
        file = self._files[number]
        if row and self._indexed is not None and number not in self._looked_up:
            self._looked_up.add(number)
            for place in self._indexes.places_in(file, self._indexed):
                self._reading.places_in(file.url).note(place)
        return cast("FileBlocks", self._form.blocks(file.content(), self._reading, row))


@checks_making
class JsonShardedSource(_TextFiles):
    """JSON files, compressed or not: one object per line, or one array of objects, which is not read all at once.

    Args:
        data_files: A path or URL, a glob, a folder, or a list of them.
        storage_options: Credentials and settings of the store.
        jsonl: Lines or an array: by default, the first character of a file tells. False also reads objects that
            are written over several lines.
        columns: Keep these keys only.
        on_error: `"raise"` or `"skip"` for lines, or items of an array, that are not JSON objects. An array that is
            broken is always an error, because nothing tells where its next item begins.
    """

    format = _indexed = "jsonl"
    _form = JSONLinesFormat()

    def __init__(
        self,
        data_files: Given | FoundFiles,
        storage_options: Mapping[str, Any] | None = None,
        jsonl: bool = True,
        *,
        columns: Sequence[str] | None = None,
        on_error: OnError = "raise",
    ) -> None:
        reading = FilesReading(columns=as_names(columns), on_error=on_error, settings={"jsonl": jsonl})
        super().__init__(data_files, storage_options, reading)

    def _settings(self) -> tuple[object, ...]:
        return self._reading.settings["jsonl"], self._reading.columns, self._reading.on_error

    def _in_place(self) -> dict[str, Any] | None:
        is_lines = self._reading.settings["jsonl"] and self._reading.on_error == "raise"
        are_lines = is_lines and not any(_may_be_array(file) for file in self._files)
        return {"format": "jsonl", "columns": self._reading.columns} if are_lines else None


@checks_making
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
    _form: CSVFileFormat

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
        self._form = CSVFileFormat(delimiter)
        self._indexed = {",": "csv_file", "\t": "tsv_file"}.get(delimiter)
        reading = FilesReading(columns=as_names(columns), on_error=on_error, settings={"types": dict(types or {})})
        super().__init__(data_files, storage_options, reading)

    def _settings(self) -> tuple[object, ...]:
        reading = self._reading
        return self._form.separator, reading.columns, reading.settings["types"], reading.on_error

    def _in_place(self) -> dict[str, Any] | None:
        kind, reading = {",": "csv", "\t": "tsv"}.get(self._form.separator), self._reading
        if kind is None or reading.on_error != "raise":
            return None
        return {"format": kind, "columns": reading.columns, "types": reading.settings["types"] or None}


@checks_making
class TextShardedSource(_TextFiles):
    """Plain text files in UTF-8: each line is a sample, also an empty one, without its line ending.

    Args:
        data_files: A path or URL, a glob, a folder, or a list of them.
        storage_options: Credentials and settings of the store.
        text_field: The field of samples that holds the line.
        on_error: `"raise"` or `"skip"` for lines that are not UTF-8.
    """

    format = _indexed = "text"
    _form = TextFileFormat()

    def __init__(
        self,
        data_files: Given | FoundFiles,
        storage_options: Mapping[str, Any] | None = None,
        text_field: str = COLUMN,
        *,
        on_error: OnError = "raise",
    ) -> None:
        reading = FilesReading(on_error=on_error, settings={"text_field": text_field})
        super().__init__(data_files, storage_options, reading)

    def _settings(self) -> tuple[object, ...]:
        return self._reading.settings["text_field"], self._reading.on_error

    def _in_place(self) -> dict[str, Any] | None:
        is_plain = self._settings() == (COLUMN, "raise")
        return {"format": "text"} if is_plain else None


def _may_be_array(file: FoundFile) -> bool:
    """Return whether a file may hold one array: its name does not say lines, and its beginning not either."""
    if split_suffix(file.info.key)[0].endswith((".jsonl", ".ndjson")):
        return False
    return first_character([file.content().head()]) != "{"
