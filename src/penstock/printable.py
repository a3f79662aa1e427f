"""Text from outside as it may be shown: names and messages of others must not steer a terminal."""

from __future__ import annotations

import re

# Control characters, marks that turn the direction of writing, line separators, and what UTF-8 cannot spell.
_UNSEEN = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, lines: bool = False) -> str:
    """Spell out what cannot be seen, as Python does; `lines` keeps line breaks, for text that has several lines."""
    return _UNSEEN.sub(lambda found: "\n" if lines and found.group() == "\n" else repr(found.group())[1:-1], text)
