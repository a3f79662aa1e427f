"""Compressed files of other programs as streams: their content some MB at a time, of however many frames it is made."""

from __future__ import annotations

import sys
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zlib import crc32

from penstock.errors import CorruptShardError, PenstockError
from penstock.extras import require
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# What follows the suffix of the format itself, and the codec that it stands for.
STREAM_SUFFIXES = {".gz": "gz", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".br": "br", ".xz": "xz"}
_JOINED_SUFFIXES = {".tgz": (".tar", "gz"), ".tbz2": (".tar", "bz2"), ".txz": (".tar", "xz"), ".tzst": (".tar", "zstd")}

_PIECE_BYTES = 1 << 20
# A file that grows more than this, and to more than a little, was made to fill disks: text shrinks to a tenth of its
# size, seldom to a hundredth.
_MOST_GROWTH = 250
_ALWAYS_ALLOWED_BYTES = 1 << 30


def split_compression(name: str) -> tuple[str, str | None]:
    """Take the compression off a name: `"a.jsonl.gz"` → `("a.jsonl", "gz")`, `"a.tgz"` → `("a.tar", "gz")`."""
    base, dot, ending = name.rpartition(".")
    suffix = f"{dot}{ending}".lower()
    if suffix in STREAM_SUFFIXES:
        return base, STREAM_SUFFIXES[suffix]
    if suffix in _JOINED_SUFFIXES:
        inner, codec = _JOINED_SUFFIXES[suffix]
        return base + inner, codec
    return name, None


class FrameStart(NamedTuple):
    """Where a frame begins, which can be unpacked without those before it."""

    stored: int  # bytes of the compressed file before it
    content: int  # bytes of its content before it


def decompress_stream(
    chunks: Iterator[bytes], codec: str, where: str, on_frame: Callable[[FrameStart], None] = lambda _: None
) -> Iterator[bytes]:
    """Yield the content of a compressed file, about a MB at a time; broken files and bombs are a `CorruptShardError`.

    The file may be any number of frames, one after the other, as `cat` and parallel compressors leave them. `on_frame`
    hears of each before any of its content is given.
    """
    frames = _Frames(codec, where, on_frame)
    try:
        for chunk in chunks:
            yield from frames.feed(chunk)
        frames.finish()
    except PenstockError:
        raise
    except Exception as error:
        raise CorruptShardError(f"{where} is not a valid {codec} file: {error}", where=where) from error


class FrameDecoder(Protocol):
    """Decodes one frame; what `bz2` and `lzma` have in common."""

    @property
    def eof(self) -> bool:
        """Whether the frame has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether all of what was given is decoded."""

    @property
    def unused_data(self) -> bytes:
        """What was given beyond the end of the frame."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Decode a little more."""


class _Frames:
    """Decodes frame after frame, and counts."""

    def __init__(self, codec: str, where: str, on_frame: Callable[[FrameStart], None]) -> None:
        self._new_decoder, self._where, self._on_frame = _DECODERS[codec], where, on_frame
        self._is_padded = codec == "xz"  # which allows zeros between and after frames
        self._decoder: FrameDecoder | None = None
        self._num_frames = self._given = self._content = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._given += len(data)
        while True:
            if self._decoder is None:
                if self._is_padded and self._num_frames:
                    data = data.lstrip(b"\0")
                if not data:
                    return
                self._decoder = self._new_decoder()
                self._on_frame(FrameStart(self._given - len(data), self._content))
            piece = self._decoder.decompress(data, _PIECE_BYTES)
            data = b""
            if piece:
                self._count(len(piece))
                yield piece
            if self._decoder.eof:
                data, self._decoder = self._decoder.unused_data, None
                self._num_frames += 1
            elif self._decoder.needs_input:
                return

    def finish(self) -> None:
        if self._decoder is not None:
            raise CorruptShardError(
                f"{self._where} is cut off after {self._given} bytes: fetch it or write it again",
                where=self._where,
            )

    def _count(self, num_bytes: int) -> None:
        self._content += num_bytes
        if self._content > max(_ALWAYS_ALLOWED_BYTES, _MOST_GROWTH * self._given):
            raise CorruptShardError(
                f"{self._where} unpacks to more than {format_bytes(self._content)}, which is more than {_MOST_GROWTH}"
                " times its size: if you trust this file, store it uncompressed",
                where=self._where,
            )


class _GzipDecoder:
    """A gzip member, by the quicker of two libraries."""

    def __init__(self) -> None:
        self._stream = _zlib().decompressobj(wbits=31)
        self._rest = b""
        self._is_full = False  # there may be more to come, though all input is taken

    @property
    def eof(self) -> bool:
        return bool(self._stream.eof)

    @property
    def needs_input(self) -> bool:
        return not self._rest and not self._is_full

    @property
    def unused_data(self) -> bytes:
        return bytes(self._stream.unused_data)

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        piece: bytes = self._stream.decompress(self._rest + data if self._rest else data, max_length)
        self._rest = self._stream.unconsumed_tail
        self._is_full = len(piece) == max_length
        return piece


