"""Arrow's IPC messages, as far as finding them needs it: where each lies, what it holds, and how many rows.

A message is the length of its metadata, these as a flatbuffer, and a body of buffers. A stream is one message after the
other; a file has a footer besides that says where they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + bytes(4)
FILE_MAGIC = b"ARROW1"
_MOST_ROWS = 1 << 40
_BLOCK = struct.Struct("<qi4xq")

Read = Callable[[int, int], bytes]  # the bytes of a file from one place to another


class IpcError(ValueError):
    """The bytes are no message of Arrow's."""


@dataclass(frozen=True, slots=True)
class IPCMessage:
    """Where a message lies and what it holds; `number` is of a dictionary, `is_delta` if it adds to the one before."""

    begin: int
    end: int
    kind: int
    num_rows: int = 0
    body_bytes: int = 0
    is_compressed: bool = False
    number: int = 0
    is_delta: bool = False


class _Table:
    """A table of a flatbuffer: its fields by their places."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position
        self._fields = position - self._number("<i", position)
        self._num_bytes = self._number("<H", self._fields)

    def number(self, field: int, form: str, default: int = 0) -> int:
        place = self._place(field)
        return default if place is None else self._number(form, place)

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self._data, place + self._number("<I", place))

    def blocks(self, field: int) -> list[tuple[int, int, int]]:
        place = self._place(field)
        if place is None:
            return []
        begin = place + self._number("<I", place)
        count = self._number("<I", begin)
        if begin + 4 + count * _BLOCK.size > len(self._data):
            raise IpcError("it has a footer that is cut off")
        return list(_BLOCK.iter_unpack(self._data[begin + 4 : begin + 4 + count * _BLOCK.size]))

    def _place(self, field: int) -> int | None:
        at = 4 + 2 * field
        offset = self._number("<H", self._fields + at) if at + 2 <= self._num_bytes else 0
        return self._position + offset if offset else None

    def _number(self, form: str, place: int) -> int:
        if not 0 <= place <= len(self._data) - struct.calcsize(form):
            raise IpcError("it has metadata that points outside of itself")
        number: int = struct.unpack_from(form, self._data, place)[0]
        return number


def _root(data: bytes) -> _Table:
    if len(data) < 8:
        raise IpcError("it has metadata that is cut off")
    return _Table(data, int.from_bytes(data[:4], "little"))


def read_message(read: Read, begin: int, end: int) -> IPCMessage | None:
    """Read the metadata of the message that begins here; None: this is the end of a stream."""
    if begin + 4 > end:
        return None
    head = read(begin, min(begin + 8, end))
    has_mark = head[:4] == CONTINUATION  # the first versions had none
    length = int.from_bytes(head[4:8] if has_mark else head[:4], "little")
    if length == 0:
        return None
    metadata_begin = begin + (8 if has_mark else 4)
    metadata_end = metadata_begin + length
    if metadata_end > end:
        raise IpcError(f"it has a message at byte {begin} that is longer than the file")
    message = _root(read(metadata_begin, metadata_end))
    body_bytes = message.number(3, "<q")
    if not 0 <= body_bytes <= end - metadata_end:
        raise IpcError(f"it has a message at byte {begin} that is longer than the file")
    return _describe(message, begin, metadata_end + body_bytes, body_bytes)


def _describe(message: _Table, begin: int, end: int, body_bytes: int) -> IPCMessage:
    kind, header = message.number(1, "<B"), message.table(2)
    number, is_delta = 0, False
    if kind == DICTIONARY_BATCH and header is not None:
        number, is_delta, header = header.number(0, "<q"), bool(header.number(2, "<B")), header.table(1)
    if kind == SCHEMA:
        return IPCMessage(begin, end, kind)
    if header is None or kind not in (DICTIONARY_BATCH, RECORD_BATCH):
        raise IpcError(f"it has a message at byte {begin} of a kind that penstock does not read")
    num_rows, is_compressed = header.number(0, "<q"), header.table(3) is not None
    if not 0 <= num_rows <= _MOST_ROWS:
        raise IpcError(f"it has a message at byte {begin} with {num_rows} rows")
    return IPCMessage(begin, end, kind, num_rows, body_bytes, is_compressed, number, is_delta)


def messages_of_stream(read: Read, end: int) -> list[IPCMessage]:
    """Walk over all messages of a stream."""
    found: list[IPCMessage] = []
    begin = 0
    while (message := read_message(read, begin, end)) is not None:
        found.append(message)
        begin = message.end
    return found


def read_tail(read: Read, end: int) -> bytes:
    """Read the footer of a file, with its length and what ends it."""
    tail = read(end - 10, end)
    if tail[4:] != FILE_MAGIC:
        raise IpcError("it does not end like an Arrow file: it was cut off")
    length = int.from_bytes(tail[:4], "little")
    if length > end - 18:
        raise IpcError("it has a footer that is longer than the file")
    return read(end - 10 - length, end)


def messages_of_file(read: Read, end: int, tail: bytes) -> list[IPCMessage]:
    """Find the messages of a file by its footer: dictionaries, then record batches."""
    footer = _root(tail[:-10])
    found: list[IPCMessage] = []
    for field, kind in ((2, DICTIONARY_BATCH), (3, RECORD_BATCH)):
        for begin, _, _ in footer.blocks(field):
            message = read_message(read, begin, end) if 8 <= begin < end else None
            if message is None or message.kind != kind:
                raise IpcError(f"it has a footer that points to byte {begin}, where no such message begins")
            found.append(message)
    return found
