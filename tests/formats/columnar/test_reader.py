"""Rows of several files of columns are found together; they stay readable when files differ, or are closed by then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.formats.columnar import parquet
from penstock.reading.collected_rows import CollectedRows
from tests.formats.columnar.test_nodes import write_parquet
from tests.formats.in_place import InPlace, MemoryFile

ROWS, PLACES = np.array([0, 1, 0, 1]), np.array([2, 0, 3, 1])
EQUAL: list[Any] = [[1, 2], [3, 4], [5, 6], [7, 8]]


def collect(collector: CollectedRows, lists: list[Any], *, gathers: bool) -> None:
    """Take rows of two row groups, one after the other; in between, what was taken may have to be copied."""
    table = pa.table({"x": pa.array(lists, pa.list_(pa.int32())), "s": ["a", "bb", "", "dddd"]})
    with InPlace("parquet", MemoryFile("a.file", write_parquet(table, row_group_size=2))).opened() as readers:
        for number, reader in enumerate(readers):
            collector.add(reader, 2 * number, 2 * number + 2)
            if gathers:
                collector.gather()
        collector.finish()


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize(
    ("lists", "is_array"),
    [
        (EQUAL, True),
        ([[], [], [], []], True),
        ([[1], [2, 3], [], [4]], False),
        ([*EQUAL[:3], None], False),
        ([[1, None], *EQUAL[1:]], False),
    ],
)
def test_lists_of_several_files(
    monkeypatch: pytest.MonkeyPatch, lists: list[Any], is_array: bool, gathers: bool
) -> None:
    monkeypatch.setattr(parquet, "_SMALLEST_SHARD", 1)
    samples, columns = CollectedRows(ROWS, PLACES, by_column=False), CollectedRows(ROWS, PLACES, by_column=True)
    collect(samples, lists, gathers=gathers)
    collect(columns, lists, gathers=gathers)
    expected = [lists[row] for row in np.argsort(PLACES)]
    texts = [["a", "bb", "", "dddd"][row] for row in np.argsort(PLACES)]
    assert [sample["x"] if sample["x"] is None else list(sample["x"]) for sample in samples.samples()] == expected
    assert [sample["s"] for sample in samples.samples()] == texts
    found = columns.columns()["x"]
    assert [each if each is None else list(each) for each in found] == expected
    assert isinstance(found, np.ndarray) == is_array
