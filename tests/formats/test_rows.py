"""Tables of offsets, and which rows are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import CorruptShardError, SampleIndexError
from penstock.formats.rows import check_rows, max_samples, read_offsets, table_bytes, write_offsets


def test_a_table_is_read_as_it_was_written() -> None:
    table = write_offsets(np.array([3, 3, 10]), table_bytes(3))
    assert len(table) == table_bytes(3) == 20
    assert read_offsets(table, 3, begin=20, end=30, shard="a").tolist() == [20, 23, 23, 30]
    assert max_samples(len(table)) == 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([2, 16, 20, 30], "holds 2 samples, but the index says 3"),
        ([3, 20, 25, 23, 30], "has sample offsets that decrease"),
        ([3, 20, 23, 25, 31], "has samples from byte 20 to 31, but they must end at 30"),
        ([3, 19, 23, 25, 30], "begin at 20 or later"),
        ([3, 20], "is too short to hold the offsets of 3 samples"),
    ],
)
def test_a_wrong_table_is_an_error(words: list[int], reason: str) -> None:
    table = np.array(words, "<u4").tobytes().ljust(20 if len(words) > 2 else 0, b"\0")
    with pytest.raises(CorruptShardError, match=f"a .*{reason}|a {reason}"):
        read_offsets(table, 3, begin=20, end=30, shard="a")


@pytest.mark.parametrize("rows", [[2], [0, 2, 2], range(2, -1, -1), np.array([1]), []])
def test_rows_within_a_shard(rows: Any) -> None:
    assert check_rows(rows, 3, "a").tolist() == list(rows)


@pytest.mark.parametrize("rows", [[3], [0, -1], range(2, 4), np.array([-1]), [2**70]])
def test_rows_outside_of_a_shard(rows: Any) -> None:
    with pytest.raises(SampleIndexError, match="a has rows 0 to 2, and you asked for"):
        check_rows(rows, 3, "a")
