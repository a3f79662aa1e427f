"""The index of files that other programs wrote: each with its size and version, and the shards that a scan found in it.

It is a JSON object of the catalog `files`. It is made where the files are listed, kept in caches, and may lie beside
the files for everybody (`.penstock-index`); so what it says is checked like all that comes from outside.
"""

from __future__ import annotations

import binascii
import json
from typing import TYPE_CHECKING, Any

from penstock.errors import BadIndexError
from penstock.index.entry import formats
from penstock.index.files_loader import FilesLoader
from penstock.index.model import FileInfo, Index, ObjectSpan, Part, ShardInfo, ShardLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.index.files_loader import FileShard, IndexedFile

STORED_NAME = ".penstock-index"
CATALOG = "files"
VERSION = 1


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
        # With NumPy, which the fetcher starts without.
        from penstock.index.columns import ShardColumns
        from penstock.index.files_columns import columns_of_files

        loader, layouts, entries = _open_document(document, where)
        columns = columns_of_files(loader, layouts, entries)
        if columns is None:
            files = [loader.file(entry, layouts) for entry in entries]
            columns = ShardColumns.of(shard for file in files for shard in shards_of(file))
        return Index(columns)


def load_files(document: dict[str, Any], where: str) -> list[IndexedFile]:
    """Return the files of an index, checking all that later code relies on."""
    loader, layouts, entries = _open_document(document, where)
    return [loader.file(entry, layouts) for entry in entries]


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


def shards_of(file: IndexedFile) -> list[ShardInfo]:
    """Return how the shards of a file are fetched, and under which names they are kept.

    A shard that is read as it is stored has one form. One that is unpacked, by a codec or by its format, has two.
    """
    form = formats.get(file.layout.format)()
    shards = []
    for shard in file.shards:
        is_whole = (shard.begin, shard.end) == (0, file.num_bytes)
        name = file.name if is_whole else f"{file.name}@{shard.begin}-{shard.end}"
        stored, span = FileInfo(name, shard.end - shard.begin), _span(file, shard.begin, shard.end)
        if file.layout.compression is not None:
            part = Part(FileInfo(f"{name}.raw", shard.raw_bytes), stored, span)
        elif form.raw_version:
            raw = FileInfo(f"{name}.{form.raw_version}", shard.raw_bytes, is_exact=shard.is_exact)
            part = Part(raw, stored, span)
        else:
            part = Part(stored, span=span)
        shards.append(ShardInfo(file.layout, shard.num_samples, (part,), shard.details))
    return shards


def _span(file: IndexedFile, begin: int, end: int) -> ObjectSpan:
    return ObjectSpan(file.name, begin, end - begin, file.num_bytes, file.version)
