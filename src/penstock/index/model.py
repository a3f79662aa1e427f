"""The index of a dataset: its shards as columns, and an object only for the shard that is asked for.

A dataset of a million shards would take minutes and gigabytes as objects. Its columns take some hundred bytes a shard,
and can be written to a file and mapped again, which takes no time at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from penstock.arrays_file import ArraysFile, ArraysWriter
from penstock.index.shards import MAX_SHARD_BYTES, Column, FileInfo, IndexedShard, ObjectSpan, Part, ShardLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from penstock.types import Int64Array

    Arrays = dict[str, npt.NDArray[Any]]
    Values = Sequence[int] | npt.NDArray[Any]

__all__ = [
    "MAX_SHARD_BYTES",
    "Column",
    "ColumnsBuilder",
    "FileInfo",
    "Index",
    "IndexedShard",
    "ObjectSpan",
    "Part",
    "ShardColumns",
    "ShardInfo",
    "ShardLayout",
]

ShardInfo = IndexedShard  # as plug-ins for formats know it
_REMEMBERED = 256
_NO_DIGESTS: Mapping[str, str] = {}
# What is added to columns in the making, one value each: of shards, of files, of stored files within
# larger objects, of objects.
_KINDS = {
    "layout": np.uint32,
    "num_samples": np.int64,
    "num_files": np.int64,
    "is_packed": np.bool_,
    "num_bytes": np.int64,
    "digests_of": np.uint32,
    "is_estimate": np.bool_,
    "span_file": np.int64,
    "span_object": np.int64,
    "span_offset": np.int64,
    "object_bytes": np.int64,
}


class ShardColumns(Sequence[IndexedShard]):
    """Any number of shards. Files are numbered through all of them: of each part the raw one, then the packed one.

    The arrays, by name (n shards, f files, d digests, s parts that lie within larger objects):

        layout       n      number of its layout
        num_samples  n
        first_file   n + 1
        is_packed    f      whether this is the packed form of the file before it
        num_bytes    f
        name, digest, object, version: texts, as UTF-8 laid end to end, and where each ends in name_end, digest_end …
        object_bytes        of each object, -1 if the index does not say
        is_estimate  f      whether num_bytes is one; empty if none is
        details             of all shards, laid end to end, and where each ends in details_end; empty if none has any
        digests_of   f      number of its kind of digests, a list of their names; values follow in that order
        first_digest f + 1
        span_file, span_object, span_offset  s   the stored file, sorted, in which object it lies, and from where on
    """

    def __init__(self, layouts: Sequence[ShardLayout], digest_kinds: Sequence[tuple[str, ...]], arrays: Arrays) -> None:
        self.layouts, self._digest_kinds, self._arrays = tuple(layouts), tuple(digest_kinds), arrays
        self._shard = lru_cache(maxsize=_REMEMBERED)(self._make_shard)  # readers ask for the same few again and again

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardColumns, (self.layouts, self._digest_kinds, self._arrays)

    @classmethod
    def of(cls, shards: Iterable[IndexedShard]) -> ShardColumns:
        """Turn shards into columns."""
        shards = list(shards)
        columns = ColumnsBuilder()
        parts = [part for shard in shards for part in shard.parts]
        files = [file for part in parts for file in (part.raw, part.packed) if file is not None]
        ends = accumulate(1 + (part.packed is not None) for part in parts)
        spans = [(end - 1, part.span) for end, part in zip(ends, parts, strict=True) if part.span is not None]
        objects = {key: number for number, key in enumerate(dict.fromkeys(_object_of(span) for _, span in spans))}
        columns.add_objects(
            [name for name, _, _ in objects], [size for _, size, _ in objects], [tag for _, _, tag in objects]
        )
        columns.add_spans(
            [place for place, _ in spans],
            [objects[_object_of(span)] for _, span in spans],
            [span.offset for _, span in spans],
        )
        columns.add_files(
            [encoded(file.basename) for file in files],
            [file.num_bytes for file in files],
            [is_packed for part in parts for is_packed in ((False, True) if part.packed else (False,))],
            digests=[file.digests for file in files],
            is_estimate=[not file.is_exact for file in files],
        )
        columns.add_shards(
            [columns.number_of(shard.layout) for shard in shards],
            [shard.num_samples for shard in shards],
            [sum(1 + (part.packed is not None) for part in shard.parts) for shard in shards],
            [shard.details for shard in shards],
        )
        return columns.build()

    def __len__(self) -> int:
        return len(self._arrays["num_samples"])

    @overload
    def __getitem__(self, key: int) -> IndexedShard: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[IndexedShard, ...]: ...
    def __getitem__(self, key: int | slice) -> IndexedShard | tuple[IndexedShard, ...]:
        if isinstance(key, slice):
            return tuple(map(self._shard, range(*key.indices(len(self)))))
        return self._shard(range(len(self))[key])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(IndexedShard.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    # --- All shards at once ---------------------------------------------------------------------------------

    @property
    def lengths(self) -> Int64Array:
        """The number of samples of each shard."""
        return self._arrays["num_samples"]

    @property
    def is_packed(self) -> bool:
        """Whether any file is stored in another form than it is read in."""
        return bool(self._arrays["is_packed"].any())

    @property
    def raw_sizes(self) -> Int64Array:
        """The bytes of each shard, all its files together, as it is read."""
        return self._sums(~self._arrays["is_packed"])

    @property
    def stored_sizes(self) -> Int64Array:
        """The bytes of each shard as it is stored."""
        return self._sums(~self._has_packed)

    @property
    def unpacked_sizes(self) -> Int64Array:
        """The bytes of what has to be unpacked of each shard, as it is read."""
        return self._sums(self._has_packed)

    @property
    def objects(self) -> list[str]:
        """The names of the objects that shards are parts of."""
        return [self._text("object", number) for number in range(len(self._arrays["object_end"]))]

    @property
    def object_of(self) -> Int64Array:
        """The object in which the first file of each shard lies, by its place in `objects`; -1: it is one itself."""
        of_file = np.full(len(self._arrays["num_bytes"]) + 1, -1, np.int64)
        of_file[self._arrays["span_file"]] = self._arrays["span_object"]
        first = self._arrays["first_file"][:-1]
        found: Int64Array = of_file[np.where(self._has_packed[np.minimum(first, len(of_file) - 2)], first + 1, first)]
        return found

    @property
    def content(self) -> str:
        """Name the objects that shards are parts of, by their names and sizes; empty if the index says no sizes."""
        if not self._has_objects:
            return ""
        return _digest(self._arrays["object"], self._arrays["object_end"], self._arrays["object_bytes"])

    def content_of(self, shards: Int64Array) -> str:
        """Return the content of an index that has some of the shards alone."""
        objects = np.unique(self.object_of[shards])
        ends = self._arrays["object_end"]
        begins = np.append(0, ends)[objects]
        texts = [self._arrays["object"][begin:end] for begin, end in zip(begins, ends[objects], strict=True)]
        here = np.concatenate([self._arrays["object"][:0], *texts])
        return _digest(here, np.cumsum(ends[objects] - begins), self._arrays["object_bytes"][objects])

    def file_of(self, shard: int) -> str:
        """Return the name of the object that a shard is a part of."""
        return self._text("object", int(self.object_of[shard]))

    @property
    def versions(self) -> str:
        """Name the versions of these objects."""
        return _digest(self._arrays["version"], self._arrays["version_end"]) if self._has_objects else ""

    @property
    def _has_objects(self) -> bool:
        return bool((self._arrays["object_bytes"] >= 0).any())

    @property
    def _has_packed(self) -> npt.NDArray[np.bool_]:
        """Whether the packed form of a file comes after it."""
        return np.append(self._arrays["is_packed"][1:], False)

    def _sums(self, counts: npt.NDArray[np.bool_]) -> Int64Array:
        """Sum up the bytes of the files that count, by shard."""
        totals = np.concatenate([[0], np.cumsum(self._arrays["num_bytes"] * counts)])
        sums: Int64Array = np.diff(totals[self._arrays["first_file"]])
        return sums

    # --- One of them ----------------------------------------------------------------------------------------

    def _make_shard(self, number: int) -> IndexedShard:
        arrays = self._arrays
        begin, end = arrays["first_file"][number : number + 2].tolist()
        is_packed = arrays["is_packed"][begin : end + 1].tolist()
        parts: list[Part] = []
        file = begin
        while file < end:
            has_packed = file + 1 < end and is_packed[file + 1 - begin]
            stored = file + has_packed
            packed = self._file(stored) if has_packed else None
            parts.append(Part(self._file(file), packed, self._span(stored)))
            file = stored + 1
        num_samples = int(arrays["num_samples"][number])
        return IndexedShard(self.layout_of(number), num_samples, tuple(parts), self.details_of(number))

    def layout_of(self, number: int) -> ShardLayout:
        """Return the layout of one shard."""
        return self.layouts[int(self._arrays["layout"][number])]

    def details_of(self, number: int) -> bytes:
        """Return the details of one shard."""
        return self._bytes("details", number) if len(self._arrays["details_end"]) else b""

    def _file(self, file: int) -> FileInfo:
        first = int(self._arrays["first_digest"][file])
        names = self._digest_kinds[self._arrays["digests_of"][file]]
        digests = {name: self._text("digest", first + place) for place, name in enumerate(names)}
        num_bytes, is_estimate = int(self._arrays["num_bytes"][file]), self._arrays["is_estimate"]
        is_exact = not len(is_estimate) or not is_estimate[file]
        return FileInfo(self._text("name", file), num_bytes, digests or _NO_DIGESTS, is_exact)

    def _span(self, file: int) -> ObjectSpan | None:
        spans = self._arrays["span_file"]
        place = int(spans.searchsorted(file))
        if place == len(spans) or spans[place] != file:
            return None
        number = int(self._arrays["span_object"][place])
        object_bytes, version = int(self._arrays["object_bytes"][number]), self._text("version", number)
        return ObjectSpan(
            self._text("object", number),
            int(self._arrays["span_offset"][place]),
            int(self._arrays["num_bytes"][file]),
            None if object_bytes < 0 else object_bytes,
            version or None,
        )

    def _text(self, kind: str, number: int) -> str:
        return self._bytes(kind, number).decode("utf-8", "surrogatepass")

    def _bytes(self, kind: str, number: int) -> bytes:
        ends = self._arrays[f"{kind}_end"]
        begin = int(ends[number - 1]) if number else 0
        return self._arrays[kind][begin : ends[number]].tobytes()

    # --- As bytes -------------------------------------------------------------------------------------------

    def dump(self) -> npt.NDArray[np.uint8]:
        """Return everything as the bytes of one file."""
        out = BytesIO()
        writer = ArraysWriter(out)
        for name, array in self._arrays.items():
            writer.add(name, array.dtype.str, array.view(np.uint8))
        writer.finish({"layouts": list(map(asdict, self.layouts)), "digests": self._digest_kinds})
        return np.frombuffer(out.getbuffer(), np.uint8)

    @classmethod
    def load(cls, data: npt.NDArray[np.uint8]) -> ShardColumns:
        """Take what `dump` gave, maybe mapped from a file, without reading more of it than the description."""
        file = ArraysFile(data, "a kept index")
        return cls(list(map(_layout, file.about["layouts"])), list(map(tuple, file.about["digests"])), dict(file))


def _digest(*arrays: npt.NDArray[Any]) -> str:
    hasher = hashlib.blake2b(digest_size=8)
    for array in arrays:
        hasher.update(array.tobytes())
    return hasher.hexdigest()


def _layout(fields: dict[str, Any]) -> ShardLayout:
    columns = tuple(Column(**column) for column in fields["columns"])
    return ShardLayout(**{**fields, "columns": columns, "hashes": tuple(fields["hashes"])})


class _Texts:
    """Texts or bytes laid end to end."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._lengths = [np.zeros(0, np.int64)]

    def add(self, values: Sequence[bytes]) -> None:
        self._bytes += b"".join(values)
        self._lengths.append(np.fromiter(map(len, values), np.int64, len(values)))

    def arrays(self, name: str) -> Arrays:
        """Return them and their ends."""
        ends = np.cumsum(np.concatenate(self._lengths))
        return {name: np.frombuffer(self._bytes, np.uint8), f"{name}_end": ends}


