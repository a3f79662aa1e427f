"""The blocks of a .xz file that is one stream: its end tells where each begins, and any can be unpacked by itself."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from penstock.codecs.stream import FrameStart

if TYPE_CHECKING:
    from collections.abc import Sequence

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
