"""Which encoding a column has: by its name, open to outside packages, or by a first value."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnTypeError, EncodingConfigError, UnknownEncodingError
from penstock.formats.encodings.images import (
    FileCodec,
    ImageEncoding,
    ImageListEncoding,
    JpegArrayEncoding,
    JpegCodec,
    PixelCodec,
)
from penstock.formats.encodings.numbers import (
    NUMBERS,
    WIDENED,
    ArrayEncoding,
    IntEncoding,
    NumberEncoding,
    describe,
    dtype_name,
    is_tensor,
)
from penstock.formats.encodings.text import BytesEncoding, JsonEncoding, PickleEncoding, StrEncoding, TextualEncoding
from penstock.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.formats.encodings.base import Encoding, ImageDecoder
    from penstock.types import Sample

_BUILTIN: dict[str, Callable[[], Encoding]] = {
    **{name: partial(NumberEncoding, name) for name in NUMBERS},
    "int": IntEncoding,
    "ndarray": ArrayEncoding,
    "bytes": BytesEncoding,
    "str": StrEncoding,
    "str_int": partial(TextualEncoding, int),
    "str_float": partial(TextualEncoding, float),
    "str_decimal": partial(TextualEncoding, Decimal),
    "json": JsonEncoding,
    "pkl": PickleEncoding,
    "pil": partial(ImageEncoding, PixelCodec()),
    "jpeg": partial(ImageEncoding, JpegCodec()),
    "png": partial(ImageEncoding, FileCodec("PNG")),
    "list[pil]": partial(ImageListEncoding, PixelCodec()),
    "list[jpeg]": partial(ImageListEncoding, JpegCodec()),
    "list[png]": partial(ImageListEncoding, FileCodec("PNG")),
    "jpeg_array": partial(JpegArrayEncoding, JpegCodec()),
    "jpegarray": partial(JpegArrayEncoding, JpegCodec()),
}
# Which encoding suits a value, where the user names no columns.
_BY_TYPE: dict[type, str] = {
    bytes: "bytes",
    str: "str",
    bool: "json",
    np.bool_: "json",
    int: "int",
    float: "float64",
    Decimal: "str_decimal",
    dict: "json",
    list: "json",
    np.str_: "str",
    np.bytes_: "bytes",
}
encodings: Registry[Callable[[], Encoding]] = Registry("column encoding", group="penstock.encodings", builtin=_BUILTIN)


@lru_cache(maxsize=1024)
def get_encoding(
    text: str, image_decoder: ImageDecoder = "pil", unpickle: Callable[[bytes], Any] | None = None
) -> Encoding:
    """Find the encoding of a column, `name` or `name:settings`."""
    name, _, settings = text.partition(":")
    if name == "pkl" and unpickle is not None:
        return PickleEncoding(unpickle)
    if name not in encodings:
        raise UnknownEncodingError(f"unknown column encoding {text!r}: use one of {', '.join(encodings.names())}")
    encoding: Encoding | None = encodings.get(name)()
    if encoding is not None and settings:
        encoding = encoding.with_settings(settings)
    if encoding is None:
        raise EncodingConfigError(f"column encoding {text!r}: {name} takes no settings after a colon")
    return encoding.with_image_decoder(image_decoder)


def infer_encodings(sample: Sample) -> dict[str, str]:
    """Choose an encoding for each column of a first sample."""
    return {name: _infer(name, value) for name, value in sample.items()}


def _infer(name: str, value: Any) -> str:
    """Choose an encoding that gives the value back, leaving free what may differ from sample to sample (shapes)."""
    if type(value) in _BY_TYPE:
        return _BY_TYPE[type(value)]
    if isinstance(value, (np.ndarray, np.generic)) or is_tensor(value):
        dtype = WIDENED.get(dtype_name(value), dtype_name(value))
        if dtype in NUMBERS:
            return dtype if value.ndim == 0 else f"ndarray:{dtype}"
        raise ColumnTypeError(
            f"column {name!r} holds {describe(value)}, and no encoding stores numbers of this type: convert it to"
            f" one of {', '.join(NUMBERS)}, or pass columns=...",
            column=name,
        )
    if hasattr(value, "mode") and hasattr(value, "tobytes"):  # a PIL image, told without importing PIL
        if getattr(value, "format", None) == "JPEG":
            return "jpeg"
        return "png" if value.mode in ("1", "L", "LA", "RGB", "RGBA") else "pil"
    raise ColumnTypeError(
        f"column {name!r} holds a value of type {type(value).__name__}, and penstock cannot guess its encoding: pass"
        " columns=...",
        column=name,
    )
