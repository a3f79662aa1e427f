"""Rows of several shards are parsed together, put in order, and blamed for what is wrong with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.base import ReadOptions
from penstock.reading.collected_rows import CollectedRows, join_batches
from tests.formats.in_place import InPlace, MemoryFile

if TYPE_CHECKING:
    from penstock.formats.base import ShardReader
    from penstock.types import Columns


def lines_of(name: str, rows: list[Any]) -> ShardReader:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    return open_one("jsonl", name, text)


def open_one(format_name: str, name: str, text: str) -> ShardReader:
    found = InPlace(format_name, MemoryFile(name, text.encode()))
    [info] = found.infos
    return found.form.open([found.raw(info)], info, ReadOptions())


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


def test_rows_of_several_shards_come_in_the_order_of_their_places() -> None:
    one, other = lines_of("a", [{"id": 0}, {"id": 1}]), lines_of("b", [{"id": 2}, {"id": 3}])
    samples = CollectedRows(numbers(1, 0, 0, 1), numbers(3, 1, 0, 2), by_column=False)
    samples.add(one, 0, 2)
    samples.add(other, 2, 4)
    samples.finish()
    assert samples.samples() == [{"id": 2}, {"id": 0}, {"id": 3}, {"id": 1}]
    columns = CollectedRows(numbers(1, 0, 0, 1), numbers(3, 1, 0, 2), by_column=True)
    columns.add(one, 0, 2)
    columns.add(other, 2, 4)
    columns.finish()
    assert np.asarray(columns.columns()["id"]).tolist() == [2, 0, 3, 1]
    assert np.asarray(columns.columns(1, 3)["id"]).tolist() == [0, 3]


def test_a_batch_has_the_columns_of_its_own_rows() -> None:
    reader = lines_of("a", [{"id": number} for number in range(200)] + [{"id": 200, "late": "x"}])
    columns = CollectedRows(numbers(0, 1, 2, 200), numbers(0, 1, 2, 3), by_column=True)
    columns.add(reader, 0, 4)
    columns.finish()
    assert columns.columns(0, 2).keys() == {"id"}
    assert columns.columns(2, 4)["late"] == [None, "x"]


@pytest.mark.parametrize("first", ["jsonl", "csv"])
def test_shards_that_are_parsed_in_other_ways_are_joined(first: str) -> None:
    readers = [lines_of("a", [{"id": "0"}, {"id": "1"}]), open_one("csv_file", "b", "id\n2\n3\n")]
    rows, places = numbers(0, 1, 0, 1), numbers(2, 0, 1, 3)
    order = (0, 1) if first == "jsonl" else (1, 0)
    samples, columns = CollectedRows(rows, places, by_column=False), CollectedRows(rows, places, by_column=True)
    for number in order:
        samples.add(readers[number], 2 * number, 2 * number + 2)
        columns.add(readers[number], 2 * number, 2 * number + 2)
    samples.finish()
    columns.finish()
    assert [sample["id"] for sample in samples.samples()] == ["1", "2", "0", "3"]
    assert columns.columns()["id"] == ["1", "2", "0", "3"]


def test_a_bad_row_is_named_also_if_its_shard_is_closed_by_then() -> None:
    good, bad = lines_of("a.jsonl", [{"id": 0}]), lines_of("b.jsonl", [{"id": 1}, "", "nonsense"])
    collector = CollectedRows(numbers(0, 0, 1), numbers(1, 2, 0), by_column=False)
    collector.add(good, 0, 1)
    collector.add(bad, 1, 3)
    good.close()
    bad.close()
    with pytest.raises(CorruptShardError, match=r"b\.jsonl, line 3: the line is not JSON"):
        collector.finish()


def test_columns_of_unequal_kind_become_lists() -> None:
    first: Columns = {"a": np.array([[1, 2], [3, 4]]), "b": ["x", "y"], "c": np.array([1, 2])}
    second: Columns = {"a": np.array([[5, 6]]), "b": ["z"], "c": np.array([0.5])}
    joined = join_batches([(np.array([2, 0]), first), (np.array([1]), second)], 3)
    assert isinstance(joined["a"], np.ndarray)
    assert joined["a"].tolist() == [[3, 4], [5, 6], [1, 2]]
    assert joined["b"] == ["y", "z", "x"]
    assert joined["c"] == [2, 0.5, 1]
    assert join_batches([], 0) == {}


def test_shards_of_different_columns_are_no_batch() -> None:
    batches: list[tuple[Any, Columns]] = [(np.array([0]), {"a": [1], "b": [2]}), (np.array([1]), {"a": [1], "c": [2]})]
    with pytest.raises(ConfigError, match=r"different columns: .*columns=\['a'\]"):
        join_batches(batches, 2)
