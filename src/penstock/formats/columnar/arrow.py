"""Arrow files and streams, read where they are: a shard is a record batch or some small ones, and dictionaries."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError
from penstock.formats.columnar.arrow_types import describe_schema, pyarrow, validated
from penstock.formats.columnar.format import (
    ColumnarFormat,
    corrupt,
    join_spans,
    read_types,
    reading_entry,
    write_shard,
)
from penstock.formats.columnar.inputs import PiecesInput, SpansInput
from penstock.formats.columnar.ipc import (
    DICTIONARY_BATCH,
    END_OF_STREAM,
    FILE_MAGIC,
    RECORD_BATCH,
    SCHEMA,
    IpcError,
    IPCMessage,
    messages_of_file,
    messages_of_stream,
    read_tail,
)
from penstock.formats.columnar.write import CHUNK_BYTES
from penstock.formats.files import ScannedFile, ScannedShard
from penstock.index.model import Column
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from penstock.formats.columnar.inputs import Ranges
    from penstock.formats.columnar.ipc import Read
    from penstock.formats.files import SpanBytes, StoredObject
    from penstock.index.model import ShardInfo
    from penstock.types import Int64Array

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
        first = read(0, min(8, file.num_bytes))
        if first.startswith(_FEATHER_1):
            raise ConfigError(
                f"{file.name} is a Feather file of version 1, which penstock does not read: write it again with a"
                " newer version"
            )
        try:
            if first.startswith(FILE_MAGIC) and file.num_bytes >= 18:
                kept, messages = _scan_file(read, file.num_bytes)
            else:
                kept, messages = _scan_stream(read, file.num_bytes)
        except IpcError as error:
            raise corrupt(file.name, f"is not an Arrow file, or is damaged: {error}") from error
        columns = _describe(kept, file.name)
        types = [[name, kind.to_json()] for name, kind in columns]
        return ScannedFile(
            tuple(Column(name, str(kind)) for name, kind in columns),
            tuple(_shards(messages)),
            {**{name: b64encode(data).decode() for name, data in kept.items()}, "types": types},
        )

    def spans(self, info: ShardInfo, columns: tuple[str, ...] | None) -> tuple[Span, ...]:  # noqa: ARG002
        """Return where the record batches lie, and their dictionaries: all columns of a batch are fetched together."""
        return join_spans(map(tuple, _bounds(info).tolist()), None, info.name)

    def unpack(self, info: ShardInfo, columns: tuple[str, ...] | None, stored: SpanBytes, out: BinaryIO) -> None:
        """Read and validate the batches, and write some rows at a time."""
        with reading_entry(info):
            kept = {name: b64decode(info.layout.settings[name]) for name in _KEPT if name in info.layout.settings}

        def batches() -> Iterator[Any]:
            for batch in map(validated, _read_batches(kept, info, stored)):  # a wrong offset would end the process
                rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1))
                yield from (batch.slice(begin, rows) for begin in range(0, batch.num_rows, rows))

        write_shard(batches(), read_types(info, columns), info, out)


def _read_batches(kept: Mapping[str, bytes], info: ShardInfo, stored: SpanBytes) -> Iterator[Any]:
    """Have pyarrow read a file of which only these batches are there, or a stream of them."""
    pa = pyarrow()
    options = pa.ipc.IpcReadOptions(use_threads=False)
    if "footer" in kept:
        numbers = _batch_numbers(info)
        with pa.ipc.open_file(SpansInput(stored, kept["footer"]), options=options) as file:
            yield from map(file.get_batch, numbers)
    else:
        pieces = [stored.read(begin, end) for begin, end in _bounds(info).tolist()]
        pieces = [memoryview(kept.get("schema", b"")), *pieces, memoryview(END_OF_STREAM)]
        with pa.ipc.open_stream(PiecesInput(pieces), options=options) as stream:
            yield from stream


def _scan_file(read: Read, end: int) -> tuple[dict[str, bytes], list[IPCMessage]]:
    tail = read_tail(read, end)
    return {"footer": tail}, messages_of_file(read, end, tail)


def _scan_stream(read: Read, end: int) -> tuple[dict[str, bytes], list[IPCMessage]]:
    messages = messages_of_stream(read, end)
    if not messages or messages[0].kind != SCHEMA:
        raise IpcError("it does not begin with a schema")
    return {"schema": read(messages[0].begin, messages[0].end)}, messages[1:]


def _describe(kept: Mapping[str, bytes], name: str) -> Any:
    pa = pyarrow()
    try:
        if "footer" in kept:
            with pa.ipc.open_file(pa.BufferReader(bytes(8) + kept["footer"])) as file:
                return describe_schema(file.schema)
        return describe_schema(pa.ipc.read_schema(pa.py_buffer(kept["schema"])))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", path=name) from error
    except Exception as error:  # pyarrow's errors are of many classes
        raise corrupt(name, f"has a schema that cannot be read: {error}") from error


def _shards(messages: Sequence[IPCMessage]) -> Iterator[ScannedShard]:
    """Join neighbours until they are of some size, or until a dictionary changes."""
    dictionaries: list[IPCMessage] = []
    together: list[IPCMessage] = []
    number = 0
    for message in messages:
        if message.kind == DICTIONARY_BATCH:
            if together:
                yield _to_shard(dictionaries, together, number)
                together = []
            if not message.is_delta:
                dictionaries = [each for each in dictionaries if each.number != message.number]
            dictionaries = [*dictionaries, message]
        elif message.kind == RECORD_BATCH:
            together.append(message)
            number += 1
            if sum(map(_raw_bytes, together)) >= _SMALLEST_SHARD:
                yield _to_shard(dictionaries, together, number)
                together = []
    if together:
        yield _to_shard(dictionaries, together, number)


def _to_shard(dictionaries: list[IPCMessage], batches: list[IPCMessage], end: int) -> ScannedShard:
    """Describe batches up to one of all batches; how many these are, and where they and their dictionaries lie."""
    bounds = [(message.begin, message.end) for message in (*dictionaries, *batches)]
    return ScannedShard(
        num_samples=sum(batch.num_rows for batch in batches),
        span=Span(min(batch.begin for batch in batches), max(batch.end for batch in batches)),
        raw_bytes=sum(map(_raw_bytes, (*dictionaries, *batches))) + 1024,
        is_exact=False,
        details=np.array([(end - len(batches), end), *bounds], "<i8").tobytes(),
    )


def _raw_bytes(message: IPCMessage) -> int:
    return message.body_bytes * (_UNPACKED_TO_PACKED if message.is_compressed else 1)


def _bounds(info: ShardInfo) -> Int64Array:
    """Return where the messages of a shard begin and end."""
    return _read_details(info)[1:]


def _batch_numbers(info: ShardInfo) -> range:
    """Return the numbers of the batches of a shard."""
    begin, end = _read_details(info)[0].tolist()
    return range(begin, end)


def _read_details(info: ShardInfo) -> Int64Array:
    with reading_entry(info):
        pairs: Int64Array = np.frombuffer(info.details, "<i8").reshape(-1, 2)
        if not len(pairs) or (pairs[:, 0] < 0).any() or (pairs[:, 0] > pairs[:, 1]).any():
            raise ValueError("its messages do not begin anywhere")
    return pairs


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