class ColumnsBuilder:
    """Columns in the making: what is added is laid down as arrays, so that it takes little memory meanwhile."""

    def __init__(self) -> None:
        self._layouts: dict[int, tuple[int, ShardLayout]] = {}  # by identity: equal ones are one object
        self._kinds: dict[tuple[str, ...], int] = {}
        self._added: dict[str, list[npt.NDArray[Any]]] = {name: [np.zeros(0, kind)] for name, kind in _KINDS.items()}
        self._texts = {name: _Texts() for name in ("name", "digest", "object", "version", "details")}
        self._num_files = 0

    def number_of(self, layout: ShardLayout) -> int:
        """Return the number of a layout."""
        return self._layouts.setdefault(id(layout), (len(self._layouts), layout))[0]

    def add_objects(self, names: Sequence[bytes], num_bytes: Values, versions: Sequence[bytes]) -> int:
        """Add objects that shards are parts of, and return the number of the first of them."""
        first = sum(map(len, self._added["object_bytes"]))
        self._texts["object"].add(names)
        self._texts["version"].add(versions)
        self._add("object_bytes", num_bytes)
        return first

    def add_shards(
        self, layouts: Values, num_samples: Values, num_files: Values, details: Sequence[bytes] | None = None
    ) -> None:
        """Add shards by the numbers of their layouts, of so many files each, which are added in the same order."""
        self._add("layout", layouts)
        self._add("num_samples", num_samples)
        self._add("num_files", num_files)
        self._texts["details"].add([b""] * len(num_samples) if details is None else details)

    def add_files(
        self,
        names: Sequence[bytes],
        num_bytes: Values,
        is_packed: Values,
        *,
        digests: Sequence[Mapping[str, str]] | None = None,
        is_estimate: Values | None = None,
    ) -> None:
        """Add files, by their names in UTF-8."""
        self._num_files += len(names)
        self._texts["name"].add(names)
        self._add("num_bytes", num_bytes)
        self._add("is_packed", is_packed)
        self._add("is_estimate", np.zeros(len(names)) if is_estimate is None else is_estimate)
        kinds = self._kinds
        if digests is None:
            self._add("digests_of", np.full(len(names), kinds.setdefault((), len(kinds))))
            return
        self._add("digests_of", [kinds.setdefault(tuple(each), len(kinds)) for each in digests])
        values = chain.from_iterable(each.values() for each in digests)
        self._texts["digest"].add([encoded(value) for value in values])

    def add_spans(self, files: Values, objects: Values, offsets: Values) -> None:
        """Add where stored files lie in objects; `files` are places among those that are added next."""
        self._add("span_file", np.asarray(files, np.int64) + self._num_files)
        self._add("span_object", objects)
        self._add("span_offset", offsets)

    def _add(self, name: str, values: Values) -> None:
        self._added[name].append(np.asarray(values, _KINDS[name]))

    def build(self) -> ShardColumns:
        """Return the columns."""
        arrays: Arrays = {name: np.concatenate(added) for name, added in self._added.items()}
        arrays["first_file"] = np.concatenate([[0], np.cumsum(arrays.pop("num_files"))])
        lengths_of = np.array([len(kind) for kind in self._kinds] or [0], np.int64)
        arrays["first_digest"] = np.concatenate([[0], np.cumsum(lengths_of[arrays["digests_of"]])])
        if not arrays["is_estimate"].any():
            arrays["is_estimate"] = arrays["is_estimate"][:0]
        for name, texts in self._texts.items():
            arrays |= texts.arrays(name)
        if not len(arrays["details"]):
            arrays["details_end"] = arrays["details_end"][:0]
        return ShardColumns([layout for _, layout in self._layouts.values()], list(self._kinds), arrays)


def _object_of(span: ObjectSpan) -> tuple[bytes, int, bytes]:
    """Return the name, size and version of an object as columns hold them."""
    return encoded(span.basename), -1 if span.object_bytes is None else span.object_bytes, encoded(span.version or "")


def encoded(text: str) -> bytes:
    """Return a text as columns hold it."""
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Index:
    """The shards of a dataset, in the order that numbers its samples: objects if they are few, columns if many."""

    shards: Sequence[IndexedShard]

    @cached_property
    def columns(self) -> ShardColumns:
        """What the shards have, as arrays."""
        return self.shards if isinstance(self.shards, ShardColumns) else ShardColumns.of(self.shards)

    @property
    def lengths(self) -> Int64Array:
        """The number of samples of each shard."""
        return self.columns.lengths

    @property
    def num_samples(self) -> int:
        """The number of samples of the dataset."""
        return int(self.lengths.sum())
