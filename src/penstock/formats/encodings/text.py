"""Bytes, text, and what is stored as one of them: big numbers, decimals, JSON, pickled objects."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnTypeError
from penstock.formats.encodings.base import Encoding, ManyEncoding
from penstock.formats.encodings.numbers import check_number, is_bool, is_tensor, tensor_to_array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class BytesEncoding(ManyEncoding):
    """Bytes as they are."""

    def encode(self, value: Any) -> bytes:
        """Refuse whatever is not `bytes`, which never gets here."""
        raise ColumnTypeError(
            f"expects bytes, got {type(value).__name__}: pass bytes(value), or choose another encoding"
        )

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Return the stored bytes."""
        return list(pieces)


class StrEncoding(ManyEncoding):
    """Text as UTF-8."""

    def encode(self, value: Any) -> bytes:
        """Return the UTF-8 bytes."""
        if not isinstance(value, str):
            raise ColumnTypeError(
                f"expects a str, got {type(value).__name__}: pass str(value), or choose another encoding"
            )
        return value.encode()

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Return the texts."""
        return list(map(bytes.decode, pieces))


_NUMPY_KINDS: dict[type, type] = {int: np.integer, float: np.floating}


class TextualEncoding(ManyEncoding):
    """A value of one type, stored as the text that `str` makes of it."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def encode(self, value: Any) -> bytes:
        """Return the text of the value."""
        if type(value) is not self._kind:
            value = self._convert(value)
        return str(value).encode()

    def _convert(self, value: Any) -> Any:
        """Take what is of this kind under another name: a NumPy scalar, a tensor of one number, a subclass."""
        wanted = self._kind.__name__
        number = value if isinstance(value, self._kind) and not is_bool(value) else check_number(value, wanted)
        if isinstance(number, (self._kind, _NUMPY_KINDS.get(self._kind, self._kind))):
            return self._kind(number)
        raise ColumnTypeError(f"expects {wanted}, got {type(value).__name__}: pass {wanted}(value)")

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Parse the texts, without a call for each."""
        return [self._kind(piece.decode()) for piece in pieces]


class JsonEncoding(ManyEncoding):
    """Whatever JSON can hold. Arrays, tensors and tuples become lists; NumPy scalars become plain values."""

    def encode(self, value: Any) -> bytes:
        """Return the JSON text."""
        text = _to_json(value)
        if "{" in text:
            _check_keys(value)
        return text.encode()

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Parse the texts, without a call for each."""
        return list(map(json.loads, pieces))


def _to_plain(value: Any) -> Any:
    """Return what JSON can hold in place of what it cannot."""
    if isinstance(value, (np.ndarray, np.integer, np.floating, np.bool_)):
        return value.tolist()
    if is_tensor(value):
        return tensor_to_array(value).tolist()
    raise ColumnTypeError(
        f"expects values that JSON can hold, got {type(value).__name__}: convert it, or use the encoding 'pkl'"
    )


_to_json = json.JSONEncoder(default=_to_plain).encode
_LEAVES = frozenset({str, int, float, bool, type(None)})


def _check_keys(value: Any) -> None:
    """Refuse keys that JSON would turn into text, and that would not be found again."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ColumnTypeError(
                    f"expects keys of type str, got {key!r:.100}, which would come back as a str: pass str(key)"
                )
            if item.__class__ not in _LEAVES:
                _check_keys(item)
    elif isinstance(value, (list, tuple)) and not _LEAVES.issuperset(map(type, value)):
        for item in value:
            _check_keys(item)


class PickleEncoding(Encoding):
    """Any object that pickles. Reading it runs whatever its writer wished, so readers must be told to allow it.

    Args:
        unpickle: Reads pickles without doing so.
    """

    def __init__(self, unpickle: Callable[[bytes], Any] | None = None) -> None:
        self.is_unsafe = unpickle is None
        self._unpickle = unpickle or pickle.loads

    def encode(self, value: Any) -> bytes:
        """Pickle with the default protocol."""
        return pickle.dumps(value)

    def decode(self, data: bytes) -> Any:
        """Unpickle: the format's `open` has made sure that this was asked for, or was given what is safe."""
        return self._unpickle(data)
