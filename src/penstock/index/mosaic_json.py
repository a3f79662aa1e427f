"""`index.json`, version 2: the index file that MosaicML Streaming defined, read and written byte for byte."""

from __future__ import annotations

import gc
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import BadIndexError, CorruptIndexError, IndexFieldError
from penstock.index.model import MAX_SHARD_BYTES, Column, FileInfo, Index, Part, ShardInfo, ShardLayout
from penstock.index.paths import is_plain_name, is_shard_name
from penstock.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

INDEX_NAME = "index.json"
VERSION = 2
TEXT_FORMATS = ("json", "csv", "tsv", "xsv")
FORMATS = ("mds", *TEXT_FORMATS)
# Incompressible data grows a little when compressed; nothing honest doubles.
_MAX_PACKED_BYTES = 2 * MAX_SHARD_BYTES


# --- Writing ------------------------------------------------------------------------------------------------


def dump_index(index: Index, *, is_merged: bool = False) -> bytes:
    """Write an index as the original library does, which leaves the keys of a merged one unsorted."""
    shards = [dump_shard(shard) for shard in index.shards]
    if is_merged:
        return json.dumps({"version": VERSION, "shards": shards}).encode()
    return json.dumps({"shards": shards, "version": VERSION}).encode()


def dump_shard(shard: ShardInfo) -> dict[str, Any]:
    """Give the entry of one shard, its keys sorted."""
    entry = dump_layout(shard.layout) | {"samples": shard.num_samples}
    for part, kind in zip(shard.parts, ("data", "meta"), strict=False):
        entry[f"raw_{kind}"] = _dump_file(part.raw)
        entry[f"zip_{kind}"] = _dump_file(part.packed) if part.packed else None
    return dict(sorted(entry.items()))


def dump_layout(layout: ShardLayout) -> dict[str, Any]:
    """Give the settings that an index entry and the header of a shard share, their keys sorted."""
    columns = layout.columns
    config: dict[str, Any] = {
        "compression": layout.compression,
        "format": layout.format,
        "hashes": list(layout.hashes),
        "size_limit": layout.size_limit,
        "version": VERSION,
    }
    if layout.format == "json":
        config["columns"] = {column.name: column.encoding for column in columns}
    else:
        config["column_names"] = [column.name for column in columns]
        config["column_encodings"] = [column.encoding for column in columns]
    if layout.format == "mds":
        config["column_sizes"] = [column.num_bytes for column in columns]
    if layout.format in TEXT_FORMATS:
        config["newline"] = layout.newline
    if layout.format == "xsv":
        config["separator"] = layout.separator
    return dict(sorted(config.items()))


def dump_header(layout: ShardLayout) -> bytes:
    """Give the settings as the JSON text that stands in the header of a shard."""
    return json.dumps(dump_layout(layout), sort_keys=True).encode()


def _dump_file(info: FileInfo) -> dict[str, Any]:
    return {"basename": info.basename, "bytes": info.num_bytes, "hashes": dict(info.digests)}


# --- Reading ------------------------------------------------------------------------------------------------


def parse_index(data: bytes, where: str) -> Index:
    """Read an index, checking all that later code relies on; `where` names it in errors. Extra fields are ignored."""
    with _collector_paused():
        return _parse_index(data, where)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking over a growing index again and again, which doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _parse_index(data: bytes, where: str) -> Index:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptIndexError(
            f"Index file at {where} is empty or corrupted: {error}. Write it again, or fetch it anew",
            where=where,
        ) from error
    if not isinstance(document, dict) or "version" not in document:
        raise BadIndexError(f"Index file at {where} is empty or corrupted: it is not an object with a version")
    if document["version"] != VERSION:
        raise BadIndexError(
            f"Index file at {where} has version {document['version']!r}, and only version {VERSION} can be read"
        )
    entries = document.get("shards")
    if not isinstance(entries, list):
        raise IndexFieldError(f"Index file at {where} is empty or corrupted: 'shards' is not a list")
    parser = _EntryParser(where)
    return Index(tuple(parser.parse(number, entry) for number, entry in enumerate(entries)))


