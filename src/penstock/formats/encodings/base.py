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
    """How the values of an MDS column are stored: inherit it, and register it under the name that columns give it.

        @encodings.register("point")
        class Point(Encoding):
            def encode(self, value): return struct.pack("<dd", *value)
            def decode(self, data): return struct.unpack("<dd", data)

    An encoding is made once in each process and may be used by several threads. A value that is `bytes` already is
    stored as it is, in any column, and never seen by `encode`; `check_stored` may refuse it.
    """

    num_bytes: int | None = None  # of every value, if they are always as many: this saves four bytes a value
    follows_index: bool = False  # whether a column stores the size of each value is for its index to say
    is_unsafe: bool = False  # reading can run code of whoever wrote it, so that readers have to allow it

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Give the stored bytes of a value, or raise an error that says what is wrong with it."""

    def check_stored(self, data: bytes) -> bytes:
        """Give back bytes that a writer got in place of a value, or raise if no value is stored so."""
        return data

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Turn stored bytes into a value; bytes that make no sense are an error of any kind."""

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Turn the stored bytes of many values into values: what readers call."""
        return list(map(self.decode, pieces))

    def to_column(self, pieces: Sequence[bytes]) -> npt.NDArray[Any] | list[Any]:
        """Turn the stored bytes of many values into one column, an array if they allow it."""
        return self.decode_many(pieces)

    def with_settings(self, settings: str) -> Encoding | None:  # noqa: ARG002
        """Give the encoding that a column `name:settings` asks for. None: there are no settings."""
        return None

    def with_image_decoder(self, image_decoder: ImageDecoder) -> Encoding:  # noqa: ARG002
        """Give the encoding that reads images so, if it has any."""
        return self


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
