"""Text from outside: what regular expressions see of it.

The time of a match may grow faster than its text, and no other thread of the process runs meanwhile. So each expression
is declared with the most characters that it sees; other modules do not use `re`, and a test tries all at their bounds.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, AnyStr, Generic

if TYPE_CHECKING:
    from collections.abc import Callable

ASCII, IGNORECASE, DOTALL = re.ASCII, re.IGNORECASE, re.DOTALL
NAME_CHARACTERS = 1 << 13  # of a name, a path or a URL: no file system, store or server takes such long ones

declared: list[Bounded[Any]] = []


class Bounded(Generic[AnyStr]):
    """An expression that sees at most `longest` characters: a longer text fits no `fullmatch`, and is cut elsewhere."""

    def __init__(self, expression: AnyStr, longest: int, flags: int = 0) -> None:
        self.expression: AnyStr = expression
        self.longest, self._flags = longest, flags
        declared.append(self)

    @cached_property
    def compiled(self) -> re.Pattern[AnyStr]:
        """The expression, compiled when it is first used."""
        return re.compile(self.expression, self._flags)

    def fullmatch(self, text: AnyStr) -> re.Match[AnyStr] | None:
        """Match a whole text, unless it is too long."""
        return self.compiled.fullmatch(text) if len(text) <= self.longest else None

    def search(self, text: AnyStr) -> re.Match[AnyStr] | None:
        """Find the first match."""
        return self.compiled.search(text, 0, self.longest)

    def findall(self, text: AnyStr) -> list[Any]:
        """Return what all matches hold."""
        return self.compiled.findall(text, 0, self.longest)

    def sub(self, new: str | Callable[[re.Match[AnyStr]], AnyStr], text: AnyStr) -> AnyStr:
        """Replace each match."""
        return self.compiled.sub(new, text[: self.longest])  # type: ignore[arg-type]
