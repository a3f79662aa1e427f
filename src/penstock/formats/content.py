"""The content of a file from a byte on; that of a compressed one is unpacked from a frame before it that is known.

Where some of its rows begin is learnt while it is read, or told by an index.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.codecs.stream import FOOTER_BYTES, FrameStart, decompress_stream, end_bytes, read_end
from penstock.errors import CorruptShardError, ResumeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A Brotli file has no frames: what comes first is needed for what comes later.
_HAVE_FRAMES = ("zstd", "gz", "bz2", "xz")
# Frames that begin closer to one another need not be told apart: so much is unpacked in a moment.
_FRAMES_APART_BYTES = 1 << 14
BEGINNING = FrameStart(0, 0)
_ROWS_APART_BYTES = (
    1 << 20
)  # of content, between two rows whose places are kept; more in files that are so long that there would be many
_MOST_PLACES = 256
# To unpack less than this is quicker than to ask for the end of a file, which tells where its blocks are.
_FAR_BYTES = 8 << 20
_MOST_END_BYTES = 16 << 20  # of a .xz file: a million blocks
_HEAD_BYTES = 64 << 10


class StoredBytes(Protocol):
    """A file as it is stored."""

    @property
    def num_bytes(self) -> int:
        """Its size."""

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes `[begin, end)`."""

    def chunks(self, begin: int = 0) -> Iterator[bytes]:
        """Return all of it from a byte on, some MB at a time."""


