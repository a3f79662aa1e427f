"""Images: raw pixels, JPEG and PNG files, and lists of them, read as PIL images, RGB arrays or stored bytes."""

from __future__ import annotations

import itertools
import struct
from abc import ABC, abstractmethod
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnTypeError, ColumnValueError
from penstock.extras import require
from penstock.formats.encodings.base import Encoding, ManyEncoding
from penstock.formats.encodings.decoding import BufferPool, DecodeBudget, map_in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from penstock.formats.encodings.base import ImageDecoder

    ArrayKind = tuple[tuple[int, int, int], np.dtype[Any]]

# While Pillow decodes: its own pixels, those in RGB, and the array.
_WORKING_BYTES = 4 + 3 + 3
_decoded = BufferPool(max_bytes=32 << 20)
# The same for whole columns: three batches of 256 images of 500 × 375, one in use, one waiting, one in the making.
_columns = BufferPool(max_bytes=448 << 20)
# Of all that Pillow can open; some others start programs of their own to do so. It loads the first five by itself, and
# the rest, which it may lack, together with all its others. Files of several pictures (MPO) begin as JPEG.
_COMMON_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM")
_OTHER_FORMATS = ("WEBP", "TIFF", "JPEG2000")
# Bytes of a pixel as `tobytes` gives them; mode "1" packs eight pixels of a row in a byte.
_PIXEL_BYTES = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("I;16", "I;16L", "I;16B", "LA", "La", "PA"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 4),
}
# Of one channel with more than eight bits: what keeps all of them. Images in other modes become RGB.
_DEEP_MODES = {"I;16": np.uint16, "I;16L": np.uint16, "I;16B": np.uint16, "I": np.int32, "F": np.float32}

_JPEG_BEGIN = b"\xff\xd8\xff"
_IMAGE_FILES = {
    _JPEG_BEGIN: "JPEG",
    b"\x89PNG": "PNG",
    b"GIF8": "GIF",
    b"RIFF": "WebP",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}


def image_file_kind(data: bytes) -> str | None:
    """Name the kind of an image file by its first bytes; None: it is no image file, or one of another kind."""
    return next((name for begin, name in _IMAGE_FILES.items() if data.startswith(begin)), None)


def _pillow() -> Any:
    return require("PIL.Image", extra="images", purpose="an image column")


def _simplejpeg() -> Any:
    return require("simplejpeg", extra="images", purpose="image_decoder='array'")


def _array_kind(image: Any, data: bytes) -> ArrayKind:
    """Return shape and dtype of an array that keeps what an image file holds; refuse one of which Pillow drops bits."""
    width, height = image.size
    deep = np.uint16 if image.mode == "I" and image.format in ("PNG", "PPM") else _DEEP_MODES.get(image.mode)
    if deep is None and _channel_bits(image, data) > 8:
        raise ColumnValueError(
            f"holds a {image.format} image in {image.mode} with more than 8 bits in a channel, of which Pillow reads 8:"
            " write it with 8, or use image_decoder='raw' and decode it with a library that reads all of them"
        )
    return (height, width, 3 if deep is None else 1), np.dtype(np.uint8 if deep is None else deep)


def _channel_bits(image: Any, data: bytes) -> int:
    """Return how many bits each channel has in an image file, if it is of a kind of which Pillow may drop some."""
    if image.format == "TIFF":
        return int(max(image.tag_v2.get(258, (8,))))
    if image.format == "JPEG2000":
        at = (
            data.find(b"\xff\x4f\xff\x51") + 40
        )  # the number of components, and each with its bits in one of three bytes
        return max(((bits & 127) + 1 for bits in data[at + 2 : at + 2 + 3 * data[at + 1] : 3]), default=8)
    args = image.tile[0][3] if image.format in ("PNG", "PPM") and image.tile else None
    return 16 if str(args).endswith(";16B") or (isinstance(args, tuple) and args[-1] > 255) else 8


