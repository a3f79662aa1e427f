"""From an index of files to columns, some thousand shards at a time: there may be a million of them."""

from __future__ import annotations

from binascii import a2b_base64
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.index.columns import ShardColumns
from penstock.index.entry import formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.index.files_loader import FileHead, FilesLoader
    from penstock.index.shards import ShardLayout
    from penstock.types import Int64Array

_SHARDS_AT_ONCE = 1 << 12


def columns_of_files(loader: FilesLoader, layouts: Sequence[ShardLayout], entries: list[Any]) -> ShardColumns | None:
    """Return the shards of files as `shards_of` would; None: they are not stored alike, or compressed as a whole.

    Entries are taken out of their list, so that the memory of what was read can be used again.
    """
    suffixes = {formats.get(layout.format)().raw_version for layout in layouts}
    if len(suffixes) != 1 or any(layout.compression is not None for layout in layouts):
        return None
    columns = _FilesColumns(loader, suffixes.pop())
    waiting: list[tuple[FileHead, list[Any]]] = []
    num_waiting = 0
    entries.reverse()
    while entries:
        entry = entries.pop()
        waiting.append((loader.head(entry, layouts), loader.list_in(entry, "shards")))
        num_waiting += len(waiting[-1][1])
        if num_waiting >= _SHARDS_AT_ONCE:
            columns.add(waiting)
            waiting, num_waiting = [], 0
    columns.add(waiting)
    return columns.build()


class _Texts:
    """Texts or bytes laid end to end."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._lengths = [np.zeros(0, np.int64)]

    def add(self, values: Sequence[bytes]) -> None:
        self._bytes += b"".join(values)
        self._lengths.append(np.fromiter(map(len, values), np.int64, len(values)))

    def arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Return them and their ends."""
        ends = np.cumsum(np.concatenate(self._lengths))
        return {name: np.frombuffer(self._bytes, np.uint8), f"{name}_end": ends}


