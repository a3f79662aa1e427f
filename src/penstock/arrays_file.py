"""Named arrays and a description of them in one file, which can be written in one go and mapped by any process.

    magic, version                          16 bytes
    the arrays, each from a multiple of 64 on
    the description, as JSON
    its length, magic                       16 bytes

Opening reads the two ends alone, and makes sure that each array lies within the file: what an array holds is up to
their reader.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import CorruptShardError
from penstock.outside_text import Bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from _typeshed import SupportsWrite

MAGIC = b"PENSTOCK"
VERSION = 1
_ALIGNED_TO = 64
_HEAD = struct.Struct("<8sII")
_TAIL = struct.Struct("<Q8s")
_KIND = Bounded(r"[<|][biuf][1248]", 3)  # no objects, which a file must not hold
_LONGEST_DESCRIPTION = 1 << 30


class ArraysWriter:
    """Writes arrays one after another to what has a `write`; `finish` adds what describes them."""

    def __init__(self, out: SupportsWrite[Any]) -> None:
        self._out = out
        self._arrays: dict[str, tuple[str, int, int]] = {}
        out.write(_HEAD.pack(MAGIC, VERSION, 0))
        self.num_bytes = _HEAD.size

    def add(self, name: str, kind: str, data: Any) -> None:
        """Write an array of this dtype, given as its bytes."""
        view = memoryview(data).cast("B")
        begin = self._align()
        self._arrays[name] = kind, view.nbytes // np.dtype(kind).itemsize, begin
        self._out.write(view)
        self.num_bytes += view.nbytes

    def finish(self, about: Mapping[str, Any]) -> None:
        """Write the description, which holds these fields as well."""
        self._align()
        text = json.dumps({**about, "arrays": self._arrays}).encode()
        self._out.write(text + _TAIL.pack(len(text), MAGIC))
        self.num_bytes += len(text) + _TAIL.size

    def _align(self) -> int:
        gap = -self.num_bytes % _ALIGNED_TO
        self._out.write(bytes(gap))
        self.num_bytes += gap
        return self.num_bytes


class ArraysFile(Mapping[str, "npt.NDArray[Any]"]):
    """The arrays of an open file by name, none of them copied, and what describes them."""

    def __init__(self, data: Any, name: str) -> None:
        self._bytes = np.frombuffer(data, np.uint8)
        self.name = name
        self.about = self._read_description()
        arrays = self.about.pop("arrays", None)
        if not isinstance(arrays, dict):
            raise self._error("describes no arrays")
        self._arrays = arrays
        for each in arrays.values():
            self._check(each)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        kind, count, begin = self._arrays[name]
        dtype = np.dtype(kind)
        return self._bytes[begin : begin + count * dtype.itemsize].view(dtype)

    def begin_of(self, name: str) -> int:
        """Return from which byte of the file on an array lies."""
        begin: int = self._arrays[name][2]
        return begin

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def _read_description(self) -> dict[str, Any]:
        size = len(self._bytes)
        if size < _HEAD.size + _TAIL.size:
            raise self._error(f"has only {size} bytes")
        magic, version, _ = _HEAD.unpack(self._bytes[: _HEAD.size].tobytes())
        length, end = _TAIL.unpack(self._bytes[-_TAIL.size :].tobytes())
        if magic != MAGIC or end != MAGIC:
            raise self._error("does not begin and end like one")
        if version != VERSION:
            raise self._error(f"has version {version}, but this release of penstock reads version {VERSION}")
        if length > min(size - _HEAD.size - _TAIL.size, _LONGEST_DESCRIPTION):
            raise self._error("has a description that is longer than the file")
        try:
            about = json.loads(self._bytes[size - _TAIL.size - length : size - _TAIL.size].tobytes())
        except (ValueError, RecursionError) as error:
            raise self._error(f"has a description that cannot be read: {error}") from error
        if not isinstance(about, dict):
            raise self._error("has a description that is not a JSON object")
        return about

    def _check(self, entry: object) -> None:
        match entry:
            case [str(kind), int(count), int(begin)] if _KIND.fullmatch(kind) and count >= 0 and begin >= 0:
                if begin % _ALIGNED_TO == 0 and begin + count * np.dtype(kind).itemsize <= len(self._bytes):
                    return
        raise self._error("describes arrays that do not lie within it")

    def _error(self, reason: str) -> CorruptShardError:
        return CorruptShardError(f"{self.name} is not a file of arrays, or is damaged: it {reason}", shard=self.name)
