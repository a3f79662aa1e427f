"""What an MDS column encoding is: of fixed or of variable length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

ImageDecoder: TypeAlias = Literal["pil", "array", "raw"]
IMAGE_DECODERS: tuple[ImageDecoder, ...] = ("pil", "array", "raw")


class FixedEncoding(ABC):
    """Values of equal length: a batch of them is one array."""

    num_bytes: int

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Give the stored bytes of a value that is not `bytes` already, or raise one of the column errors."""

    @abstractmethod
    def to_array(self, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """View a contiguous array of `num_bytes`-wide void items as values, one per item along the first axis."""

    def to_values(self, array: npt.NDArray[Any]) -> list[Any]:
        """Split such an array into the values of single samples."""
        return list(array)


class VariableEncoding(ABC):
    """Values of any length: a batch of them is a list."""

    num_bytes: ClassVar[None] = None

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Give the stored bytes of a value that is not `bytes` already, or raise one of the column errors."""

    @abstractmethod
    def decode(self, pieces: Sequence[bytes]) -> list[Any]:
        """Turn the stored bytes of many values into values."""

    def to_column(self, pieces: Sequence[bytes]) -> npt.NDArray[Any] | list[Any]:
        """Turn the stored bytes of many values into one column, an array if they allow it."""
        return self.decode(pieces)


Encoding: TypeAlias = FixedEncoding | VariableEncoding