def _zlib() -> Any:
    try:
        from isal import isal_zlib  # three times as fast
    except ImportError:
        import zlib

        return zlib
    return isal_zlib


class _BrotliDecoder:
    """A Brotli stream, which has no end that could be followed by anything."""

    unused_data = b""

    def __init__(self) -> None:
        brotli = require("brotli", extra="lines", purpose="reading .br files")
        self._stream = brotli.Decompressor()
        self._is_full = False

    @property
    def eof(self) -> bool:
        return bool(self._stream.is_finished())

    @property
    def needs_input(self) -> bool:
        return not self._is_full and bool(self._stream.can_accept_more_data())

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        piece: bytes = self._stream.process(data, output_buffer_limit=max_length)
        self._is_full = len(piece) >= max_length
        return piece


def _new_bz2() -> FrameDecoder:
    from bz2 import BZ2Decompressor

    return BZ2Decompressor()


# What a frame may ask for to be decoded. The largest setting of `xz` takes 65 MB, and of `zstd` without `--long` 8 MB.
_XZ_MEMORY = 256 << 20
_ZSTD_WINDOW_LOG = 27


def _new_xz() -> FrameDecoder:
    from lzma import LZMADecompressor

    return LZMADecompressor(memlimit=_XZ_MEMORY)


def _new_zstd() -> FrameDecoder:
    # It came with Python 3.14; others have it under another name.
    module = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    zstd = require(module, extra="lines", purpose="reading .zst files")
    decoder: FrameDecoder = zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    )
    return decoder


_DECODERS: dict[str, Callable[[], FrameDecoder]] = {
    "gz": _GzipDecoder,
    "zstd": _new_zstd,
    "bz2": _new_bz2,
    "br": _BrotliDecoder,
    "xz": _new_xz,
}


# --- The blocks of a .xz file that is one stream: its end tells where each begins -----------------------------------

FOOTER_BYTES = 12
_HEADER_BYTES = 12
_HEADER_MAGIC, _FOOTER_MAGIC = b"\xfd7zXZ\0", b"YZ"
_LONGEST_NUMBER = 9  # bytes


class XzBlock(NamedTuple):
    """The sizes of a block, as the end of its stream tells them."""

    unpadded_bytes: int
    content_bytes: int

    @property
    def stored_bytes(self) -> int:
        """What it takes in the file."""
        return _padded(self.unpadded_bytes)


class XzStream(NamedTuple):
    """A stream of some blocks."""

    flags: bytes
    blocks: tuple[XzBlock, ...]

    @property
    def starts(self) -> list[FrameStart]:
        """Where the blocks begin, in the file and in its content; and where the last one ends."""
        stored = accumulate((block.stored_bytes for block in self.blocks), initial=_HEADER_BYTES)
        content = accumulate((block.content_bytes for block in self.blocks), initial=0)
        return list(map(FrameStart, stored, content))

    def without(self, count: int) -> XzStream:
        """Leave the first blocks out."""
        return XzStream(self.flags, self.blocks[count:])

    def header(self) -> bytes:
        """Write what comes before the blocks."""
        return _HEADER_MAGIC + self.flags + _checksum(self.flags)

    def end(self) -> bytes:
        """Write what comes after the blocks."""
        numbers = [len(self.blocks), *(number for block in self.blocks for number in block)]
        index = b"\0" + b"".join(map(_dump_number, numbers))
        index = index.ljust(_padded(len(index)), b"\0")
        index += _checksum(index)
        about = (len(index) // 4 - 1).to_bytes(4, "little") + self.flags
        return index + _checksum(about) + about + _FOOTER_MAGIC


def end_bytes(footer: bytes) -> int | None:
    """Return how many bytes at the end of a file tell of its blocks; None: these are not the last bytes of a stream."""
    about = footer[4:10]
    if len(footer) != FOOTER_BYTES or footer[10:] != _FOOTER_MAGIC or footer[:4] != _checksum(about):
        return None
    return 4 * (int.from_bytes(about[:4], "little") + 1) + FOOTER_BYTES


def read_end(end: bytes, num_bytes: int) -> XzStream | None:
    """Read what the end of a file of so many bytes tells; None: it is not valid, or the file is not one stream."""
    index, flags = end[:-FOOTER_BYTES], end[-4:-2]
    if index[:1] != b"\0" or index[-4:] != _checksum(index[:-4]):
        return None
    numbers = _load_numbers(index[1:-4])
    if not numbers or len(numbers) < 1 + 2 * numbers[0]:
        return None
    pairs = numbers[1 : 1 + 2 * numbers[0]]
    stream = XzStream(flags, tuple(map(XzBlock, pairs[::2], pairs[1::2])))
    return stream if stream.starts[-1].stored + len(end) == num_bytes else None


def _load_numbers(data: bytes) -> Sequence[int]:
    """Read numbers of seven bits a byte, the low ones first; what pads them is read as zeros."""
    numbers: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 7 * _LONGEST_NUMBER:
            return []
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers


def _dump_number(number: int) -> bytes:
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // 4) * 4


def _checksum(data: bytes) -> bytes:
    return crc32(data).to_bytes(4, "little")
