"""The footer of a Parquet file: what it says of row groups, and footers of its own for some of them.

A footer may be megabytes long, and every shard would need it. So it is cut: the schema is kept once a file, and of each
row group what it takes to read it. Together they are a footer again, which pyarrow takes for that of the file.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.outside_text import Bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BOOL_TRUE, BOOL_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_WHOLE_NUMBERS = (I16, I32, I64)
_DEEPEST = 24  # footers are nested seven levels deep
_LONGEST_NUMBER = 10


class ThriftError(ValueError):
    """The bytes are not what Thrift writes."""


class CompactReader:
    """Reads one value after another from `position` on.

    A thousand footers hold a million values: what every value goes through is written out, not called.
    """

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data, self.position = data, position

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the kind of each field of a struct; the caller reads or skips it before the next."""
        number = 0
        while True:
            head = self.byte()
            if head == 0:
                return
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 15

    def byte(self) -> int:
        """Return the next byte."""
        try:
            byte = self.data[self.position]
        except IndexError:
            raise _too_early() from None
        self.position += 1
        return byte

    def unsigned(self) -> int:
        """Return a number of any length."""
        begin = self.position
        self._skip_number()
        if self.position == begin + 1:
            return self.data[begin]
        value = 0
        for byte in reversed(self.data[begin : self.position]):
            value = value << 7 | byte & 127
        return value

    def integer(self) -> int:
        """Return a number with its sign."""
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def integers(self, wanted: tuple[int, ...]) -> dict[int, int]:
        """Return some fields of a struct, all of them numbers, by their own numbers."""
        found: dict[int, int] = {}
        for number, kind in self.fields():
            if number in wanted:
                found[number] = self.integer()
            else:
                self.skip(kind)
        return found

    def binary(self) -> bytes:
        """Return a text or other bytes."""
        begin = self._skip_binary()
        return self.data[begin : self.position]

    def items(self) -> tuple[int, int]:
        """Return how many items a list has, and their kind; the caller reads or skips each."""
        head = self.byte()
        count = self.unsigned() if head >> 4 == 15 else head >> 4
        if count > len(self.data) - self.position:  # each takes a byte at least
            raise ThriftError("it holds a list that is longer than the footer itself")
        return count, head & 15

    def skip(self, kind: int, depth: int = 0) -> None:
        """Step over a value."""
        if depth > _DEEPEST:
            raise ThriftError("it is nested too deeply")
        if kind in _WHOLE_NUMBERS:
            self._skip_number()
        elif kind == BINARY:
            self._skip_binary()
        elif kind == STRUCT:
            while head := self.byte():
                if head < 16:
                    self._skip_number()
                self.skip(head & 15, depth + 1)
        elif kind in (LIST, SET):
            count, item = self.items()
            for _ in range(count):
                self._skip_item(item, depth + 1)
        elif kind == MAP:
            self._skip_map(depth)
        elif kind in (BYTE, DOUBLE):
            self._step(1 if kind == BYTE else 8)
        elif kind not in (BOOL_TRUE, BOOL_FALSE):  # which take no bytes
            raise ThriftError(f"it holds a value of the unknown kind {kind}")

    def _skip_number(self) -> None:
        data, position = self.data, self.position
        try:
            while data[position] > 127:
                position += 1
        except IndexError:
            raise _too_early() from None
        if position - self.position >= _LONGEST_NUMBER:
            raise ThriftError("it holds a number that is too long")
        self.position = position + 1

    def _skip_binary(self) -> int:
        size = self.unsigned()
        begin = self.position
        self._step(size)
        return begin

    def _skip_item(self, kind: int, depth: int) -> None:
        if kind in (BOOL_TRUE, BOOL_FALSE):  # in lists and maps they do
            self._step(1)
        else:
            self.skip(kind, depth)

    def _skip_map(self, depth: int) -> None:
        count = self.unsigned()
        if count > len(self.data) - self.position:
            raise ThriftError("it holds a map that is longer than the footer itself")
        kinds = self.byte() if count else 0
        for _ in range(count):
            self._skip_item(kinds >> 4, depth + 1)
            self._skip_item(kinds & 15, depth + 1)

    def _step(self, num_bytes: int) -> None:
        self.position += num_bytes
        if self.position > len(self.data):
            raise _too_early()


def _too_early() -> ThriftError:
    return ThriftError("it ends too early")


# --- Writing --------------------------------------------------------------------------------------------------


def write_struct(fields: list[tuple[int, int, bytes]]) -> bytes:
    """Return a struct of these fields: number, kind, and the value as it is written; by rising number."""
    out = bytearray()
    last = 0
    for number, kind, value in fields:
        step = number - last
        out += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + write_integer(number)
        out += value
        last = number
    return bytes(out) + b"\0"


def write_list(kind: int, items: list[bytes]) -> bytes:
    """Return a list of items as they are written."""
    count = len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _write_unsigned(count)
    return head + b"".join(items)


