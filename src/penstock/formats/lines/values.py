"""Text of CSV → values of the types that a user names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.formats.lines.reader import BadRow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BOOLS = {"true": True, "false": False, "1": True, "0": False}


def _to_bool(text: str) -> bool:
    try:
        return _BOOLS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r:.100} is not one of true, false, 1, 0") from None


# "str" is what is in the file. For the others, an empty field is None.
TYPES: dict[str, Callable[[str], Any] | None] = {
    "str": None,
    "int": int,
    "float": float,
    "bool": _to_bool,
    "json": json.loads,
}


def parse_values(column: str, kind: str, texts: Sequence[str]) -> list[Any]:
    """Parse the values of one column; raise `BadRow` if one is not of this kind."""
    parse = TYPES[kind]
    if parse is None:
        return list(texts)
    try:
        if "" in texts:
            return [parse(text) if text else None for text in texts]
        return list(map(parse, texts))
    except (ValueError, RecursionError) as error:
        raise BadRow(f"column {column!r} is not of type {kind}: {error}") from error
