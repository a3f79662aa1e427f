"""Text and what is stored as text comes back as it was; what would not is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.errors import ColumnTypeError
from penstock.formats.encodings.text import (
    BytesEncoding,
    JsonEncoding,
    PickleEncoding,
    StrEncoding,
    TextualEncoding,
)

if TYPE_CHECKING:
    from penstock.formats.encodings.base import Encoding


@pytest.mark.parametrize(
    ("encoding", "value", "stored"),
    [
        (StrEncoding(), "é", "é".encode()),
        (TextualEncoding(int), 10**30, b"1" + b"0" * 30),
        (TextualEncoding(float), 0.1, b"0.1"),
        (TextualEncoding(Decimal), Decimal("1.50"), b"1.50"),
        (JsonEncoding(), {"a": [1, None, True]}, b'{"a": [1, null, true]}'),
    ],
)
def test_values_come_back(encoding: Encoding, value: Any, stored: bytes) -> None:
    assert encoding.encode(value) == stored
    assert encoding.decode(stored) == value
    assert encoding.decode_many([stored, stored]) == [value, value]


def test_arrays_become_lists_in_json_and_objects_stay_in_pickles() -> None:
    assert JsonEncoding().encode({"a": np.arange(2), "b": np.float32(0.5)}) == b'{"a": [0, 1], "b": 0.5}'
    pickled = PickleEncoding()
    assert pickled.decode(pickled.encode({1: (2,)})) == {1: (2,)}
    assert pickled.is_unsafe
    assert BytesEncoding().decode(b"as they are") == b"as they are"


@pytest.mark.parametrize(
    ("encoding", "value", "reason"),
    [
        (StrEncoding(), 1, "expects a str, got int"),
        (BytesEncoding(), "a", "expects bytes, got str"),
        (TextualEncoding(int), 0.5, "expects int, got float"),
        (TextualEncoding(int), True, "expects int, got bool"),
        (JsonEncoding(), {1: 2}, "expects keys of type str, got 1"),
        (JsonEncoding(), {"a": {2}}, "expects values that JSON can hold, got set"),
    ],
)
def test_what_would_come_back_otherwise_is_refused(encoding: Encoding, value: Any, reason: str) -> None:
    with pytest.raises(ColumnTypeError, match=reason):
        encoding.encode(value)
