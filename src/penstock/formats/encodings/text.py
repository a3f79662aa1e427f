"""Bytes, text, and what is stored as one of them: big numbers, decimals, JSON, pickled objects."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnTypeError
from penstock.formats.encodings.base import Encoding

if TYPE_CHECKING:
    from collections.abc import Sequence


class BytesEncoding(Encoding):
    """Bytes as they are."""

    def encode(self, value: Any) -> bytes:
        """Refuse whatever is not `bytes`, which never gets here."""
        raise ColumnTypeError(f"wants bytes, got {type(value).__name__}")

    def decode(self, data: bytes) -> bytes:
        """Give the stored bytes."""
        return data

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Give the stored bytes."""
        return list(pieces)


class StrEncoding(Encoding):
    """Text as UTF-8."""

    def encode(self, value: Any) -> bytes:
        """Give the UTF-8 bytes."""
        if not isinstance(value, str):
            raise ColumnTypeError(f"wants a str, got {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes) -> str:
        """Give the text."""
        return data.decode()

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Give the texts."""
        return list(map(bytes.decode, pieces))


class TextualEncoding(Encoding):
    """A value of one type, stored as the text that `str` makes of it."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def encode(self, value: Any) -> bytes:
        """Give the text of the value."""
        if not isinstance(value, self._kind):
            raise ColumnTypeError(f"wants {self._kind.__name__}, got {type(value).__name__}")
        return str(int(value) if isinstance(value, bool) else value).encode()

    def decode(self, data: bytes) -> Any:
        """Parse the text."""
        return self._kind(data.decode())

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Parse the texts, without a call for each."""
        return [self._kind(piece.decode()) for piece in pieces]


class JsonEncoding(Encoding):
    """Whatever JSON can hold; a NumPy array becomes nested lists."""

    def encode(self, value: Any) -> bytes:
        """Give the JSON text."""
        return json.dumps(value.tolist() if isinstance(value, np.ndarray) else value).encode()

    def decode(self, data: bytes) -> Any:
        """Parse the text."""
        return json.loads(data)

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Parse the texts, without a call for each."""
        return list(map(json.loads, pieces))


class PickleEncoding(Encoding):
    """Any object that pickles. Reading it runs whatever its writer wished, so readers must be told to allow it."""

    is_unsafe = True

    def encode(self, value: Any) -> bytes:
        """Pickle with the default protocol."""
        return pickle.dumps(value)

    def decode(self, data: bytes) -> Any:
        """Unpickle: the format's `open` has made sure that this was asked for."""
        return pickle.loads(data)  # noqa: S301