class _EntryParser:
    """Turns entries into shards. Layouts repeat in every entry, so equal ones become one object."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._number = 0
        self._layouts: dict[Any, ShardLayout] = {}

    def parse(self, number: int, entry: Any) -> ShardInfo:
        self._number = number
        if not isinstance(entry, dict):
            self._refuse("is not an object")
        try:
            layout = self._layout(entry)
            kinds = ("data", "meta") if layout.format in TEXT_FORMATS else ("data",)
            parts = tuple(self._part(entry, kind, layout.compression) for kind in kinds)
            return ShardInfo(layout, self._num_samples(entry["samples"], parts[-1].raw), parts)
        except KeyError as error:
            self._refuse(f"lacks the field {error}")

    def _layout(self, entry: dict[str, Any]) -> ShardLayout:
        if entry["version"] != VERSION:
            raise BadIndexError(f"{self._place()} has version {entry['version']!r}, not {VERSION}")
        names, encodings, sizes = self._columns(entry)
        key = (
            entry["format"],
            tuple(names),
            tuple(encodings),
            tuple(sizes),
            entry["compression"],
            tuple(self._list(entry, "hashes")),
            entry["size_limit"],
            entry.get("newline"),
            entry.get("separator"),
        )
        try:
            layout = self._layouts.get(key)
        except TypeError:
            self._refuse("has a list or an object where a plain value belongs")
        if layout is None:
            layout = self._layouts[key] = self._check_layout(*key)
        return layout

    def _columns(self, entry: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
        if entry["format"] == "json":
            columns = entry["columns"]
            if not isinstance(columns, dict):
                self._refuse("has 'columns' that is not an object")
            names, encodings = list(columns), list(columns.values())
        else:
            names, encodings = self._list(entry, "column_names"), self._list(entry, "column_encodings")
        sizes = self._list(entry, "column_sizes") if entry["format"] == "mds" else [None] * len(names)
        if not len(names) == len(encodings) == len(sizes):
            self._refuse("has column names, encodings and sizes of different number")
        return names, encodings, sizes

    def _check_layout(
        self,
        kind: Any,
        names: tuple[Any, ...],
        encodings: tuple[Any, ...],
        sizes: tuple[Any, ...],
        compression: Any,
        hashes: tuple[Any, ...],
        size_limit: Any,
        newline: Any,
        separator: Any,
    ) -> ShardLayout:
        if kind not in FORMATS:
            raise BadIndexError(f"{self._place()} has unknown format {kind!r}: known are {', '.join(FORMATS)}")
        if not all(isinstance(text, str) for text in (*names, *encodings, *hashes)):
            self._refuse("has a column name, encoding or hash that is not a string")
        if len(set(names)) != len(names):
            self._refuse("names a column twice")
        if compression is not None and not isinstance(compression, str):
            self._refuse("has 'compression' that is neither null nor a string")
        if kind in TEXT_FORMATS and not (isinstance(newline, str) and newline):
            self._refuse("lacks a 'newline' of at least one character")
        if kind == "xsv" and not (isinstance(separator, str) and separator):
            self._refuse("lacks a 'separator' of at least one character")
        for size in sizes:
            if size is not None:
                self._count(size, "column_sizes")
        columns = tuple(map(Column, names, encodings, sizes))
        return ShardLayout(
            format=kind,
            columns=columns,
            compression=compression,
            hashes=hashes,
            size_limit=self._size_limit(size_limit),
            newline=newline if kind in TEXT_FORMATS else None,
            separator=separator if kind == "xsv" else None,
        )

    def _size_limit(self, value: Any) -> int | None:
        if value is None:
            return None
        try:
            return parse_bytes(value)
        except (ValueError, OverflowError) as error:
            self._refuse(f"has a bad 'size_limit': {error}")

    def _part(self, entry: dict[str, Any], kind: str, compression: str | None) -> Part:
        packed = entry[f"zip_{kind}"]
        if (packed is None) != (compression is None):
            self._refuse(f"has 'compression' {compression!r} that does not fit its 'zip_{kind}'")
        raw = self._file(entry[f"raw_{kind}"], f"raw_{kind}", MAX_SHARD_BYTES)
        return Part(raw, None if packed is None else self._file(packed, f"zip_{kind}", _MAX_PACKED_BYTES))

    def _num_samples(self, value: Any, table: FileInfo) -> int:
        """Believe a number of samples only if the file that holds their offsets has room for them."""
        num_samples = self._count(value, "samples")
        if 4 * (num_samples + 2) > table.num_bytes:
            self._refuse(f"declares {num_samples} samples, more than the {table.num_bytes} bytes of its table can hold")
        return num_samples

    def _file(self, value: Any, field: str, most: int) -> FileInfo:
        if not isinstance(value, dict):
            self._refuse(f"has '{field}' that is not an object")
        basename, digests = value["basename"], value["hashes"]
        if not isinstance(basename, str):
            self._refuse(f"has a 'basename' in '{field}' that is not a string")
        if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
            self._refuse(f"has 'hashes' in '{field}' that is not an object of strings")
        size = self._count(value["bytes"], f"{field}.bytes", most)
        if not is_shard_name(basename):
            raise BadIndexError(f"{self._place()} names the file {basename!r}, {_why_not(basename)}", basename=basename)
        return FileInfo(basename, size, digests)

    def _list(self, entry: dict[str, Any], field: str) -> list[Any]:
        value = entry[field]
        if not isinstance(value, list):
            self._refuse(f"has '{field}' that is not a list")
        return value

    def _count(self, value: Any, field: str, most: int = MAX_SHARD_BYTES) -> int:
        if type(value) is not int or not 0 <= value <= most:
            self._refuse(f"has {value!r} as '{field}', which must be a whole number from 0 to {most}")
        return value

    def _place(self) -> str:
        return f"Index file at {self._where}: shard {self._number}"

    def _refuse(self, problem: str) -> NoReturn:
        raise IndexFieldError(f"{self._place()} {problem}", where=self._where, shard=self._number)


def _why_not(basename: str) -> str:
    if not is_plain_name(basename):
        return "which is not a plain path below the dataset's folder"
    return (
        "which no shard may be called: names that begin with a dot, index.json and control characters are refused,"
        " because reading a dataset must not replace other files. Write the dataset under other names"
    )
