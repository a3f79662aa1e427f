"""All MDS column encodings by name."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, EncodingConfigError, UnknownEncodingError
from penstock.formats.encodings.arrays import make_array
from penstock.formats.encodings.base import IMAGE_DECODERS, Encoding, ImageDecoder
from penstock.formats.encodings.images import (
    FileCodec,
    ImageEncoding,
    ImageListEncoding,
    JpegArrayEncoding,
    JpegCodec,
    PixelCodec,
)
from penstock.formats.encodings.pickles import PickleEncoding
from penstock.formats.encodings.scalars import NUMBERS, IntEncoding, NumberEncoding
from penstock.formats.encodings.text import BytesEncoding, JsonEncoding, StrEncoding, TextualEncoding

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN: dict[str, Encoding] = {
    **{name: NumberEncoding(name) for name in NUMBERS},
    "int": IntEncoding(),
    "bytes": BytesEncoding(),
    "str": StrEncoding(),
    "str_int": TextualEncoding(int, int),
    "str_float": TextualEncoding(float, float),
    "str_decimal": TextualEncoding(Decimal, Decimal),
    "json": JsonEncoding(),
    "pkl": PickleEncoding(),
}
_IMAGES: dict[str, Callable[[ImageDecoder], Encoding]] = {
    "pil": lambda output: ImageEncoding(PixelCodec(), output),
    "jpeg": lambda output: ImageEncoding(JpegCodec(), output),
    "png": lambda output: ImageEncoding(FileCodec("PNG"), output),
    "list[pil]": lambda output: ImageListEncoding(PixelCodec(), output),
    "list[jpeg]": lambda output: ImageListEncoding(JpegCodec(), output),
    "list[png]": lambda output: ImageListEncoding(FileCodec("PNG"), output),
    "jpeg_array": JpegArrayEncoding,
    "jpegarray": JpegArrayEncoding,
}
_UNSAFE = frozenset({"pkl"})


def known_encodings() -> list[str]:
    """List the names of all encodings, sorted."""
    return sorted([*_PLAIN, *_IMAGES, "ndarray"])


def is_unsafe(text: str) -> bool:
    """Tell whether reading a column of this encoding can run code of whoever wrote it."""
    return text.partition(":")[0] in _UNSAFE


@lru_cache(maxsize=1024)
def get_encoding(text: str, image_decoder: ImageDecoder = "pil") -> Encoding:
    """Find the encoding of a column, `name` or `name:config`."""
    name, _, config = text.partition(":")
    if image_decoder not in IMAGE_DECODERS:
        raise ConfigError(f"unknown image decoder {image_decoder!r}: known are {', '.join(IMAGE_DECODERS)}")
    if name == "ndarray":
        return make_array(config)
    if name not in _PLAIN and name not in _IMAGES:
        raise UnknownEncodingError(f"unknown column encoding {text!r}: known are {', '.join(known_encodings())}")
    if config:
        raise EncodingConfigError(f"column encoding {text!r}: {name} takes no settings after a colon")
    return _PLAIN[name] if name in _PLAIN else _IMAGES[name](image_decoder)