def write_integer(value: int) -> bytes:
    """Return a number with its sign."""
    return _write_unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def write_binary(value: bytes) -> bytes:
    """Return a text or other bytes."""
    return _write_unsigned(len(value)) + value


def _write_unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


MAGIC = b"PAR1"
# pyarrow walks schemas by recursion: one that is deeper would end the process.
_DEEPEST_SCHEMA = 200
_KEPT_OF_FILE = (b"ARROW:schema", b"huggingface")
_KEPT_OF_CHUNK = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11)  # all that reading takes: no statistics, no indexes
_FIXED_BYTES = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # by physical type
_BYTE_ARRAY = 6
_TIMES_IN_DICTIONARY = 4  # a guess: how often text stands in a column whose dictionary holds it once
_OLD_PARQUET_MR = Bounded(rb"\Aparquet-mr version (\d+)\.(\d+)\.(\d+)", 64)


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The values of one leaf of the schema in one row group: where they are, and how many bytes they unpack to."""

    path: tuple[str, ...]
    begin: int
    num_bytes: int
    raw_bytes: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that lie together."""

    num_rows: int
    chunks: tuple[ColumnChunk, ...]
    stored: bytes  # as it stands in a footer

    @property
    def raw_bytes(self) -> int:
        """About how many bytes its values take unpacked."""
        return sum(chunk.raw_bytes for chunk in self.chunks)

    @property
    def bounds(self) -> tuple[int, int]:
        """The bytes of the file that it lies in."""
        begins = [chunk.begin for chunk in self.chunks]
        return min(begins), max(chunk.begin + chunk.num_bytes for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class FileHead:
    """What all row groups of a file share, as it stands in its footer."""

    version: int
    schema: bytes
    metadata: tuple[tuple[bytes, bytes], ...]
    created_by: bytes

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON. Of the metadata only the schema in Arrow's words is needed to read."""
        arrow = [b64encode(value).decode() for key, value in self.metadata if key == _KEPT_OF_FILE[0]]
        schema, created_by = b64encode(self.schema).decode(), self.created_by.decode("latin-1")
        return {"version": self.version, "schema": schema, "created_by": created_by, "arrow_schema": arrow}

    @staticmethod
    @lru_cache(maxsize=64)
    def parse(version: int, schema: str, created_by: str, arrow_schema: tuple[str, ...]) -> FileHead:
        """Take what `to_json` returned; that every shard of a file needs it is parsed once for all of them."""
        metadata = tuple((_KEPT_OF_FILE[0], b64decode(value)) for value in arrow_schema)
        _read_schema(CompactReader(b64decode(schema)))
        return FileHead(int(version), b64decode(schema), metadata, created_by.encode("latin-1"))

    @property
    def hidden_bytes(self) -> int:
        """How far columns may reach beyond their size: the first writers forgot to count the head of a page."""
        found = _OLD_PARQUET_MR.search(self.created_by)
        return 100 if found and tuple(map(int, found.groups())) < (1, 2, 9) else 0

    def footer(self, num_rows: int, row_groups: bytes) -> bytes:
        """Return a footer of these row groups alone, as a file ends with it and its length."""
        pairs = [
            write_struct([(1, BINARY, write_binary(key)), (2, BINARY, write_binary(value))])
            for key, value in self.metadata
        ]
        fields = [
            (1, I32, write_integer(self.version)),
            (2, LIST, self.schema),
            (3, I64, write_integer(num_rows)),
            (4, LIST, row_groups),
            (5, LIST, write_list(STRUCT, pairs)),
            (6, BINARY, write_binary(self.created_by)),
        ]
        footer = write_struct(fields if pairs else [field for field in fields if field[0] != 5])
        return footer + len(footer).to_bytes(4, "little") + MAGIC


def parse_footer(data: bytes) -> tuple[FileHead, list[RowGroup]]:
    """Understand a footer, in one walk over it; or raise a `ThriftError`."""
    reader = CompactReader(data)
    version, schema, created_by = 1, b"", b""
    widths: list[int] = []
    metadata: list[tuple[bytes, bytes]] = []
    row_groups: list[RowGroup] = []
    for number, kind in reader.fields():
        if number == 1:
            version = reader.integer()
        elif number == 2:
            begin = reader.position
            widths = _read_schema(reader)
            schema = data[begin : reader.position]
        elif number == 4:
            row_groups = read_row_groups(reader, widths)
        elif number == 5:
            metadata = _read_metadata(reader)
        elif number == 6:
            created_by = reader.binary()
        elif number in (8, 9):
            raise ThriftError("it is encrypted")
        else:
            reader.skip(kind)
    if not schema:
        raise ThriftError("it has no schema")
    if any(len(group.chunks) != len(widths) for group in row_groups):
        raise ThriftError("it has row groups whose columns differ from its schema")
    return FileHead(version, schema, tuple(metadata), created_by), row_groups


def _read_schema(reader: CompactReader) -> list[int]:
    """Return the bytes of the values of each leaf, 0 if they differ; refuse a tree that is none, or too deep."""
    count, _ = reader.items()
    widths: list[int] = []
    open_nodes: list[int] = []  # how many children each node on the way to this one still lacks
    for place in range(count):
        found = reader.integers((1, 2, 5))
        physical, width, num_children = (found.get(number, 0) for number in (1, 2, 5))
        if (place > 0) != bool(open_nodes) or not 0 <= num_children <= count or len(open_nodes) > _DEEPEST_SCHEMA:
            raise ThriftError("it has a schema that is not a tree, or too deep")
        if open_nodes:
            open_nodes[-1] -= 1
        if num_children:
            open_nodes.append(num_children)
        elif place:
            widths.append(0 if physical == _BYTE_ARRAY else _FIXED_BYTES.get(physical, max(width, 0)))
        while open_nodes and open_nodes[-1] == 0:
            open_nodes.pop()
    if open_nodes:
        raise ThriftError("it has a schema that is not a tree")
    return widths


def _read_metadata(reader: CompactReader) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    count, _ = reader.items()
    for _ in range(count):
        pair = {number: reader.binary() for number, _ in reader.fields()}
        if pair.get(1) in _KEPT_OF_FILE:
            found.append((pair[1], pair.get(2, b"")))
    return found


def read_row_groups(reader: CompactReader, widths: Sequence[int]) -> list[RowGroup]:
    """Read a list of row groups, of a footer or of what `write_row_groups` gave."""
    count, _ = reader.items()
    return [_read_row_group(reader, widths) for _ in range(count)]


def write_row_groups(groups: Iterable[RowGroup]) -> bytes:
    """Return a list of row groups, as a footer has it."""
    return write_list(STRUCT, [group.stored for group in groups])


def _read_row_group(reader: CompactReader, widths: Sequence[int]) -> RowGroup:
    chunks: list[ColumnChunk] = []
    stored: list[bytes] = []
    num_rows = total_bytes = 0
    for number, kind in reader.fields():
        if number == 1:
            count, _ = reader.items()
            for place in range(count):
                chunk, as_stored = _read_chunk(reader, widths[place] if place < len(widths) else 0)
                chunks.append(chunk)
                stored.append(as_stored)
        elif number == 2:
            total_bytes = reader.integer()
        elif number == 3:
            num_rows = reader.integer()
        else:
            reader.skip(kind)
    if num_rows < 0 or not chunks:
        raise ThriftError("it has a row group without rows or columns")
    fields = [
        (1, LIST, write_list(STRUCT, stored)),
        (2, I64, write_integer(total_bytes)),
        (3, I64, write_integer(num_rows)),
    ]
    return RowGroup(num_rows, tuple(chunks), write_struct(fields))


def _read_chunk(reader: CompactReader, width: int) -> tuple[ColumnChunk, bytes]:
    chunk: ColumnChunk | None = None
    stored = b""
    for number, kind in reader.fields():
        if number == 1 and reader.binary():
            raise ThriftError("it has columns that are stored in other files")
        if number == 3:
            chunk, stored = _read_chunk_metadata(reader, width)
        elif number in (8, 9):
            raise ThriftError("it is encrypted")
        elif number != 1:
            reader.skip(kind)
    if chunk is None:
        raise ThriftError("it has columns that it does not describe")
    return chunk, write_struct([(2, I64, write_integer(0)), (3, STRUCT, stored)])


def _read_chunk_metadata(reader: CompactReader, width: int) -> tuple[ColumnChunk, bytes]:
    kept: list[tuple[int, int, bytes]] = []
    numbers: dict[int, int] = {}
    path: tuple[str, ...] = ()
    unencoded: int | None = None
    for number, kind in reader.fields():
        begin = reader.position
        if number == 3:
            path = tuple(reader.binary().decode("utf-8", "replace") for _ in range(reader.items()[0]))
        elif number in (5, 6, 7, 9, 11):
            numbers[number] = reader.integer()
        elif number == 16:
            unencoded = reader.integers((1,)).get(1)  # without dictionary and compression, of writers that say so
        else:
            reader.skip(kind)
        if number in _KEPT_OF_CHUNK:
            kept.append((number, kind, reader.data[begin : reader.position]))
    values, unpacked, size, data_page = (numbers.get(number, -1) for number in (5, 6, 7, 9))
    if min(values, unpacked, size, data_page) < 0:
        raise ThriftError("it has a column without sizes, or with negative ones")
    dictionary = numbers.get(11, 0)
    begin = dictionary if 0 < dictionary < data_page else data_page
    guessed = unpacked * (_TIMES_IN_DICTIONARY if 11 in numbers else 1)
    text_bytes = guessed if unencoded is None else max(unencoded, 0)
    raw_bytes = values * width if width else text_bytes + 4 * values
    return ColumnChunk(path, begin, size, raw_bytes), write_struct(sorted(kept))
