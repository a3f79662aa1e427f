"""Shards as columns: a few arrays for any number of them, and an object only for the shard that somebody asks for.

A dataset of a million shards would take minutes and gigabytes as objects. Its columns take some hundred bytes a shard,
and can be written to a file and mapped again, which takes no time at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from penstock.arrays_file import ArraysFile, ArraysWriter
from penstock.index.shards import Column, FileInfo, ObjectSpan, Part, ShardInfo, ShardLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from penstock.types import Int64Array

    Arrays = dict[str, npt.NDArray[Any]]

_REMEMBERED = 256
_NO_DIGESTS: Mapping[str, str] = {}


class ShardColumns(Sequence[ShardInfo]):
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
    def of(cls, shards: Iterable[ShardInfo]) -> ShardColumns:
        """Turn shards into columns."""
        columns = ColumnsBuilder()
        for shard in shards:
            files: list[FileInfo] = []
            for part in shard.parts:
                if part.span is not None:
                    columns.add_span(len(files) + (part.packed is not None), part.span)
                files += [part.raw] if part.packed is None else [part.raw, part.packed]
            columns.add_files(
                [file.basename for file in files],
                [file.num_bytes for file in files],
                [file.digests for file in files],
                [is_packed for part in shard.parts for is_packed in ((False, True) if part.packed else (False,))],
            )
            columns.add_estimates([not file.is_exact for file in files])
            columns.add_shards(shard.layout, [shard.num_samples], len(files), [shard.details])
        return columns.build()

    def __len__(self) -> int:
        return len(self._arrays["num_samples"])

    @overload
    def __getitem__(self, key: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[ShardInfo, ...]: ...
    def __getitem__(self, key: int | slice) -> ShardInfo | tuple[ShardInfo, ...]:
        if isinstance(key, slice):
            return tuple(map(self._shard, range(*key.indices(len(self)))))
        return self._shard(range(len(self))[key])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(ShardInfo.__eq__, self, other))

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

    def _make_shard(self, number: int) -> ShardInfo:
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
        return ShardInfo(self.layout_of(number), num_samples, tuple(parts), self.details_of(number))

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


class ColumnsBuilder:
    """Columns in the making, as lists that grow."""

    def __init__(self) -> None:
        self._is_packed: list[bool] = []
        self._layouts: dict[int, tuple[int, ShardLayout]] = {}  # by identity: equal ones are one object
        self._layout_of: list[int] = []
        self._num_samples: list[int] = []
        self._files_of: list[int] = []
        self._names: list[str] = []
        self._num_bytes: list[int] = []
        self._kinds: dict[tuple[str, ...], int] = {}
        self._digests_of: list[int] = []
        self._digests: list[str] = []
        self._objects: dict[tuple[str, int | None, str | None], int] = {}
        self._spans: list[tuple[int, int, int]] = []
        self._is_estimate: list[bool] = []
        self._details: list[bytes] = []

    def add_shards(
        self, layout: ShardLayout, num_samples: Sequence[int], num_files: int, details: Sequence[bytes] = ()
    ) -> None:
        """Add shards of one layout and so many files each; details of all shards that are added, or of none."""
        self._details += details
        number, _ = self._layouts.setdefault(id(layout), (len(self._layouts), layout))
        self._layout_of += [number] * len(num_samples)
        self._num_samples += num_samples
        self._files_of += [num_files] * len(num_samples)

    def add_files(
        self,
        names: Sequence[str],
        num_bytes: Sequence[int],
        digests: Sequence[Mapping[str, str]],
        is_packed: Sequence[bool],
    ) -> None:
        """Add files of the shards that are added next."""
        self._names += names
        self._is_packed += is_packed
        self._num_bytes += num_bytes
        kinds = self._kinds
        self._digests_of += [kinds.setdefault(tuple(each), len(kinds)) for each in digests]
        self._digests += chain.from_iterable(each.values() for each in digests)

    def add_estimates(self, is_estimate: Sequence[bool]) -> None:
        """Note of the files added last whether their sizes are estimates; of all files that are added, or of none."""
        self._is_estimate += is_estimate

    def add_span(self, file: int, span: ObjectSpan) -> None:
        """Set where the stored file lies that is so far ahead of those added last."""
        number = self._objects.setdefault((span.basename, span.object_bytes, span.version), len(self._objects))
        self._spans.append((len(self._names) + file, number, span.offset))

    def build(self) -> ShardColumns:
        """Return the columns."""
        lengths_of = np.array([len(kind) for kind in self._kinds] or [0], np.int64)
        digests_of = np.array(self._digests_of, np.uint32)
        spans = np.array(self._spans, np.int64).reshape(-1, 3)
        arrays: Arrays = {
            "layout": np.array(self._layout_of, np.uint32),
            "num_samples": np.array(self._num_samples, np.int64),
            "first_file": np.concatenate([[0], np.cumsum(self._files_of, dtype=np.int64)]),
            "is_packed": np.array(self._is_packed, np.bool_),
            "num_bytes": np.array(self._num_bytes, np.int64),
            "digests_of": digests_of,
            "first_digest": np.concatenate([[0], np.cumsum(lengths_of[digests_of])]),
            "span_file": spans[:, 0].copy(),
            "span_object": spans[:, 1].copy(),
            "span_offset": spans[:, 2].copy(),
            "object_bytes": np.array([-1 if size is None else size for _, size, _ in self._objects], np.int64),
            "is_estimate": np.array(self._is_estimate if any(self._is_estimate) else [], np.bool_),
        }
        texts = {
            "name": self._names,
            "digest": self._digests,
            "object": [name for name, _, _ in self._objects],
            "version": [version or "" for _, _, version in self._objects],
        }
        for kind, values in texts.items():
            arrays[kind], arrays[f"{kind}_end"] = _text_arrays(values)
        details = self._details if any(self._details) else []
        arrays["details"], arrays["details_end"] = _byte_arrays(details)
        layouts = [layout for _, layout in self._layouts.values()]
        return ShardColumns(layouts, list(self._kinds), arrays)


def _text_arrays(texts: list[str]) -> tuple[npt.NDArray[np.uint8], Int64Array]:
    return _byte_arrays([text.encode("utf-8", "surrogatepass") for text in texts])


def _byte_arrays(stored: list[bytes]) -> tuple[npt.NDArray[np.uint8], Int64Array]:
    return np.frombuffer(b"".join(stored), np.uint8), np.cumsum([*map(len, stored)], dtype=np.int64)
