"""The index of files that other programs wrote: each with its size and version, and the shards that a scan found in it.

It is a JSON object of the catalog `files`. It is made where the files are listed, kept in caches, and may lie beside
the files for everybody (`.penstock-index`); so what it says is checked like all that comes from outside.
"""

from __future__ import annotations

import binascii
import json
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from penstock.errors import BadIndexError, IndexFieldError
from penstock.index.entry import formats
from penstock.index.model import ColumnsBuilder, Index, encoded
from penstock.index.paths import is_shard_name
from penstock.index.shards import Column, ShardLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.index.shards import IndexedShard
    from penstock.types import Int64Array

STORED_NAME = ".penstock-index"
CATALOG = "files"
VERSION = 1
_MOST = 2**62
_MOST_SAMPLES = 2**48
_SHARDS_AT_ONCE = 1 << 12  # of which arrays are made together: there may be a million of them


class FileShard(NamedTuple):
    """One shard of a file, as `formats.files.ScannedShard` says it, in plain numbers."""

    num_samples: int
    begin: int  # of what is stored, also if that is compressed
    end: int
    raw_bytes: int
    is_exact: bool = True
    details: bytes = b""


class IndexedFile(NamedTuple):
    """One file, as it was when it was scanned."""

    name: str
    num_bytes: int
    version: str | None
    layout: ShardLayout
    shards: tuple[FileShard, ...] = ()

    @property
    def identity(self) -> tuple[str, int, str | None]:
        """What must still be true of the file for this to be true of its content."""
        return self.name, self.num_bytes, self.version


# --- Writing ------------------------------------------------------------------------------------------------


def dump_files(files: Iterable[IndexedFile], settings: Mapping[str, Any]) -> bytes:
    """Write an index; `settings` is what users said of the format, which decides what a scan finds."""
    encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
    layouts: dict[str, int] = {}
    entries = []
    for file in files:
        number = layouts.setdefault(encode(_dump_layout(file.layout)), len(layouts))
        shards = [_dump_shard(shard) for shard in file.shards]
        entry = {"name": file.name, "bytes": file.num_bytes, "version": file.version, "layout": number}
        entries.append(encode(entry | {"shards": shards}))  # as text at once: objects of all shards take gigabytes
    listed, settled = ",".join(entries), encode({"settings": dict(settings), "version": VERSION})
    return f'{{"catalog":"{CATALOG}","files":[{listed}],"layouts":[{",".join(layouts)}],{settled[1:]}'.encode()


def _dump_layout(layout: ShardLayout) -> dict[str, Any]:
    return {
        "format": layout.format,
        "columns": [[column.name, column.encoding, column.num_bytes] for column in layout.columns],
        "compression": layout.compression,
        "settings": dict(layout.settings),
    }


def _dump_shard(shard: FileShard) -> list[Any]:
    values: list[Any] = [shard.num_samples, shard.begin, shard.end, shard.raw_bytes]
    if shard.details or not shard.is_exact:
        values += [int(shard.is_exact), binascii.b2a_base64(shard.details, newline=False).decode()]
    return values


# --- Reading ------------------------------------------------------------------------------------------------


class FilesCatalog:
    """Reads indexes of files."""

    def parse(self, document: dict[str, Any], where: str) -> Index:
        """Return the shards of all files, in the order of the files."""
        loader, layouts, entries = _open_document(document, where)
        columns = ColumnsBuilder()
        heads: list[IndexedFile] = []
        shards: list[list[Any]] = []
        num_waiting = 0
        entries.reverse()
        while entries:  # taken out of their list, so that the memory of what was read can be used again
            entry = entries.pop()
            heads.append(loader.head(entry, layouts))
            shards.append(loader.list_in(entry, "shards"))
            num_waiting += len(shards[-1])
            if num_waiting >= _SHARDS_AT_ONCE or not entries:
                _add_shards(columns, *loader.shards(heads, shards))
                heads, shards, num_waiting = [], [], 0
        return Index(columns.build())


def load_files(document: dict[str, Any], where: str) -> list[IndexedFile]:
    """Return the files of an index, checking all that later code relies on."""
    loader, layouts, entries = _open_document(document, where)
    heads = [loader.head(entry, layouts) for entry in entries]
    files, numbers, is_exact, details = loader.shards(heads, [loader.list_in(entry, "shards") for entry in entries])
    shards = map(FileShard, *numbers.T.tolist(), is_exact, details)
    return [file._replace(shards=tuple(islice(shards, count))) for file, count in files]


