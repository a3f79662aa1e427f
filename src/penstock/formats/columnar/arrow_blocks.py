"""Blocks of an Arrow file or stream from a row on, without reading the bodies of the record batches before it."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from penstock.blocks.stage import check_row
from penstock.formats.columnar.arrow import SmallReads
from penstock.formats.columnar.arrow_types import pyarrow
from penstock.formats.columnar.blocks import block_of, rows_at_once
from penstock.formats.columnar.checks import check_columns, checked
from penstock.formats.columnar.inputs import SpansInput, open_for_arrow
from penstock.formats.columnar.ipc import (
    FILE_MAGIC,
    RECORD_BATCH,
    messages_of_file,
    messages_of_stream,
    read_tail,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.blocks.block import Block
    from penstock.formats.columnar.inputs import LocalObject, Ranges
    from penstock.formats.columnar.ipc import IPCMessage


def arrow_blocks(
    opened: LocalObject, row: int, columns: Sequence[str] | None, where: str
) -> Iterator[tuple[Block, int]]:
    """Read blocks of a file from a row on, each with how many rows it has; the row after the last is fine."""
    for batch in _batches(opened, row, columns, where):
        size = rows_at_once(batch.nbytes, batch.num_rows)
        for begin in range(0, batch.num_rows, size):
            block = block_of(batch.slice(begin, size), columns=columns)
            yield block, len(block)


def _batches(opened: LocalObject, row: int, columns: Sequence[str] | None, where: str) -> Iterator[Any]:
    names = schema_of(opened).names
    check_columns(columns, names, where)
    messages = _messages_of(opened) if row else []
    first, before = _find(messages, row) if row else (0, 0)
    wanted = None if columns is None else [number for number, name in enumerate(names) if name in columns]
    ipc = pyarrow().ipc
    options = ipc.IpcReadOptions(included_fields=wanted)
    if _is_file(opened):
        reader = ipc.open_file(open_for_arrow(opened), options=options)
        batches = map(reader.get_batch, range(first, reader.num_record_batches))
    else:
        batches = ipc.open_stream(SpansInput(_from_batch(opened, messages, first)), options=options)
    skip = row - before
    for stored in batches:
        batch = checked(stored, before, where)
        before += batch.num_rows
        if skip < batch.num_rows:
            yield batch.slice(skip)
        skip = max(0, skip - batch.num_rows)
    check_row(where, row, row if not skip else before)


def count_rows(opened: LocalObject) -> int:
    """Return the number of rows of a file, as the heads of its record batches say it."""
    return sum(message.num_rows for message in _messages_of(opened) if message.kind == RECORD_BATCH)


def _messages_of(opened: LocalObject) -> list[IPCMessage]:
    read, end = SmallReads(opened).read, opened.num_bytes
    return messages_of_file(read, end, read_tail(read, end)) if _is_file(opened) else messages_of_stream(read, end)


def schema_of(opened: LocalObject) -> Any:
    """Return the schema of a file."""
    ipc = pyarrow().ipc
    return (ipc.open_file if _is_file(opened) else ipc.open_stream)(SpansInput(opened)).schema


def _is_file(opened: LocalObject) -> bool:
    return opened.read(0, min(len(FILE_MAGIC), opened.num_bytes)) == FILE_MAGIC


def _from_batch(opened: LocalObject, messages: Sequence[IPCMessage], first: int) -> Ranges:
    """Return a stream from a record batch on, with the schema and dictionaries that come before it."""
    batches = [message for message in messages if message.kind == RECORD_BATCH]
    if not messages:
        return opened
    begin = batches[first].begin if first < len(batches) else opened.num_bytes
    # All dictionaries: a later one of a column takes the place of an earlier one.
    others = [each for each in messages if each.kind != RECORD_BATCH and each.begin < begin]
    return _Continued(b"".join(bytes(opened.read(each.begin, each.end)) for each in others), opened, begin)


def _find(messages: Sequence[IPCMessage], row: int) -> tuple[int, int]:
    """Return the number of the record batch that a row is in, and how many rows come before it."""
    before = 0
    counts = [message.num_rows for message in messages if message.kind == RECORD_BATCH]
    for number, end in enumerate(accumulate(counts)):
        if end > row:
            return number, before
        before = end
    return len(counts), before


class _Continued:
    """Some bytes, and after them a file from a place on."""

    def __init__(self, first: bytes, opened: LocalObject, begin: int) -> None:
        self._first, self._opened, self._shift = first, opened, begin - len(first)
        self.num_bytes = opened.num_bytes - self._shift

    def read(self, begin: int, end: int) -> bytes:
        """Read a range."""
        at = max(begin, len(self._first))
        rest = self._opened.read(at + self._shift, end + self._shift) if end > at else b""
        return self._first[begin:end] + bytes(rest)
