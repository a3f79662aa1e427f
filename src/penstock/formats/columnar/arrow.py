"""Arrow files and streams, read where they are: a shard is a record batch or some small ones, and dictionaries."""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.blocks.stage import check_row
from penstock.errors import ConfigError
from penstock.formats.columnar.arrow_types import check_columns, checked, describe_schema, pyarrow, validated
from penstock.formats.columnar.format import (
    ColumnarFormat,
    JoinedSpans,
    SpansInput,
    block_of,
    corrupt,
    describe_file,
    join_shard,
    join_spans,
    open_for_arrow,
    read_types,
    reading_entry,
    rows_at_once,
    write_shard,
)
from penstock.formats.columnar.write import CHUNK_BYTES, join_small

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from penstock.blocks.block import Block
    from penstock.formats.columnar.format import LocalObject, Ranges
    from penstock.formats.files import ScannedFile, ScannedShard, SpanBytes, StoredObject
    from penstock.index.model import IndexedShard
    from penstock.types import Span

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
CONTINUATION = b"\xff\xff\xff\xff"
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
    return _describe_message(message, begin, metadata_end + body_bytes, body_bytes)


def _describe_message(message: _Table, begin: int, end: int, body_bytes: int) -> IPCMessage:
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


def find_messages(read: Read, end: int) -> tuple[dict[str, bytes], list[IPCMessage]]:
    """Find the messages of a file or a stream, and what reading some of them takes besides: a footer, or a schema."""
    if is_file(read, end):
        tail = _read_tail(read, end)
        return {"footer": tail}, _messages_of_file(read, end, tail)
    found: list[IPCMessage] = []
    while (message := read_message(read, found[-1].end if found else 0, end)) is not None:
        found.append(message)
    if not found or found[0].kind != SCHEMA:
        raise IpcError("it does not begin with a schema")
    return {"schema": read(found[0].begin, found[0].end)}, found


def is_file(read: Callable[[int, int], bytes | memoryview], end: int) -> bool:
    """Return whether bytes are a file with a footer, not a stream."""
    return read(0, min(len(FILE_MAGIC), end)) == FILE_MAGIC and end >= 18


def _read_tail(read: Read, end: int) -> bytes:
    """Read the footer of a file, with its length and what ends it."""
    tail = read(end - 10, end)
    if tail[4:] != FILE_MAGIC:
        raise IpcError("it does not end like an Arrow file: it was cut off")
    length = int.from_bytes(tail[:4], "little")
    if length > end - 18:
        raise IpcError("it has a footer that is longer than the file")
    return read(end - 10 - length, end)


def _messages_of_file(read: Read, end: int, tail: bytes) -> list[IPCMessage]:
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


_TAIL_BYTES = 16 << 10
_SMALLEST_SHARD = 1 << 20
_UNPACKED_TO_PACKED = 3  # of compressed buffers: what they unpack to stands within them
_FEATHER_1 = b"FEA1"
_KEPT = ("footer", "schema")  # of a file, of a stream


class ArrowFormat(ColumnarFormat):
    """Finds record batches by their metadata, and has pyarrow unpack and validate them."""

    suffixes = (".arrow", ".arrows", ".feather", ".ipc")
    magic = FILE_MAGIC
    tail_bytes = _TAIL_BYTES

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:  # noqa: ARG002
        """Read the metadata of all record batches."""
        read = SmallReads(file).read
        if read(0, min(8, file.num_bytes)).startswith(_FEATHER_1):
            raise ConfigError(
                f"{file.name} is a Feather file of version 1, which penstock does not read: write it again with a"
                " newer version"
            )
        try:
            kept, messages = find_messages(read, file.num_bytes)
        except IpcError as error:
            raise corrupt(file.name, f"is not an Arrow file, or is damaged: {error}") from error
        about = {name: b64encode(data).decode() for name, data in kept.items()}
        return describe_file(file.name, partial(_describe, kept), _shards(messages), about)

    def spans(self, info: IndexedShard, columns: tuple[str, ...] | None) -> tuple[Span, ...]:  # noqa: ARG002
        """Return where the record batches lie, and their dictionaries: all columns of a batch are fetched together."""
        return join_spans(_read_details(info)[1], None, info.name)

    def unpack(self, info: IndexedShard, columns: tuple[str, ...] | None, stored: SpanBytes, out: BinaryIO) -> None:
        """Read and validate the batches, and write some rows at a time."""
        with reading_entry(info):
            kept = {name: b64decode(info.layout.settings[name]) for name in _KEPT if name in info.layout.settings}

        def batches() -> Iterator[Any]:
            for batch in map(validated, _read_batches(kept, info, stored)):  # a wrong offset would end the process
                rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1))
                yield from (batch.slice(begin, rows) for begin in range(0, batch.num_rows, rows))

        write_shard(batches(), read_types(info, columns), info, out)


def _read_batches(kept: Mapping[str, bytes], info: IndexedShard, stored: SpanBytes) -> Iterator[Any]:
    """Have pyarrow read a file of which only these batches are there, or a stream of them."""
    pa = pyarrow()
    options = pa.ipc.IpcReadOptions(use_threads=False)
    numbers, bounds = _read_details(info)
    if "footer" in kept:
        with pa.ipc.open_file(SpansInput(stored, kept["footer"]), options=options) as file:
            yield from map(file.get_batch, numbers)
    else:
        joined = JoinedSpans(kept.get("schema", b""), stored, bounds)
        with pa.ipc.open_stream(SpansInput(joined), options=options) as stream:
            yield from stream