class ImageCodec(ABC):
    """One stored image ↔ a PIL image; some have a quicker way to an array."""

    @abstractmethod
    def encode(self, image: Any) -> bytes:
        """Return the stored bytes of a PIL image."""

    def check(self, data: bytes) -> bytes:
        """Return back bytes that shall be stored as an image, or raise if they are none of this kind."""
        return data

    @abstractmethod
    def to_pil(self, data: bytes) -> Any:
        """Return a PIL image."""

    def array_kind(self, data: bytes) -> ArrayKind:
        """Return shape and dtype of the array of an image, without decoding any pixel."""
        return _array_kind(self.to_pil(data), data)

    def to_array(self, data: bytes, budget: DecodeBudget, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return an array of (height, width, channels), if the budget allows it; or fill `out`, which is in the budget.

        It is RGB in bytes, or one channel of a type that keeps all bits.
        """
        image = self.to_pil(data)
        (height, width, channels), dtype = _array_kind(image, data)
        if out is None:
            budget.take(width, height)
        with budget.working(width * height * _WORKING_BYTES):
            pixels = np.asarray(image)[..., None] if channels == 1 else image.convert("RGB")
            if out is None:
                return np.array(pixels, dtype)
            out[:] = pixels
            return out


class PixelCodec(ImageCodec):
    """Size, mode and raw pixels."""

    def encode(self, image: Any) -> bytes:
        """Return the header and the pixels."""
        _check_image(image)
        if 0 in image.size:
            raise ColumnValueError("expects an image with at least one pixel, got an empty one")
        mode = image.mode.encode()
        return b"".join([struct.pack("<III", *image.size, len(mode)), mode, image.tobytes()])

    def to_pil(self, data: bytes) -> Any:
        """Return the image, after checking that its pixels are all there."""
        if len(data) < 12:
            raise ColumnValueError("holds an image that ends within its header")
        width, height, mode_size = struct.unpack_from("<III", data)
        mode = data[12 : 12 + mode_size].decode()
        pixels = memoryview(data)[12 + mode_size :]
        row_bytes = (width + 7) // 8 if mode == "1" else width * _PIXEL_BYTES.get(mode, 0)
        if row_bytes * height != len(pixels) or not len(pixels):
            raise ColumnValueError(
                f"holds {len(pixels)} bytes, which do not fit an image of {width} × {height} in mode {mode!r}"
            )
        return _pillow().frombytes(mode, (width, height), bytes(pixels))


class FileCodec(ImageCodec):
    """The bytes of an image file; opened lazily, so that broken pixels show when they are used."""

    def __init__(self, format: str) -> None:  # noqa: A002  Pillow's word
        self._format = format

    def encode(self, image: Any) -> bytes:
        """Compress the image with Pillow's default settings."""
        _check_image(image)
        out = BytesIO()
        image.save(out, format=self._format)
        return out.getvalue()

    def to_pil(self, data: bytes) -> Any:
        """Open the image without decoding its pixels."""
        pillow = _pillow()
        try:
            return pillow.open(BytesIO(data), formats=_COMMON_FORMATS)
        except pillow.UnidentifiedImageError:
            pillow.init()
        try:
            return pillow.open(BytesIO(data), formats=[name for name in _OTHER_FORMATS if name in pillow.OPEN])
        except pillow.UnidentifiedImageError as error:  # its message holds a memory address
            raise ColumnValueError(
                f"holds {len(data)} bytes that are not an image Pillow can read, or a damaged one; they begin with"
                f" {data[:8]!r}"
            ) from error


def _read_header(data: bytes) -> tuple[int, int, str]:
    """Return the height, the width and the colours of a JPEG file."""
    try:
        height, width, colorspace, _ = _simplejpeg().decode_jpeg_header(data)
    except ValueError as error:
        raise ColumnValueError(f"holds a JPEG file of {len(data)} bytes with a damaged header: {error}") from error
    return height, width, colorspace


class JpegCodec(FileCodec):
    """JPEG files: kept as they are if they come from disk, decoded to arrays by libjpeg-turbo."""

    def __init__(self) -> None:
        super().__init__("JPEG")

    def encode(self, image: Any) -> bytes:
        """Copy the file that the image was opened from, if it is still there, else compress."""
        _check_image(image)
        source = getattr(image, "filename", "")
        if getattr(image, "format", None) == "JPEG" and source and Path(source).is_file():
            data = Path(source).read_bytes()
            is_untouched = image.tile and not image.decoderconfig  # its pixels were not even read
            # It may have another size than its file, as after `thumbnail`, which changes it in place.
            if is_untouched or image.size == _pillow().open(BytesIO(data)).size:
                return data
        return super().encode(image)

    def check(self, data: bytes) -> bytes:
        """Look at the first bytes, which are the same in every JPEG file."""
        if data.startswith(_JPEG_BEGIN):
            return data
        kind = image_file_kind(data)
        if kind is None:
            raise ColumnValueError(
                f"expects the bytes of a JPEG file, got {len(data)} bytes that begin with {data[:8]!r}"
            )
        raise ColumnValueError(
            f"expects the bytes of a JPEG file, got a {kind} file: use the encoding 'png', or 'bytes'"
        )

    def array_kind(self, data: bytes) -> ArrayKind:
        """Read the header."""
        if not data.startswith(_JPEG_BEGIN):  # others store any images in a column of this name
            return super().array_kind(data)
        height, width, _ = _read_header(data)
        return (height, width, 3), np.dtype(np.uint8)

    def to_array(self, data: bytes, budget: DecodeBudget, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Decode the pixels to RGB."""
        if not data.startswith(_JPEG_BEGIN):
            return super().to_array(data, budget, out)
        simplejpeg = _simplejpeg()
        height, width, colorspace = _read_header(data)
        if colorspace in ("CMYK", "YCCK"):  # libjpeg-turbo does not turn these to RGB
            return super().to_array(data, budget, out)
        if out is None:
            budget.take(width, height)
        with budget.working(height * width * 3):
            memory = _decoded.take(height * width * 3) if out is None else out
            array: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=memory)
        return array


def _check_image(value: Any) -> None:
    if not isinstance(value, _pillow().Image):
        raise ColumnTypeError(f"expects a PIL image, got {type(value).__name__}: pass Image.fromarray(array)")


class _ImageEncoding(ManyEncoding):
    """What encodings of images share: what becomes of a stored image is up to the reader."""

    def __init__(self, codec: ImageCodec, image_decoder: ImageDecoder = "pil") -> None:
        self._codec = codec
        self._decoder = image_decoder
        self.expands = image_decoder == "array"

    def with_image_decoder(self, image_decoder: ImageDecoder) -> Encoding:
        """Read images so."""
        return type(self)(self._codec, image_decoder)

    def decode_many(self, pieces: Sequence[bytes]) -> list[Any]:
        """Make something of every sample out of its images: if that is work, on all processors at hand."""
        of_sample = self._of_sample
        if self._decoder != "array":
            one = self._codec.to_pil if self._decoder == "pil" else bytes
            return [of_sample(piece, one) for piece in pieces]
        budget, to_array = DecodeBudget(), self._codec.to_array
        return map_in_threads(lambda piece: of_sample(piece, lambda data: to_array(data, budget)), pieces)

    @abstractmethod
    def _of_sample(self, piece: bytes, one: Callable[[bytes], Any]) -> Any:
        """Take a stored value, and what makes one image of its bytes."""


class ImageEncoding(_ImageEncoding):
    """One image per sample."""

    def encode(self, value: Any) -> bytes:
        """Return the stored bytes of a PIL image."""
        return self._codec.encode(value)

    def check_stored(self, data: bytes) -> bytes:
        """Refuse bytes that are no image of the codec's kind."""
        return self._codec.check(data)

    def to_column(self, pieces: Sequence[bytes]) -> npt.NDArray[Any] | list[Any]:
        """Decode images of one size and depth into one array of (count, height, width, channels); others are a list."""
        codec = self._codec
        kinds = {codec.array_kind(piece) for piece in pieces} if self._decoder == "array" else ()
        if len(kinds) != 1:
            return self.decode_many(pieces)
        [((height, width, channels), dtype)] = kinds
        budget = DecodeBudget()
        for _ in pieces:
            budget.take(width, height)
        memory = _columns.take(len(pieces) * height * width * channels * dtype.itemsize)
        images = np.frombuffer(memory, dtype).reshape(len(pieces), height, width, channels)
        map_in_threads(lambda each: codec.to_array(each[0], budget, each[1]), list(zip(pieces, images, strict=True)))
        return images

    def _of_sample(self, piece: bytes, one: Callable[[bytes], Any]) -> Any:
        return one(piece)


class ImageListEncoding(_ImageEncoding):
    """A list of images per sample: a table of sizes, then the images."""

    _head = struct.pack("<I", 0)  # a reserved word

    def encode(self, value: Any) -> bytes:
        """Return the stored bytes of a list of PIL images."""
        if not isinstance(value, list):
            raise ColumnTypeError(f"expects a list of PIL images, got {type(value).__name__}")
        return self._head + _join([self._codec.encode(image) for image in value])

    def check_stored(self, data: bytes) -> bytes:
        """Refuse a list in which an image is of another kind."""
        for item in _split(data, len(self._head)):
            self._codec.check(item)
        return data

    def _of_sample(self, piece: bytes, one: Callable[[bytes], Any]) -> list[Any]:
        return [one(item) for item in _split(piece, len(self._head))]


class JpegArrayEncoding(ImageListEncoding):
    """A sequence of JPEG files per sample, given as bytes."""

    _head = b""

    def encode(self, value: Any) -> bytes:
        """Return the stored bytes of a sequence of JPEG files."""
        try:
            files = [bytes(memoryview(item)) for item in value]
        except TypeError as error:
            raise ColumnTypeError(f"expects a sequence of JPEG files as bytes, got {type(value).__name__}") from error
        return _join(list(map(self._codec.check, files)))

    def _of_sample(self, piece: bytes, one: Callable[[bytes], Any]) -> list[Any]:
        items = super()._of_sample(piece, one)
        if not items:
            raise ColumnValueError("holds bytes that are not an array of JPEG files")
        return items


def _join(items: list[bytes]) -> bytes:
    sizes = [len(item) for item in items]
    return b"".join([struct.pack(f"<{len(sizes) + 1}I", len(sizes), *sizes), *items])


def _split(piece: bytes, begin: int) -> list[bytes]:
    if len(piece) < begin + 4:
        raise ColumnValueError("holds a list of images that ends within its header")
    (count,) = struct.unpack_from("<I", piece, begin)
    first = begin + 4 + 4 * count
    if len(piece) < first:
        raise ColumnValueError(f"holds a list of {count} images that ends within its table of sizes")
    ends = first + np.cumsum(np.frombuffer(piece, "<u4", count, begin + 4), dtype=np.int64)
    if (int(ends[-1]) if count else first) != len(piece):
        raise ColumnValueError(f"holds a list of {count} images whose sizes do not add up")
    bounds = [first, *ends.tolist()]
    return [piece[start:stop] for start, stop in itertools.pairwise(bounds)]
