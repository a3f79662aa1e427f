"""All column encodings by name, open to outside packages."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, EncodingConfigError, UnknownEncodingError
from penstock.formats.encodings.arrays import ArrayEncoding
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
from penstock.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

_BUILTIN: dict[str, Callable[[], Encoding]] = {
    **{name: partial(NumberEncoding, name) for name in NUMBERS},
    "int": IntEncoding,
    "ndarray": ArrayEncoding,
    "bytes": BytesEncoding,
    "str": StrEncoding,
    "str_int": partial(TextualEncoding, int, int),
    "str_float": partial(TextualEncoding, float, float),
    "str_decimal": partial(TextualEncoding, Decimal, Decimal),
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
encodings: Registry[Callable[[], Encoding]] = Registry("column encoding", group="penstock.encodings", builtin=_BUILTIN)


@lru_cache(maxsize=1024)
def get_encoding(text: str, image_decoder: ImageDecoder = "pil") -> Encoding:
    """Find the encoding of a column, `name` or `name:settings`."""
    name, _, settings = text.partition(":")
    if image_decoder not in IMAGE_DECODERS:
        raise ConfigError(f"unknown image decoder {image_decoder!r}: known are {', '.join(IMAGE_DECODERS)}")
    if name not in encodings:
        raise UnknownEncodingError(f"unknown column encoding {text!r}: known are {', '.join(encodings.names())}")
    encoding: Encoding | None = encodings.get(name)()
    if encoding is not None and settings:
        encoding = encoding.with_settings(settings)
    if encoding is None:
        raise EncodingConfigError(f"column encoding {text!r}: {name} takes no settings after a colon")
    return encoding.with_image_decoder(image_decoder)