def _describe(kept: Mapping[str, bytes]) -> Any:
    pa = pyarrow()
    if "footer" in kept:
        with pa.ipc.open_file(pa.BufferReader(bytes(8) + kept["footer"])) as file:
            return describe_schema(file.schema)
    return describe_schema(pa.ipc.read_schema(pa.py_buffer(kept["schema"])))


def _shards(messages: Sequence[IPCMessage]) -> Iterator[ScannedShard]:
    """Join neighbours until they are of some size, or until a dictionary changes."""
    dictionaries: list[IPCMessage] = []
    number = 0
    for kind, run in groupby(messages, key=attrgetter("kind")):
        if kind == DICTIONARY_BATCH:
            for message in run:
                if not message.is_delta:
                    dictionaries = [each for each in dictionaries if each.number != message.number]
                dictionaries = [*dictionaries, message]
        elif kind == RECORD_BATCH:
            for together in join_small(run, _raw_bytes, _SMALLEST_SHARD):
                number += len(together)
                yield _to_shard(dictionaries, together, number)


def _to_shard(dictionaries: list[IPCMessage], batches: list[IPCMessage], end: int) -> ScannedShard:
    """Describe batches up to one of all batches; how many these are, and where they and their dictionaries lie."""
    own = [(message.begin, message.end) for message in batches]
    bounds = [*((message.begin, message.end) for message in dictionaries), *own]
    details = np.array([(end - len(batches), end), *bounds], "<i8").tobytes()
    raw_bytes = sum(map(_raw_bytes, (*dictionaries, *batches)))
    return join_shard(sum(batch.num_rows for batch in batches), own, raw_bytes, details)


def _raw_bytes(message: IPCMessage) -> int:
    return message.body_bytes * (_UNPACKED_TO_PACKED if message.is_compressed else 1)


def _read_details(info: IndexedShard) -> tuple[range, list[tuple[int, int]]]:
    """Return the numbers of the batches of a shard, and where these and their dictionaries lie."""
    with reading_entry(info):
        pairs = list(struct.iter_unpack("<qq", info.details))
        if not pairs or any(not 0 <= begin <= end for begin, end in pairs):
            raise ValueError("its messages do not begin anywhere")
    return range(*pairs[0]), pairs[1:]


class SmallReads:
    """Reads small pieces of a file by few requests: more than was asked for, if pieces turn out to be near."""

    _FEW, _MANY, _NEAR = 64 << 10, 4 << 20, 256 << 10

    def __init__(self, file: Ranges) -> None:
        self._file = file
        self._begin, self._data = 0, b""

    def read(self, begin: int, end: int) -> bytes:
        """Return a range."""
        if not self._begin <= begin <= end <= self._begin + len(self._data):
            is_near = 0 <= begin - (self._begin + len(self._data)) < self._NEAR
            stop = max(end, begin + (self._MANY if is_near and self._data else self._FEW))
            stop = max(end, min(stop, self._file.num_bytes))
            self._begin, self._data = begin, bytes(self._file.read(begin, stop))
        return self._data[begin - self._begin : end - self._begin]


def arrow_blocks(
    opened: LocalObject, row: int, columns: Sequence[str] | None, where: str
) -> Iterator[tuple[Block, int]]:
    """Read blocks of a file from a row on, each with how many rows it has; the row after the last is fine.

    The bodies of the record batches before it are not read.
    """
    names = schema_of(opened).names
    check_columns(columns, names, where)
    wanted = None if columns is None else [number for number, name in enumerate(names) if name in columns]
    batches, before = _batches_from(opened, row, pyarrow().ipc.IpcReadOptions(included_fields=wanted))
    skip = row - before
    for stored in batches:
        batch = checked(stored, before, where)
        before += batch.num_rows
        rest = batch.slice(min(skip, batch.num_rows))
        skip = max(0, skip - batch.num_rows)
        size = rows_at_once(rest.nbytes, rest.num_rows)
        for begin in range(0, rest.num_rows, size):
            block = block_of(rest.slice(begin, size), columns=columns)
            yield block, len(block)
    check_row(where, row, row if not skip else before)


def _batches_from(opened: LocalObject, row: int, options: Any) -> tuple[Iterator[Any], int]:
    """Begin with the record batch that a row is in; return how many rows come before it, too."""
    end = opened.num_bytes
    messages = find_messages(SmallReads(opened).read, end)[1] if row else []
    records = [message for message in messages if message.kind == RECORD_BATCH]
    ends = list(accumulate((message.num_rows for message in records), initial=0))
    first = bisect_right(ends, row) - 1
    if is_file(opened.read, end):
        reader = pyarrow().ipc.open_file(open_for_arrow(opened), options=options)
        return map(reader.get_batch, range(first, reader.num_record_batches)), ends[first]
    stored: Ranges = opened
    if messages:
        begin = records[first].begin if first < len(records) else end
        # All dictionaries: a later one of a column takes the place of an earlier one.
        others = [(each.begin, each.end) for each in messages if each.kind != RECORD_BATCH and each.begin < begin]
        stored = JoinedSpans(b"", opened, [*others, (begin, end)])
    return iter(pyarrow().ipc.open_stream(SpansInput(stored), options=options)), ends[first]


def count_rows(opened: LocalObject) -> int:
    """Return the number of rows of a file, as the heads of its record batches say it."""
    messages = find_messages(SmallReads(opened).read, opened.num_bytes)[1]
    return sum(message.num_rows for message in messages if message.kind == RECORD_BATCH)


def schema_of(opened: LocalObject) -> Any:
    """Return the schema of a file."""
    ipc = pyarrow().ipc
    return (ipc.open_file if is_file(opened.read, opened.num_bytes) else ipc.open_stream)(SpansInput(opened)).schema
