"""Messages of Arrow files and streams are found by their heads, and read from any row on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import SampleIndexError
from penstock.formats.columnar.arrow import (
    DICTIONARY_BATCH,
    RECORD_BATCH,
    IpcError,
    arrow_blocks,
    count_rows,
    find_messages,
)
from penstock.formats.columnar.format import JoinedSpans
from tests.formats.columnar.test_nodes import write_ipc

if TYPE_CHECKING:
    from pathlib import Path

TABLE = pa.table({"x": range(10), "s": pa.array([f"{number % 3}" for number in range(10)]).dictionary_encode()})


class Opened:
    """An object of a store."""

    def __init__(self, data: bytes) -> None:
        self._data, self.num_bytes = data, len(data)

    def read(self, begin: int, end: int) -> bytes:
        assert 0 <= begin <= end <= self.num_bytes
        return self._data[begin:end]

    def local_path(self) -> Path | None:
        return None

    def fetch_tail(self, num_bytes: int) -> None:
        """Nothing is far away."""


def opened(*, is_file: bool) -> Opened:
    return Opened(write_ipc(TABLE, 4, is_file=is_file, compression=None))


@pytest.mark.parametrize("is_file", [True, False])
def test_messages_are_found(*, is_file: bool) -> None:
    file = opened(is_file=is_file)
    kept, messages = find_messages(file.read, file.num_bytes)
    assert list(kept) == ["footer" if is_file else "schema"]
    assert [message.num_rows for message in messages if message.kind == RECORD_BATCH] == [4, 4, 2]
    assert sum(message.kind == DICTIONARY_BATCH for message in messages) == 1
    assert count_rows(file) == 10
    with pytest.raises(IpcError):
        find_messages(file.read, file.num_bytes - 40 if is_file else 40)


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.parametrize("row", range(11))
def test_blocks_begin_at_any_row(row: int, *, is_file: bool) -> None:
    blocks = list(arrow_blocks(opened(is_file=is_file), row, None, "a.arrow"))
    samples: list[Any] = [sample for block, _ in blocks for sample in block.samples()]
    assert samples == TABLE.to_pylist()[row:]
    assert sum(num_rows for _, num_rows in blocks) == 10 - row


def test_a_row_beyond_the_end() -> None:
    with pytest.raises(SampleIndexError, match=r"a\.arrow"):
        list(arrow_blocks(opened(is_file=True), 11, None, "a.arrow"))


def test_spans_are_read_as_one_file() -> None:
    joined = JoinedSpans(b"ab", Opened(b"0123456789"), [(1, 3), (5, 5), (6, 9)])
    whole = b"ab12678"
    assert joined.num_bytes == len(whole)
    for begin in range(len(whole) + 1):
        for end in range(begin, len(whole) + 1):
            assert bytes(joined.read(begin, end)) == whole[begin:end]