class _FilesColumns:
    """Columns in the making: every shard is one part of a file, in one form or, if it has a suffix, in two."""

    def __init__(self, loader: FilesLoader, suffix: str) -> None:
        self._loader, self._suffix = loader, f".{suffix}".encode() if suffix else b""
        self._layouts: dict[int, tuple[int, ShardLayout]] = {}
        self._layout_of: list[int] = []  # of each file that has shards, as what follows
        self._counts: list[int] = []
        self._object_bytes: list[int] = []
        self._objects, self._versions = _Texts(), _Texts()
        self._numbers = [np.zeros((0, 4), np.int64)]  # samples, begin, end, bytes as it is read
        self._is_exact = bytearray()
        self._names, self._details = _Texts(), _Texts()

    def add(self, files: Sequence[tuple[FileHead, list[Any]]]) -> None:
        """Add files with the shards that the index says they have, checking these."""
        files = [(head, shards) for head, shards in files if shards]
        numbers, is_exact, details = self._read(files)
        heads = [head for head, _ in files]
        for head in heads:
            number, _ = self._layouts.setdefault(id(head.layout), (len(self._layouts), head.layout))
            self._layout_of.append(number)
        self._counts += [len(shards) for _, shards in files]
        self._object_bytes += [head.num_bytes for head in heads]
        names = [_encoded(head.name) for head in heads]
        self._objects.add(names)
        self._versions.add([_encoded(head.version or "") for head in heads])
        self._numbers.append(numbers)
        self._is_exact += is_exact
        self._details.add(details)
        self._names.add(self._name_shards(files, names, numbers))

    def _read(self, files: Sequence[tuple[FileHead, list[Any]]]) -> tuple[Int64Array, bytes, list[bytes]]:
        """Return the numbers of some shards, whether their sizes are exact, and details."""
        rows = list(chain.from_iterable(shards for _, shards in files))
        try:
            values = list(chain.from_iterable([row[:4] for row in rows]))
            is_right = {4, 6}.issuperset(map(len, rows)) and {list}.issuperset(map(type, rows))
            numbers = np.array(values, np.int64).reshape(-1, 4)
            is_exact = bytes([len(row) == 4 or bool(row[4]) for row in rows])
            details = [b"" if len(row) == 4 else a2b_base64(row[5], strict_mode=True) for row in rows]
            is_right = is_right and {int}.issuperset(map(type, values)) and self._fit(files, numbers)
        except (TypeError, ValueError, LookupError, OverflowError):
            is_right = False
        if not is_right:
            for head, shards in files:
                self._loader.shards(head, shards)  # it says what is wrong
            self._loader.refuse("has shards that are not valid")
        return numbers, is_exact, details

    def _fit(self, files: Sequence[tuple[FileHead, list[Any]]], numbers: Int64Array) -> bool:
        """Return whether shards lie within their files."""
        num_bytes = np.array([head.num_bytes for head, _ in files], np.int64)
        ends = np.repeat(num_bytes, [len(shards) for _, shards in files]) if files else num_bytes
        samples, begins, stops, raw_bytes = numbers.T
        loader = self._loader
        return bool(
            (numbers >= 0).all()
            and (samples <= loader.most_samples).all()
            and (raw_bytes <= loader.most).all()
            and (begins <= stops).all()
            and (stops <= ends).all()
        )

    def _name_shards(
        self, files: Sequence[tuple[FileHead, list[Any]]], names: Sequence[bytes], numbers: Int64Array
    ) -> list[bytes]:
        """Name the forms of each shard, the one that is read first."""
        spans = iter(zip(numbers[:, 1].tolist(), numbers[:, 2].tolist(), strict=True))
        stored = [
            name if begin == 0 and end == head.num_bytes else b"%b@%d-%d" % (name, begin, end)
            for (head, shards), name in zip(files, names, strict=True)
            for _, (begin, end) in zip(shards, spans, strict=False)
        ]
        suffix = self._suffix
        return [form for name in stored for form in (name + suffix, name)] if suffix else stored

    def build(self) -> ShardColumns:
        """Return the columns."""
        numbers = np.concatenate(self._numbers)
        count, forms = len(numbers), 1 + bool(self._suffix)
        counts = np.array(self._counts, np.int64)
        is_packed = np.zeros((count, forms), np.bool_)
        is_packed[:, 1:] = True
        num_bytes = np.empty((count, forms), np.int64)
        num_bytes[:, 0] = numbers[:, 3]
        num_bytes[:, -1] = numbers[:, 2] - numbers[:, 1]
        is_estimate = np.zeros((count, forms), np.bool_)
        if forms > 1:  # only what is unpacked can turn out to be longer
            is_estimate[:, 0] = np.frombuffer(self._is_exact, np.uint8) == 0
        details = self._details.arrays("details")
        return ShardColumns(
            [layout for _, layout in self._layouts.values()],
            [()] if count else [],
            {
                "layout": np.repeat(np.array(self._layout_of, np.uint32), counts),
                "num_samples": numbers[:, 0].copy(),
                "first_file": np.arange(count + 1, dtype=np.int64) * forms,
                "is_packed": is_packed.reshape(-1),
                "num_bytes": num_bytes.reshape(-1),
                "digests_of": np.zeros(count * forms, np.uint32),
                "first_digest": np.zeros(count * forms + 1, np.int64),
                "span_file": np.arange(count, dtype=np.int64) * forms + forms - 1,
                "span_object": np.repeat(np.arange(len(counts)), counts),
                "span_offset": numbers[:, 1].copy(),
                "object_bytes": np.array(self._object_bytes, np.int64),
                "is_estimate": is_estimate.reshape(-1) if is_estimate.any() else is_estimate.reshape(-1)[:0],
                "digest": np.zeros(0, np.uint8),
                "digest_end": np.zeros(0, np.int64),
                **self._names.arrays("name"),
                **self._objects.arrays("object"),
                **self._versions.arrays("version"),
                **(details if len(details["details"]) else _Texts().arrays("details")),
            },
        )


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
