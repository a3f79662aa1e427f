"""Tables and functions as sources: pieces of rows, and what tells them from others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.conversion.inputs import FunctionsSource, Replayed, as_table
from penstock.errors import ConfigError


def numbers() -> list[dict[str, int]]:
    return [{"id": number} for number in range(5)]


def test_a_table_is_cut_into_pieces_of_rows() -> None:
    table = as_table(pa.table({"id": range(70_000)}))
    assert table is not None
    assert table.shard_names == ["rows:0", "rows:65536"]
    assert table.shard_lengths() == [65536, 70_000 - 65536]
    assert next(table.open_shard_at_row("rows:65536", 10)) == {"id": 65546}
    other = as_table(pa.table({"id": range(1, 70_001)}))
    assert other is not None
    assert other.fingerprint != table.fingerprint
    assert as_table([1, 2]) is None


def test_functions_are_shards_and_their_code_tells_them_apart() -> None:
    source = FunctionsSource([numbers, lambda: numbers()[:2]])
    assert [sample["id"] for sample in source] == [0, 1, 2, 3, 4, 0, 1]
    assert [sample["id"] for sample in source.open_shard_at_row("function:0", 3)] == [3, 4]
    assert source.fingerprint != FunctionsSource([numbers, numbers]).fingerprint


def test_only_the_first_samples_of_an_iterator_are_read_again() -> None:
    few = Replayed(iter(numbers()))
    assert list(few()) == list(few()) == numbers()
    many = Replayed({"id": number} for number in range(10_000))
    assert len(list(many())) == 10_000
    with pytest.raises(ConfigError, match="only once"):
        next(iter(many()))
