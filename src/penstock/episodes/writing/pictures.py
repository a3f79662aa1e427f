"""Pictures in whatever form users have them, as arrays of height, width and channels, and as PNG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import ColumnTypeError, ColumnValueError
from penstock.extras import require

if TYPE_CHECKING:
    import numpy.typing as npt

_CHANNELS = (1, 3)
_PURPOSE = "pictures of robot episodes"


def looks_like_picture(value: Any) -> bool:
    """Return whether a value is a picture rather than an array.

    Pictures are PIL images, encoded ones, and arrays of bytes with 1 or 3 channels last or first.
    """
    if isinstance(value, bytes) or hasattr(value, "getbands"):
        return True
    shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
    is_bytes = str(getattr(value, "dtype", "")).endswith("uint8")
    return is_bytes and len(shape) == 3 and (shape[-1] in _CHANNELS or shape[0] in _CHANNELS)


def as_pixels(value: Any, shape: tuple[int, ...] | None, key: str) -> npt.NDArray[np.uint8]:
    """Return a picture as height, width, channels; it must have this shape if one is given.

    Encoded pictures and PIL images are decoded, floats from 0 to 1 become bytes, and channels may come first.
    """
    if isinstance(value, bytes):
        value = _decode(value, key)
    if hasattr(value, "getbands"):
        value = value.convert("L" if shape is not None and shape[-1] == 1 else "RGB")
    pixels = np.asarray(value)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim == 3 and pixels.shape != shape and _is_channels_first(pixels.shape, shape):
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim != 3 or pixels.shape[-1] not in _CHANNELS or (shape is not None and pixels.shape != shape):
        wanted = "[height, width, channels]" if shape is None else f"shape {list(shape)}"
        raise ColumnValueError(f"{key!r} is a picture of {wanted}, but the frame has {list(pixels.shape)}", column=key)
    return np.ascontiguousarray(_as_bytes(pixels, key))


def _is_channels_first(given: tuple[int, ...], wanted: tuple[int, ...] | None) -> bool:
    if wanted is not None:
        return (*given[1:], given[0]) == wanted
    return given[0] in _CHANNELS and given[-1] not in _CHANNELS


def _as_bytes(pixels: npt.NDArray[Any], key: str) -> npt.NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind != "f":
        raise ColumnTypeError(f"{key!r} is a picture of {pixels.dtype}: use uint8, or floats from 0 to 1", column=key)
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # NaN is neither
        raise ColumnValueError(f"{key!r} is a picture of floats that are not all from 0 to 1", column=key)
    rounded: npt.NDArray[np.uint8] = np.rint(pixels * 255).astype(np.uint8)
    return rounded


def _decode(data: bytes, key: str) -> Any:
    images = require("PIL.Image", extra="images", purpose=_PURPOSE)
    try:
        image = images.open(io.BytesIO(data))
        image.load()
    except (OSError, SyntaxError, images.DecompressionBombError) as error:
        raise ColumnValueError(f"{key!r} holds bytes that are no picture: {error}", column=key) from error
    return image


class Picture(NamedTuple):
    """A picture, and the bytes that it came as if it was encoded already."""

    pixels: npt.NDArray[np.uint8]
    encoded: bytes | None

    def as_file(self) -> bytes:
        """Return it as a file: the one that it came as, or a PNG."""
        if self.encoded is not None:
            return self.encoded
        images = require("PIL.Image", extra="images", purpose=_PURPOSE)
        file = io.BytesIO()
        pixels = self.pixels[..., 0] if self.pixels.shape[-1] == 1 else self.pixels
        images.fromarray(pixels).save(file, "PNG", compress_level=1)
        return file.getvalue()


def as_picture(value: Any, shape: tuple[int, ...], key: str) -> Picture:
    """Check a picture of a frame."""
    return Picture(as_pixels(value, shape, key), value if isinstance(value, bytes) else None)
