"""Ctrl-C while something is waited for: one line that says what for, instead of a look into this library."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")


class WaitingFor:
    """Has an interrupt of what happens within say what was being waited for; the innermost of several says it."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and not error.args:
            error.args = (f"while waiting for {self._what}",)


def cut_short(interrupt: KeyboardInterrupt) -> KeyboardInterrupt:
    """Return an interrupt without the frames that it has come through so far.

    Functions that users call raise it so, `from None`: what follows in its traceback is the user's own program.
    """
    return interrupt.with_traceback(None)


def trims_traceback(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that users call, so that an interrupt of it shows none of this library's frames."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt as interrupt:
            raise cut_short(interrupt) from None

    return call
