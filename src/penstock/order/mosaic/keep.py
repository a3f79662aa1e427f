"""Keeping the last thing computed, for those who ask for the same thing many times in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class KeepLast(Generic[T]):
    """Keeps what was asked for last, under its name: enough for a process that works on one epoch at a time.

    Two threads that ask at once may both compute. A copy sent to another process starts empty.
    """

    def __init__(self) -> None:
        self._kept: tuple[str, T] | None = None

    def __call__(self, name: str, compute: Callable[[], T], /) -> T:
        """Return what has that name, computing it unless it was asked for last."""
        kept = self._kept
        if kept is not None and kept[0] == name:
            return kept[1]
        kept = self._kept = None  # two epochs in memory at once would be one too many
        value = compute()
        self._kept = name, value
        return value

    def __reduce__(self) -> tuple[type[KeepLast[T]], tuple[()]]:
        return type(self), ()
