"""Names for the plain values that travel between the floors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import ConfigError
from penstock.quick_dataclass import dataclass

if TYPE_CHECKING:  # names only: not every process that moves bytes needs NumPy
    import numpy as np
    import numpy.typing as npt

Sample: TypeAlias = dict[str, Any]
Int64Array: TypeAlias = "npt.NDArray[np.int64]"
Columns: TypeAlias = dict[str, "npt.NDArray[Any] | list[Any]"]


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes `[begin, end)` of an object."""

    begin: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end:
            raise ConfigError(f"[{self.begin}, {self.end}) is not a valid range of bytes")

    def __len__(self) -> int:
        return self.end - self.begin


Place: TypeAlias = tuple[str, Span | None]  # an object by its key, or a range of it
