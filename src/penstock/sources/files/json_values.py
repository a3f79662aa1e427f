"""Values of a JSON document, one after the other: the items of an array, or objects, without the whole in memory."""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, Any

from penstock.errors import CorruptShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.types import Sample

_WHITE = " \t\r\n"


def first_character(content: Iterable[bytes]) -> str:
    """Give the first character of a document that is not white space."""
    read = b""
    for chunk in content:
        read += chunk
        text = read.decode("utf-8-sig", "replace").lstrip(_WHITE)
        if text:
            return text[0]
    return ""


def iterate_values(content: Iterator[bytes], name: str) -> Iterator[Sample]:
    """Give the objects of an array, or objects that stand one after the other."""
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    decoder, text, count = json.JSONDecoder(), "", 0
    is_array, is_over = False, False

    def more() -> bool:
        nonlocal text
        chunk = next(content, None)
        try:
            text += decode(chunk or b"", final=chunk is None)
        except UnicodeDecodeError as error:
            raise CorruptShardError(f"{name} is not UTF-8: {error}", path=name) from error
        return chunk is not None

    while True:
        text = text.lstrip(_WHITE + ("," if is_array and count else ""))
        if not text:
            if more():
                continue
            if is_array and not is_over:
                raise CorruptShardError(f"{name} is cut off in its array, after {count} items", path=name)
            return
        if not count and not is_array and text[0] == "[":
            is_array, text = True, text[1:]
            continue
        if is_array and text[0] == "]":
            is_over, is_array, text = True, False, text[1:]
            continue
        if is_over:
            raise CorruptShardError(f"{name} continues after its array: {text[:40]!r}", path=name)
        try:
            value, end = decoder.raw_decode(text)
        except (json.JSONDecodeError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError) and more():
                continue
            raise CorruptShardError(f"{name}: item {count} is not JSON: {error}", path=name, item=count) from error
        if type(value) is not dict:
            raise _no_object(name, count, value)
        yield value
        text, count = text[end:], count + 1


def _no_object(name: str, count: int, value: Any) -> CorruptShardError:
    return CorruptShardError(
        f"{name}: item {count} is not a JSON object, but of type {type(value).__name__}", path=name, item=count
    )
