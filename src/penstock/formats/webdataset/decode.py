"""What a member holds, by its extension: as WebDataset's library decodes by default, but nothing that can run code."""

from __future__ import annotations

import math
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.blocks.block import to_column
from penstock.errors import ColumnTypeError, ColumnValueError, UnknownEncodingError
from penstock.formats.encodings.base import Encoding
from penstock.formats.encodings.table import get_encoding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from penstock.formats.encodings.base import ImageDecoder

KEY, URL = "__key__", "__url__"

# By the last part of an extension, so "seg.png" is an image. All others are bytes.
_KINDS = {
    **dict.fromkeys(("txt", "text", "transcript"), "str"),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), "integer"),
    **dict.fromkeys(("json", "jsn"), "json"),
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), "jpeg"),
    **dict.fromkeys(("png", "gif", "bmp", "webp", "ppm", "pgm", "pbm", "pnm", "tif", "tiff", "jp2", "j2k"), "png"),
    "npy": "npy",
}


def kind_of(extension: str) -> str:
    """Name the encoding of members with this extension."""
    return _KINDS.get(extension.rpartition(".")[2], "bytes")


def member_encoding(column: str, kind: str, image_decoder: ImageDecoder) -> Encoding:
    """Return what decodes the members of a column."""
    if column == KEY:
        return _KEYS
    if kind in _OWN:
        return _OWN[kind]
    if kind not in {*_KINDS.values(), "bytes"}:
        raise UnknownEncodingError(
            f"column {column!r} cannot have the encoding {kind!r}: tar files have no such members"
        )
    return get_encoding(kind, image_decoder)


class _ReadOnlyEncoding(Encoding):
    """What is never written here: a function decodes each value, and another makes a column of many."""

    def __init__(self, decode: Callable[[bytes], Any], to_column: Callable[[list[Any]], Any] = list) -> None:
        self._decode, self._to_column = decode, to_column

    def encode(self, value: Any) -> bytes:
        raise ColumnTypeError(f"cannot store a {type(value).__name__}")

    def decode(self, data: bytes) -> Any:
        return self._decode(data)

    def to_column(self, pieces: Sequence[bytes]) -> npt.NDArray[Any] | list[Any]:
        column: npt.NDArray[Any] | list[Any] = self._to_column(self.decode_many(pieces))
        return column


def _read_npy(data: bytes) -> npt.NDArray[Any]:
    """Read an array as `np.save` writes it; objects, which would be unpickled, are refused."""
    stream = BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise ColumnValueError(f"holds an array in version {version} of .npy, which penstock does not read")
    shape, is_fortran, dtype = read_header[version](stream)
    if dtype.hasobject:
        raise ColumnValueError(
            "holds an array of Python objects, which penstock does not read, because that could run code"
        )
    num_bytes = len(data) - stream.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != num_bytes:
        raise ColumnValueError(f"holds {num_bytes} bytes for an array of {shape} {dtype}")
    array = np.frombuffer(bytearray(data[stream.tell() :]), dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")


def _stack(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any] | list[Any]:
    """Stack arrays of one shape and type."""
    return np.stack(arrays) if len({(array.dtype, array.shape) for array in arrays}) == 1 else arrays


_KEYS = _ReadOnlyEncoding(lambda data: data.decode("utf-8", "surrogateescape"))  # names may hold any bytes
_OWN: dict[str, Encoding] = {"npy": _ReadOnlyEncoding(_read_npy, _stack), "integer": _ReadOnlyEncoding(int, to_column)}
