"""`index.json`, version 2: the index file that MosaicML Streaming defined, read and written byte for byte."""

from __future__ import annotations

import json
import operator
from collections import Counter
from typing import Any, NoReturn

from penstock.errors import BadIndexError, IndexFieldError
from penstock.index.entry import formats, part_fields
from penstock.index.model import ColumnsBuilder, Index, ShardColumns, encoded
from penstock.index.paths import INDEX_NAME, is_plain_name, is_shard_name
from penstock.index.shards import MAX_SHARD_BYTES, FileInfo, IndexedShard, ObjectSpan, Part, ShardLayout
from penstock.units import parse_bytes
from penstock.user_warnings import warn_user

VERSION = 2
_COMMON_FIELDS = ("compression", "hashes", "size_limit", "version")
# Incompressible data grows a little when compressed; nothing honest doubles.
_MAX_PACKED_BYTES = 2 * MAX_SHARD_BYTES
_MAX_OFFSET = 2**63 - 1
_ALL_STRINGS = frozenset({str})
# From so many on, shards are columns: an object for each would take longer to make than the whole dataset to open.
_MANY = 1024


# --- Writing ------------------------------------------------------------------------------------------------


def dump_index(index: Index, *, is_merged: bool = False) -> bytes:
    """Write an index as the original library does, which leaves the keys of a merged one unsorted."""
    known: dict[int, tuple[dict[str, Any], list[tuple[str, str]]]] = {}  # by layout, which most shards share
    shards = []
    for shard in index.shards:
        if id(shard.layout) not in known:
            fields = part_fields(formats.get(shard.layout.format)())
            known[id(shard.layout)] = dump_layout(shard.layout), fields
        shards.append(_dump_shard(shard, *known[id(shard.layout)]))
    if is_merged:
        return json.dumps({"version": VERSION, "shards": shards}).encode()
    return json.dumps({"shards": shards, "version": VERSION}).encode()


