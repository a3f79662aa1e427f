"""Which encoding suits a value: used when the user names no columns."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnTypeError
from penstock.formats.encodings.scalars import NUMBERS

if TYPE_CHECKING:
    from penstock.types import Sample

_BY_TYPE: dict[type, str] = {
    bytes: "bytes",
    str: "str",
    bool: "int",
    int: "int",
    float: "float64",
    Decimal: "str_decimal",
    dict: "json",
    list: "json",
}


def infer_encodings(sample: Sample) -> dict[str, str]:
    """Choose an encoding for each column of a first sample."""
    return {name: infer_encoding(name, value) for name, value in sample.items()}


def infer_encoding(name: str, value: Any) -> str:
    """Choose an encoding that gives the value back, leaving free what may differ from sample to sample (shapes)."""
    if type(value) in _BY_TYPE:
        return _BY_TYPE[type(value)]
    if isinstance(value, np.ndarray) and value.dtype.name in NUMBERS:
        return f"ndarray:{value.dtype.name}"
    if isinstance(value, np.generic) and value.dtype.name in NUMBERS:
        return value.dtype.name
    if hasattr(value, "mode") and hasattr(value, "tobytes"):  # a PIL image, told without importing PIL
        return "jpeg" if getattr(value, "format", None) == "JPEG" else _lossless(value.mode)
    raise ColumnTypeError(
        f"column {name!r} holds a {type(value).__name__}, for which no encoding can be guessed: pass columns=...",
        column=name,
    )


def _lossless(mode: str) -> str:
    return "png" if mode in ("1", "L", "LA", "RGB", "RGBA") else "pil"
