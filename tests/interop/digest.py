"""A value as JSON that tells its exact type and content, so that values can be compared across processes."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import numpy as np
from PIL import Image


def sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def digest(value: Any) -> Any:
    """Equal digests mean: the same type, and the same content to the last bit."""
    # NumPy first: its float64 is a Python float as well.
    if isinstance(value, np.generic):
        return {"type": "scalar", "dtype": value.dtype.str, "bytes": value.tobytes().hex()}
    if value is None or isinstance(value, bool | int | float | str | Decimal):
        return {"type": type(value).__name__, "value": repr(value)}
    if isinstance(value, bytes):
        return {"type": "bytes", "length": len(value), "sha1": sha1(value)}
    if isinstance(value, np.ndarray):
        content = sha1(np.ascontiguousarray(value).tobytes())
        return {"type": "array", "dtype": value.dtype.str, "shape": list(value.shape), "sha1": content}
    if isinstance(value, Image.Image):
        return {"type": "image", "mode": value.mode, "size": list(value.size), "sha1": sha1(value.tobytes())}
    if isinstance(value, list | tuple):
        return {"type": type(value).__name__, "items": [digest(item) for item in value]}
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: repr(item[0]))
        return {"type": "dict", "items": [[digest(key), digest(item)] for key, item in items]}
    raise TypeError(f"no digest for {type(value)}")


def digest_sample(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: digest(value) for name, value in sample.items()}