def check_readable(file: IndexedFile) -> None:
    """Raise `BadIndexError` if no index could be read that has this file: damaged ones may claim anything."""
    load_files(json.loads(dump_files([file], {})), file.name)


def _open_document(document: dict[str, Any], where: str) -> tuple[FilesLoader, list[ShardLayout], list[Any]]:
    """Return who checks an index, its layouts, and what it says of each file, of which no two have the same name."""
    if document.get("catalog") != CATALOG or document.get("version") != VERSION:
        raise BadIndexError(
            f"Index file at {where} is not an index of files in version {VERSION}: make it again with penstock index"
        )
    loader = FilesLoader(where)
    layouts = [loader.layout(value) for value in loader.list_in(document, "layouts")]
    entries = loader.list_in(document, "files")
    if len({loader.name(entry) for entry in entries}) != len(entries):
        loader.refuse("names a file twice")
    return loader, layouts, entries


def settings_of(document: dict[str, Any]) -> Mapping[str, Any]:
    """Return what users had said of the format when an index was made."""
    settings = document.get("settings")
    return settings if isinstance(settings, dict) else {}


def shards_of(file: IndexedFile) -> Sequence[IndexedShard]:
    """Return how the shards of a file are fetched, and under which names they are kept."""
    columns = ColumnsBuilder()
    numbers = np.array([shard[:4] for shard in file.shards], np.int64).reshape(-1, 4)
    is_exact, details = [shard.is_exact for shard in file.shards], [shard.details for shard in file.shards]
    _add_shards(columns, [(file, len(numbers))], numbers, is_exact, details)
    return columns.build()


def _add_shards(
    columns: ColumnsBuilder,
    files: Sequence[tuple[IndexedFile, int]],
    numbers: Int64Array,
    is_exact: Sequence[bool],
    details: Sequence[bytes],
) -> None:
    """Add so many shards of each file. One that is read as it is stored has one form, one that is unpacked two."""
    files = [(file, count) for file, count in files if count]
    known = {key: _raw_suffix(layout) for key, layout in {id(file.layout): file.layout for file, _ in files}.items()}
    suffixes = [known[id(file.layout)] for file, _ in files]
    counts = [count for _, count in files]
    spans = iter(zip(numbers[:, 1].tolist(), numbers[:, 2].tolist(), strict=True))
    wholes, versions = [encoded(file.name) for file, _ in files], [encoded(file.version or "") for file, _ in files]
    names: list[bytes] = []
    for (file, count), whole, suffix in zip(files, wholes, suffixes, strict=True):
        here, num_bytes = islice(spans, count), file.num_bytes
        named = [whole if begin == 0 and end == num_bytes else b"%b@%d-%d" % (whole, begin, end) for begin, end in here]
        names += [form for name in named for form in (name + suffix, name)] if suffix else named
    num_forms = np.repeat(np.array([1 + bool(suffix) for suffix in suffixes], np.int64), counts)
    stored = np.cumsum(num_forms) - 1
    raw = stored - (num_forms - 1)
    sizes = np.empty(len(names), np.int64)
    sizes[raw], sizes[stored] = numbers[:, 3], numbers[:, 2] - numbers[:, 1]
    is_packed, is_estimate = np.zeros((2, len(names)), np.bool_)
    is_packed[stored] = num_forms > 1
    # Only what a format unpacks can turn out to be longer.
    may_differ = np.repeat(np.array([file.layout.compression is None for file, _ in files], np.bool_), counts)
    is_estimate[raw] = may_differ & (num_forms > 1) & ~np.array(is_exact, np.bool_)
    first = columns.add_objects(wholes, [file.num_bytes for file, _ in files], versions)
    columns.add_spans(stored, np.repeat(first + np.arange(len(files)), counts), numbers[:, 1])
    columns.add_files(names, sizes, is_packed, is_estimate=is_estimate)
    layout_numbers = np.repeat([columns.number_of(file.layout) for file, _ in files], counts)
    columns.add_shards(layout_numbers, numbers[:, 0], num_forms, details)


def _raw_suffix(layout: ShardLayout) -> bytes:
    """Return what the raw name of a shard ends with that a codec or its format unpacks; empty: it is not unpacked."""
    version = formats.get(layout.format)().raw_version if layout.compression is None else "raw"
    return f".{version}".encode() if version else b""


