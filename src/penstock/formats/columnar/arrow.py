"""Arrow files and streams, read where they are: a shard is a record batch or some small ones, and dictionaries."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError
from penstock.formats.columnar.arrow_types import describe_schema, pyarrow
from penstock.formats.columnar.format import ColumnarFormat, corrupt, join_spans, read_types, write_shard
from penstock.formats.columnar.ipc import (
    DICTIONARY_BATCH,
    END_OF_STREAM,
    FILE_MAGIC,
    RECORD_BATCH,
    SCHEMA,
    IpcError,
    Message,
    messages_of_file,
    messages_of_stream,
)
from penstock.formats.columnar.write import CHUNK_BYTES
from penstock.formats.files import ScannedFile, ScannedShard
from penstock.index.model import Column
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from penstock.formats.files import SpanBytes, StoredObject
    from penstock.index.model import ShardInfo
    from penstock.types import Int64Array

_TAIL_BYTES = 16 << 10
_SMALLEST_SHARD = 1 << 20
_UNPACKED_TO_PACKED = 3  # of compressed buffers: what they unpack to stands within them
_FEATHER_1 = b"FEA1"


class ArrowFormat(ColumnarFormat):
    """Finds record batches by their metadata, and has pyarrow unpack and validate them."""

    suffixes = (".arrow", ".arrows", ".feather", ".ipc")
    magic = FILE_MAGIC
    tail_bytes = _TAIL_BYTES

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:  # noqa: ARG002
        """Read the metadata of all record batches."""
        read = _Window(file).read
        first = read(0, min(8, file.num_bytes))
        if first.startswith(_FEATHER_1):
            raise ConfigError(
                f"{file.name} is a Feather file of version 1, which penstock does not read: write it anew"
            )
        is_file = first.startswith(FILE_MAGIC) and file.num_bytes >= 18
        try:
            messages = (messages_of_file if is_file else messages_of_stream)(read, file.num_bytes)
        except IpcError as error:
            raise corrupt(file.name, f"is no Arrow file, or a broken one: {error}") from error
        if not messages or messages[0].kind != SCHEMA:
            raise corrupt(file.name, "is no Arrow file, or a broken one: it does not begin with a schema")
        schema = read(messages[0].begin, messages[0].end)
        columns = _describe(schema, file.name)
        return ScannedFile(
            tuple(Column(name, str(kind)) for name, kind in columns),
            tuple(_shards(messages[1:])),
            {"schema": b64encode(schema).decode(), "types": [[name, kind.to_json()] for name, kind in columns]},
        )

    def spans(self, info: ShardInfo, columns: tuple[str, ...] | None) -> tuple[Span, ...]:  # noqa: ARG002
        """Give where the record batches lie, and their dictionaries: all columns of a batch are fetched together."""
        return join_spans(map(tuple, _bounds(info).tolist()), None)

    def unpack(self, info: ShardInfo, columns: tuple[str, ...] | None, stored: SpanBytes, out: BinaryIO) -> None:
        """Read the batches as a stream of their own."""
        pa = pyarrow()
        pieces = [memoryview(b64decode(info.layout.settings["schema"]))]
        pieces += [stored.read(begin, end) for begin, end in _bounds(info).tolist()]

        def batches() -> Iterator[Any]:
            options = pa.ipc.IpcReadOptions(use_threads=False)
            with pa.ipc.open_stream(_Pieces([*pieces, memoryview(END_OF_STREAM)]), options=options) as stream:
                for batch in stream:
                    batch.validate(full=True)  # a wrong offset would end the process
                    rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1))
                    yield from (batch.slice(begin, rows) for begin in range(0, batch.num_rows, rows))

        write_shard(batches(), read_types(info.layout, columns), info, out)


def _describe(schema: bytes, name: str) -> Any:
    pa = pyarrow()
    try:
        return describe_schema(pa.ipc.read_schema(pa.py_buffer(schema)))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", path=name) from error
    except Exception as error:  # pyarrow's errors are of many classes
        raise corrupt(name, f"has a schema that cannot be read: {error}") from error


def _shards(messages: Sequence[Message]) -> Iterator[ScannedShard]:
    """Join neighbours until they are of some size, or until a dictionary changes."""
    dictionaries: list[Message] = []
    together: list[Message] = []
    for message in messages:
        if message.kind == DICTIONARY_BATCH:
            if together:
                yield _to_shard(dictionaries, together)
                together = []
            if not message.is_delta:
                dictionaries = [each for each in dictionaries if each.number != message.number]
            dictionaries = [*dictionaries, message]
        elif message.kind == RECORD_BATCH and message.num_rows:
            together.append(message)
            if sum(map(_raw_bytes, together)) >= _SMALLEST_SHARD:
                yield _to_shard(dictionaries, together)
                together = []
    if together:
        yield _to_shard(dictionaries, together)


def _to_shard(dictionaries: list[Message], batches: list[Message]) -> ScannedShard:
    bounds = np.array([(message.begin, message.end) for message in (*dictionaries, *batches)], "<i8")
    return ScannedShard(
        num_samples=sum(batch.num_rows for batch in batches),
        span=Span(min(batch.begin for batch in batches), max(batch.end for batch in batches)),
        raw_bytes=sum(map(_raw_bytes, (*dictionaries, *batches))) + 1024,
        is_exact=False,
        details=bounds.tobytes(),
    )


def _raw_bytes(message: Message) -> int:
    return message.body_bytes * (_UNPACKED_TO_PACKED if message.is_compressed else 1)


def _bounds(info: ShardInfo) -> Int64Array:
    """Give where the messages of a shard begin and end."""
    if not info.details or len(info.details) % 16:
        raise corrupt(info.name, "has an entry in the index that cannot be read")
    bounds: Int64Array = np.frombuffer(info.details, "<i8").reshape(-1, 2)
    if (bounds[:, 0] < 0).any() or (bounds[:, 0] > bounds[:, 1]).any():
        raise corrupt(info.name, "has an entry in the index that cannot be read")
    return bounds


class _Window:
    """Reads small pieces of a file by few requests: more than was asked for, if pieces turn out to be near."""

    _FEW, _MANY, _NEAR = 64 << 10, 4 << 20, 256 << 10

    def __init__(self, file: StoredObject) -> None:
        self._file = file
        self._begin, self._data = 0, b""

    def read(self, begin: int, end: int) -> bytes:
        if not self._begin <= begin <= end <= self._begin + len(self._data):
            is_near = 0 <= begin - (self._begin + len(self._data)) < self._NEAR
            stop = max(end, begin + (self._MANY if is_near and self._data else self._FEW))
            stop = max(end, min(stop, self._file.num_bytes))
            self._begin, self._data = begin, self._file.read(begin, stop)
        return self._data[begin - self._begin : end - self._begin]


class _Pieces:
    """Bytes in several places as one file, which pyarrow reads from its beginning to its end."""

    closed = False

    def __init__(self, pieces: list[memoryview]) -> None:
        self._pieces = pieces[::-1]

    def read(self, size: int = -1) -> bytes:
        return bytes(self._take(size))

    def read_buffer(self, size: int = -1) -> Any:
        return pyarrow().py_buffer(self._take(size))

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def _take(self, size: int) -> memoryview:
        """Give the next bytes; they lie in one piece, unless a message lies about its size."""
        while self._pieces and not self._pieces[-1]:
            self._pieces.pop()
        if not self._pieces:
            return memoryview(b"")
        piece = self._pieces[-1]
        if size < 0 or size > len(piece):
            whole = b"".join(self._pieces[::-1])
            self._pieces = [memoryview(whole)]
            return self._take(min(size, len(whole)) if size >= 0 else len(whole))
        self._pieces[-1] = piece[size:]
        return piece[:size]