class FileContent:
    """Reads a file, and knows at which of its frames one may begin to come to the bytes that were given last."""

    def __init__(self, name: str, stored: StoredBytes, compression: str | None) -> None:
        self.name, self.compression, self.num_stored = name, compression, stored.num_bytes
        self._stored = stored
        self._frames: list[FrameStart] = [BEGINNING]  # sorted; those that are far behind are forgotten

    def read(self, byte: int = 0, frame: FrameStart = BEGINNING) -> Iterator[bytes]:
        """Return the content from a byte on; of a compressed file, what lies between a frame and it is left out."""
        self._frames = [frame]
        if self.compression is None:
            if byte > self.num_stored:
                raise self._ends_before(byte)
            return self._stored.chunks(byte)
        if frame.content > byte or frame.stored > self.num_stored:
            raise self._no_frame(frame)
        if self.compression == "xz" and byte - frame.content > _FAR_BYTES:
            blocks = self._read_xz_blocks(byte)
            if blocks is not None:
                return blocks

        def note(start: FrameStart) -> None:
            self._note(FrameStart(frame.stored + start.stored, frame.content + start.content))

        chunks = decompress_stream(self._stored.chunks(frame.stored), self.compression, self.name, note)
        return self._without_first(self._begin_at(frame, chunks), byte - frame.content, byte)

    def head(self) -> bytes:
        """Return the beginning of the content, as far as few stored bytes tell it; that may be nothing."""
        stored = self._stored.read(0, min(_HEAD_BYTES, self.num_stored))
        if self.compression is None:
            return stored
        head = b""
        with suppress(CorruptShardError):  # it is cut, after all
            for piece in decompress_stream(iter([stored]), self.compression, self.name):
                head += piece
                if len(head) >= _HEAD_BYTES:
                    break
        return head

    def frames_from(self, byte: int) -> Sequence[FrameStart]:
        """Return the last frame that begins at a byte or before it, and those after it; earlier ones are forgotten."""
        del self._frames[: max(0, bisect_right(self._frames, byte, key=_content_of) - 1)]
        return tuple(self._frames)

    def _note(self, start: FrameStart) -> None:
        is_apart = start.content - self._frames[-1].content >= _FRAMES_APART_BYTES
        if is_apart and self.compression in _HAVE_FRAMES:
            self._frames.append(start)

    def _begin_at(self, frame: FrameStart, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield chunks; if not even the first can be unpacked, no frame begins there."""
        try:
            first = next(chunks, b"")
        except CorruptShardError as error:
            if frame == BEGINNING:
                raise
            raise self._no_frame(frame) from error
        yield first
        yield from chunks

    def _without_first(self, chunks: Iterator[bytes], count: int, byte: int) -> Iterator[bytes]:
        for chunk in chunks:
            if count >= len(chunk):
                count -= len(chunk)
                continue
            yield chunk[count:] if count else chunk
            count = 0
        if count:
            raise self._ends_before(byte)

    def _read_xz_blocks(self, byte: int) -> Iterator[bytes] | None:
        """Read from the block that a byte is in, as a stream that has no other; None: there is no such stream."""
        size = self.num_stored
        num_end = end_bytes(self._stored.read(max(0, size - FOOTER_BYTES), size))
        if num_end is None or num_end > min(size, _MOST_END_BYTES):
            return None
        stream = read_end(self._stored.read(size - num_end, size), size)
        if stream is None:
            return None
        starts = stream.starts
        number = bisect_right(starts, byte, hi=len(starts) - 1, key=_content_of) - 1
        if number <= 0:
            return None
        start, rest = starts[number], stream.without(number)
        blocks = _first(self._stored.chunks(start.stored), size - num_end - start.stored)
        chunks = decompress_stream(chain([rest.header()], blocks, [rest.end()]), "xz", self.name)
        return self._without_first(chunks, byte - start.content, byte)

    def _no_frame(self, frame: FrameStart) -> ResumeError:
        return self._misplaced(f"has no frame of compressed data at byte {frame.stored}", "one begins")

    def _ends_before(self, byte: int) -> ResumeError:
        return self._misplaced(f"ends before byte {byte} of its content", "a row begins")

    def _misplaced(self, what: str, expected: str) -> ResumeError:
        return ResumeError(
            f"{self.name} {what}, where a state or an index says that {expected}: load a state_dict exactly as"
            " saved, for the same file, or make the index again with penstock index",
            path=self.name,
        )


def _first(chunks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk[:count]
        count -= len(chunk)
        if count <= 0:
            return


class RowPlace(NamedTuple):
    """Where a row begins: its byte in the content, the lines before it, and the frame from which to unpack it."""

    row: int
    byte: int
    line: int
    frame: FrameStart = BEGINNING


class RowPlaces:
    """Places in one version of one file, far apart and not many. Threads may use it: at worst a place is not kept."""

    def __init__(self) -> None:
        self._places: tuple[RowPlace, ...] = ()
        self._apart = _ROWS_APART_BYTES

    def note(self, place: RowPlace) -> None:
        """Keep a place, if there is none near it."""
        places, apart = self._places, self._apart
        at = bisect_right(places, place.row, key=_row_of)
        if at and place.byte < places[at - 1].byte + apart:
            return
        if at < len(places) and places[at].byte < place.byte + apart:
            return
        places = (*places[:at], place, *places[at:])
        if len(places) > _MOST_PLACES:
            places, self._apart = places[::2], 2 * apart
        self._places = places

    def before(self, row: int) -> RowPlace | None:
        """Return the last place at a row or before it."""
        places = self._places
        at = bisect_right(places, row, key=_row_of)
        return places[at - 1] if at else None


def _row_of(place: RowPlace) -> int:
    return place.row


def frame_before(frames: Sequence[FrameStart], byte: int) -> FrameStart:
    """Return the last of some frames that begins at a byte or before it."""
    return frames[max(0, bisect_right(frames, byte, key=_content_of) - 1)]


def dump_frame(frame: FrameStart) -> dict[str, list[int]]:
    """Return a frame as part of a state; nothing, if it is the beginning of the file."""
    return {} if frame == BEGINNING else {"frame": list(frame)}


def load_frame(value: Any, name: str) -> FrameStart:
    """Read a frame of a state; states of earlier versions have none."""
    if value is None:
        return BEGINNING
    if isinstance(value, list | tuple) and len(value) == 2 and all(type(each) is int and each >= 0 for each in value):
        return FrameStart(*value)
    raise ResumeError(
        f"the state has {value!r} instead of a place in {name}: load a state_dict exactly as saved", path=name
    )


def _content_of(start: FrameStart) -> int:
    return start.content