class FilesLoader:
    """Turns plain values into files, or says what is wrong with them."""

    def __init__(self, where: str) -> None:
        self._where = where

    def refuse(self, problem: str) -> NoReturn:
        """Return what is wrong."""
        raise IndexFieldError(f"Index file at {self._where} {problem}: make it again with penstock index")

    def list_in(self, value: Any, field: str) -> list[Any]:
        """Return a field that must be a list."""
        found = value.get(field) if isinstance(value, dict) else None
        if not isinstance(found, list):
            self.refuse(f"has {field!r} that is not a list")
        return found

    def layout(self, value: Any) -> ShardLayout:
        """Read one layout."""
        columns = self.list_in(value, "columns")
        name, compression, settings = value.get("format"), value.get("compression"), value.get("settings")
        if not isinstance(name, str) or name not in formats or not hasattr(formats.get(name), "scan"):
            self.refuse(f"names the unknown format {name!r}")
        if not isinstance(compression, str | None) or not isinstance(settings, dict):
            self.refuse("has a layout whose compression or settings are not valid")
        return ShardLayout(
            format=name,
            columns=tuple(self._column(column) for column in columns),
            compression=compression,
            settings=settings,
        )

    def _column(self, value: Any) -> Column:
        if not isinstance(value, list) or list(map(type, value[:2])) != [str, str] or len(value) != 3:
            self.refuse("has a column without a name and a type")
        return Column(value[0], value[1], None if value[2] is None else self._count(value[2]))

    def name(self, value: Any) -> str:
        """Read the name of a file."""
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or not is_shard_name(name):
            self.refuse(f"names the file {name!r}, which is not a plain path inside the folder")
        return name

    def head(self, value: Any, layouts: Sequence[ShardLayout]) -> IndexedFile:
        """Read all of a file but its shards."""
        name, version = value["name"], value.get("version")  # a name that was checked with all others
        if not isinstance(version, str | None):
            self.refuse(f"has a version of {name} that is not text")
        layout = layouts[self._count(value.get("layout"), len(layouts) - 1)]
        return IndexedFile(name, self._count(value.get("bytes")), version, layout)

    def shards(
        self, heads: Sequence[IndexedFile], shards: Sequence[list[Any]]
    ) -> tuple[list[tuple[IndexedFile, int]], Int64Array, list[bool], list[bytes]]:
        """Read the shards of some files together: how many each has, and their numbers, exactness and details."""
        rows = list(chain.from_iterable(shards))
        files = list(zip(heads, map(len, shards), strict=True))
        try:
            values = list(chain.from_iterable([row[:4] for row in rows]))
            is_right = {4, 6}.issuperset(map(len, rows)) and {list}.issuperset(map(type, rows))
            numbers = np.array(values, np.int64).reshape(-1, 4)
            is_exact = [len(row) == 4 or bool(row[4]) for row in rows]
            details = [b"" if len(row) == 4 else binascii.a2b_base64(row[5], strict_mode=True) for row in rows]
            is_right = is_right and {int}.issuperset(map(type, values)) and self._fit(files, numbers)
        except (TypeError, ValueError, LookupError, OverflowError):
            is_right = False
        if not is_right:
            if len(heads) == 1:
                self.refuse(f"has a shard of {heads[0].name} that is not valid, or lies outside of that file")
            for head, values in zip(heads, shards, strict=True):
                self.shards([head], [values])  # it says what is wrong
            self.refuse("has shards that are not valid")
        return files, numbers, is_exact, details

    def _fit(self, files: Sequence[tuple[IndexedFile, int]], numbers: Int64Array) -> bool:
        """Return whether shards lie within their files; the only one of a compressed file is all of it."""
        counts = [count for _, count in files]
        ends = np.repeat(np.array([file.num_bytes for file, _ in files], np.int64), counts)
        is_whole = [count == 1 and file.layout.compression is not None for file, count in files]
        whole = np.flatnonzero(np.repeat(is_whole, counts))
        numbers[whole, 1], numbers[whole, 2] = 0, ends[whole]
        samples, begins, stops, raw_bytes = numbers.T
        return bool(
            (numbers >= 0).all()
            and (samples <= _MOST_SAMPLES).all()
            and (raw_bytes <= _MOST).all()
            and (begins <= stops).all()
            and (stops <= ends).all()
        )

    def _count(self, value: Any, most: int = _MOST) -> int:
        if type(value) is not int or not 0 <= value <= most:
            self.refuse(f"has {value!r} instead of a number from 0 to {most}")
        return value
