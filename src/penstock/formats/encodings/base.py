"""What a column encoding is: values ↔ their stored bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

ImageDecoder: TypeAlias = Literal["pil", "array", "raw"]
IMAGE_DECODERS: tuple[ImageDecoder, ...] = ("pil", "array", "raw")


class Encoding(ABC):
    """How the values of an MDS column are stored. To store your own types, inherit from it and register your class.

        @encodings.register("point")
        class Point(Encoding):
            def encode(self, value): return struct.pack("<dd", *value)
            def decode(self, data): return struct.unpack("<dd", data)

    There is one object of your class in each process, and several threads may use it. A value that is already `bytes`
    is stored unchanged, in any column, and never passed to `encode`; `check_stored` may refuse it.
    """

    num_bytes: int | None = None  # the size of every value, if it is always the same: this saves four bytes per value
    expands: bool = False  # values take far more memory than their stored bytes: columns decode one batch at a time
    follows_index: bool = False  # the index says whether a column stores the size of each value
    is_unsafe: bool = False  # reading can run code of the writer of the value, so readers have to allow it

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return the stored bytes of a value, or raise an error that says what is wrong with it."""

    def check_stored(self, data: bytes) -> bytes:
        """Return bytes that were written in place of a value, or raise an error if they cannot be a stored value."""
        return data

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Turn stored bytes into a value; raise any error if they are invalid."""

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Turn the stored bytes of many values into values; this is what readers call."""
        return list(map(self.decode, pieces))

    def to_column(self, pieces: Sequence[bytes]) -> npt.NDArray[Any] | list[Any]:
        """Turn the stored bytes of many values into one column: an array if the values allow it."""
        return self.decode_many(pieces)

    def with_settings(self, settings: str) -> Encoding | None:  # noqa: ARG002
        """Return the encoding for a column `name:settings`, or None if there are no settings."""
        return None

    def with_image_decoder(self, image_decoder: ImageDecoder) -> Encoding:  # noqa: ARG002
        """Return the encoding that decodes images in this way; encodings without images return themselves."""
        return self


class ManyEncoding(Encoding):
    """Values that are best decoded many at a time."""

    def decode(self, data: bytes) -> Any:
        """Turn stored bytes into a value."""
        return self.decode_many([data])[0]

    @abstractmethod
    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Turn the stored bytes of many values into values."""


class FixedEncoding(Encoding):
    """Values of equal length that NumPy can hold: a batch of them is one array."""

    num_bytes: int

    @abstractmethod
    def to_array(self, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """View a contiguous array of `num_bytes`-wide void items as values, one per item along the first axis."""

    def to_values(self, array: npt.NDArray[Any]) -> list[Any]:
        """Split such an array into the values of single samples."""
        return list(array)

    def decode(self, data: bytes) -> Any:
        """Turn stored bytes into a value."""
        return self.to_values(self.to_array(np.frombuffer(bytearray(data), f"V{self.num_bytes}")))[0]


class OrNone(ManyEncoding):
    """Values of another encoding, some of which are missing: None stands for their bytes, and for them."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self.expands = encoding.expands

    def encode(self, value: Any) -> bytes:
        """Encode a value that is there."""
        return self._encoding.encode(value)

    def decode_many(self, pieces: Sequence[Any]) -> list[Any]:
        """Decode those that are there."""
        if None not in pieces:
            return self._encoding.decode_many(pieces)
        decoded = iter(self._encoding.decode_many([piece for piece in pieces if piece is not None]))
        return [None if piece is None else next(decoded) for piece in pieces]

    def to_column(self, pieces: Sequence[Any]) -> npt.NDArray[Any] | list[Any]:
        """Return one array if all are there and it can be."""
        return self.decode_many(pieces) if None in pieces else self._encoding.to_column(pieces)