def _dump_shard(shard: IndexedShard, layout: dict[str, Any], fields: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the entry of one shard, its keys sorted."""
    entry = layout | {"samples": shard.num_samples}
    for part, (raw, packed) in zip(shard.parts, fields, strict=True):
        entry[raw] = _dump_file(part.raw)
        entry[packed] = _dump_file(part.packed) if part.packed else None
        if part.span is not None:
            entry[packed if part.packed else raw] |= {"object": part.span.basename, "offset": part.span.offset}
    return dict(sorted(entry.items()))


def dump_layout(layout: ShardLayout) -> dict[str, Any]:
    """Return the settings that an index entry and the header of a shard share, their keys sorted."""
    form = formats.get(layout.format)()
    config: dict[str, Any] = {
        "compression": layout.compression,
        "format": layout.format,
        "hashes": list(layout.hashes),
        "size_limit": layout.size_limit,
        "version": VERSION,
        **form.dump_columns(layout.columns),
        **{name: layout.settings.get(name) for name in form.setting_fields},
    }
    return dict(sorted(config.items()))


def dump_header(layout: ShardLayout) -> bytes:
    """Return the settings as the JSON text that stands in the header of a shard."""
    return json.dumps(dump_layout(layout), sort_keys=True).encode()


def _dump_file(info: FileInfo) -> dict[str, Any]:
    return {"basename": info.basename, "bytes": info.num_bytes, "hashes": dict(info.digests)}


# --- Reading ------------------------------------------------------------------------------------------------


class MosaicCatalog:
    """Reads indexes of version 2. Extra fields are ignored."""

    def parse(self, document: dict[str, Any], where: str) -> Index:
        """Check all that later code relies on."""
        if "version" not in document:
            raise BadIndexError(f"Index file at {where} is empty or corrupted: it is not an object with a version")
        if document["version"] != VERSION:
            raise BadIndexError(
                f"Index file at {where} has version {document['version']!r}, but penstock reads only version {VERSION}"
            )
        entries = document.get("shards")
        if not isinstance(entries, list):
            raise IndexFieldError(f"Index file at {where} is empty or corrupted: 'shards' is not a list")
        index = _parse_entries(entries, where)
        _warn_of_repeated(entries, where)
        return index


def _parse_entries(entries: list[Any], where: str) -> Index:
    parser = _EntryParser(where)
    if len(entries) < _MANY:
        return Index(tuple([parser.parse(number, entry) for number, entry in enumerate(entries)]))
    columns = parser.parse_alike(entries)
    if columns is None:  # not alike, or wrong: one by one says where
        columns = ShardColumns.of(parser.parse(number, entry) for number, entry in enumerate(entries))
    return Index(columns)


def _warn_of_repeated(entries: list[Any], where: str) -> None:
    """Warn of a shard that is listed twice, as joining indexes by hand may leave it."""
    names = [entry["raw_data"]["basename"] for entry in entries if "raw_data" in entry]
    if len(set(names)) < len(names):
        repeated, count = Counter(names).most_common(1)[0]
        warn_user(f"Index file at {where} lists the shard {repeated} {count} times: its samples are read as often")


class _KnownFormat:
    """What has been found out of the shards of one format. Layouts repeat in every entry: equal ones are one object."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.form = formats.get(name)()
        self.part_fields = part_fields(self.form)
        self.max_samples = self.form.max_samples
        self.fields = (*_COMMON_FIELDS, *self.form.column_fields, *self.form.setting_fields)
        self.values_in = operator.itemgetter(*self.fields)
        # The values of the entry before, and their layout: most shards of a dataset are of one writer.
        self.values: Any = None
        self.layout: ShardLayout | None = None
        self.layouts: dict[str, ShardLayout] = {}


class _EntryParser:
    """Turns entries into shards."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._number = 0
        self._known: dict[str, _KnownFormat] = {}

    def parse(self, number: int, entry: Any) -> IndexedShard:
        self._number = number
        if not isinstance(entry, dict):
            self._refuse("is not an object")
        try:
            known = self._format(entry["format"])
            values = known.values_in(entry)
            layout = known.layout
            if layout is None or values != known.values:
                layout = self._layout(known, values)
            parts = tuple([self._part(entry, raw, packed, layout.compression) for raw, packed in known.part_fields])
            num_samples = self._count(entry["samples"], "samples")
            if num_samples > known.max_samples([part.raw.num_bytes for part in parts]):
                self._refuse(f"declares {num_samples} samples, more than its files can hold")
            return IndexedShard(layout, num_samples, parts)
        except KeyError as error:
            self._refuse(f"has no field {error}")

    def parse_alike(self, entries: list[Any]) -> ShardColumns | None:
        """Parse entries that differ in nothing but their files, all at once; None: some differ, or one is wrong."""
        first = self.parse(0, entries[0])
        known = self._known[first.layout.format]
        try:
            is_alike = all(entry["format"] == known.name for entry in entries) and all(
                known.values_in(entry) == known.values for entry in entries
            )
            return _columns_of(known, first.layout, entries) if is_alike else None
        except (KeyError, TypeError, AttributeError, OverflowError):
            return None

    def _format(self, name: Any) -> _KnownFormat:
        if not isinstance(name, str):
            self._refuse("has a 'format' that is not a string")
        known = self._known.get(name)
        if known is None:
            if name not in formats:
                raise BadIndexError(
                    f"{self._shard()} has the unknown format {name!r}, and penstock knows only"
                    f" {', '.join(formats.names())}. Install or import the package that registers it"
                )
            known = self._known[name] = _KnownFormat(name)
        return known

    def _layout(self, known: _KnownFormat, values: tuple[Any, ...]) -> ShardLayout:
        try:
            key = repr(values)
        except RecursionError:
            self._refuse("has a field that is nested too deeply")
        layout = known.layouts.get(key)
        if layout is None:
            fields = dict(zip(known.fields, values, strict=True))
            try:
                layout = known.layouts[key] = self._parse_layout(known, fields)
            except IndexFieldError as error:
                if "shard" in error.facts:
                    raise
                self._refuse(error.message)
        known.values, known.layout = values, layout
        return layout

    def _parse_layout(self, known: _KnownFormat, fields: dict[str, Any]) -> ShardLayout:
        if fields["version"] != VERSION:
            raise BadIndexError(f"{self._shard()} has version {fields['version']!r}, not {VERSION}")
        hashes, compression = fields["hashes"], fields["compression"]
        if not isinstance(hashes, list):
            self._refuse("has 'hashes' that is not a list")
        columns = known.form.parse_columns(fields)
        settings = {name: fields[name] for name in known.form.setting_fields}
        names = [column.name for column in columns]
        if not all(isinstance(text, str) for text in (*names, *(column.encoding for column in columns), *hashes)):
            self._refuse("has a column name, encoding or hash that is not a string")
        if len(set(names)) != len(names):
            self._refuse("names a column twice")
        if compression is not None and not isinstance(compression, str):
            self._refuse("has 'compression' that is neither null nor a string")
        for column in columns:
            if column.num_bytes is not None:
                self._count(column.num_bytes, "column_sizes")
        known.form.check_settings(settings)
        return ShardLayout(
            format=known.name,
            columns=columns,
            compression=compression,
            hashes=tuple(hashes),
            size_limit=self._size_limit(fields["size_limit"]),
            settings=settings,
        )

    def _size_limit(self, value: Any) -> int | None:
        if value is None:
            return None
        try:
            return parse_bytes(value)
        except (ValueError, OverflowError) as error:
            self._refuse(f"has a bad 'size_limit': {error}")

    def _part(self, entry: dict[str, Any], raw_field: str, packed_field: str, compression: str | None) -> Part:
        packed = entry[packed_field]
        if (packed is None) != (compression is None):
            self._refuse(f"has 'compression' {compression!r}, which does not fit its '{packed_field}'")
        raw = self._file(entry[raw_field], raw_field, MAX_SHARD_BYTES)
        if packed is None:
            if "object" in entry[raw_field]:
                return Part(raw, span=self._span(entry[raw_field], raw_field, raw))
            return Part(raw)
        stored = self._file(packed, packed_field, _MAX_PACKED_BYTES)
        return Part(raw, stored, self._span(packed, packed_field, stored) if "object" in packed else None)

    def _span(self, value: dict[str, Any], field: str, info: FileInfo) -> ObjectSpan:
        self._check_name(value["object"], "object", field)
        return ObjectSpan(value["object"], self._count(value["offset"], f"{field}.offset", _MAX_OFFSET), info.num_bytes)

    def _file(self, value: Any, field: str, most: int) -> FileInfo:
        if not isinstance(value, dict):
            self._refuse(f"has '{field}' that is not an object")
        basename, digests = value["basename"], value["hashes"]
        if not isinstance(digests, dict) or not _ALL_STRINGS.issuperset(map(type, digests.values())):
            self._refuse(f"has 'hashes' in '{field}' that is not an object of strings")
        size = value["bytes"]
        if type(size) is not int or not 0 <= size <= most:
            self._count(size, f"{field}.bytes", most)
        self._check_name(basename, "basename", field)
        return FileInfo(basename, size, digests)

    def _check_name(self, name: Any, key: str, field: str) -> None:
        if not isinstance(name, str):
            self._refuse(f"has a '{key}' in '{field}' that is not a string")
        if not is_shard_name(name):
            raise BadIndexError(f"{self._shard()} names the file {name!r}, {_why_not(name)}", basename=name)

    def _count(self, value: Any, field: str, most: int = MAX_SHARD_BYTES) -> int:
        if type(value) is not int or not 0 <= value <= most:
            self._refuse(f"has {value!r} as '{field}', which must be a whole number from 0 to {most}")
        return value

    def _shard(self) -> str:
        return f"Index file at {self._where}: shard {self._number}"

    def _refuse(self, problem: str) -> NoReturn:
        raise IndexFieldError(f"{self._shard()} {problem}", where=self._where, shard=self._number)


def _columns_of(known: _KnownFormat, layout: ShardLayout, entries: list[dict[str, Any]]) -> ShardColumns | None:
    """Collect the files of entries of one layout; None: something is not as `_EntryParser` wants it."""
    is_packed = layout.compression is not None
    fields = [field for pair in known.part_fields for field in pair[: 1 + is_packed]]
    files = [entry[field] for entry in entries for field in fields]
    names, sizes = [file["basename"] for file in files], [file["bytes"] for file in files]
    digests, num_samples = [file["hashes"] for file in files], [entry["samples"] for entry in entries]
    raw_sizes = [sizes[part :: len(fields)] for part in range(0, len(fields), 1 + is_packed)]
    is_right = (
        set(map(type, sizes)) | set(map(type, num_samples)) == {int}
        and all(is_packed or entry[packed] is None for entry in entries for _, packed in known.part_fields)
        and all("object" not in file for file in files)
        and all(map(is_shard_name, names))
        and set(map(type, digests)) == {dict}
        and all(_ALL_STRINGS.issuperset(map(type, each.values())) for each in digests)
        and min(sizes) >= 0 <= min(num_samples)
        and max(map(max, raw_sizes)) <= MAX_SHARD_BYTES
        and max(sizes) <= _MAX_PACKED_BYTES
        and all(map(operator.le, num_samples, map(known.max_samples, zip(*raw_sizes, strict=True))))
    )
    if not is_right:
        return None
    columns = ColumnsBuilder()
    packed = [False, True][: 1 + is_packed] * (len(files) // (1 + is_packed))
    columns.add_files(list(map(encoded, names)), sizes, packed, digests=digests)
    columns.add_shards([columns.number_of(layout)] * len(entries), num_samples, [len(fields)] * len(entries))
    return columns.build()


def _why_not(name: str) -> str:
    if not is_plain_name(name):
        return "which is not a plain path inside the folder of the dataset"
    return (
        f"which is not allowed: names that begin with a dot, {INDEX_NAME} and control characters are refused,"
        " because reading a dataset must not replace other files. Write the dataset under other names"
    )
